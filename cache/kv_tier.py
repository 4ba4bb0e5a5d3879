"""What the block index keeps, and the seam to a tier below memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["block", "mark"]
Key = bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A block or a mark. `tokens` are those of the block, packed (empty for a mark); `payload` is `nbytes` of state:
    a list over the model's growing leaves (block) or its other leaves (mark), each a tree of tuples and lists whose
    leaves are evaluated arrays, numbers, text or None."""

    kind: Kind
    key: Key
    parent: Key
    tokens: bytes
    payload: Any
    nbytes: int


class Tier(Protocol):
    """Where evicted entries go and misses are asked for: the disk."""

    def lengths(self, key: Key) -> Iterable[int]:
        """Lengths in tokens of the blocks known below `key`."""

    def holds(self, kind: Kind, key: Key) -> bool:
        """Whether `load` would find it."""

    def load(self, kind: Kind, key: Key) -> tuple[Any, int] | None:
        """Payload and its bytes; None if it is gone or broken."""

    def offer(self, entry: Entry) -> None:
        """Take over an entry, or let it go."""

    def own(self, namespace: str) -> None:
        """Blocks of this namespace may come."""

    def touch(self, keys: Sequence[Key]) -> None:
        """These were used, the last one most of all."""

    def close(self, timeout_s: float) -> None:
        """Finish what was taken over, in at most `timeout_s`."""


class NoTier:
    """Memory is all there is."""

    def lengths(self, key: Key) -> Iterable[int]:
        """None."""
        return ()

    def holds(self, kind: Kind, key: Key) -> bool:
        """Never."""
        return False

    def load(self, kind: Kind, key: Key) -> tuple[Any, int] | None:
        """Nothing."""
        return None

    def offer(self, entry: Entry) -> None:
        """Let it go."""

    def own(self, namespace: str) -> None:
        """Nothing to be kept apart."""

    def touch(self, keys: Sequence[Key]) -> None:
        """Nothing to be put in order."""

    def close(self, timeout_s: float) -> None:
        """Nothing to be finished."""
