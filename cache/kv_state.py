"""What a model's cache is made of, seen as leaves of two kinds.

A *growing* leaf has one row a token (full attention, also quantised): any span of it can be cut out and put together
again, bit for bit. Every other leaf (sliding window, recurrent state) is a *whole state*: it is only right at the
length at which it was taken. `CacheList` is a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache

_STEP = KVCache.step


def leaves(cache: Sequence[Any]) -> list[Any]:
    """The leaves of a prompt cache, in a fixed order."""
    out: list[Any] = []
    for item in cache:
        out.extend(leaves(item.caches) if isinstance(item, CacheList) else [item])
    return out


def grows(leaf: Any) -> bool:
    """Whether spans of the leaf can be cut out."""
    return type(leaf) in (KVCache, QuantizedKVCache)


def merges(leaf: Any) -> bool:
    """Whether the leaf can take part in a batch."""
    return hasattr(type(leaf), "merge")


def cut(leaf: Any, start: int, end: int) -> Any:
    """Rows `start` to `end` of a growing leaf as a tree of arrays of their own, not yet evaluated."""
    return tree_map(lambda rows: mx.contiguous(rows[..., start:end, :]), (leaf.keys, leaf.values))


def fill(leaf: Any, pieces: Sequence[Any], length: int, capacity: int) -> None:
    """Give an empty growing leaf the rows of `pieces`, `length` in all, and room for `capacity` without a copy."""
    room = -capacity % _STEP + capacity - length

    def join(*parts: mx.array) -> mx.array:
        shape = (*parts[0].shape[:2], max(room, 1), *parts[0].shape[3:])
        return mx.concatenate([*parts, mx.zeros(shape, parts[0].dtype)], axis=2)

    leaf.keys, leaf.values = tree_map(join, *pieces)
    leaf.offset = length


def snapshot(leaf: Any) -> Any:
    """The whole state of a leaf, safe from later updates of it."""
    state = leaf.state
    if isinstance(leaf, RotatingKVCache) and leaf.keys is not None and leaf.keep == 0:
        state = _window(leaf)
    return _copied(state)


def restore(leaf: Any, state: Any) -> None:
    """Give a fresh leaf a state taken by `snapshot`, which stays usable."""
    leaf.state = _copied(state)


def nbytes(tree: Any) -> int:
    """Bytes of the arrays in a tree."""
    return sum(x.nbytes for _, x in cast(list[tuple[str, Any]], tree_flatten(tree)) if isinstance(x, mx.array))


def _window(leaf: Any) -> tuple[Any, ...]:
    """A prefill leaves more than a window of rows, in order; only the last window is ever read again."""
    if leaf.keys.shape[2] <= leaf.max_size:
        return tuple(leaf.state)
    keys, values = (mx.contiguous(x[..., -leaf.max_size :, :]) for x in (leaf.keys, leaf.values))
    return keys, values, leaf.offset, leaf.keep, leaf.max_size, leaf.max_size


def _copied(tree: Any) -> Any:
    # an array of its own shares the buffer; the first write to either copies it
    return tree_map(lambda x: mx.array(x) if isinstance(x, mx.array) else x, tree)
