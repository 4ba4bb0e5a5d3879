"""What the block index keeps, and the seam to a tier below memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["block", "mark"]
Key = bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A block or a mark. `tokens` are those of the block, packed (empty for a mark); `payload` is `nbytes` of state."""

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
