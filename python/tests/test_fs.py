"""The file system haul://."""

import os
import random
import threading
import types
from concurrent.futures import Future

import fsspec
import pytest

import longhaul
from longhaul import NotFoundError, RefusedError, SourceChangedError, UnavailableError, UsageError
from longhaul.child import Stat
from longhaul.fs import HaulFileSystem

from .conftest import OPTIONS

LEN = 9 << 20


@pytest.fixture
def fs(server):
    return HaulFileSystem(host="127.0.0.1", port=server.port, options=OPTIONS)


@pytest.fixture(scope="module")
def content(server):
    content = os.urandom(LEN)
    (server.root / "data").mkdir(exist_ok=True)
    (server.root / "data/f").write_bytes(content)
    return content


def test_the_protocol_is_registered(server, content):
    options = {"options": OPTIONS}
    with fsspec.open(server.at("data/f"), **options) as file:
        assert file.read(100) == content[:100]
    fs, path = fsspec.core.url_to_fs(server.at("data/f"), **options)
    assert isinstance(fs, HaulFileSystem) and path == "data/f"


def test_info_and_ls(fs, content):
    info = fs.info("data/f")
    assert (info["name"], info["type"], info["size"]) == ("data/f", "file", LEN)
    assert fs.info("data")["type"] == "directory"
    assert fs.info("")["type"] == "directory"
    assert fs.ls("data", detail=False) == ["data/f"]
    assert fs.ls("data/f", detail=False) == ["data/f"]
    assert "data" in fs.ls("", detail=False) and "/data" in fs.ls("/", detail=False)
    assert fs.exists("data/f") and not fs.exists("data/none")
    with pytest.raises(NotFoundError):
        fs.info("none")
    with pytest.raises(RefusedError):
        fs.info("../outside")


def test_reads_are_what_the_file_has(fs, content):
    assert fs.cat_file("data/f") == content
    assert fs.cat_file("data/f", -10) == content[-10:]
    assert fs.cat_file("data/f", 5, 10) == content[5:10]
    ranges = fs.cat_ranges(["data/f"] * 50, list(range(0, 5000, 100)), list(range(7, 5007, 100)))
    assert ranges == [content[at : at + 7] for at in range(0, 5000, 100)]
    with fs.open("data/f") as file:
        pieces = iter(lambda: file.read(100_001), b"")
        assert b"".join(pieces) == content
        chance = random.Random(1)
        for _ in range(50):
            at, length = chance.randrange(LEN), chance.randrange(300_000)
            file.seek(at)
            assert file.read(length) == content[at : at + length]
    with fs.open("data/f", cache_type="readahead") as file:
        assert file.read() == content


def test_reads_of_many_threads_share_a_session(fs, content):
    failed = []

    def read(at):
        for step in range(20):
            low = at * 1000 + step * 100_000
            if fs.cat_file("data/f", low, low + 5000) != content[low : low + 5000]:
                failed.append(low)

    threads = [threading.Thread(target=read, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_file_that_changes_raises_and_never_mixes(server, fs):
    path = server.root / "changing"
    path.write_bytes(b"a" * (1 << 20))
    with fs.open("changing", block_size=1 << 16) as file:
        assert file.read(10) == b"a" * 10
        path.write_bytes(b"b" * (1 << 20))
        os.utime(path, ns=(1, 1))
        with pytest.raises(SourceChangedError):
            file.seek(700_000)
            file.read(10)


def test_files_are_written_whole(server, fs):
    with fs.open("made/by/f", "wb") as file:
        file.write(b"one")
        file.write(b"two")
    assert (server.root / "made/by/f").read_bytes() == b"onetwo"
    with fs.open("made/text", "w") as file:
        file.write("täxt")
    assert fs.cat_file("made/text").decode() == "täxt"
    with pytest.raises(ZeroDivisionError), fs.open("made/none", "wb") as file:
        file.write(b"half" * (1 // 0))
    assert not fs.exists("made/none")
    fs.pipe_file("made/piped", b"x" * 1000)
    assert fs.cat_file("made/piped") == b"x" * 1000


def test_put_and_get(server, fs, tmp_path):
    (tmp_path / "here").write_bytes(b"content")
    fs.put_file(str(tmp_path / "here"), "there/named")
    assert (server.root / "there/named").read_bytes() == b"content"
    fs.get_file("there/named", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"content"
    fs.get("there", str(tmp_path / "all"), recursive=True)
    assert (tmp_path / "all/named").read_bytes() == b"content"


def test_a_failed_part_is_requested_again_and_close_cancels(fs, content):
    begun = []

    class Flaky(HaulFileSystem):
        def _read(self, path, stat, start, end):
            future = super()._read(path, stat, start, end)
            if len(begun) == 1:
                future.cancel()
                future = Future()
                future.set_exception(UnavailableError("the session was lost"))
            begun.append(future)
            return future

    flaky = Flaky(**fs.storage_options)
    with flaky.open("data/f", block_size=1 << 20) as file:
        assert file.read(1 << 20) == content[: 1 << 20]
        with pytest.raises(UnavailableError):
            file.read(1 << 20)
        file.seek(1 << 20)
        assert file.read() == content[1 << 20 :]
    with flaky.open("data/f", block_size=1 << 20) as file:
        file.read(1 << 20)
        pending = Future()
        file.cache._parts.append((1 << 20, 2 << 20, pending))
    assert pending.cancelled()
    with flaky.open("data/f", block_size=1 << 20) as file:
        file.read(1 << 20)
        failed = Future()
        failed.set_exception(UnavailableError("of the process that forked"))
        file.cache._parts, file.cache._owner = [(1 << 20, 2 << 20, failed)], 0
        assert file.read(10) == content[1 << 20 :][:10]


def test_ranges_of_missing_files_are_returned(server, fs, content):
    paths = ["data/f", "data/none", "data/\udcff"]
    found = fs.cat_ranges(paths, 0, 5)
    assert found[0] == content[:5]
    assert isinstance(found[1], NotFoundError) and isinstance(found[2], UsageError)
    with pytest.raises(NotFoundError):
        fs.cat_ranges(paths, 0, 5, on_error="raise")


def test_the_attributes_of_many_files_are_in_flight_at_a_time(fs, monkeypatch):
    asked, most = [], []

    def begin_stat(at):
        asked.append(Future())
        if len(asked) == 50:
            for future in asked:
                future.set_exception(NotFoundError("none"))
            most.append(len(asked))
        return asked[-1]

    monkeypatch.setattr(fs, "_child", types.SimpleNamespace(begin_stat=begin_stat))
    fs.cat_ranges([f"data/{number}" for number in range(50)], 0, 5)
    assert most == [50]


def test_a_listing_spares_requests_for_attributes(server, fs, content, monkeypatch):
    fs.invalidate_cache()
    fs.ls("data")

    def stat(at):
        raise AssertionError(at)

    monkeypatch.setattr(fs, "_child", types.SimpleNamespace(stat=stat, read=fs._child.read))
    assert fs.info("data/f")["size"] == len(content)
    assert fs.open("data/f").read(10) == content[:10]
    monkeypatch.setattr(fs, "_expiry", 0)
    with pytest.raises(AssertionError):
        fs.info("data/f")


def test_remembered_attributes_do_not_hide_a_change(server, fs):
    file = server.root / "remembered"
    file.write_bytes(b"first")
    assert fs.cat_file("remembered") == b"first"
    file.write_bytes(b"the second")
    assert fs.info("remembered")["size"] == 5
    assert fs.cat_file("remembered") == b"the second"
    file.write_bytes(b"a third state")
    with pytest.raises(SourceChangedError):
        fs.open("remembered").read()
    assert fs.open("remembered").read() == b"a third state"
    file.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            fs.open("remembered").read()
    assert not fs.exists("remembered")


def test_paths_by_ssh_keep_their_slash(tmp_path, monkeypatch):
    fs = HaulFileSystem(ssh="host", options=["--key", "none"], skip_instance_cache=True)
    sent, asked = [], []

    def put(source, target, options):
        sent.append((os.path.basename(source), target))

    def stat(at):
        asked.append(at)
        if at != "host:/":
            raise NotFoundError(at)
        return Stat("directory", 0, 0o755, 0, 0)

    entry = {"path": "d", "kind": "directory", "size": 0, "mode": 0o755, "target": None}
    entry |= {"modified_s": 0, "modified_ns": 0}
    monkeypatch.setattr("longhaul.fs.put", put)
    monkeypatch.setattr(fs, "_child", types.SimpleNamespace(stat=stat, ls=lambda at: [entry]))
    (tmp_path / "x").write_bytes(b"content")
    fs.put_file(str(tmp_path / "x"), "/f")
    with fs.open("/g", "wb") as file:
        file.write(b"content")
    fs.mkdir("/d")
    fs.put_file(str(tmp_path / "x"), "f")
    assert sent == [("f", "host:/"), ("g", "host:/"), ("d", "host:/"), ("f", "host:")]
    assert fs.ls("/", detail=False) == ["/d"]
    assert asked == ["host:/d", "host:/"]


def test_a_source_with_another_name_is_not_copied(server, fs, tmp_path, monkeypatch):
    (tmp_path / "here").write_bytes(b"content")
    monkeypatch.chdir(tmp_path)
    targets = []

    def put(source, target, options):
        targets.append(os.path.islink(source))
        return longhaul.put(source, target, options=options)

    monkeypatch.setattr("longhaul.fs.put", put)
    fs.put_file("here", "linked/named")
    copied = server.root / "linked/named"
    assert targets == [True] and copied.read_bytes() == b"content" and not copied.is_symlink()
