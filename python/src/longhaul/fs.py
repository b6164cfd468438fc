"""The fsspec file system ``haul://``: ranged reads with read-ahead, put, get and ls."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from fsspec.caching import BaseCache, register_cache
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import infer_storage_options

from . import get, put
from .child import Child, Stat
from .errors import SourceChangedError

#: The least that a read requests, bytes.
_LEAST = 128 << 10
#: The most that a file requests ahead, bytes.
_AHEAD_MAX = 64 << 20

#: A file of at most this many bytes is read whole by `HaulFileSystem.get_file`.
_WHOLE_MAX = 64 << 20

#: Attributes that are remembered.
_KNOWN_MAX = 100_000

_children: dict[tuple[str, ...], Child] = {}


class HaulFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of a host.

    ``haul://HOST[:PORT]/PATH`` names a file of `haul serve`. With ``ssh="[USER@]HOST"`` the file
    system is that host's by ssh, and paths are as ssh has them. ``options`` are options of
    `haul send` and `haul get`, such as ``["--key", "FILE"]``.

    A file is read as it was when it was opened: if it changes, a read raises `SourceChangedError`.
    Attributes are remembered for ``listings_expiry_time`` seconds; None: until a read fails.
    Files are written whole when they are closed. Directories appear with their first file. Nothing
    can be removed.
    """

    protocol = "haul"
    root_marker = ""
    cachable = True

    def __init__(
        self,
        host: str | None = None,
        port: int | str | None = None,
        ssh: str | None = None,
        options: Sequence[str] = (),
        listings_expiry_time: float | None = 10,
        use_listings_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        if (host is None) == (ssh is None):
            raise ValueError("name either a host or, for ssh, ssh='[USER@]HOST'")
        super().__init__(host=host, port=port, ssh=ssh, options=options, **kwargs)
        if ssh is not None:
            self._host = f"{ssh}:"
        else:
            name = f"[{host}]" if host and ":" in host else host
            self._host = f"haul://{name}:{port}/" if port else f"haul://{name}/"
        self._options = tuple(options)
        expiry = math.inf if listings_expiry_time is None else listings_expiry_time
        self._expiry = expiry if use_listings_cache else 0.0
        self._known: dict[str, tuple[float, Stat]] = {}
        self._child = _children.setdefault(self._options, Child(self._options))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if path.startswith("haul://"):
            path = path.removeprefix("haul://").partition("/")[2].lstrip("/")
        # By ssh, "/" is not the home directory, which is "".
        return path.rstrip("/") or path[:1]

    @staticmethod
    def _get_kwargs_from_urls(urlpath: str) -> dict[str, Any]:
        found = infer_storage_options(urlpath)
        return {name: found[name] for name in ("host", "port") if found.get(name)}

    def _at(self, path: str) -> str:
        return self._host + path

    def stat(self, path: str) -> Stat:
        """Returns the attributes that `open` and `cat_file` rely on."""
        path = self._strip_protocol(path)
        return self._recall(path) or self._note(path, self._child.stat(self._at(path)))

    def _recall(self, path: str) -> Stat | None:
        noted, stat = self._known.get(path, (0.0, None))
        return stat if time.monotonic() < noted + self._expiry else None

    def _begin_stat(self, path: str) -> Future[dict[str, Any]]:
        path = self._strip_protocol(path)
        stat = self._recall(path)
        if stat is None:
            return self._child.begin_stat(self._at(path))
        known: Future[dict[str, Any]] = Future()
        known.set_result(asdict(stat))
        return known

    def _note(self, path: str, stat: Stat) -> Stat:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[path] = (time.monotonic(), stat)
        return stat

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forgets the attributes of a path, or all."""
        if path is None:
            self._known.clear()
        else:
            self._known.pop(self._strip_protocol(path), None)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return _info(path, self.stat(path))

    def modified(self, path: str) -> datetime:
        stat = self.stat(path)
        return datetime.fromtimestamp(stat.modified_s + stat.modified_ns / 1e9, timezone.utc)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        info = self.info(path)
        found = [info]
        if info["type"] == "directory":
            entries = self._child.ls(self._at(path))
            found = [_entry(path, entry) for entry in entries if entry["path"]]
            for entry, info in zip((one for one in entries if one["path"]), found, strict=True):
                if entry["kind"] in ("file", "directory"):
                    fields = ("kind", "size", "mode", "modified_s", "modified_ns")
                    self._note(info["name"], Stat(**{name: entry[name] for name in fields}))
        found.sort(key=lambda one: str(one["name"]))
        return found if detail else [one["name"] for one in found]

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        if mode != "rb":
            return _writer(self, path, mode)
        stat = self.stat(path)
        if stat.kind == "directory":
            raise IsADirectoryError(path)
        return _Reader(self, path, stat, block_size or 4 << 20, kwargs.pop("cache_type", "haul"))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        stat = self.stat(path)
        try:
            return self._read(path, stat, *_bounds(stat.size, start, end)).result()
        except SourceChangedError:
            # The attributes may have been remembered from before the change.
            self.invalidate_cache(path)
            stat = self.stat(path)
            return self._read(path, stat, *_bounds(stat.size, start, end)).result()

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int | None] | None,
        ends: int | list[int | None] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Reads the ranges: first all the attributes are in flight at a time, then all ranges."""

        def each(values: int | list[int | None] | None) -> list[int | None]:
            return values if isinstance(values, list) else [values] * len(paths)

        def begin(path: str, start: int | None, end: int | None) -> Future[bytes]:
            stat, known = Stat(**stats[path].result()), self._strip_protocol(path)
            if self._recall(known) is None:
                self._note(known, stat)
            return self._read(path, stat, *_bounds(stat.size, start, end))

        ranges = list(zip(paths, each(starts), each(ends), strict=True))
        stats = {path: _begun(self._begin_stat, path) for path in dict.fromkeys(paths)}
        futures = [_begun(begin, *one) for one in ranges]
        return [_result(future, on_error) for future in futures]

    def _read(self, path: str, stat: Stat, start: int, end: int) -> Future[bytes]:
        path = self._strip_protocol(path)

        def check(future: Future[bytes]) -> None:
            # The file may have changed, or be gone.
            if not future.cancelled() and future.exception() is not None:
                self.invalidate_cache(path)

        future = self._child.read(self._at(path), stat, start, max(end - start, 0))
        future.add_done_callback(check)
        return future

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            return
        options = ["--no-replace", *self._options] if mode == "create" else self._options
        parent, slash, name = rpath.rpartition("/")
        target = self._at(parent + slash)
        with tempfile.TemporaryDirectory() as folder:
            if os.path.basename(lpath) != name:
                # `haul send` follows a link that is an operand, and sends the file by its name.
                named = os.path.join(folder, name)
                os.symlink(os.path.realpath(lpath), named)
                lpath = named
            put(lpath, target, options=options)
        self.invalidate_cache(rpath)

    def get_file(
        self, rpath: str, lpath: str, callback: Any = DEFAULT_CALLBACK, outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        rpath = self._strip_protocol(rpath)
        stat = self.stat(rpath)
        if stat.kind == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        parent = os.path.dirname(os.path.abspath(lpath))
        os.makedirs(parent, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            got = os.path.join(folder, rpath.rpartition("/")[2])
            if stat.size <= _WHOLE_MAX:
                # A transfer would take more round trips.
                with open(got, "wb") as file:
                    file.write(self.cat_file(rpath))
            else:
                get(self._at(rpath), folder, options=self._options)
            os.replace(got, lpath)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        parent, slash, name = path.rpartition("/")
        if self.exists(path):
            raise FileExistsError(path)
        if parent and not create_parents and not self.exists(parent):
            raise FileNotFoundError(parent)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, name))
            put(os.path.join(folder, name), self._at(parent + slash), options=self._options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not (exist_ok and self.isdir(path)):
            self.mkdir(path)


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    low = 0 if start is None else start if start >= 0 else max(size + start, 0)
    high = size if end is None else end if end >= 0 else size + end
    return min(low, size), max(min(high, size), min(low, size))


def _begun(begin: Callable[..., Future[Any]], *args: Any) -> Future[Any]:
    """Begins a request; if that fails, the future raises."""
    try:
        return begin(*args)
    except Exception as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


def _result(future: Future[bytes], on_error: str) -> Any:
    try:
        return future.result()
    except Exception as error:
        if on_error == "return":
            return error
        raise


def _info(name: str, stat: Stat) -> dict[str, Any]:
    return {
        "name": name,
        "size": stat.size if stat.kind == "file" else 0,
        "type": "other" if stat.kind == "special" else stat.kind,
        "mtime": stat.modified_s + stat.modified_ns / 1e9,
        "mode": stat.mode,
    }


def _entry(parent: str, entry: dict[str, Any]) -> dict[str, Any]:
    kinds = {"hard_link": "file", "symlink": "link", "special": "other"}
    kind = kinds.get(entry["kind"], entry["kind"])
    name = f"{parent.rstrip('/')}/{entry['path']}" if parent else entry["path"]
    info = {
        "name": name,
        "size": entry["size"] if kind == "file" else 0,
        "type": kind,
        "mtime": entry["modified_s"] + entry["modified_ns"] / 1e9,
        "mode": entry["mode"],
    }
    return {**info, "destination": entry["target"]} if kind == "link" else info


class _Reader(AbstractBufferedFile):  # type: ignore[misc]
    def __init__(
        self, fs: HaulFileSystem, path: str, stat: Stat, block_size: int, cache_type: str
    ) -> None:
        self._stat = stat
        options = {"begin": self._begin} if cache_type == "haul" else {}
        super().__init__(
            fs, path, "rb", block_size, cache_type=cache_type, cache_options=options, size=stat.size
        )
        self.details = _info(path, stat)

    def _begin(self, start: int, end: int) -> Future[bytes]:
        future: Future[bytes] = self.fs._read(self.path, self._stat, start, end)
        return future

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._begin(start, end).result()

    def close(self) -> None:
        if isinstance(self.cache, _ReadAhead):
            self.cache.drop()
        super().close()

    def __del__(self) -> None:
        """Cancels nothing: the collector may run in a thread that holds the child's lock."""


class _ReadAhead(BaseCache):  # type: ignore[misc]
    """Requests more ahead with each read that goes on where the last one ended."""

    name = "haul"

    def __init__(self, blocksize: int, fetcher: Any, size: int, begin: Any) -> None:
        super().__init__(blocksize, fetcher, size)
        self._begin = begin
        self._parts: list[tuple[int, int, Future[bytes]]] = []
        self._owner = os.getpid()
        self._next: int | None = None
        self._ahead = 0

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start, stop = _bounds(self.size, start, stop)
        if start >= stop:
            return b""
        if self._owner != os.getpid():
            # What was in flight at the fork is answered to the other process.
            self._parts, self._owner = [], os.getpid()
        if start == self._next:
            self._ahead = min(max(2 * self._ahead, self.blocksize), _AHEAD_MAX)
        else:
            self._ahead = 0
        self._next = stop
        self._parts = [part for part in self._parts if part[1] > start]
        if self._parts and self._parts[0][0] > start:
            self.drop()
        have = self._parts[-1][1] if self._parts else start
        want = min(max(stop + self._ahead, start + _LEAST if have < stop else have), self.size)
        # What was not asked for may wait until a block of it is missing.
        if have < stop or want - have >= min(self.blocksize, self.size - have):
            while have < want:
                end = min(want, max(have + self.blocksize, stop))
                self._parts.append((have, end, self._begin(have, end)))
                have = end
        found = []
        try:
            for begin, end, future in self._parts:
                if begin < stop:
                    found.append(future.result()[max(start - begin, 0) : stop - begin])
        except BaseException:
            # The next read requests them again.
            self.drop()
            raise
        return found[0] if len(found) == 1 else b"".join(found)

    def drop(self) -> None:
        """Cancels the requests in flight."""
        for _, _, future in self._parts:
            future.cancel()
        self._parts = []


register_cache(_ReadAhead, clobber=True)


def _writer(fs: HaulFileSystem, path: str, mode: str) -> _Sent:
    if mode not in ("wb", "xb"):
        raise NotImplementedError(f"files are read, or written whole; the mode '{mode}' does neither")
    folder = tempfile.TemporaryDirectory()
    name = os.path.join(folder.name, path.rpartition("/")[2])
    put_mode = "create" if mode == "xb" else "overwrite"
    return _Sent(open(name, "wb"), lambda: fs.put_file(name, path, mode=put_mode), folder)


class _Sent:
    """A local file that is sent when it is closed."""

    def __init__(self, file: Any, send: Callable[[], None], folder: Any) -> None:
        self._file, self._send, self._folder = file, send, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Sent:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def close(self) -> None:
        """Sends the file."""
        if self._file.closed:
            return
        self._file.close()
        try:
            self._send()
        finally:
            self._folder.cleanup()

    def discard(self) -> None:
        """Closes the file and sends nothing."""
        self._file.close()
        self._folder.cleanup()


__all__ = ["HaulFileSystem"]
