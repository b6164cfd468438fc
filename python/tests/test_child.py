"""The process `haul api` behind the file system."""

import os
import threading
import time

import pytest

from longhaul import UnavailableError, UsageError
from longhaul._binary import binary
from longhaul.child import Child, Stat

from .conftest import OPTIONS

STAT = Stat("file", 8 << 30, 0o644, 0, 0)


@pytest.fixture
def child():
    child = Child(OPTIONS)
    yield child
    child.close()


@pytest.fixture
def sparse(server):
    """A file of 8 GiB without content."""
    with open(server.root / "sparse", "wb") as file:
        file.truncate(8 << 30)
    yield server.at("sparse")
    os.remove(server.root / "sparse")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a shell script in place of the next `haul api`."""

    def put(script):
        path = tmp_path / "haul"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("HAUL_BINARY", str(path))

    return put


def until(condition):
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit, "it did not happen within 10 s"
        time.sleep(0.01)


def test_a_request_can_be_cancelled(child, sparse):
    future = child.read(sparse, child.stat(sparse), 0, 8 << 30)
    assert child._requests and future.cancel()
    until(lambda: not child._requests)
    assert child.stat(sparse).size == 8 << 30
    child.close()
    # The next request starts another process.
    assert child.stat(sparse).kind == "file"


def test_a_child_that_ends_fails_its_requests(child, sparse):
    future = child.read(sparse, child.stat(sparse), 0, 8 << 30)
    child._process.kill()
    with pytest.raises(UnavailableError):
        future.result(10)
    assert child.stat(sparse).kind == "file"


@pytest.mark.parametrize("answer", [r"\0\0\0", r"\0\0\0\11\0\0\0\0{", r"\0\0\0\1\0\0\0\0{"])
def test_a_child_that_ends_in_a_message_fails_its_requests(child, fake, answer):
    fake(f"printf '{answer}'")
    with pytest.raises(UnavailableError):
        child.read("host:f", STAT, 0, 1).result(10)


def test_a_request_that_cannot_be_written_is_forgotten(child, fake, server, monkeypatch):
    real = binary()
    fake("head -c 1 > /dev/null; exec sleep 60 <&-")
    first = child.read("host:f", STAT, 0, 1)
    time.sleep(0.5)
    with pytest.raises(UnavailableError):
        child.read("host:f", STAT, 0, 1)
    with pytest.raises(UnavailableError):
        first.result(10)
    monkeypatch.setenv("HAUL_BINARY", real)
    assert child.stat(server.at()).kind == "directory"
    until(lambda: child._room._value == 200)


def test_a_child_that_does_not_end_is_killed(fake):
    fake("exec sleep 60")
    child = Child()
    future = child.read("host:f", STAT, 0, 1)
    begun = time.monotonic()
    child.close()
    assert time.monotonic() - begun < 10
    with pytest.raises(UnavailableError):
        future.result(10)


def test_a_forked_process_has_its_own_child(child, server):
    assert child.stat(server.at()).kind == "directory"
    process = child._process
    blocked, go = os.pipe(), os.pipe()
    with child._lock:
        pid = os.fork()
        if pid == 0:
            try:
                threading.Timer(20, os._exit, [3]).start()
                kind = child.stat(server.at()).kind
                child.close()
                os.write(blocked[1], kind.encode())
                os.close(go[1])
                os.read(go[0], 1)
            finally:
                os._exit(0)
    os.close(blocked[1])
    try:
        assert os.read(blocked[0], 9) == b"directory"
        # The forked process does not keep the standard input of this one's child.
        child.close()
        assert process.returncode == 0
    finally:
        os.close(go[1])
        os.waitpid(pid, 0)
        os.close(blocked[0])
        os.close(go[0])


def test_a_path_that_cannot_be_sent_is_a_usage_error(child, server):
    assert child.stat(server.at()).kind == "directory"
    process = child._process
    with pytest.raises(UsageError, match=r"udcff"):
        child.stat(server.at("a\udcff"))
    with pytest.raises(UsageError, match="too long"):
        child.stat(server.at("a" * (1 << 20)))
    assert child.stat(server.at()).kind == "directory" and child._process is process
