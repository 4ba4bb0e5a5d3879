"""The prefix cache of the scripted engine: no KV, only the memory of which tokens were seen."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence

_ENTRIES = 64
_WIDTH = 4  # bytes a token


class Prefixes:
    """The last token sequences per namespace, newest last, bounded in number."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, bytes]] = []

    def longest(self, namespace: str, ids: Sequence[int]) -> int:
        """How many leading tokens of `ids` are known; never all, since the last one must be evaluated for an answer."""
        chain = _chain(ids)
        best = max((_common(chain, other) for space, other in self._seen if space == namespace), default=0)
        return max(0, min(best, len(ids) - 1))

    def add(self, namespace: str, ids: Sequence[int]) -> None:
        """Remember a sequence, in place of those that it extends."""
        chain = _chain(ids)
        kept = [(space, other) for space, other in self._seen if space != namespace or not chain.startswith(other)]
        self._seen = [*kept, (namespace, chain)][-_ENTRIES:]


def _chain(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def _common(one: bytes, other: bytes) -> int:
    """The length of the common prefix in tokens, by bisection over whole-slice comparisons."""
    most = min(len(one), len(other)) // _WIDTH
    return bisect.bisect_left(range(most), True, key=lambda n: one[: (n + 1) * _WIDTH] != other[: (n + 1) * _WIDTH])
