"""A directory of bytes: diskcache without pickle, owner only, that never raises for what lies on the disk.

diskcache pickles what is not plain and unpickles whatever a row says it holds (CVE-2025-69872). Here both are refused,
so a cache directory written by somebody else can at worst be a miss.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import diskcache
from diskcache.core import MODE_BINARY, MODE_RAW

log = logging.getLogger("memra.cache")

_FAULTS = (sqlite3.Error, OSError, diskcache.Timeout, ValueError, TypeError)


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
        return cache

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`."""
        found = self._try("read", lambda cache: cache.get(key))
        return found if isinstance(found, bytes) else None

    def file(self, key: bytes) -> BinaryIO | None:
        """The value of `key` as an open file, for values that lie in one."""
        found = self._try("read", lambda cache: cache.get(key, read=True))
        return cast(BinaryIO, found) if hasattr(found, "read") else None

    def put(self, key: bytes, value: bytes | BinaryIO, tag: str) -> bool:
        """Store a value; whether that went well."""
        read = not isinstance(value, bytes)
        stored = bool(self._try("write", lambda cache: cache.set(key, value, read=read, tag=tag)))
        self._try("cull", self._trim)
        return stored

    def touch(self, key: bytes) -> None:
        """Make it the most recently used."""
        self._try("touch", lambda cache: cache.get(key, read=True) and None)

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

    def keys(self) -> Iterator[bytes]:
        """All keys."""
        return iter(self._try("listing", lambda cache: list(cache)) or [])

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
