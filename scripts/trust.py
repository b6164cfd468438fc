#!/usr/bin/env python3
"""Measures what sealed channels cost, beside plain ones and beside other programs, and judges each bar.

Usage: scripts/trust.py [--quick] [--rounds N] [--budget MINUTES] [--only NAMES] [--work DIR] [--out FILE]

  path      1 Gb/s, RTT 10 to 200 ms, loss 0 and 1e-3: `haul send` sealed and plain, and quinn with BBR
  unshaped  loopback with an MTU of 1500 and 9000: UDT sealed and plain in memory, and `iperf3` with cubic
  tcp       loopback: one TCP stream sealed and plain in memory, and `iperf3` through stunnel (figure 2)
  gridftp   loopback: Globus GridFTP in clear, with -dcpriv over TCP, and with our driver's protection
            and a ring for a short path
  distance  1 Gb/s, RTT 1 and 100 ms: `haul send` sealed, and stunnel with 1, 4 and 8 streams (figure 6a)

All series take turns, round after round, so a run that is cut short has something of everything. Results go
to DIR/runs.json after each run, and the same command resumes there. Commands that run at the same time with
the same DIR, each on processors of its own (`taskset`), share the work. FILE (default: results/trust.txt)
gets the medians and the bars. The processor time is that of all processes at both ends, for 10^9 bytes.

Run it as root on a quiet machine. It builds what it measures, and installs missing Debian packages, except
for stunnel4, which it unpacks into DIR. A program that is missing is a series that is not run. The exit code
is 1 if a bar was missed or could not be judged. `--quick` shows only that it works.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["iperf3", "openssl", "globus-gridftp-server-progs", "globus-gass-copy-progs", "globus-proxy-utils",
            "libglobus-xio-dev", "pkg-config"]
LAB = f"trust-{os.getpid()}"
ADDRESS = {"a": "10.77.0.1", "b": "10.77.0.2"}
# Seconds that one command may take.
PATIENCE = 120
GIGA = 1e9


class Failed(Exception):
    """A run failed, or cannot be made here."""


def cpu_of(pid):
    """Seconds of processor time of a process, of the children that it has waited for, and of those that run."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(map(cpu_of, children))


class Stage:
    """Where the commands of one run are: a lab, or a network namespace of its own; and the servers of the run."""

    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        self.servers, self.stack = [], contextlib.ExitStack()
        self.environment = os.environ | {"HOME": str(folder), "LC_ALL": "C"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in reversed(self.servers):
            server.terminate()
        for server in self.servers:
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        self.stack.close()

    def lab(self, rate, rtt_ms, loss):
        """Two hosts, a and b, at the ends of a path."""
        path = self.folder / "path.toml"
        path.write_text(f'[path]\nrate = "{rate}"\nrtt = "{rtt_ms}ms"\nloss = {loss}\n')
        haul = self.programs["haul"]
        check([haul, "lab", "up", "--name", LAB, path])
        self.stack.callback(check, [haul, "lab", "down", LAB])
        self.place = lambda host: [haul, "lab", "exec", "--name", LAB, host, "--"]

    def loopback(self, mtu):
        """A network namespace with nothing but a loopback device."""
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.stack.callback(lambda: (holder.kill(), holder.wait()))
        self.place = lambda _host: ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        # Until the holder has left the namespace of this program.
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
            time.sleep(0.01)
        check([*self.place("a"), "ip", "link", "set", "lo", "mtu", str(mtu), "up"])

    def serve(self, host, port, *command, protocol="tcp", **variables):
        """Starts a server and waits until it listens."""
        log = open(self.folder / "servers.log", "ab")
        server = subprocess.Popen([*self.place(host), *map(str, command)], stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log, env=self.environment | variables)
        self.servers.append(server)
        end = time.monotonic() + 20
        while f":{port:04X} " not in self.sockets(host, protocol):
            if server.poll() is not None or time.monotonic() > end:
                tail = (self.folder / "servers.log").read_text(errors="replace")[-400:]
                raise Failed(f"{command[0]} does not listen: {tail}")
            time.sleep(0.05)

    def sockets(self, host, protocol):
        state = "0A" if protocol == "tcp" else "07"
        tables = [f"/proc/net/{protocol}", f"/proc/net/{protocol}6"]
        lines = check([*self.place(host), "cat", *tables]).splitlines()
        return "".join(f":{line.split()[1].rsplit(':', 1)[1]} " for line in lines
                       if len(line.split()) > 3 and line.split()[3] == state)

    def run(self, host, *command, **variables):
        """Runs a command to its end: what it printed, and the processor time of it and of all servers meanwhile."""
        servers = sum(cpu_of(server.pid) for server in self.servers)
        before = os.times()
        out = check([*self.place(host), *map(str, command)], self.environment | variables)
        # What servers have left to do, they do now.
        time.sleep(0.1)
        after = os.times()
        own = after.children_user + after.children_system - before.children_user - before.children_system
        return out, own + sum(cpu_of(server.pid) for server in self.servers) - servers


def check(command, environment=None):
    """Runs a command; what it printed, or why it failed."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=PATIENCE, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(command[:8])}: not done after {PATIENCE} s") from error
    except OSError as error:
        raise Failed(str(error)) from error
    if done.returncode:
        what = " ".join(command[:8]).replace(f"{ROOT}/", "")
        raise Failed(f"{what}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


class Arrivals(threading.Thread):
    """Reads the receive counter of host b's device every 5 ms."""

    SAMPLER = ("import time\nwhile True:\n line=[l for l in open('/proc/net/dev') if 'wan:' in l][0]\n"
               " print(time.monotonic(), line.split(':')[1].split()[0], flush=True)\n time.sleep(0.005)\n")

    def __init__(self, stage):
        super().__init__()
        self.process = subprocess.Popen([*map(str, stage.place("b")), sys.executable, "-c", self.SAMPLER],
                                        stdout=subprocess.PIPE, text=True)
        self.samples = []
        self.start()

    def run(self):
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                at, count = line.split()
                self.samples.append((float(at), int(count)))

    def ramp_rtts(self, rtt_ms, bytes_sent):
        """Round trips from the first payload until the rate over one is 0.9 of the mean of the second half."""
        self.process.terminate()
        self.process.wait()
        self.join()
        first = self.samples[0][1]
        samples = [(at, count - first) for at, count in self.samples]
        whole = samples[-1][1]
        if whole < bytes_sent / 2:
            return None
        # Handshakes are shorter than this.
        begin = next(at for at, count in samples if count > 20_000)
        half = next(at for at, count in samples if count > whole / 2)
        end = next(at for at, count in samples if count > whole * 0.98)
        rate = whole * 0.48 / (end - half)
        window, at_begin = max(rtt_ms / 1e3, 0.01), 0
        for at, count in samples:
            while samples[at_begin][0] < at - window:
                at_begin += 1
            since, earlier = samples[at_begin]
            if at >= begin + window and count - earlier >= 0.9 * rate * (at - since):
                return (at - begin) * 1e3 / rtt_ms
        return None


def result(count, seconds, cpu_s, **more):
    return {"gbps": count * 8 / seconds / GIGA, "cpu_s_per_gb": cpu_s / count * GIGA, **more}


# ---- what runs

def haul_send(stage, cell, sealed):
    stage.lab("1Gbit", cell["rtt_ms"], cell["loss"])
    haul, folder = stage.programs["haul"], stage.folder
    target = folder / "target"
    target.mkdir()
    trust = ["--shared-key", folder / "key.pem"] if sealed else ["--allow-insecure"]
    check([haul, "key", "new", "--key", folder / "key.pem"])
    stage.serve("b", 4725, haul, "serve", "--quiet", "--listen", "0.0.0.0:4725", *trust, target)
    arrivals = Arrivals(stage)
    out, cpu = stage.run("a", haul, "send", "--quiet", "--json", "--no-path-memory", *trust,
                         stage.file(), f"haul://{ADDRESS['b']}/")
    one = json.loads(out)
    ramp = arrivals.ramp_rtts(cell["rtt_ms"], one["bytes"])
    return result(one["bytes"], one["seconds"], cpu, ramp_rtts=ramp)


def quic(stage, cell):
    stage.lab("1Gbit", cell["rtt_ms"], cell["loss"])
    program, certificate = stage.programs["quic"], stage.folder / "quic.der"
    stage.serve("b", 4433, program, "serve", f"{ADDRESS['b']}:4433", certificate, protocol="udp")
    count = stage.file().stat().st_size
    out, cpu = stage.run("a", program, "send", f"{ADDRESS['b']}:4433", certificate, count)
    return result(count, float(out), cpu)


def in_memory(stage, cell, test, sealed):
    """One line of a measuring test, which has plain and sealed runs in turns."""
    stage.loopback(cell["mtu"])
    command = [*stage.place("a"), stage.programs[test], "--ignored", "--nocapture", "plain_beside_sealed"]
    word = "sealed" if sealed else "plain"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout:
                found = re.search(rf"{word}: ([0-9.]+) Gb/s, ([0-9.]+) CPU s/GB", line)
                if found:
                    return {"gbps": float(found[1]), "cpu_s_per_gb": float(found[2])}
        finally:
            process.kill()
    raise Failed(f"{stage.programs[test]} measured nothing")


def iperf(stage, cell, seconds):
    stage.loopback(cell["mtu"])
    stage.serve("b", 5201, "iperf3", "--server")
    return iperf_result(stage, "127.0.0.1", 5201, seconds, 1, "-C", "cubic")


def iperf_result(stage, address, port, seconds, streams, *options):
    out, cpu = stage.run("a", "iperf3", "--client", address, "--port", port, "--time", seconds, "--json",
                         "--parallel", streams, *options)
    end = json.loads(out)["end"]
    received = end["sum_received"]
    return result(received["bytes"], received["seconds"], cpu)


def stunnel(stage, cell, seconds, streams):
    """iperf3 through one TLS connection for each stream."""
    if "mtu" in cell:
        stage.loopback(cell["mtu"])
        near = far = "127.0.0.1"
    else:
        stage.lab("1Gbit", cell["rtt_ms"], 0)
        near, far = "127.0.0.1", ADDRESS["b"]
        # The default of the kernel may be another, and a namespace may not choose what it restricts.
        check([*stage.place("a"), "ip", "route", "change", "10.77.0.0/24", "dev", "wan", "src", ADDRESS["a"],
               "congctl", "cubic"])
    folder, program = stage.folder, stage.programs["stunnel"]
    check(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
           "2", "-subj", "/CN=trust", "-keyout", folder / "tls.pem", "-out", folder / "tls.crt"])
    common = "foreground = yes\npid =\n[tls]\nciphersuites = TLS_AES_128_GCM_SHA256\n"
    (folder / "far.conf").write_text(f"{common}accept = {far}:5301\nconnect = 127.0.0.1:5201\n"
                                     f"cert = {folder}/tls.crt\nkey = {folder}/tls.pem\n")
    (folder / "near.conf").write_text(f"{common}client = yes\naccept = {near}:5300\nconnect = {far}:5301\n"
                                      f"verifyChain = yes\nCAfile = {folder}/tls.crt\n")
    library = {"LD_LIBRARY_PATH": str(program.parents[1] / "lib" / f"{platform.machine()}-linux-gnu")}
    stage.serve("b", 5201, "iperf3", "--server", "--bind", "127.0.0.1")
    stage.serve("b", 5301, program, folder / "far.conf", **library)
    stage.serve("a", 5300, program, folder / "near.conf", **library)
    return iperf_result(stage, near, 5300, seconds, streams)


GRIDFTP = ["globus-gridftp-server", "-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1", "-home-dir", "/",
           "-threads", "2", "-d", "ALL", "-dc-whitelist", "tcp,gsi,udt,haul", "-allow-root"]

# The default is that of a long path; this one is 10 Gb/s at 12 ms.
RING = "slab=256K;slabs=64"


def gridftp(stage, cell, stack, private):
    """A file in memory from one server to the other, which drops it."""
    stage.loopback(cell["mtu"])
    folder, xio = stage.folder, stage.programs["xio"]
    library = {"LD_LIBRARY_PATH": str(xio), "HAUL_XIO_STATS": str(folder / "xio.json")}
    if "protect" in stack:
        check(["openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / "key"])
        (folder / "key").chmod(0o600)
        stack += f"{folder}/key"
    anybody = ["-aa", "-anonymous-user", "root"]
    variables, client, scheme = library, {}, "ftp"
    if private:
        variables, client = credentials(folder, library)
        anybody, scheme = ["-allow-disabled-login"], "gsiftp"
    for name, port in (("sender", 2811), ("receiver", 2812)):
        stage.serve("a", port, *GRIDFTP, *anybody, "-p", port, "-l", folder / f"{name}.log",
                    *(["-dc-default", stack] if stack else []), **variables)
    url = f"{scheme}://localhost:"
    _, cpu = stage.run("a", "globus-url-copy", *(["-dcpriv"] if private else []), f"{url}2811{stage.file()}",
                       f"{url}2812/dev/null", **client)
    end = time.monotonic() + 20
    while not (stored := re.search(r"DATE=(\S+) .*START=(\S+) .*NBYTES=(\d+) .*TYPE=STOR",
                                   (folder / "receiver.log").read_text(errors="replace"))):
        if time.monotonic() > end:
            raise Failed("the receiver logged no transfer")
        time.sleep(0.1)
    channel = stack.partition("channel=")[2].partition(";")[0]
    if channel and f'"role":"passive","channel":"{channel}"' not in (folder / "xio.json").read_text():
        raise Failed("the driver carried nothing")

    def moment(text):
        return int(text[8:10]) * 3600 + int(text[10:12]) * 60 + float(text[12:])
    took = (moment(stored[1]) - moment(stored[2])) % 86_400
    return result(int(stored[3]), took, cpu)


def credentials(folder, library):
    """An authority, a host and a user, as GSI wants them: variables of servers and of the client."""
    def certificate(name, subject, extension):
        check(["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", folder / f"{name}.key",
               "-out", folder / f"{name}.request"])
        (folder / "extension").write_text(f"{extension}\nkeyUsage=critical,digitalSignature,keyEncipherment\n")
        check(["openssl", "x509", "-req", "-in", folder / f"{name}.request", "-CA", folder / "authority.pem", "-CAkey",
               folder / "authority.key", "-CAcreateserial", "-days", "2", "-out", folder / f"{name}.pem", "-extfile",
               folder / "extension"])
        (folder / f"{name}.key").chmod(0o600)
    check(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/O=Haul/CN=Authority",
           "-keyout", folder / "authority.key", "-out", folder / "authority.pem", "-addext",
           "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"])
    trusted = folder / "authorities"
    trusted.mkdir()
    name = check(["openssl", "x509", "-noout", "-hash", "-in", folder / "authority.pem"]).strip()
    (trusted / f"{name}.0").write_bytes((folder / "authority.pem").read_bytes())
    (trusted / f"{name}.signing_policy").write_text(
        "access_id_CA  X509  '/O=Haul/CN=Authority'\npos_rights    globus  CA:sign\n"
        "cond_subjects globus  '\"/O=Haul/*\"'\n")
    certificate("host", "/O=Haul/CN=host\\/localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    certificate("user", "/O=Haul/CN=User", "extendedKeyUsage=clientAuth")
    (folder / "gridmap").write_text('"/O=Haul/CN=User" root\n')
    roots = {"X509_CERT_DIR": str(trusted)}
    client = roots | {"X509_USER_PROXY": str(folder / "proxy")}
    check(["grid-proxy-init", "-q", "-cert", folder / "user.pem", "-key", folder / "user.key", "-out", folder / "proxy",
           "-valid", "12:00"], os.environ | client)
    server = library | roots | {"X509_USER_CERT": str(folder / "host.pem"), "X509_USER_KEY": str(folder / "host.key"),
                                "X509_USER_PROXY": "", "GRIDMAP": str(folder / "gridmap")}
    return server, client


def experiments(quick):
    """Name, cells, and series: what each needs, and how it runs."""
    seconds = 2 if quick else 5
    paths = [(10, 0), (100, 1e-3)] if quick else [(rtt, loss) for rtt in (10, 100, 200) for loss in (0, 1e-3)]
    return {
        "path": ([{"rtt_ms": rtt, "loss": loss} for rtt, loss in paths], {
            "sealed": (["haul"], lambda stage, cell: haul_send(stage, cell, True)),
            "plain": (["haul"], lambda stage, cell: haul_send(stage, cell, False)),
            "quinn, bbr": (["haul", "quic"], quic),
        }),
        "unshaped": ([{"mtu": mtu} for mtu in (1500, 9000)], {
            "sealed": (["udt test"], lambda stage, cell: in_memory(stage, cell, "udt test", True)),
            "plain": (["udt test"], lambda stage, cell: in_memory(stage, cell, "udt test", False)),
            "iperf3, cubic": (["iperf3"], lambda stage, cell: iperf(stage, cell, seconds)),
        }),
        "tcp": ([{"mtu": 65_536}], {
            "sealed": (["tcp test"], lambda stage, cell: in_memory(stage, cell, "tcp test", True)),
            "plain": (["tcp test"], lambda stage, cell: in_memory(stage, cell, "tcp test", False)),
            "stunnel, 1 stream": (["iperf3", "stunnel"], lambda stage, cell: stunnel(stage, cell, seconds, 1)),
        }),
        "gridftp": ([{"mtu": 1500}], {
            "TCP": (["gridftp", "xio"], lambda stage, cell: gridftp(stage, cell, "", False)),
            "TCP, -dcpriv": (["gridftp", "xio"], lambda stage, cell: gridftp(stage, cell, "", True)),
        } | {
            f"protect, {channel}": (["gridftp", "xio"], lambda stage, cell, channel=channel: gridftp(
                stage, cell, f"haul:channel={channel};{RING};protect=key:", False))
            for channel in ("udt", "iwarp-udt", "iwarp-tcp")
        }),
        "distance": ([{"rtt_ms": rtt, "loss": 0} for rtt in (1, 100)], {
            "sealed": (["haul"], lambda stage, cell: haul_send(stage, cell, True)),
        } | {
            f"stunnel, {streams}": (["haul", "iperf3", "stunnel"],
                                    lambda stage, cell, streams=streams: stunnel(stage, cell, 2 * seconds, streams))
            for streams in (1, 4, 8)
        }),
    }


# ---- the bars

def bars(found):
    """Each bar: its words, the value (None if it cannot be judged), and whether it is met. `found` has medians."""
    def ratio(experiment, cell, one, other, key="gbps"):
        values = [found.get((experiment, cell, series), {}).get(key) for series in (one, other)]
        return values[0] / values[1] if None not in values else None

    def added(experiment, cell):
        values = [found.get((experiment, cell, series), {}).get("cpu_s_per_gb") for series in ("sealed", "plain")]
        return values[0] - values[1] if None not in values else None

    def cells_of(experiment):
        return sorted({cell for name, cell, _ in found if name == experiment}) or ["-"]

    def at_least(value, bar):
        return value is not None and value >= bar

    def at_most(value, bar):
        return value is not None and value <= bar

    lines = []

    def judge(words, value, is_met):
        lines.append((words, value, is_met))
    for cell in cells_of("path"):
        value = ratio("path", cell, "sealed", "plain")
        judge(f"1 Gb/s, {cell}: sealed / plain goodput, at least 0.97", value, at_least(value, 0.97))
        value = ratio("path", cell, "sealed", "plain", "ramp_rtts")
        judge(f"1 Gb/s, {cell}: sealed / plain ramp, at most 1.15", value, at_most(value, 1.15))
        value = ratio("path", cell, "sealed", "quinn, bbr", "cpu_s_per_gb")
        judge(f"1 Gb/s, {cell}: CPU of sealed / of QUIC, at most 0.5", value, at_most(value, 0.5))
    for cell, most in (("MTU 1500", 0.30), ("MTU 9000", 0.17)):
        value = ratio("unshaped", cell, "sealed", "plain")
        if cell == "MTU 1500":
            judge(f"UDT, {cell}: sealed / plain goodput, at least 0.65", value, at_least(value, 0.65))
            value = ratio("unshaped", cell, "sealed", "iperf3, cubic")
            judge(f"UDT, {cell}: sealed / plain iperf3, at least 1.0", value, at_least(value, 1.0))
        value = added("unshaped", cell)
        judge(f"UDT, {cell}: CPU that sealing adds, s/GB, at most {most}", value, at_most(value, most))
    cell = "MTU 65536"
    value = ratio("tcp", cell, "sealed", "plain")
    judge("TCP: sealed / plain goodput, at least 0.6", value, at_least(value, 0.6))
    value = ratio("tcp", cell, "sealed", "stunnel, 1 stream")
    judge("TCP: sealed / stunnel, one stream (figure 2), at least 1.5", value, at_least(value, 1.5))
    value = ratio("gridftp", "MTU 1500", "protect, udt", "TCP, -dcpriv")
    judge("GridFTP: protect over UDT / -dcpriv over TCP, at least 1.8", value, at_least(value, 1.8))
    value = ratio("gridftp", "MTU 1500", "protect, udt", "TCP, -dcpriv", "cpu_s_per_gb")
    judge("GridFTP: the same of CPU, at most 0.6", value, at_most(value, 0.6))
    near, far = (found.get(("distance", f"RTT {rtt} ms, loss 0", "sealed"), {}).get("gbps") for rtt in (1, 100))
    value = far / near if near and far else None
    judge("figure 6(a): sealed at 100 ms / at 1 ms, at least 0.9", value, at_least(value, 0.9))
    return lines


def name_of(cell):
    return f"MTU {cell['mtu']}" if "mtu" in cell else f"RTT {cell['rtt_ms']} ms, loss {cell['loss']:g}"


def medians(runs):
    groups = {}
    for run in runs:
        if "failed" not in run:
            groups.setdefault((run["experiment"], run["cell"], run["series"]), []).append(run)
    return {
        group: {key: statistics.median(values) for key in ("gbps", "cpu_s_per_gb", "ramp_rtts")
                if (values := [run[key] for run in members if run.get(key) is not None])} | {"runs": len(members)}
        for group, members in groups.items()
    }


def report(state, plan):
    """The page: the machine, the bars, the medians, and each run."""
    found = medians(state["runs"])
    lines = [f"`scripts/trust.py{' --quick' if state['quick'] else ''}`, {state['date']}, commit {state['commit']}",
             f"{state['machine']}.",
             "Load average before, at most: " + f"{max((run['load'] for run in state['runs']), default=0):.1f}."]
    if state["quick"]:
        lines.append("A trial with few and short runs: no number here is a result.")
    judged = bars(found)
    width = max(len(words) for words, _, _ in judged)
    lines += ["", f"{'bar':{width}}  value  verdict"]
    for words, value, is_met in judged:
        shown = "-" if value is None else f"{value:.2f}"
        verdict = "not judged" if value is None else "met" if is_met else "MISSED"
        lines.append(f"{words:{width}}  {shown:>5}  {verdict}")
    lines += ["", "Medians. CPU: seconds of all processes of both ends for 10^9 bytes. Ramp: round trips until 0.9 of the",
              "final rate. stunnel: CUBIC, AES-128-GCM. Figure 2 of the paper is `tcp`, figure 6(a) `distance`.", ""]
    lines.append(f"{'':54}{'Gb/s':>8}{'CPU':>8}{'ramp':>7}{'runs':>6}  Gb/s of each run")
    for experiment, (cells, series) in plan.items():
        for cell in map(name_of, cells):
            for one in series:
                key = (experiment, cell, one)
                runs = [run for run in state["runs"] if (run["experiment"], run["cell"], run["series"]) == key]
                title = f"{experiment:9} {cell:22} {one}"
                if key in found:
                    value = found[key]
                    ramp = f"{value['ramp_rtts']:.1f}" if "ramp_rtts" in value else ""
                    each = " ".join(f"{run['gbps']:.2f}" for run in runs if "failed" not in run)
                    numbers = f"{value['gbps']:8.2f}{value['cpu_s_per_gb']:8.3f}{ramp:>7}{value['runs']:6}"
                    lines.append(f"{title:54}{numbers}  {each}")
                for why in dict.fromkeys(run["failed"] for run in runs if "failed" in run):
                    lines.append(f"{title:54}not run: {why}")
    return "\n".join(lines) + "\n", all(is_met for _, _, is_met in judged)


# ---- programs

def cargo(*arguments):
    """Builds; the executables by the name of their target."""
    command = ["cargo", *arguments, "--release", "--locked", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(message["manifest_path"].split("/")[-2], message["target"]["name"]): pathlib.Path(message["executable"])
            for message in messages if message.get("executable")}


def prepare(options, work):
    """Paths of the programs; a string is the reason why one is missing."""
    names = ("haul", "quic", "udt_test", "tcp_test", "xio")
    if not all(getattr(options, name) for name in names):
        done = subprocess.run([ROOT / "scripts/setup.sh", *PACKAGES], check=False)
        if done.returncode:
            print("trust: some programs are missing", file=sys.stderr)
    programs = {name.replace("_", " "): getattr(options, name) for name in names}
    if not (options.haul and options.xio):
        # All at a time: another choice builds what they need with other features.
        packages = [f"--package=haul-{name}" for name in ("cli", "socket", "capi")]
        built = cargo("build", *packages)
        programs["haul"] = options.haul or built["haul-cli", "haul"]
    if not options.quic:
        built = cargo("build", "--manifest-path", "tests/quic/Cargo.toml", "--target-dir", str(ROOT / "target"))
        programs["quic"] = built["quic", "quic"]
    if not options.udt_test:
        built = cargo("test", "--no-run", "--package", "haul-soft", "--test", "sealed")
        programs["udt test"] = built["haul-soft", "sealed"]
    if not options.tcp_test:
        programs["tcp test"] = cargo("test", "--no-run", "--package", "haul", "--lib")["haul", "haul"]
    if not options.xio:
        programs["xio"] = ROOT / "target/xio"
        make = ["make", "-C", "c", "xio", f"OUT={programs['xio']}", f"ARCHIVE={ROOT}/target/release/libhaul_capi.a"]
        if subprocess.run(make, cwd=ROOT, check=False).returncode:
            programs["xio"] = "the driver could not be built (make -C c xio)"
    for name, program in (("iperf3", "iperf3"), ("gridftp", "globus-gridftp-server")):
        found = any((pathlib.Path(folder) / program).exists() for folder in os.environ["PATH"].split(":"))
        programs[name] = program if found else f"{program} is not installed"
    programs["stunnel"] = unpack_stunnel(work)
    return programs


def unpack_stunnel(work):
    """Debian's stunnel, unpacked: installed, it would be a service of this host."""
    folder = work / "stunnel"
    program = folder / "usr/bin/stunnel4"
    if not program.exists():
        folder.mkdir(exist_ok=True)
        done = subprocess.run(["apt-get", "download", "-qq", "stunnel4", "libwrap0"], cwd=folder, check=False,
                              stderr=subprocess.DEVNULL)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        if done.returncode or not program.exists():
            return "apt-get download stunnel4 failed"
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two paths, one round, short runs")
    parser.add_argument("--rounds", type=int, help="runs of each series (5; with --quick 1)")
    parser.add_argument("--budget", type=float, default=38, help="minutes after which no run begins (38)")
    parser.add_argument("--only", help="names of experiments, with commas between them")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/trust", help="where runs.json is")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results/trust.txt")
    built = "in place of the one that this script builds"
    for name in ("haul", "quic", "udt-test", "tcp-test", "xio"):
        parser.add_argument(f"--{name}", type=lambda path: pathlib.Path(path).resolve(), help=built)
    options = parser.parse_args()
    plan = experiments(options.quick)
    if options.only:
        unknown = [name for name in options.only.split(",") if name not in plan]
        if unknown:
            sys.exit(f"trust: no experiment {', '.join(unknown)}; there are {', '.join(plan)}")
        plan = {name: plan[name] for name in options.only.split(",")}
    if os.geteuid():
        sys.exit("trust: needs root, for network namespaces")
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    programs = prepare(options, work)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "unknown")
    cores, of_all = len(os.sched_getaffinity(0)), os.cpu_count()
    machine = f"{cores if cores == of_all else f'{cores} of {of_all}'} cores of {cpu}, Linux {platform.release()}"
    commit = check(["git", "-C", ROOT, "describe", "--always", "--dirty"]).strip()
    journal = Journal(work, {"machine": machine, "commit": commit, "quick": options.quick})
    deadline = time.monotonic() + options.budget * 60
    rounds = options.rounds or (1 if options.quick else 5)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        for _ in range(64 if options.quick else 1024):
            file.write(os.urandom(1 << 20))
        file.flush()
        Stage.file = lambda _self: pathlib.Path(file.name)
        for number in range(rounds):
            for experiment, (cells, series) in plan.items():
                for cell in cells:
                    turn = {"experiment": experiment, "cell": name_of(cell), "round": number}
                    with journal.claim(turn) as done:
                        for one, (needs, work_of) in series.items():
                            if done is None or one in done or time.monotonic() > deadline:
                                continue
                            run = turn | {"series": one, "load": os.getloadavg()[0]}
                            run |= attempt(programs, needs, work_of, cell)
                            journal.add(run)
                            shown = run.get("failed") or f"{run['gbps']:.2f} Gb/s, {run['cpu_s_per_gb']:.3f} CPU s/GB"
                            print(f"[{number + 1}/{rounds}] {experiment}, {name_of(cell)}, {one}: {shown}", flush=True)
    text, is_met = report(journal.read(), plan)
    options.out.write_text(text)
    print(text)
    return 0 if is_met else 1


class Journal:
    """DIR/runs.json, for any number of processes at a time, and what each of them works on."""

    def __init__(self, work, about):
        self.file, self.claims = work / "runs.json", work / "claims"
        self.claims.mkdir(exist_ok=True)
        self.users = open(self.claims / "users", "w")
        with self.locked("runs"):
            state = self.read()
            if not about.items() <= state.items():
                self.write(about | {"date": time.strftime("%Y-%m-%d"), "runs": []})
            elif self.take(self.users, fcntl.LOCK_EX):
                # What failed in an earlier command is tried again.
                self.write(state | {"runs": [run for run in state["runs"] if "failed" not in run]})
            self.take(self.users, fcntl.LOCK_SH)

    @staticmethod
    def take(file, lock):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, lock | fcntl.LOCK_NB)
            return True
        return False

    @contextlib.contextmanager
    def locked(self, name):
        with open(self.claims / name, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read(self):
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def write(self, state):
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(state, indent=1) + "\n")
        new.rename(self.file)

    def add(self, run):
        with self.locked("runs"):
            state = self.read()
            state["runs"].append(run)
            self.write(state)

    @contextlib.contextmanager
    def claim(self, turn):
        """The series of a turn that have run; None if another process is at it."""
        name = "-".join(map(str, turn.values())).replace("/", "-").replace(" ", "-")
        with open(self.claims / name, "w") as file:
            if self.take(file, fcntl.LOCK_EX):
                yield {run["series"] for run in self.read()["runs"] if turn.items() <= run.items()}
            else:
                yield None


def attempt(programs, needs, work_of, cell):
    """One run on a stage of its own: what it found, or why it failed."""
    missing = [programs[name] for name in needs if isinstance(programs[name], str) and " " in programs[name]]
    if missing:
        return {"failed": missing[0]}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        try:
            with Stage(programs, pathlib.Path(folder)) as stage:
                return work_of(stage, cell)
        except Failed as failed:
            return {"failed": " ".join(str(failed).split())}


if __name__ == "__main__":
    # Labs and servers are taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
