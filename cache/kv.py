"""KV state of token chains: what a request can resume from, and what it leaves behind.

A model whose cache only grows can resume anywhere. One that also has whole states resumes only where such a state was
taken; its growing leaves are still kept in blocks, so that a state costs its own size alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from memra_mlx.cache.kv_index import Index, Step, packed
from memra_mlx.cache.kv_state import cut, fill, grows, leaves, nbytes, restore, snapshot
from memra_mlx.engine.protocol import KvFigures, Source

_OVERHEAD = 2048  # bytes of a block beside its arrays: tokens, keys, objects


@dataclass(frozen=True, slots=True)
class Resumed:
    """A prompt cache of `length` tokens, ready to be extended."""

    cache: list[Any]
    length: int
    source: Source


class KvStore:
    """The KV state of one model. `make` gives an empty prompt cache."""

    def __init__(self, make: Callable[[], list[Any]], index: Index) -> None:
        self._make = make
        self._index = index
        self.cuttable = all(grows(leaf) for leaf in leaves(make()))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._index.nbytes

    @property
    def figures(self) -> KvFigures:
        """What it has done."""
        index = self._index
        return KvFigures(len(index), index.inserts, index.evictions)

    def resize(self, limit: int) -> None:
        """Keep at most `limit` bytes in memory."""
        self._index.resize(max(0, limit))

    def flush(self) -> None:
        """Hand everything to the lower tier."""
        self._index.flush()

    def peek(self, namespace: str, tokens: Sequence[int]) -> int:
        """How many of `tokens` `resume` would find."""
        path = self._index.match(namespace, packed(tokens[:-1]), marked=not self.cuttable)
        return path[-1].end if path else 0

    def fresh(self) -> Resumed:
        """Nothing resumed."""
        return Resumed(self._make(), 0, "none")

    def resume(self, namespace: str, tokens: Sequence[int]) -> Resumed:
        """The state of the longest known prefix of `tokens`, at least one token short of them all."""
        data = packed(tokens[:-1])
        path = self._index.match(namespace, data, marked=not self.cuttable)
        before = all(self._index.in_memory("block", step) for step in path)
        blocks = self._blocks(path, data)
        path = path[: len(blocks)]
        tail = self._index.overlap(path, namespace, data) if self.cuttable else None
        mark = self._index.payload("mark", path[-1], data) if path and not self.cuttable else None
        if not self.cuttable and mark is None:
            path = []
        end = tail[1] if tail else path[-1].end if path else 0
        if not end:
            return self.fresh()
        if tail:
            blocks.append(_shortened(self._index.payload("block", tail[0], data), tail[1] - tail[0].start))
        cache = self._assembled(blocks, mark, end, len(tokens))
        self._index.touch([*path, tail[0]] if tail else path)
        return Resumed(cache, end, "memory" if before else "disk")

    def keep(self, namespace: str, tokens: Sequence[int], ends: Iterable[int], cache: Sequence[Any]) -> int:
        """Store the state of `tokens`, ended also at the boundaries `ends`.

        `cache` covers at least these tokens; exactly these where the model has whole states. Returns how many tokens
        can be resumed afterwards.
        """
        data = packed(tokens)
        parts = leaves(cache)
        path, fresh = self._index.plan(namespace, data, ends)
        pieces: list[list[Any]] = [[] for _ in fresh]
        for leaf in parts:
            if grows(leaf) and fresh:
                rows = [cut(leaf, step.start, step.end) for step in fresh]
                mx.eval(rows)
                for piece, row in zip(pieces, rows, strict=True):
                    piece.append(row)
        for step, piece in zip(fresh, pieces, strict=True):
            self._index.write("block", step, data, piece, nbytes(piece) + _OVERHEAD)
        path += fresh
        if path and not self.cuttable:
            states = [snapshot(leaf) for leaf in parts if not grows(leaf)]
            mx.eval(states)
            self._index.write("mark", path[-1], data, states, nbytes(states))
        self._index.offer(path)
        self._index.touch(path)
        return self.peek(namespace, [*tokens, 0])

    def _blocks(self, path: Sequence[Step], data: bytes) -> list[Any]:
        out = []
        for step in path:
            payload = self._index.payload("block", step, data)
            if payload is None:
                break
            out.append(payload)
        return out

    def _assembled(self, blocks: Sequence[Any], mark: Any, length: int, capacity: int) -> list[Any]:
        cache = self._make()
        parts = leaves(cache)
        growing = [leaf for leaf in parts if grows(leaf)]
        for i, leaf in enumerate(growing):
            fill(leaf, [block[i] for block in blocks], length, capacity)
        whole = [leaf for leaf in parts if not grows(leaf)]
        for leaf, state in zip(whole, mark or [], strict=True):
            restore(leaf, state)
        mx.eval([leaf.state for leaf in parts])
        return cache


def _shortened(block: Any, length: int) -> list[Any]:
    return [tree_map(lambda rows: rows[..., :length, :], piece) for piece in block]
