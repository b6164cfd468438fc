"""A `haul serve` on loopback."""

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from longhaul._binary import binary

OPTIONS = ["--allow-insecure", "--channel", "udt"]


@dataclass
class Server:
    root: Path
    port: int

    def at(self, path: str = "") -> str:
        return f"haul://127.0.0.1:{self.port}/{path}"


@pytest.fixture(scope="session", autouse=True)
def _home(tmp_path_factory):
    """No configuration and no keys of the user."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        os.environ[name] = str(tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def server(tmp_path_factory, _home):
    root = tmp_path_factory.mktemp("served")
    command = [binary(), "serve", str(root), "--listen", "127.0.0.1:0", "--allow-insecure"]
    log = tmp_path_factory.mktemp("log") / "stderr"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    until = time.monotonic() + 20
    while not (found := re.search(r"127\.0\.0\.1:(\d+)", log.read_text())):
        assert process.poll() is None and time.monotonic() < until, "the server did not start"
        time.sleep(0.02)
    port = int(found[1])
    yield Server(root, port)
    # Sessions that read are open.
    process.kill()
    process.wait()


def pytest_terminal_summary(terminalreporter):
    """Prints the result as the programs of cargo do, for ./test."""

    def count(*kinds):
        return sum(len(terminalreporter.stats.get(kind, ())) for kind in kinds)

    failed = count("failed", "error")
    result = "FAILED" if failed else "ok"
    counts = f"{count('passed')} passed; {failed} failed; {count('skipped')} ignored"
    terminalreporter.write_line(f"test result: {result}. {counts}")
