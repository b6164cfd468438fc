#!/usr/bin/env python3
"""Measures reading columns of a Parquet set over a long path: through haul://, sshfs and fsspec's sftp.

Usage: scripts/reads.py [--scale PART] [--rounds N] [--columns N] [--loss LIST] [--work DIR] [--out FILE] [--haul FILE]

The set has 1 GiB: 16 files of 32 columns of random 64-bit integers, written by pyarrow with its defaults. The
path has 1 Gb/s and an RTT of 100 ms. In each run a new process reads some columns of all files by
`pyarrow.parquet.read_table`, of which the time and the digest count:

  haul        fsspec's `haul://` of the module in python/, sealed, from nothing: with connecting
  sshfs       a mount by sshfs with its defaults, which is made before the time begins
  sshfs fast  a mount that also has 8 connections, a cipher in hardware, and keeps what the kernel has cached
  sftp        fsspec's `sftp`, which is paramiko, connected before the time begins. It reads an eighth of the files, one
              after another: its rate is the same for all, and it hangs where threads share a client, as those of
              `read_table` do

The series take turns, round after round. Before each run the files leave the page cache. Results go to
DIR/runs.json, medians and bars to FILE (default: results/reads.txt). The exit code is 1 if a bar was missed.

Run it as root on a quiet machine, with a release build of haul. It needs sshfs and /dev/fuse, and installs
pyarrow, fsspec and paramiko from PyPI into DIR. `--scale 0.02` shows only that it works.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["fsspec==2026.9.0", "paramiko==5.1.0", "pyarrow==26.0.1"]
LAB = f"reads-{os.getpid()}"
FAR = "10.77.0.2"
SSH_PORT, HAUL_PORT = 2222, 4725
FILES, COLUMNS = 16, 32
SET_BYTES = 1 << 30
RTT_MS = 100
# haul:// is to be so many times as fast as each other series.
BAR = 2.0
SERIES = ["haul", "sshfs", "sshfs fast", "sftp"]
FAST = ["-o", "max_conns=8,kernel_cache,compression=no,Ciphers=aes128-gcm@openssh.com"]
# Seconds that one run may take.
PATIENCE = 3600
# sshd needs a folder and a user of its own; what is mounted is visible to it alone.
SSHD = """
mkdir -p /run/sshd
if ! grep -q ^sshd: /etc/passwd; then
  { cat /etc/passwd; echo sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin; } >"$0"
  mount --bind "$0" /etc/passwd
fi
exec "$@"
"""


# ---- in a process of its own, with the modules of DIR

def write_set(folder, scale):
    """Writes the files of the set."""
    import pyarrow
    import pyarrow.parquet

    rows = max(int(SET_BYTES * scale) // FILES // COLUMNS // 8, 1)
    for number in range(FILES):
        buffers = (pyarrow.py_buffer(os.urandom(8 * rows)) for _ in range(COLUMNS))
        columns = [pyarrow.Array.from_buffers(pyarrow.int64(), rows, [None, buffer]) for buffer in buffers]
        table = pyarrow.table(columns, names=[f"c{column:02}" for column in range(COLUMNS)])
        pyarrow.parquet.write_table(table, folder / f"{number:02}.parquet")


def read(series, folder, columns, work):
    """Reads columns of the set; how long it took, how many bytes that were, and their digest."""
    import fsspec
    import pyarrow.parquet

    fsspec.register_implementation("haul", "longhaul.fs.HaulFileSystem")
    begin, place = time.monotonic, str(folder)
    if series == "haul":
        def reach():
            options = ["--shared-key", str(work / "key.pem")]
            return fsspec.filesystem("haul", host=FAR, options=options), ""
    elif series == "sftp":
        def reach():
            found = fsspec.filesystem("sftp", host=FAR, port=SSH_PORT, username="root", allow_agent=False,
                                      look_for_keys=False, key_filename=str(work / "ssh_key"))
            return found, place
    else:
        def reach():
            return None, place
    files, place = reach()
    start = begin()
    if series == "sftp":
        each = (pyarrow.parquet.ParquetFile(files.open(path), pre_buffer=False) for path in few(files.find(place)))
        table = pyarrow.concat_tables([one.read(columns, use_threads=False) for one in each])
    else:
        place = few(map(str, folder.iterdir())) if series == "local few" else place
        table = pyarrow.parquet.read_table(place, columns=columns, filesystem=files)
    seconds = begin() - start
    digest, count = hashlib.sha256(), 0
    for column in table.columns:
        for chunk in column.chunks:
            _, values = chunk.buffers()
            values = memoryview(values)[8 * chunk.offset : 8 * (chunk.offset + len(chunk))]
            digest.update(values)
            count += len(values)
    return {"seconds": seconds, "bytes": count, "sha256": digest.hexdigest()}


def few(paths):
    return sorted(paths)[: FILES // 8]


@contextlib.contextmanager
def mounted(folder, work, options):
    """The far folder by sshfs, mounted in this process's mount namespace."""
    with tempfile.TemporaryDirectory() as at:
        check(["sshfs", f"root@{FAR}:{folder}", at, "-F", work / "ssh_config", *options])
        try:
            yield pathlib.Path(at)
        finally:
            check(["fusermount3", "-u", at])


def one_run(series, folder, columns, work):
    if not series.startswith("sshfs"):
        return read(series, folder, columns, work)
    with mounted(folder, work, FAST if series.endswith("fast") else []) as at:
        return read(series, at, columns, work)


# ---- the hosts

def check(command, environment=None):
    """Runs a command; what it printed."""
    command = [str(word) for word in command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          timeout=PATIENCE, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:9])}: exit {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def inside(haul, host):
    return [haul, "lab", "exec", "--name", LAB, host, "--"]


@contextlib.contextmanager
def hosts(haul, work, folder, loss):
    """A lab, and at its far end sshd and `haul serve`."""
    scenario = work / "path.toml"
    scenario.write_text(f'[path]\nrate = "1Gbit"\nrtt = "{RTT_MS}ms"\nloss = {loss}\n')
    key = work / "ssh_key"
    (work / "sshd_config").write_text(
        f"Port {SSH_PORT}\nHostKey {key}\nAuthorizedKeysFile {key}.pub\nPermitRootLogin prohibit-password\n"
        "StrictModes no\nUsePAM no\nUseDNS no\nPidFile none\nMaxStartups 100\nSubsystem sftp internal-sftp\n")
    (work / "ssh_config").write_text(
        f"Host *\n Port {SSH_PORT}\n IdentityFile {key}\n IdentitiesOnly yes\n BatchMode yes\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n")
    servers = []
    check([haul, "lab", "up", "--name", LAB, scenario])
    try:
        unpacked = ROOT / "target/sshd"
        sshd = pathlib.Path("/usr/sbin/sshd")
        library = [f"LD_LIBRARY_PATH={next(unpacked.glob('usr/lib/*-linux-gnu'), '')}"]
        if not sshd.exists():
            sshd = unpacked / "usr/sbin/sshd"
        lines = [["sh", "-ec", SSHD, work / "passwd", "env", *library, sshd, "-D", "-e", "-f", work / "sshd_config"],
                 [haul, "serve", "--quiet", "--read-only", "--listen", f"0.0.0.0:{HAUL_PORT}", "--shared-key",
                  work / "key.pem", folder]]
        with open(work / "servers.log", "ab") as log:
            for line in lines:
                servers.append(subprocess.Popen(list(map(str, [*inside(haul, "b"), *line])), stdin=subprocess.DEVNULL,
                                                stdout=log, stderr=log))
        end = time.monotonic() + 20
        while not all(f":{port:04X} " in check([*inside(haul, "b"), "cat", "/proc/net/tcp"])
                      for port in (SSH_PORT, HAUL_PORT)):
            if time.monotonic() > end or any(server.poll() is not None for server in servers):
                raise RuntimeError(f"a server does not listen: see {work}/servers.log")
            time.sleep(0.1)
        yield
    finally:
        for server in servers:
            server.terminate()
        # It ends what is left in the lab.
        check([haul, "lab", "down", LAB])
        for server in servers:
            server.wait(10)


def evict(folder):
    """Takes the files out of the page cache."""
    for file in folder.iterdir():
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- the results

def report(state):
    """The page: the machine, the bars, the medians and each run."""
    lines = [f"`scripts/reads.py`, {state['date']}, commit {state['commit']}, {', '.join(PACKAGES)}",
             f"{state['machine']}. Load average before a run, at most: "
             f"{max(run['load'] for run in state['runs']):.1f}.",
             f"{state['columns']} of {COLUMNS} columns of {FILES} files, 1 Gb/s, RTT {RTT_MS} ms; caches empty."]
    if state["scale"] != 1:
        lines.append(f"A trial with {state['scale']:g} of the set: no number here is a result.")
    lines += ["", f"{'':28}{'MB/s':>8}{'haul is':>9}  {'verdict':8}  MB/s of each run"]
    is_met = True
    for loss in state["losses"]:
        rates = {series: [run["bytes"] / run["seconds"] / 1e6 for run in state["runs"]
                          if (run["loss"], run["series"]) == (loss, series)] for series in SERIES}
        for series, each in rates.items():
            median = statistics.median(each)
            ratio = statistics.median(rates["haul"]) / median
            verdict = "" if series == "haul" else "met" if ratio >= BAR else "MISSED"
            is_met &= verdict != "MISSED"
            times = "" if series == "haul" else f"{ratio:.1f} x"
            runs = " ".join(f"{rate:.2f}" for rate in each)
            lines.append(f"{f'loss {loss:g}, {series}':28}{median:8.2f}{times:>9}  {verdict:8}  {runs}")
    lines += ["", f"Bar: haul:// at least {BAR:g} x each other series. What was read is that of the set (SHA-256)."]
    return "\n".join(lines) + "\n", is_met


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="part of 1 GiB that the set has (1)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each series (3)")
    parser.add_argument("--columns", type=int, default=4, help=f"columns that are read, of {COLUMNS} (4)")
    parser.add_argument("--loss", default="0,0.0001", help="losses of the path, with commas between them (0,0.0001)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/reads", help="where the set is")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results/reads.txt")
    parser.add_argument("--haul", type=pathlib.Path, default=ROOT / "target/release/haul", help="the program")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS, metavar=("SERIES", "FOLDER", "COLUMNS"))
    options = parser.parse_args()
    work, haul = options.work.resolve(), options.haul.resolve()
    folder = work / f"set-{options.scale:g}"
    if options.one:
        series, place, columns = options.one
        if series == "write":
            return write_set(pathlib.Path(place), options.scale)
        return print(json.dumps(one_run(series, pathlib.Path(place), columns.split(","), work)))
    if os.geteuid():
        sys.exit("reads: needs root, for network namespaces")
    if not os.access(haul, os.X_OK):
        sys.exit(f"reads: {haul} cannot be run; build a release, or name another with --haul")
    work.mkdir(parents=True, exist_ok=True)
    check([ROOT / "scripts/setup.sh", "sshfs", "python3-venv"])
    check([ROOT / "scripts/sshd.sh", ROOT / "target/sshd"])
    python = work / "venv/bin/python"
    if not python.exists():
        check([sys.executable, "-m", "venv", work / "venv"])
    check([python, "-m", "pip", "install", "--quiet", *PACKAGES])
    environment = os.environ | {"HOME": str(work), "PYTHONPATH": str(ROOT / "python/src"), "HAUL_BINARY": str(haul),
                                "PYTHONDONTWRITEBYTECODE": "1"}
    itself = [python, ROOT / "scripts/reads.py", "--work", work, "--scale", options.scale, "--one"]
    if not folder.exists():
        new = folder.with_name(f"{folder.name}.new")
        new.mkdir(exist_ok=True)
        check([*itself, "write", new, ""], environment)
        new.rename(folder)
    for name, make in (("key.pem", [haul, "key", "new", "--key"]), ("ssh_key", ["ssh-keygen", "-qN", "", "-f"])):
        if not (work / name).exists():
            check([*make, work / name], environment)
    # Far apart: neighbours would be one range.
    columns = ",".join(f"c{COLUMNS * one // options.columns:02}" for one in range(options.columns))
    whole, part = (json.loads(check([*itself, one, folder, columns], environment)) for one in ("local", "local few"))
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "unknown")
    state = {"date": time.strftime("%Y-%m-%d"), "commit": check(["git", "-C", ROOT, "describe", "--always"]).strip(),
             "machine": f"{len(os.sched_getaffinity(0))} cores of {cpu}, Linux {platform.release()}",
             "scale": options.scale, "columns": options.columns, "losses": list(map(float, options.loss.split(","))),
             "runs": []}
    for loss in state["losses"]:
        with hosts(haul, work, folder, loss):
            for number in range(options.rounds):
                for series in SERIES:
                    evict(folder)
                    run = {"loss": loss, "series": series, "load": os.getloadavg()[0]}
                    run |= json.loads(check([*inside(haul, "a"), *itself, series, folder, columns], environment))
                    if run["sha256"] != (part if series == "sftp" else whole)["sha256"]:
                        sys.exit(f"reads: {series} read other bytes than those of the set")
                    state["runs"].append(run)
                    (work / "runs.json").write_text(json.dumps(state, indent=1) + "\n")
                    rate = run["bytes"] / run["seconds"] / 1e6
                    print(f"[{number + 1}/{options.rounds}] loss {loss:g}, {series}: {rate:.2f} MB/s", flush=True)
    text, is_met = report(state)
    options.out.write_text(text)
    print(text)
    return 0 if is_met else 1


if __name__ == "__main__":
    # Labs and servers are taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
