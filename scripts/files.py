#!/usr/bin/env python3
"""`haul send` of one file beside TCP BBR, beside the sum of its parts, and beside itself.

    scripts/files.py [--rounds N] [--only NAMES] [--haul PROGRAM] [--work DIR] [--out FILE]

  bbr       1 Gb/s, RTT 10 to 200 ms, loss 0 to 1e-3: seconds from the command's start to its exit for 256 MiB, plain and
            sealed, from a file in the page cache to a file on the disk of DIR; and of `iperf3` with BBR, which moves as many
            bytes from memory to memory
  cpu       1 Gb/s, RTT 10 ms: processor time of both ends for 1 GiB, sealed; and of UDT from memory to memory, `b3sum` and
            AES-128-GCM (`openssl speed`, 1456 bytes) once at each end, one copy of the file (`cp`), and BBR
  parallel  loopback, MTU 1500: eight sends of 1 GiB at a time beside eight in turn, sealed, into a file system in memory

All series of a cell take turns, and their order changes with the round. The memory of paths is off. FILE (default:
results/files.txt) gets medians and bars. Run it as root on a quiet machine. The exit code is 1 if a bar was missed.
"""

import argparse
import datetime
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

# No folder of compiled files beside the scripts.
sys.dont_write_bytecode = True
import trust  # noqa: E402

ROOT = trust.ROOT
MIB = 1 << 20
BYTES = {"bbr": 256 * MIB, "cpu": 1024 * MIB, "parallel": 1024 * MIB}
RTTS, LOSSES = (10, 20, 50, 100, 200), (0, 1e-5, 1e-4, 1e-3)
PORTS = {"plain": 4725, "sealed": 4726}
AT_A_TIME = 8


class Stage(trust.Stage):
    """As the other one, with servers of `haul` and a source file."""

    def __init__(self, haul, folder, source):
        super().__init__({"haul": haul}, folder)
        self.source = source

    def haul_servers(self, *kinds):
        haul, key = self.programs["haul"], self.folder / "key.pem"
        trust.check([haul, "key", "new", "--key", key])
        self.access = {"plain": ["--allow-insecure"], "sealed": ["--shared-key", key]}
        self.target = self.folder / "target"
        self.target.mkdir()
        for kind in kinds:
            port = PORTS[kind]
            self.serve("b", port, haul, "serve", "--quiet", "--listen", f"0.0.0.0:{port}", *self.access[kind], self.target)

    def send(self, kind, address, folder=""):
        """The command of a transfer."""
        to = f"haul://{address}:{PORTS[kind]}/{folder}"
        return [self.programs["haul"], "send", "--quiet", "--no-path-memory", *self.access[kind], self.source, to]

    def timed(self, *command, copies=None):
        """Seconds of a command, and the processor time of both ends. What it has written is removed."""
        os.sync()
        began = time.monotonic()
        process = subprocess.run([*self.place("a"), *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, timeout=trust.PATIENCE, check=False, env=self.environment)
        seconds = time.monotonic() - began
        found = [copy for copy in self.target.rglob("*") if copy.is_file()]
        whole = [copy.stat().st_size == self.source.stat().st_size for copy in found]
        for copy in found:
            copy.unlink()
        if process.returncode or not all(whole) or copies not in (None, len(whole)):
            raise trust.Failed(f"{command[0]}: exit {process.returncode}: {process.stderr.strip()[-300:]}")
        return seconds

    def cpu(self, *command):
        """Processor time of a command and of the servers meanwhile, in seconds for 10^9 bytes of the source."""
        return self.run("a", *command)[1] / self.source.stat().st_size * trust.GIGA


def in_turn(series, number):
    return series[number % len(series):] + series[:number % len(series)]


def bbr(stage, cell, number):
    stage.lab("1Gbit", *cell)
    stage.haul_servers("plain", "sealed")
    stage.serve("b", 5201, "iperf3", "--server")
    address = trust.ADDRESS["b"]
    count = stage.source.stat().st_size
    commands = {kind: stage.send(kind, address) for kind in PORTS}
    commands["bbr"] = ["iperf3", "--client", address, "--bytes", count, "--congestion", "bbr"]
    return {name: stage.timed(*commands[name]) for name in in_turn(list(commands), number)}


def cpu(stage, _cell, number):
    stage.lab("1Gbit", 10, 0)
    stage.haul_servers("plain", "sealed")
    stage.serve("b", 5201, "iperf3", "--server")
    address, count = trust.ADDRESS["b"], stage.source.stat().st_size
    haul = stage.programs["haul"]
    commands = {
        "haul send, sealed": stage.send("sealed", address),
        "UDT, memory to memory": [haul, "bench", "run", address, "--port", PORTS["plain"], "--engine", "udt", "--bytes", count,
                                  "--allow-insecure"],
        "b3sum": ["b3sum", "--num-threads", "1", stage.source],
        "cp": ["cp", "--reflink=never", stage.source, stage.target],
        "BBR, plain": ["iperf3", "--client", address, "--bytes", count, "--congestion", "bbr"],
    }
    found = {}
    for name in in_turn(list(commands), number):
        os.sync()
        found[name] = stage.cpu(*commands[name])
    out = trust.check(["openssl", "speed", "-elapsed", "-seconds", "1", "-bytes", "1456", "-evp", "aes-128-gcm"])
    # Kilobytes a second.
    rate = float(re.search(r"([0-9.]+)k\s*$", out)[1]) * 1e3
    found["AES-128-GCM"] = trust.GIGA / rate
    return found


def parallel(stage, _cell, number):
    stage.loopback(1500)
    stage.haul_servers("sealed")
    folders = [f"{n}/" for n in range(AT_A_TIME)]
    for folder in folders:
        (stage.target / folder).mkdir()
    commands = [" ".join(map(str, stage.send("sealed", "127.0.0.1", folder))) for folder in folders]
    # As many of each, since a virtual machine's memory takes longer at its first use. A copy that is missing is noticed.
    series = {"one": " && ".join(commands), "all": " & ".join(commands) + " & wait"}
    found = {}
    for name in in_turn(list(series), number):
        found[name] = stage.timed("sh", "-c", series[name], copies=len(folders))
    return found


EXPERIMENTS = {
    "bbr": (bbr, [(rtt, loss) for rtt in RTTS for loss in LOSSES]),
    "cpu": (cpu, [()]),
    "parallel": (parallel, [()]),
}


def measure(options, names):
    """Runs by experiment, cell and series."""
    found = {}
    for name in names:
        work, cells = EXPERIMENTS[name]
        # `parallel` needs more room than a disk has time.
        place = pathlib.Path("/dev/shm") if name == "parallel" else options.work
        with tempfile.TemporaryDirectory(dir=place) as folder:
            source = pathlib.Path(folder) / "source"
            with open(source, "wb") as file:
                for _ in range(BYTES[name] // MIB):
                    file.write(os.urandom(MIB))
            for number in range(options.rounds):
                for cell in cells:
                    with tempfile.TemporaryDirectory(dir=folder) as place, Stage(options.haul, pathlib.Path(place), source) as stage:
                        try:
                            runs = work(stage, cell, number)
                        except trust.Failed as failed:
                            print(f"{name} {cell}: {' '.join(str(failed).split())}", file=sys.stderr)
                            continue
                    for series, value in runs.items():
                        found.setdefault((name, cell), {}).setdefault(series, []).append(value)
                    shown = ", ".join(f"{series} {value:.3f}" for series, value in runs.items())
                    print(f"[{number + 1}/{options.rounds}] {name} {cell}: {shown}", flush=True)
    return found


def report(found, options):
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "unknown")
    commit = trust.check(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"]).strip()
    lines = [f"`scripts/files.py`, {datetime.date.today()}, commit {commit}",
             f"{os.cpu_count()} cores of {model}, Linux {platform.release()}; medians of {options.rounds}."]
    missed = False

    def verdict(is_met):
        nonlocal missed
        missed |= not is_met
        return "met" if is_met else "MISSED"

    def middle(name, cell=()):
        return {series: statistics.median(runs) for series, runs in found.get((name, cell), {}).items()}

    cells = [cell for name, cell in found if name == "bbr"]
    if cells:
        lines += ["", "256 MiB at 1 Gb/s, seconds from the command's start to its exit. BBR moves memory, and stores nothing.",
                  "Bars: BBR / plain at least 1, plain / sealed at least 0.985.", "",
                  f"{'':24} {'plain':>6} {'sealed':>6} {'BBR':>6}  {'BBR/plain':>9} {'plain/sealed':>12}"]
    for cell in cells:
        one = middle("bbr", cell)
        beside, sealed = one["bbr"] / one["plain"], one["plain"] / one["sealed"]
        title = f"RTT {cell[0]} ms, loss {cell[1]:g}"
        lines.append(f"{title:24} {one['plain']:6.2f} {one['sealed']:6.2f} {one['bbr']:6.2f}  {beside:9.3f} {sealed:12.3f}"
                     f"  {verdict(beside >= 1)}, {verdict(sealed >= 0.985)}")
    if one := middle("cpu"):
        lines += ["", "1 GiB at 1 Gb/s and 10 ms, seconds of processor time for 10^9 bytes.", ""]
        lines += [f"{series:24} {value:6.3f}" for series, value in one.items()]
        parts = one["UDT, memory to memory"] + 2 * one["b3sum"] + 2 * one["AES-128-GCM"] + one["cp"]
        share = one["haul send, sealed"] / parts
        lines.append(f"sum of UDT, twice b3sum and AES, and cp: {parts:.3f}; haul send / sum, at most 1.3: {share:.2f}"
                     f"  {verdict(share <= 1.3)}")
    if one := middle("parallel"):
        single, many = (AT_A_TIME * BYTES["parallel"] * 8 / one[series] / trust.GIGA for series in ("one", "all"))
        lines += ["", f"Loopback, MTU 1500, {AT_A_TIME} × 1 GiB, sealed: in turn {single:.2f} Gb/s, at a time {many:.2f} Gb/s together;"
                  f" at least 0.95 of one: {many / single:.2f}  {verdict(many >= 0.95 * single)}"]
    return "\n".join(lines) + "\n", missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="names of experiments, with commas between them")
    parser.add_argument("--haul", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "target/release/haul")
    parser.add_argument("--work", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "target", help="a folder on a disk")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results/files.txt")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(EXPERIMENTS)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        parser.error(f"no experiment {unknown[0]}; there are {', '.join(EXPERIMENTS)}")
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    if os.geteuid() != 0:
        parser.error("run it as root: it makes network namespaces")
    if not options.haul.exists():
        parser.error(f"{options.haul} does not exist: cargo build --release --package haul-cli, or name it with --haul")
    for program in ("iperf3", "b3sum", "openssl"):
        if subprocess.run(["which", program], capture_output=True, check=False).returncode:
            parser.error(f"{program} is missing: apt-get install {program}")
    text, missed = report(measure(options, names), options)
    options.out.write_text(text)
    print(text, end="")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
