"""Transfers, listings and comparisons by the command."""

import os
import threading

import pytest

import longhaul

from .conftest import OPTIONS

TRUST = ["--allow-insecure"]


def test_a_tree_goes_and_comes_back(server, tmp_path):
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "a").write_bytes(b"hello\n")
    (tree / "d/b").write_bytes(os.urandom(3 << 20))
    events = []
    sent = longhaul.put(tree, server.at("put/"), progress=events.append, options=OPTIONS)
    assert sent["ok"] and sent["entries"]["files"] == 2
    assert events and all("event" in event for event in events)
    names = [entry["path"] for entry in longhaul.ls(server.at("put"), recursive=True, options=TRUST)]
    assert names == ["tree", "tree/a", "tree/d", "tree/d/b"]
    assert longhaul.verify(tree, server.at("put/tree"), options=TRUST)["same"] >= 2
    back = tmp_path / "back"
    back.mkdir()
    assert longhaul.get([server.at("put/tree")], back, options=OPTIONS)["ok"]
    assert (back / "tree/d/b").read_bytes() == (tree / "d/b").read_bytes()
    (tree / "a").write_bytes(b"another\n")
    longhaul.sync(f"{tree}/.", server.at("put/tree/"), options=OPTIONS)
    assert (server.root / "put/tree/a").read_bytes() == b"another\n"


def test_failures_are_exceptions_by_exit_code(server, tmp_path):
    (tmp_path / "f").write_bytes(b"one")
    with pytest.raises(longhaul.NotFoundError) as caught:
        longhaul.get(server.at("none"), tmp_path, options=OPTIONS)
    assert isinstance(caught.value, FileNotFoundError)
    assert (caught.value.code, caught.value.exit) == ("file_not_found", 4)
    with pytest.raises(longhaul.UsageError):
        longhaul.put(tmp_path / "f", server.at(), options=["--no-such-option"])
    with pytest.raises(longhaul.UnavailableError):
        longhaul.ls("haul://127.0.0.1:1/", options=TRUST)
    longhaul.put(tmp_path / "f", server.at("v/"), options=OPTIONS)
    (tmp_path / "f").write_bytes(b"two")
    differences = []
    with pytest.raises(longhaul.IntegrityError):
        longhaul.verify(
            tmp_path / "f", server.at("v/f"), progress=differences.append, options=TRUST
        )
    assert [one["difference"] for one in differences] == ["content"]


def test_a_cancelled_transfer_ends_as_an_interrupted_one(server, tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.write(os.urandom(1 << 20) * 64)
    cancel = threading.Event()
    slow = [*OPTIONS, "--bwlimit", "1MiB"]
    begun = threading.Timer(1, cancel.set)
    begun.start()
    with pytest.raises(longhaul.Cancelled) as caught:
        longhaul.put(tmp_path / "large", server.at("c/"), cancel=cancel, options=slow)
    assert caught.value.code == "interrupted"
    assert not (server.root / "c/large").exists()


def test_a_program_that_cannot_be_run_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HAUL_BINARY", str(tmp_path / "none"))
    with pytest.raises(longhaul.HaulError, match="HAUL_BINARY is .*none"):
        longhaul.ls("haul://127.0.0.1:1/")
