"""One long-lived `haul api`: requests in flight at a time, answered in any order."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import struct
import subprocess
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, Any

from ._binary import binary
from .errors import Cancelled, HaulError, UnavailableError, UsageError, error_of

#: Lengths of header and payload.
_LENGTHS = struct.Struct(">II")
#: Requests that the child takes at a time.
_RUNNING_MAX = 200
#: The longest header that the child takes, bytes.
_HEADER_MAX = 1 << 20
#: How long the child may take to end once its standard input is closed, seconds.
_CLOSE_MAX = 2


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
    payload: list[bytearray] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)


class Child:
    """A `haul api` with these options, such as ``["--key", "FILE"]``. Threads may share it.

    The first request starts it. If it has ended, or after a fork, the next request starts another.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Forgets the process and its requests. After a fork, other threads may hold the locks."""
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(_RUNNING_MAX)
        self._requests: dict[int, _Request] = {}
        process, self._process = self._process, None
        if process:
            # The child ends when the last writer of its standard input closes it.
            assert process.stdin and process.stdout
            process.stdin.close()
            process.stdout.close()

    def stat(self, at: str) -> Stat:
        """Returns the attributes of a remote path."""
        return Stat(**self.begin_stat(at).result())

    def begin_stat(self, at: str) -> Future[dict[str, Any]]:
        """Requests the attributes of a remote path: the fields of `Stat`."""
        return self._ask({"do": "stat", "at": at}).future

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
        """Ends the child; kills it after two seconds."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            assert process.stdin
            process.stdin.close()
        try:
            process.wait(_CLOSE_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ask(self, request: dict[str, Any]) -> _Request:
        number = next(self._ids)
        message = _message({"id": number, **request})
        asked = _Request(Future())
        self._room.acquire()
        with self._lock:
            try:
                process = self._running()
                self._requests[number] = asked
                _write(process, message)
            except BaseException:
                self._requests.pop(number, None)
                self._room.release()
                raise

        def cancel(future: Future[Any]) -> None:
            if not future.cancelled():
                return
            with self._lock:
                if process is self._process and number in self._requests:
                    # If the child has ended, so has the request.
                    with contextlib.suppress(UnavailableError):
                        _write(process, _message({"id": number, "do": "cancel"}))

        asked.future.add_done_callback(cancel)
        return asked

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process and self._process.poll() is None:
            return self._process
        # The reader of the last process fails the requests of that process.
        self._requests = {}
        self._process = subprocess.Popen(
            [binary(), "api", *self._options],
            # After a fork, a buffered stream could be locked for ever.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in a notebook must not end it.
            start_new_session=True,
        )
        reader = threading.Thread(
            target=self._receive, args=(self._process, self._requests), daemon=True
        )
        reader.start()
        return self._process

    def _receive(
        self, process: subprocess.Popen[bytes], requests: dict[int, _Request]
    ) -> None:
        assert process.stdout
        text = "haul api ended"
        try:
            while True:
                self._receive_one(process.stdout, requests)
        except EOFError:
            pass
        except (OSError, ValueError, LookupError, TypeError) as error:
            text = f"haul api sent a message that cannot be read: {error}"
        finally:
            process.kill()
            with self._lock:
                if self._process is process:
                    self._process = None
                left = list(requests.values())
                requests.clear()
            for request in left:
                self._end(request, UnavailableError(text, code="peer_gone", exit=5))
            process.wait()

    def _receive_one(self, stream: IO[bytes], requests: dict[int, _Request]) -> None:
        header_len, payload_len = _LENGTHS.unpack(_read(stream, _LENGTHS.size))
        header = json.loads(_read(stream, header_len))
        payload = _read(stream, payload_len)
        with self._lock:
            request = requests.get(header["id"])
        if request is None:
            return
        if payload:
            request.payload.append(payload)
        request.entries.extend(header.get("entries", ()))
        if "ok" not in header:
            return
        outcome = header["result"] if header["ok"] else error_of(header["error"])
        with self._lock:
            request = requests.pop(header["id"], None)
        if request:
            self._end(request, outcome)

    def _end(self, request: _Request, outcome: dict[str, Any] | HaulError) -> None:
        self._room.release()
        if not request.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, HaulError):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome or b"".join(request.payload))


def _message(header: dict[str, Any]) -> bytes:
    shown = repr(header.get("at", ""))
    try:
        encoded = json.dumps(header, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the path {shown} is not UTF-8", code="usage", exit=2) from error
    if len(encoded) > _HEADER_MAX:
        raise UsageError(f"the path {shown[:80]}… is too long", code="usage", exit=2)
    return _LENGTHS.pack(len(encoded), 0) + encoded


def _write(process: subprocess.Popen[bytes], message: bytes) -> None:
    assert process.stdin
    left = memoryview(message)
    try:
        while left:
            left = left[process.stdin.write(left) :]
    except BaseException as error:
        # It may have part of the message.
        process.kill()
        if isinstance(error, OSError):
            raise UnavailableError(f"haul api ended: {error}", code="peer_gone", exit=5) from error
        raise


def _read(stream: Any, length: int) -> bytearray:
    """Reads exactly ``length`` bytes, or raises `EOFError`."""
    found = bytearray(length)
    left = memoryview(found)
    while left:
        count = stream.readinto(left)
        if not count:
            raise EOFError
        left = left[count:]
    return found


#: A child that runs is kept alive by its reader.
_all: weakref.WeakSet[Child] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for child in list(_all):
        child.close()


def _reset_all() -> None:
    for child in list(_all):
        child._reset()


os.register_at_fork(after_in_child=_reset_all)

__all__ = ["Cancelled", "Child", "Stat"]
