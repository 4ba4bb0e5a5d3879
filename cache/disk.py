"""A directory of bytes: diskcache without pickle, owner only, that never raises for what lies on the disk.

diskcache pickles what is not plain and unpickles whatever a row says it holds (CVE-2025-69872). Here both are refused,
so a cache directory written by somebody else can at worst be a miss.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import diskcache
from diskcache.core import MODE_BINARY, MODE_RAW

log = logging.getLogger("memra.cache")

_ORPHAN_S = 600.0
_FAULTS = (sqlite3.Error, OSError, diskcache.Timeout, ValueError, TypeError)


class Readable(Protocol):
    """A binary file that is read once."""

    def read(self, size: int, /) -> bytes:
        """The next bytes; none at the end."""


class BytesDisk(diskcache.Disk):
    """Keys and values are bytes, or a value is a binary file. Raises ValueError for everything else, both ways."""

    def put(self, key: Any) -> Any:
        """A key on its way in."""
        if type(key) is not bytes:
            raise ValueError("a key must be bytes")
        return diskcache.Disk.put(self, key)

    def get(self, key: Any, raw: Any) -> Any:
        """A key on its way out."""
        if not raw or not isinstance(key, bytes | memoryview):
            raise ValueError("a foreign key")
        return bytes(key)

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        """A value on its way in."""
        if type(value) is not bytes and not (read and hasattr(value, "read")):
            raise ValueError("a value must be bytes")
        return diskcache.Disk.store(self, value, read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """A value on its way out."""
        if mode == MODE_RAW and isinstance(value, bytes | memoryview):
            return bytes(value)
        if mode == MODE_BINARY and filename and not os.path.isabs(filename) and ".." not in Path(filename).parts:
            return diskcache.Disk.fetch(self, mode, filename, value, read)
        raise ValueError("a foreign value")


@dataclass(frozen=True, slots=True)
class Row:
    """What the index knows of an entry. `size` in bytes; times in unix seconds."""

    key: bytes
    tag: str
    size: int
    stored: float
    used: float


def tenant_tag(namespace: str) -> str:
    """The tenant of a namespace, in a form that names nobody; salts of one tenant are one."""
    tenant = namespace.partition("\x1f")[0] if namespace.startswith("t:") and "\x1f" in namespace else ""
    return blake2b(tenant.encode(), digest_size=16, person=b"memra-tenant").hexdigest()


class Shelf:
    """At most `limit` bytes under `folder`, least recently used first out. What can't be read is a miss and what can't
    be written is left out, each with one log line. Safe to use from several threads and processes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self._limit = limit
        self._told: set[str] = set()
        self._cache: Any = self._open()

    def _open(self) -> Any:
        for attempt in range(2):
            try:
                return self._opened()
            except _FAULTS as fault:
                log.warning("the cache in %s cannot be used as it is: %s", self.folder, fault)
                # Without its index the files are of no use; a damaged one must not end caching for good.
                if attempt == 0:
                    shutil.rmtree(self.folder, ignore_errors=True)
        return None

    def _opened(self) -> Any:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        cache: Any = diskcache.Cache(
            str(self.folder),
            timeout=5,
            disk=BytesDisk,
            size_limit=self._limit,
            cull_limit=1,
            eviction_policy="least-recently-used",
            tag_index=True,
        )
        if (found := cache._sql("PRAGMA quick_check(1)").fetchone()) != ("ok",):
            cache.close()
            raise ValueError(f"its index is damaged: {found}")
        _sweep(self.folder, cache)
        return cache

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`."""
        found = self._try("read", lambda cache: cache.get(key))
        return found if isinstance(found, bytes) else None

    def file(self, key: bytes) -> BinaryIO | None:
        """The value of `key` as an open file, for values that lie in one."""
        found = self._try("read", lambda cache: cache.get(key, read=True))
        return cast(BinaryIO, found) if hasattr(found, "read") else None

    def put(self, key: bytes, value: bytes | Readable, tag: str) -> bool:
        """Store a value; whether that went well."""
        read = not isinstance(value, bytes)
        stored = bool(self._try("write", lambda cache: cache.set(key, value, read=read, tag=tag)))
        self._try("cull", self._trim)
        return stored

    def use(self, keys: Sequence[bytes]) -> None:
        """Make these the most recently used, the last one most of all."""
        self._try("use", lambda cache: _use(cache, keys))

    def holds(self, key: bytes) -> bool:
        """Whether `get` would find it."""
        return bool(self._try("look-up", lambda cache: key in cache))

    def delete(self, key: bytes) -> None:
        """Forget a key."""
        self._try("delete", lambda cache: cache.delete(key))

    def evict(self, tag: str) -> int:
        """Forget all entries with `tag`; how many they were."""
        return int(self._try("delete", lambda cache: cache.evict(tag)) or 0)

    def clear(self) -> int:
        """Forget everything; how many entries that was."""
        return int(self._try("delete", lambda cache: cache.clear()) or 0)

    def rows(self) -> list[Row]:
        """All entries, the least recently used first."""
        return self._try("listing", _rows) or []

    @property
    def nbytes(self) -> int:
        """Bytes on disk, index included."""
        return int(self._try("look-up", lambda cache: cache.volume()) or 0)

    def close(self) -> None:
        """Let go of the index."""
        self._try("close", lambda cache: cache.close())

    def _trim(self, cache: Any) -> None:
        """A write culls one entry, which is too little where it was larger than that; `Cache.cull` would take ten."""
        while cache.volume() > self._limit:
            oldest = cache._sql("SELECT key FROM Cache ORDER BY access_time LIMIT 1").fetchone()
            if oldest is None or not cache.delete(bytes(oldest[0])):
                return

    def _try(self, what: str, act: Callable[[Any], Any]) -> Any:
        if self._cache is None:
            return None
        try:
            return act(self._cache)
        except _FAULTS as fault:
            if what not in self._told:
                log.warning("cache %s: a %s failed and counts as a miss: %s", self.folder.name, what, fault)
            self._told.add(what)
            return None


def _use(cache: Any, keys: Sequence[bytes]) -> None:
    now = time.time()
    with cache.transact():
        for n, key in enumerate(keys):
            cache._sql("UPDATE Cache SET access_time = ? WHERE key = ? AND raw = 1", (now + n * 1e-6, key))


def _rows(cache: Any) -> list[Row]:
    columns = "key, tag, COALESCE(size, 0) + LENGTH(COALESCE(value, '')), store_time, access_time"
    found = cache._sql(f"SELECT {columns} FROM Cache WHERE raw = 1 ORDER BY access_time").fetchall()
    return [Row(bytes(key), str(tag or ""), *more) for key, tag, *more in found]


def _sweep(folder: Path, cache: Any) -> None:
    """Remove files that a killed process has left without an entry; a fresh one may be about to get its own."""
    known = {name for (name,) in cache._sql("SELECT filename FROM Cache WHERE filename IS NOT NULL").fetchall()}
    for file in folder.rglob("*.val"):
        if str(file.relative_to(folder)) not in known and time.time() - file.stat().st_mtime > _ORPHAN_S:
            file.unlink(missing_ok=True)
