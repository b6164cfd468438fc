#!/usr/bin/env python3
"""Compares two builds of `haul` side by side, in pairs, and prints median ratios with intervals.

Usage: scripts/compare-builds.py OLD NEW [--pairs N] [--only NAMES] [--json FILE]

In each pair both builds do the same work once; which one begins alternates. No run is discarded. A ratio is
new / old of one pair. Its interval is that of the median from order statistics (98.8 % of 11 pairs).

  send        1 GiB file, `haul send` from command to exit, 1 Gb/s, 100 ms, 1e-4      bytes per second
  udt         UDT, memory to memory, 10 s, the same path                              bits per second
  write       RDMA Write of 1 MiB over loopback, TCP                                  bits per second
  send64      Send of 64 bytes over loopback, TCP                                     messages per second
  record      UD Write-Record of 512 KiB over loopback                                bits per second
  gateways    one TCP stream through two gateways over loopback                       bits per second

The processor time is that of both ends, for 10^9 bytes (for 10^6 messages with send64). Run it on a quiet
machine, as root. The old and the new build each talk to a server of their own build.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

FILE_BYTES = 1 << 30
LAB = "compare-builds"
PATH = 'topology = "pair"\n[path]\nrate = "1Gbit"\nrtt = "100ms"\nloss = 1e-4\n'
NEAR = """name = 'near'
anonymous = true
[[door]]
kind = 'forward'
listen = '127.0.0.1:{listener}'
to = '127.0.0.1:{server}'
[[route]]
to = ['*']
via = ['127.0.0.1:{control}']
"""
FAR = """name = 'far'
listen = '127.0.0.1:{control}'
anonymous = true
exit = ['127.0.0.0/8']
[[channel]]
kind = 'iwarp/udt'
listen = '127.0.0.1:{channel}'
"""


class Build:
    """One build and the servers of it that are up."""

    def __init__(self, name, binary, at, folder):
        self.name, self.binary, self.folder = name, binary, folder
        self.ports = {"file": 4800 + at, "bench": 4810 + at, "loopback": 4820 + at}
        self.gateway = {"control": 7800 + at, "channel": 7810 + at, "listener": 7820 + at, "server": 5201}
        self.servers = []
        shown = subprocess.run([binary, "send", "--help"], stdout=subprocess.PIPE, check=True).stdout
        port = self.ports["file"]
        # Builds before the identities name every server HOST:PATH, and trust every one.
        is_new = b"haul://" in shown
        self.options, self.to = (["--allow-insecure"], f"haul://b:{port}/") if is_new else (["--port", str(port)], "b:")

    def serve(self, *arguments, host=None):
        place = lab_exec(self.binary, host) if host else []
        log = open(self.folder / "servers.log", "ab")
        process = subprocess.Popen([*place, self.binary, *arguments], stdout=log, stderr=log)
        self.servers.append(process)
        return process

    def stop(self):
        for process in self.servers:
            process.send_signal(signal.SIGTERM)
        for process in self.servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def lab_exec(haul, host):
    return [haul, "lab", "exec", "--name", LAB, host, "--"]


def cpu_of(pid):
    """Seconds of processor time of a process and of its children that run."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(map(cpu_of, children))


def run(command):
    """Runs a command to its end: what it printed, and its processor time."""
    before = os.times()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    after = os.times()
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr.decode()}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, used


def send(build):
    received = build.folder / build.name / "ocean.bin"
    received.unlink(missing_ok=True)
    cpu = cpu_of(build.file_server)
    begun = time.monotonic()
    place = lab_exec(build.binary, "a")
    _, used = run([*place, build.binary, "send", "--quiet", *build.options, build.folder / "ocean.bin", build.to])
    took = time.monotonic() - begun
    used += cpu_of(build.file_server) - cpu
    if received.stat().st_size != FILE_BYTES:
        sys.exit("a file is not whole")
    return FILE_BYTES / took, used / FILE_BYTES * 1e9


def udt(build):
    place = lab_exec(build.binary, "a")
    out, _ = run([*place, build.binary, "bench", "run", f"b:{build.ports['bench']}", "-e", "udt", "--time", "10s", "--json"])
    one = json.loads(out)["runs"][0]
    return one["goodput_bps"], one["sender"]["cpu_s_per_gb"] + one["receiver"]["cpu_s_per_gb"]


def rdma(*arguments):
    def work(build):
        at = f"localhost:{build.ports['loopback']}"
        out, _ = run([build.binary, "bench", "rdma", at, *arguments, "--time", "3s", "--json"])
        row = json.loads(out)["rows"][0]
        cpu = (row["client"]["cpu_s_per_gb"] + row["server"]["cpu_s_per_gb"])
        if row["bytes"] <= 64:
            return row["bandwidth"]["message_rate_mps"] * 1e6, cpu * row["bytes"] / 1e3
        return row["bandwidth"]["bw_average_gbps"] * 1e9, cpu
    return work


def gateways(build):
    cpu = sum(map(cpu_of, build.gateways))
    port = str(build.gateway["listener"])
    out, _ = run(["iperf3", "--client", "127.0.0.1", "--port", port, "--time", "4", "--json"])
    received = json.loads(out)["end"]["sum_received"]
    cpu = sum(map(cpu_of, build.gateways)) - cpu
    return received["bits_per_second"], cpu / received["bytes"] * 1e9


WORK = {
    "send": send,
    "udt": udt,
    "write": rdma("--op", "write", "--size", "1MiB"),
    "send64": rdma("--op", "send", "--size", "64"),
    "record": rdma("--qp", "ud", "--op", "write-record", "--size", "512KiB"),
    "gateways": gateways,
}


def start(build, works):
    (build.folder / build.name).mkdir()
    if {"send", "udt"} & works:
        ports = build.ports
        server = build.serve("serve", "--quiet", "--allow-insecure", "--listen", f"0.0.0.0:{ports['file']}",
                             str(build.folder / build.name), host="b")
        build.serve("bench", "serve", "--allow-insecure", "--listen", f"0.0.0.0:{ports['bench']}", host="b")
        build.file_server = server.pid
    build.serve("bench", "serve", "--listen", f"127.0.0.1:{build.ports['loopback']}")
    if "gateways" in works:
        build.gateways = []
        for name, text in (("far", FAR), ("near", NEAR)):
            path = build.folder / f"{build.name}-{name}.toml"
            path.write_text(text.format(**build.gateway))
            build.gateways.append(build.serve("gateway", "run", str(path)).pid)


def interval(ratios):
    """The k-th least and the k-th greatest, such that the median is between them with 95 % or more."""
    ratios, n = sorted(ratios), len(ratios)
    k = 0
    while 1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n >= 0.95:
        k += 1
    return ratios[max(k - 1, 0)], ratios[n - max(k, 1)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--only", default=",".join(WORK))
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    works = options.only.split(",")
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "unknown")
    machine = f"{os.cpu_count()} cores of {cpu}, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}"
    runs = []
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder).resolve()
        binaries = options.old.resolve(), options.new.resolve()
        builds = [Build(name, binary, at, folder) for at, (name, binary) in enumerate(zip(("old", "new"), binaries))]
        if {"send", "udt"} & set(works):
            (folder / "path.toml").write_text(PATH)
            with open(folder / "ocean.bin", "wb") as file:
                for _ in range(FILE_BYTES >> 20):
                    file.write(os.urandom(1 << 20))
            run([binaries[1], "lab", "up", "--name", LAB, folder / "path.toml"])
            stack.callback(run, [binaries[1], "lab", "down", LAB])
        if "gateways" in works:
            server = subprocess.Popen(["iperf3", "--server"], stdout=subprocess.DEVNULL)
            stack.callback(server.terminate)
        for build in builds:
            stack.callback(build.stop)
            start(build, set(works))
        time.sleep(1)
        print(machine, flush=True)
        for work in works:
            for pair in range(options.pairs):
                order = builds if pair % 2 == 0 else builds[::-1]
                values = {build.name: WORK[work](build) for build in order}
                runs.append({"work": work, "pair": pair, **values})
                rates = [values[name][0] for name in ("old", "new")]
                print(f"  {work} {pair}: old {rates[0]:.4g}, new {rates[1]:.4g}", file=sys.stderr, flush=True)
            show(work, [one for one in runs if one["work"] == work])
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")


def show(work, runs):
    for title, at in (("rate", 0), ("CPU", 1)):
        ratios = [one["new"][at] / one["old"][at] for one in runs]
        least, greatest = interval(ratios)
        medians = [statistics.median(one[name][at] for one in runs) for name in ("old", "new")]
        print(f"{work:9} {title:5} new/old {statistics.median(ratios):.3f} [{least:.3f}, {greatest:.3f}]"
              f"   old {medians[0]:.4g}, new {medians[1]:.4g}, {len(runs)} pairs", flush=True)


if __name__ == "__main__":
    main()
