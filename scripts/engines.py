#!/usr/bin/env python3
"""GridFTP with engines on processors of their own: whose processor time a transfer takes.

    scripts/engines.py [--rounds N] [--mebibytes N] [--xio FOLDER] [--haul PROGRAM] [--out FILE]

Two unmodified GridFTP servers move a file in memory over loopback at MTU 1500, in clear and encrypted, with Longhaul's
driver: by its own choice of processors, and with `engine-cpus=1` while all other threads of both servers are bound to
processor 0 (gridftp-offload-2014, section VI, figures 4, 6(b) and 8(b) and table 1, with a core in the place of its card).
Processor time is counted by thread: `application` is Globus' threads and the client, `engine` those of the library. In the
series "process" they are those of `haul engine run --cpus 1`, which all processes share. "Globus, no network" copies the
file within one process of Globus: what the application does whatever carries its data.

Then `haul bench rdma` between the two hosts of a lab, in its own process and with an engine on each host, also while clients
of the same engines are killed.

All series take turns. FILE (default: results/engines.txt) gets the medians and the bars. Run it as root on a quiet machine
with two processors; it needs the driver (`make -C c xio`), Debian's GridFTP, and its UDT driver for one row. The exit code is 1 if a bar was missed.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

# No folder of compiled files beside the scripts.
sys.dont_write_bytecode = True
import trust  # noqa: E402

ROOT = trust.ROOT
# Names of the library's threads that move data.
ENGINES = ("haul-rnic-", "haul-read", "haul-write", "haul-stream", "haul-client")
APPLICATION_CPU, ENGINE_CPU = "0", "1"
SEALED = "protect=key:"
# name: stack, whether engines have a processor of their own
SERIES = {
    "Globus, no network": (None, False),
    "Globus TCP": ("", False),
    "Debian's UDT driver": ("udt", False),
    "Globus TCP, encrypted": ("-dcpriv", False),
}
for name, channel, device, protect in (
    ("udt", "udt", "engine-udt", ""),
    ("iwarp-udt", "iwarp-udt", "engine-udt", ""),
    ("iwarp-tcp", "iwarp-tcp", "engine-tcp", ""),
    ("udt encrypted", "udt", "engine-udt", f";{SEALED}"),
):
    stack = f"haul:channel={channel};{trust.RING}"
    SERIES |= {
        name: (stack + protect, False),
        f"{name}, engine": (f"{stack};engine-cpus={ENGINE_CPU}{protect}", True),
        f"{name}, process": (f"{stack};device={device}{protect}", True),
    }
ENDS = ("sender", "receiver")
# Over a path: RTT in ms, provider, clients that are killed meanwhile.
PATHS = {
    "1 ms, in process": (1, "soft", 0),
    "1 ms, engines": (1, "engine", 0),
    "100 ms, in process": (100, "soft", 0),
    "100 ms, engines": (100, "engine", 0),
    "100 ms, engines, 12 clients killed": (100, "engine", 12),
}
PATH_SECONDS = 12


class Threads(threading.Thread):
    """Watches the threads of processes and of their children: the processor time of each when it was last seen."""

    def __init__(self):
        super().__init__(daemon=True)
        self.roots, self.seen, self.over = [], {}, threading.Event()

    def run(self):
        while not self.over.wait(0.01):
            for pid, end in self.roots:
                self.look(pid, end)

    def look(self, pid, end):
        with contextlib.suppress(OSError, ValueError):
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                user, system = (int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in rest.split()[11:13])
                kind = "engine" if name.startswith(ENGINES) else end
                self.seen[task.name] = (name, kind, user, system)
                for child in (task / "children").read_text().split():
                    self.look(int(child), end)

    def seconds(self):
        """By end, or of engines: in user space, in the kernel."""
        found = {kind: [0, 0] for kind in (*ENDS, "client", "engine")}
        for _, kind, user, system in self.seen.values():
            found[kind][0] += user
            found[kind][1] += system
        return found


class Stage(trust.Stage):
    """As the other one, with the processors of its servers, whose threads are watched."""

    def __init__(self, programs, folder, is_bound, has_engine):
        super().__init__(programs, folder)
        self.is_bound, self.has_engine, self.threads = is_bound, has_engine, Threads()

    def file(self):
        return pathlib.Path(self.programs["file"])

    def loopback(self, mtu):
        super().loopback(mtu)
        if self.has_engine:
            socket = self.folder / "engine.sock"
            self.start_engine("a", socket)
            # The servers find it there.
            self.environment |= {"HAUL_ENGINE_SOCKET": str(socket)}

    def start_engine(self, host, socket):
        """An engine in a process of its own."""
        log = open(self.folder / "servers.log", "ab")
        command = [*self.place(host), self.programs["haul"], "engine", "run", "--listen", socket, "--cpus", ENGINE_CPU]
        self.servers.append(subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        self.threads.roots.append((self.servers[-1].pid, "engine"))
        end = time.monotonic() + 20
        while not socket.exists():
            if time.monotonic() > end:
                raise trust.Failed("the engine does not start")
            time.sleep(0.01)

    def serve(self, host, port, *command, **variables):
        # The driver's threads choose their processor themselves, and may use all.
        super().serve(host, port, *command, **variables)
        self.threads.roots.append((self.servers[-1].pid, ENDS[port - 2811]))

    def run(self, host, *command, **variables):
        self.threads.start()
        binder = threading.Thread(target=self.bind, daemon=True)
        binder.start()
        out = super().run(host, *command, **variables)
        self.threads.over.set()
        self.threads.join()
        return out

    def bind(self):
        """Binds each thread that is no engine to the application's processor, as soon as it is there."""
        bound = set()
        while self.is_bound and not self.threads.over.wait(0.005):
            for thread, (_, kind, _, _) in list(self.threads.seen.items()):
                if thread not in bound and kind != "engine":
                    with contextlib.suppress(OSError):
                        os.sched_setaffinity(int(thread), {int(APPLICATION_CPU)})
                    bound.add(thread)


def measure(programs, stack, is_bound):
    gigabytes = programs["file"].stat().st_size / trust.GIGA
    if stack is None:
        return measure_alone(programs["file"], gigabytes)
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        private = stack == "-dcpriv"
        with Stage(programs, pathlib.Path(folder), is_bound, "device=engine" in stack) as stage:
            interrupts = soft_interrupts()
            found = trust.gridftp(stage, {"mtu": 1500}, "" if private else stack, private)
            interrupts = soft_interrupts() - interrupts
            seconds = stage.threads.seconds()
    application = [seconds[kind] for kind in (*ENDS, "client")]
    return {
        "gbps": found["gbps"],
        "sender": sum(seconds["sender"]) / gigabytes,
        "receiver": sum(seconds["receiver"]) / gigabytes,
        "application": sum(map(sum, application)) / gigabytes,
        "user": sum(user for user, _ in application) / gigabytes,
        "engine": sum(seconds["engine"]) / gigabytes,
        "interrupts": interrupts / gigabytes,
    }


def measure_alone(file, gigabytes):
    """A copy by `globus-url-copy` itself, which reads and writes as the servers do."""
    before, begun = os.times(), time.monotonic()
    subprocess.run(["globus-url-copy", f"file://{file}", "file:///dev/null"], check=True, stdin=subprocess.DEVNULL)
    took, after = time.monotonic() - begun, os.times()
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    application = (user + system) / gigabytes
    return {"gbps": 8 * gigabytes / took, "sender": 0, "receiver": 0, "application": application,
            "user": user / gigabytes, "engine": 0, "interrupts": 0}


def over_path(programs, rtt_ms, provider, kills):
    """RDMA Writes over 500 Mb/s. `kills` clients of the same engines are killed meanwhile, each while it measures."""
    haul = programs["haul"]
    both = ["--channel", "udt", "--allow-insecure", "--provider", provider]
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        with Stage(programs, pathlib.Path(folder), False, False) as stage:
            stage.lab("500Mbit", rtt_ms, 0)
            sockets = {host: {"HAUL_ENGINE_SOCKET": f"{folder}/{host}.sock"} for host in "ab"}
            if provider == "engine":
                for host in "ab":
                    stage.start_engine(host, pathlib.Path(f"{folder}/{host}.sock"))
            for port in (4726, 4727):
                trust.Stage.serve(stage, "b", port, haul, "bench", "rdma", "serve", "--quiet", *both, "--port", port,
                                  "--listen", trust.ADDRESS["b"], **sockets["b"])
            killer = threading.Thread(target=kill_clients, args=(stage, kills, both, sockets["a"]))
            killer.start()
            measured = trust.check(
                [*stage.place("a"), haul, "bench", "rdma", trust.ADDRESS["b"], *both, "--json", "--size", "256KiB",
                 "--time", f"{PATH_SECONDS}s"], stage.environment | sockets["a"])
            killer.join()
    return json.loads(measured)["rows"][0]["bandwidth"]["bw_average_gbps"]


def kill_clients(stage, kills, options, variables):
    """Each measures the latency of small messages, and so leaves the path to the other one."""
    for _ in range(kills):
        client = subprocess.Popen(
            [*map(str, stage.place("a")), str(stage.programs["haul"]), "bench", "rdma", trust.ADDRESS["b"], *options,
             "--port", "4727", "--test", "lat", "--time", "30s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=stage.environment | variables, start_new_session=True)
        # It takes several round trips to begin.
        time.sleep(PATH_SECONDS / kills * 0.9)
        # The program that enters the host, and the client itself.
        os.killpg(client.pid, signal.SIGKILL)
        client.wait()
        time.sleep(PATH_SECONDS / kills * 0.1)


def soft_interrupts():
    """Seconds that all processors spent in soft interrupts."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[7]) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--xio", type=pathlib.Path, default=ROOT / "target/c")
    parser.add_argument("--haul", type=pathlib.Path, default=ROOT / "target/release/haul")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results/engines.txt")
    options = parser.parse_args()
    if options.rounds < 1 or options.mebibytes < 1:
        parser.error("--rounds and --mebibytes are at least 1")
    if os.geteuid() != 0:
        parser.error("run it as root: it makes a network namespace")
    if not (options.xio / "libglobus_xio_haul_driver.so").exists():
        parser.error(f"{options.xio} has no libglobus_xio_haul_driver.so: make -C c xio, or name its folder with --xio")
    if not options.haul.exists():
        parser.error(f"{options.haul} does not exist: cargo build --release --package haul-cli, or name it with --haul")
    if not shutil.which("globus-gridftp-server"):
        parser.error("globus-gridftp-server is missing: apt-get install globus-gridftp-server-progs globus-gass-copy-progs")
    file = pathlib.Path(f"/dev/shm/engines-{os.getpid()}")
    programs = {"xio": options.xio.resolve(), "file": file, "haul": options.haul.resolve()}
    runs, failures = {name: [] for name in SERIES}, {}
    paths = {name: [] for name in PATHS}
    try:
        with open(file, "wb") as source:
            for _ in range(options.mebibytes):
                source.write(os.urandom(1 << 20))
        for turn in range(options.rounds):
            for name, (stack, is_bound) in SERIES.items():
                try:
                    run = measure(programs, stack, is_bound)
                    runs[name].append(run)
                    print(f"{turn + 1}/{options.rounds} {name}: {run}", flush=True)
                except trust.Failed as error:
                    failures[name] = str(error)
                    print(f"{name}: {error}", file=sys.stderr)
            for name, path in PATHS.items():
                try:
                    paths[name].append(over_path(programs, *path))
                    print(f"{turn + 1}/{options.rounds} {name}: {paths[name][-1]}", flush=True)
                except trust.Failed as error:
                    print(f"{name}: {error}", file=sys.stderr)
    finally:
        file.unlink(missing_ok=True)
    text, missed = report(runs, paths, failures, options)
    options.out.write_text(text)
    print(text, end="")
    return int(missed)


def report(runs, paths, failures, options):
    model = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    lines = [
        f"`scripts/engines.py`, {datetime.date.today()}, commit {commit.stdout.strip()}",
        f"{os.cpu_count()} cores of {model}, Linux {platform.release()}; {options.mebibytes} MiB from memory to memory, loopback,"
        f" MTU 1500; medians of {options.rounds}.",
        "CPU: seconds for 10^9 bytes. Sender, receiver: Globus' threads of the two servers. Application: these and the client,",
        "and the share of it that is user space; the rest is system calls. Engine: the library's threads; bound to processor 1",
        "in the rows so named, where all other threads are bound to processor 0. Softirq: of the machine, in parts also counted",
        "in the threads that it interrupted.",
        "",
        f"{'':24} {'Gb/s':>6} {'sender':>7} {'receiver':>8} {'application':>11} {'user':>5} {'engine':>7} {'all':>7} {'softirq':>7}"
        "  Gb/s of each run",
    ]
    medians = {}
    for name, found in runs.items():
        if not found:
            lines.append(f"{name:24} not run: {failures.get(name, '')[:120]}")
            continue
        one = medians[name] = {key: statistics.median(run[key] for run in found) for key in found[0]}
        each = " ".join(f"{run['gbps']:.2f}" for run in found)
        total = one["application"] + one["engine"]
        lines.append(f"{name:24} {one['gbps']:6.2f} {one['sender']:7.3f} {one['receiver']:8.3f} {one['application']:11.3f}"
                     f" {one['user'] / one['application']:5.0%} {one['engine']:7.3f} {total:7.3f} {one['interrupts']:7.3f}  {each}")
    lines += ["", f"RDMA Writes of 256 KiB over UDT for {PATH_SECONDS} s, 500 Mb/s, with what the beginning takes; Mb/s of each run:"]
    goodput = {name: statistics.median(found) for name, found in paths.items() if found}
    for name, found in paths.items():
        each = " ".join(f"{1_000 * gbps:.0f}" for gbps in found)
        lines.append(f"{name:36} {each or 'not run'}")
    lines += ["", f"{'bar':90} {'value':>6}  verdict"]
    missed = False

    def judge(words, over, under, most=None, least=None):
        nonlocal missed
        value = over / under if over and under else None
        is_met = value is not None and (most is None or value <= most) and (least is None or value >= least)
        shown = "-" if value is None else f"{value:.2f}"
        verdict = "met" if is_met else "not judged" if value is None else "MISSED"
        lines.append(f"{words:90} {shown:>6}  {verdict}")
        missed |= not is_met

    def cpu(name, *kinds):
        return sum(medians[name][kind] for kind in kinds) if name in medians else None

    both = ("application", "engine")
    offloaded = [name for name in SERIES if name.endswith((", engine", ", process"))]
    for own in offloaded:
        channel = own.partition(", ")[0]
        judge(f"{own}: application / all without engine CPUs, at most 0.4", cpu(own, "application"), cpu(channel, *both), 0.4)
        judge(f"{own}: all / all without engine CPUs, at most 1.25", cpu(own, *both), cpu(channel, *both), 1.25)
    # Figure 6(b): at least 80 % less of the application's processors.
    for own in ("udt encrypted, engine", "udt encrypted, process"):
        judge(f"{own}: application / all of Globus TCP, encrypted, at most 0.2 (paper)", cpu(own, "application"),
              cpu("Globus TCP, encrypted", *both), 0.2)
    for own in ("udt, engine", "udt, process", "iwarp-udt, process"):
        judge(f"{own}: application / all of Debian's UDT driver, at most 0.1", cpu(own, "application"),
              cpu("Debian's UDT driver", *both), 0.1)
    for rtt in ("1 ms", "100 ms"):
        judge(f"{rtt}: goodput with engines / in process, at least 0.98", goodput.get(f"{rtt}, engines"),
              goodput.get(f"{rtt}, in process"), least=0.98)
    judge("goodput of a neighbour while clients are killed / undisturbed, at least 0.95",
          goodput.get("100 ms, engines, 12 clients killed"), goodput.get("100 ms, engines"), least=0.95)
    return "\n".join(lines) + "\n", missed


if __name__ == "__main__":
    sys.exit(main())
