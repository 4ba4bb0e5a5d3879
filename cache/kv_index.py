"""The block index: which token chains have KV state, found by hash, evicted least recently used first.

A chain is cut into blocks of at most `span` tokens, also ended at given boundaries, and never rewritten. A block's key
is the hash of its parent's key and its tokens, so equal prefixes are one entry whoever wrote them. Each key knows the
lengths of the blocks below it; a look-up hashes the next tokens at each of these lengths and follows what it finds. A
*mark* is a whole state taken at the end of a block. Payloads are opaque here.

Order of use: a path is touched leaf to root, so a block is never older than its children, and the oldest entry is
always a leaf or a mark.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from memra_mlx.cache.kv_tier import Entry, Key, Kind, NoTier, Tier

_WIDTH = 4  # bytes of a packed token
_KINDS: tuple[Kind, ...] = ("block", "mark")
_NONE: dict[Key, int] = {}


class Step(NamedTuple):
    """A block on the way of a chain: tokens `start` to `end`."""

    key: Key
    parent: Key
    start: int
    end: int


class _Trail(NamedTuple):
    step: Step
    before: _Trail | None


def root(namespace: str) -> Key:
    """The key above a namespace's first blocks."""
    return blake2b(namespace.encode(), digest_size=16, person=b"namespace").digest()


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as 4 bytes each, the form that is hashed."""
    return array("I", tokens).tobytes()


def head(path: Sequence[Step], namespace: str) -> tuple[Key, int]:
    """Key and length in tokens of what `path` covers."""
    return (path[-1].key, path[-1].end) if path else (root(namespace), 0)


class Index:
    """Blocks and marks in memory, at most `limit` bytes, over a lower tier."""

    def __init__(self, limit: int, span: int = 256, tier: Tier | None = None) -> None:
        self._span = span
        self._tier: Tier = tier or NoTier()
        self._limit = limit
        self._entries: OrderedDict[tuple[Kind, Key], Entry] = OrderedDict()  # oldest use first
        self._below: dict[Key, dict[Key, int]] = {}  # parent -> blocks in memory and their lengths
        self.nbytes = 0
        self.inserts = self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, namespace: str, data: bytes, *, marked: bool = False) -> list[Step]:
        """The longest known chain over packed tokens; with `marked` the longest one that ends in a mark."""
        best: _Trail | None = None
        stack: list[_Trail | None] = [None]
        while stack:
            trail = stack.pop()
            key, end = (trail.step.key, trail.step.end) if trail else (root(namespace), 0)
            if trail and end > (best.step.end if best else 0) and (not marked or self._known("mark", key)):
                best = trail
            stack.extend(_Trail(step, trail) for step in self._onward(key, end, data))
        return _unwound(best)

    def overlap(self, path: Sequence[Step], namespace: str, data: bytes) -> tuple[Step, int] | None:
        """Below the end of `path`: the block in memory that begins most like `data` does there, and where that ends."""
        key, start = head(path, namespace)
        rest = data[_WIDTH * start : _WIDTH * (start + self._span)]
        best: tuple[Step, int] | None = None
        for child in self._below.get(key, ()):
            tokens = self._entries[("block", child)].tokens
            end = start + _shared(tokens, rest)
            if end > (best[1] if best else start):
                best = (Step(child, key, start, start + len(tokens) // _WIDTH), end)
        return best

    def payload(self, kind: Kind, step: Step, data: bytes) -> Any | None:
        """The state of a step, loaded into memory if the tier has it; None if it is gone."""
        if entry := self._entries.get((kind, step.key)):
            return entry.payload
        if loaded := self._tier.load(kind, step.key):
            self.write(kind, step, data, *loaded)
            return loaded[0]
        return None

    def in_memory(self, kind: Kind, step: Step) -> bool:
        """Whether the state of a step needs no loading."""
        return (kind, step.key) in self._entries

    def plan(self, namespace: str, data: bytes, ends: Iterable[int]) -> tuple[list[Step], list[Step]]:
        """How a chain is stored: the blocks that are known, and those to be written after them."""
        path = self.match(namespace, data)
        self._tier.own(namespace)
        key, start = head(path, namespace)
        total = len(data) // _WIDTH
        fresh = []
        for boundary in sorted({end for end in ends if start < end < total} | {total}):
            while start < boundary:
                end = min(boundary, start + self._span)
                fresh.append(Step(_key(key, data[_WIDTH * start : _WIDTH * end]), key, start, end))
                key, start = fresh[-1].key, end
        return path, fresh

    def write(self, kind: Kind, step: Step, data: bytes, payload: Any, nbytes: int) -> None:
        """Add the state of a step, `nbytes` long. `touch` its path afterwards."""
        if (kind, step.key) in self._entries:
            return
        tokens = data[_WIDTH * step.start : _WIDTH * step.end] if kind == "block" else b""
        self._entries[(kind, step.key)] = Entry(kind, step.key, step.parent, tokens, payload, nbytes)
        self.nbytes += nbytes
        self.inserts += 1
        if kind == "block":
            self._below.setdefault(step.parent, {})[step.key] = step.end - step.start

    def offer(self, path: Sequence[Step]) -> None:
        """Offer the blocks and marks of a path to the tier, parents first."""
        for step in path:
            for kind in _KINDS:
                if entry := self._entries.get((kind, step.key)):
                    self._tier.offer(entry)

    def touch(self, path: Sequence[Step]) -> None:
        """Make a path (and the mark at its end) the most recently used, and evict what is over the limit."""
        if path and self.in_memory("mark", path[-1]):
            self._entries.move_to_end(("mark", path[-1].key))
        for step in reversed(path):
            if self.in_memory("block", step):
                self._entries.move_to_end(("block", step.key))
        self._tier.touch([step.key for step in reversed(path)])
        self._evict()

    def resize(self, limit: int) -> None:
        """Change the limit, and evict what is over it."""
        self._limit = limit
        self._evict()

    def flush(self) -> None:
        """Offer everything to the tier, parents first."""
        for entry in reversed(self._entries.values()):
            self._tier.offer(entry)

    def _onward(self, key: Key, end: int, data: bytes) -> Iterator[Step]:
        """Known blocks that continue `key` with the tokens from `end` on; the longest last."""
        lengths = {*self._below.get(key, _NONE).values(), *self._tier.lengths(key)}
        room = len(data) // _WIDTH - end
        for length in sorted(lengths):
            if length <= room:
                child = _key(key, data[_WIDTH * end : _WIDTH * (end + length)])
                if self._known("block", child):
                    yield Step(child, key, end, end + length)

    def _known(self, kind: Kind, key: Key) -> bool:
        return (kind, key) in self._entries or self._tier.holds(kind, key)

    def _evict(self) -> None:
        while self.nbytes > self._limit:
            _, entry = self._entries.popitem(last=False)
            self.nbytes -= entry.nbytes
            self.evictions += 1
            if entry.kind == "block":
                siblings = self._below[entry.parent]
                del siblings[entry.key]
                if not siblings:
                    del self._below[entry.parent]
            self._tier.offer(entry)


def _key(parent: Key, tokens: bytes) -> Key:
    return blake2b(parent + tokens, digest_size=16).digest()


def _unwound(trail: _Trail | None) -> list[Step]:
    out = []
    while trail:
        out.append(trail.step)
        trail = trail.before
    return out[::-1]


def _shared(one: bytes, other: bytes) -> int:
    """Tokens that two packed runs have in common at their start."""
    low, high = 0, min(len(one), len(other)) // _WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if one[: _WIDTH * middle] == other[: _WIDTH * middle]:
            low = middle
        else:
            high = middle - 1
    return low
