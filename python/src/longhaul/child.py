"""One long-lived `haul api`: requests in flight at a time, answered in any order."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import struct
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, Any

from ._binary import binary
from .errors import Cancelled, HaulError, UnavailableError, error_of

#: Lengths of header and payload.
_LENGTHS = struct.Struct(">II")
#: Requests that the child takes at a time.
_RUNNING_MAX = 200


@dataclass(frozen=True)
class Stat:
    """Attributes of a path. ``kind`` is ``file``, ``directory`` or ``special``; times are UTC."""

    kind: str
    size: int
    mode: int
    modified_s: int
    modified_ns: int


@dataclass
class _Request:
    future: Future[Any]
    payload: list[bytes] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)


class Child:
    """A `haul api` with these options, such as ``["--key", "FILE"]``. Threads may share it.

    It is started by the first request, again if it has ended, and in a process that was forked.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(_RUNNING_MAX)
        self._ids = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def stat(self, at: str) -> Stat:
        """Returns the attributes of a remote path."""
        found = self._ask({"do": "stat", "at": at}).future.result()
        return Stat(**found)

    def ls(self, at: str, recursive: bool = False) -> list[dict[str, Any]]:
        """Lists a remote directory, or a file."""
        request = self._ask({"do": "ls", "at": at, "recursive": recursive})
        failed = request.future.result()["failed"]
        if failed:
            raise HaulError(f"the list is incomplete: {failed[0]}", code="file_error")
        return request.entries

    def read(self, at: str, stat: Stat, offset: int, length: int) -> Future[bytes]:
        """Begins to read a range of a file that must still be as ``stat`` tells.

        The future raises `SourceChangedError` otherwise. Cancelling it ends the request.
        """
        request = self._ask(
            {
                "do": "read",
                "at": at,
                "offset": offset,
                "length": length,
                "size": stat.size,
                "modified_s": stat.modified_s,
                "modified_ns": stat.modified_ns,
            }
        )
        return request.future

    def close(self) -> None:
        """Ends the child."""
        with self._lock:
            process, self._process = self._process, None
        if process and self._owner == os.getpid():
            assert process.stdin
            process.stdin.close()
            process.wait()

    def _ask(self, request: dict[str, Any]) -> _Request:
        self._room.acquire()
        asked = _Request(Future())
        with self._lock:
            try:
                process = self._running()
                number = next(self._ids)
                self._requests[number] = asked
                assert process.stdin
                _write(process.stdin, {"id": number, **request})
            except BaseException:
                self._room.release()
                raise

        def cancel(future: Future[Any]) -> None:
            if future.cancelled():
                with self._lock:
                    if number in self._requests and process.stdin:
                        _write(process.stdin, {"id": number, "do": "cancel"})

        asked.future.add_done_callback(cancel)
        return asked

    def _running(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():
            self._process, self._owner = None, os.getpid()
            self._room = threading.BoundedSemaphore(_RUNNING_MAX)
            self._room.acquire()
        if self._process and self._process.poll() is None:
            return self._process
        # Those of the last one are failed by its reader.
        self._requests = {}
        self._process = subprocess.Popen(
            [binary(), "api", *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in a notebook must not end it.
            start_new_session=True,
        )
        atexit.register(self.close)
        reader = threading.Thread(
            target=self._receive, args=(self._process, self._requests), daemon=True
        )
        reader.start()
        return self._process

    def _receive(
        self, process: subprocess.Popen[bytes], requests: dict[int, _Request]
    ) -> None:
        assert process.stdout
        while lengths := _read(process.stdout, _LENGTHS.size):
            header_len, payload_len = _LENGTHS.unpack(lengths)
            header = json.loads(_read(process.stdout, header_len))
            payload = _read(process.stdout, payload_len)
            with self._lock:
                request = requests.get(header["id"])
                if request and "ok" in header:
                    del requests[header["id"]]
            if request is None:
                continue
            if payload:
                request.payload.append(payload)
            request.entries.extend(header.get("entries", ()))
            if "ok" in header:
                self._end(request, header)
        with self._lock:
            left = list(requests.values())
            requests.clear()
        for request in left:
            fault = {"text": "haul api ended", "exit": 5, "code": "peer_gone"}
            self._end(request, {"ok": False, "error": fault})

    def _end(self, request: _Request, header: dict[str, Any]) -> None:
        self._room.release()
        if not request.future.set_running_or_notify_cancel():
            return
        if not header["ok"]:
            request.future.set_exception(error_of(header["error"]))
        elif request.payload or not header["result"]:
            request.future.set_result(b"".join(request.payload))
        else:
            request.future.set_result(header["result"])


def _write(stream: IO[bytes], message: dict[str, Any]) -> None:
    header = json.dumps(message).encode()
    try:
        stream.write(_LENGTHS.pack(len(header), 0) + header)
        stream.flush()
    except OSError as error:
        raise UnavailableError(f"haul api ended: {error}", exit=5) from error


def _read(stream: IO[bytes], length: int) -> bytes:
    return stream.read(length) if length else b""


__all__ = ["Cancelled", "Child", "Stat"]
