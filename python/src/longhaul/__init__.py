"""Moves files over long fat networks: `haul send`, `get`, `sync`, `ls` and `verify` from Python.

Each function runs the command and blocks until it has ended. Remote paths are those of the command
line: ``[USER@]HOST:PATH`` goes by ssh, ``haul://HOST[:PORT]/PATH`` to a server of `haul serve`.
``options`` are further options of the command, such as ``["--key", "FILE"]``. ``progress`` is called
with an `Event` for each event. Setting ``cancel`` ends the command as Ctrl-C would: what arrived
stays for a resume, and `Cancelled` is raised.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._binary import binary
from .errors import (
    AuthenticationError,
    Cancelled,
    ExistsError,
    HaulError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    SourceChangedError,
    UnavailableError,
    UsageError,
    error_of,
)

__all__ = [
    "AuthenticationError",
    "Cancelled",
    "Event",
    "ExistsError",
    "HaulError",
    "IntegrityError",
    "NoSpaceError",
    "NotFoundError",
    "RefusedError",
    "SourceChangedError",
    "UnavailableError",
    "UsageError",
    "get",
    "ls",
    "put",
    "sync",
    "verify",
]

#: An object of ``--json-stream``; ``event["event"]`` names its kind.
Event = dict[str, Any]
PathLike = str | os.PathLike[str]

#: How often ``cancel`` is looked at, seconds.
_TICK = 0.1


def put(
    sources: PathLike | Iterable[PathLike],
    target: str,
    *,
    progress: Callable[[Event], object] | None = None,
    cancel: threading.Event | None = None,
    options: Sequence[str] = (),
) -> Event:
    """Sends local files and trees into a directory of a host; returns the final JSON object."""
    return _transfer("send", [*_paths(sources), target], progress, cancel, options)


def get(
    sources: str | Iterable[str],
    target: PathLike,
    *,
    progress: Callable[[Event], object] | None = None,
    cancel: threading.Event | None = None,
    options: Sequence[str] = (),
) -> Event:
    """Gets files and trees of a host into a local directory; returns the final JSON object."""
    return _transfer("get", [*_paths(sources), os.fspath(target)], progress, cancel, options)


def sync(
    source: PathLike,
    target: PathLike,
    *,
    progress: Callable[[Event], object] | None = None,
    cancel: threading.Event | None = None,
    options: Sequence[str] = (),
) -> Event:
    """Makes a tree as another one is, of which one is local; returns the final JSON object."""
    paths = [os.fspath(source), os.fspath(target)]
    return _transfer("sync", paths, progress, cancel, options)


def ls(
    path: str,
    *,
    recursive: bool = False,
    cancel: threading.Event | None = None,
    options: Sequence[str] = (),
) -> list[Event]:
    """Lists a directory or file of a host: one object for each entry, sorted by path."""
    options = ["--recursive", *options] if recursive else options
    entries: list[Event] = []
    _run("ls", [path], entries.append, cancel, options)
    found = (entry for entry in entries if entry["event"] == "entry")
    return sorted(found, key=lambda entry: str(entry["path"]))


def verify(
    source: PathLike,
    target: PathLike,
    *,
    progress: Callable[[Event], object] | None = None,
    cancel: threading.Event | None = None,
    options: Sequence[str] = (),
) -> Event:
    """Compares two trees by digests; returns the counts.

    Raises `IntegrityError` if an entry of the source is missing or different; ``progress`` has been
    called for each.
    """
    last: Event = {}

    def note(event: Event) -> None:
        if event.get("event") == "end":
            last.update(event)
        elif progress:
            progress(event)

    _run("verify", [os.fspath(source), os.fspath(target)], note, cancel, options)
    return last


def _paths(paths: PathLike | Iterable[PathLike]) -> list[str]:
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


def _transfer(
    verb: str,
    operands: list[str],
    progress: Callable[[Event], object] | None,
    cancel: threading.Event | None,
    options: Sequence[str],
) -> Event:
    last: Event = {}

    def note(event: Event) -> None:
        if "ok" in event:
            last.update(event)
        elif progress:
            progress(event)

    _run(verb, operands, note, cancel, options, last)
    return last


def _run(
    verb: str,
    operands: list[str],
    each: Callable[[Event], object],
    cancel: threading.Event | None,
    options: Sequence[str],
    last: Event | None = None,
) -> None:
    """Runs a command and hands each of its objects to ``each``."""
    command = [binary(), verb, "--json-stream", *options, "--", *operands]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        # Ctrl-C in a notebook interrupts this process, which then ends the command.
        start_new_session=True,
    ) as process:
        texts: list[str] = []
        stdout, stderr = process.stdout, process.stderr
        assert stdout and stderr
        over = threading.Event()

        def watch() -> None:
            while cancel and not over.is_set():
                if cancel.wait(_TICK) and process.poll() is None:
                    return process.send_signal(signal.SIGINT)

        threads = [
            threading.Thread(target=lambda: texts.extend(stderr), daemon=True),
            threading.Thread(target=watch, daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            for line in stdout:
                each(json.loads(line))
            status = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        finally:
            over.set()
        threads[0].join()
    if status == 0:
        return
    if status in (-signal.SIGINT, 128 + signal.SIGINT):
        raise Cancelled("cancelled", code="interrupted", exit=128 + signal.SIGINT, summary=last)
    error = (last or {}).get("error")
    if error:
        raise error_of(error, last)
    texts = [text for text in texts if text.strip()]
    text = texts[-1].strip() if texts else f"haul {verb} failed"
    raise error_of({"text": text.removeprefix("haul: "), "exit": status}, last)
