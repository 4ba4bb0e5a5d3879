"""The tier on disk: blocks and marks as files in one diskcache, written by a thread of their own.

The names of entries tell the whole tree, so a look-up asks only memory; what another process has evicted meanwhile is
found missing when it is loaded. Entries are written root to leaf and then used leaf to root, so a parent never goes
before its child.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten

from memra_mlx.cache.disk import Shelf, tenant_tag
from memra_mlx.cache.kv_file import FOLDER, KINDS, MODEL, Damaged, Name
from memra_mlx.cache.kv_index import root
from memra_mlx.cache.kv_pack import Packed, Reader, load, pack
from memra_mlx.cache.kv_state import leaves, nbytes
from memra_mlx.cache.kv_tier import Entry, Key, Kind

log = logging.getLogger("memra.cache")

FORMAT = 1
_WIDTH = 4  # bytes of a packed token
_QUEUE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Write:
    name: Name
    packed: Packed
    tag: str


@dataclass(frozen=True, slots=True)
class _Use:
    keys: list[bytes]


class _End:
    """No job follows."""


class _Writer:
    """Does the jobs in order on a thread of its own. What waits to be written is bounded in bytes."""

    def __init__(self, shelf: Shelf, model: bytes, limit: int) -> None:
        self._shelf = shelf
        self._model = model
        self._limit = limit
        self._waiting = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Write | _Use | _End] = queue.SimpleQueue()
        self.failed: queue.SimpleQueue[Name] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="memra-kv-disk", daemon=True)
        self._thread.start()

    def has_room(self, size: int) -> bool:
        """Whether a write of `size` bytes may wait."""
        with self._lock:
            return self._waiting + size <= self._limit or not self._waiting

    def write(self, job: _Write) -> None:
        """Queue a write."""
        with self._lock:
            self._waiting += job.packed.nbytes
        self._jobs.put(job)

    def use(self, keys: list[bytes]) -> None:
        """Queue the order of use."""
        self._jobs.put(_Use(keys))

    def close(self, timeout_s: float) -> None:
        """Do what is queued, for at most `timeout_s`."""
        self._jobs.put(_End())
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not isinstance(job := self._jobs.get(), _End):
            if isinstance(job, _Use):
                self._shelf.use(job.keys)
                continue
            label = job.name.packed(self._model)
            if not self._shelf.put(label, Reader(job.packed, label.hex()), job.tag):
                self.failed.put(job.name)
            with self._lock:
                self._waiting -= job.packed.nbytes
        self._shelf.close()


class DiskTier:
    """Blocks and marks of one model under `folder`, at most `limit` bytes with those of other models.

    All methods belong to the thread that owns MLX. `fingerprint` tells weights, types and form of the state.
    """

    def __init__(self, folder: Path, limit: int, fingerprint: str, queue_bytes: int = _QUEUE_BYTES) -> None:
        told = f"{FORMAT} {fingerprint}".encode()
        self._model = blake2b(told, digest_size=MODEL, person=b"memra-kv").digest()
        self._shelf = Shelf(folder / FOLDER, limit)
        self._names: dict[tuple[Kind, Key], Name] = {}
        self._below: dict[Key, dict[Key, int]] = {}
        self._tags: dict[Key, str] = {}
        for row in self._shelf.rows():
            if name := Name.parsed(row.key, self._model):
                self._add(name, row.tag)
        self._writer = _Writer(self._shelf, self._model, queue_bytes)
        self.skipped = 0

    def lengths(self, key: Key) -> Iterable[int]:
        """Lengths in tokens of the blocks known below `key`."""
        return set(self._below.get(key, {}).values())

    def holds(self, kind: Kind, key: Key) -> bool:
        """Whether `load` would look for it."""
        return (kind, key) in self._names

    def load(self, kind: Kind, key: Key) -> tuple[Any, int] | None:
        """Payload and its bytes; None if it is gone or damaged."""
        self._forget_failed()
        name = self._names.get((kind, key))
        if name is None:
            return None
        label = name.packed(self._model)
        file = self._shelf.file(label)
        if file is None:
            self._forget(name)
            return None
        try:
            with file:
                payload = load(file, label.hex())
        except Damaged as fault:
            log.warning("a %s on disk is damaged and counts as a miss: %s", kind, fault)
            self._forget(name)
            self._shelf.delete(label)
            return None
        return payload, nbytes(payload)

    def own(self, namespace: str) -> None:
        """Say whose the blocks at the root of a namespace are."""
        self._tags[root(namespace)] = tenant_tag(namespace)

    def offer(self, entry: Entry) -> None:
        """Take over an entry; it is let go if it is known, or if too much waits to be written."""
        self._forget_failed()
        if self.holds(entry.kind, entry.key):
            return
        if not self._writer.has_room(entry.nbytes):
            self.skipped += 1
            return
        name = Name(entry.kind, entry.key, entry.parent, len(entry.tokens) // _WIDTH)
        tag = self._tags.get(entry.parent if entry.kind == "block" else entry.key, "")
        self._add(name, tag)
        self._writer.write(_Write(name, pack(entry.payload), tag))

    def touch(self, keys: Sequence[Key]) -> None:
        """Blocks and marks that were used, the last one most of all."""
        known = [self._names.get((kind, key)) for key in keys for kind in KINDS]
        self._writer.use([name.packed(self._model) for name in known if name])

    def close(self, timeout_s: float) -> None:
        """Write what is queued."""
        self._writer.close(timeout_s)

    def _add(self, name: Name, tag: str) -> None:
        self._names[(name.kind, name.key)] = name
        if name.kind == "block":
            self._below.setdefault(name.parent, {})[name.key] = name.length
            self._tags[name.key] = tag

    def _forget(self, name: Name) -> None:
        self._names.pop((name.kind, name.key), None)
        if name.kind == "block" and (siblings := self._below.get(name.parent)):
            siblings.pop(name.key, None)
            if not siblings:
                del self._below[name.parent]

    def _forget_failed(self) -> None:
        while True:
            try:
                self._forget(self._writer.failed.get_nowait())
            except queue.Empty:
                return


def state_form(net: Module, cache: Sequence[Any]) -> str:
    """Number types of a model and the kinds of its cache: state of another form must not be taken for its own."""
    flat = cast(list[tuple[str, mx.array]], tree_flatten(cast(Any, net).parameters()))
    types = sorted({str(array.dtype) for _, array in flat})
    kinds = [
        f"{type(leaf).__name__}/{getattr(leaf, 'bits', '')}/{getattr(leaf, 'max_size', '')}" for leaf in leaves(cache)
    ]
    return f"{types} {kinds}"
