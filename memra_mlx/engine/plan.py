"""What to do next, as pure decisions: whose prefill, how much of it, which requests share a batch. No MLX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

LANES = {"interactive": 0, "judge": 1, "harvest": 2}

_PATIENCE = 16  # chunks of others after which a prefill is next in its lane
_MIN_CHUNK = 32
_FIRST_CHUNK = 64  # before any speed is known
_DECODE_SHARE = 1.5  # prefill time per time of a decode step, while others decode

_ALIKE = 4  # a batch may pad its shortest member to this many times its length
_SMALL = 1024  # tokens up to which padding is of no account

_STOP_GAP = 1024  # tokens between whole-state snapshots inside a prompt


class Candidate(Protocol):
    """A prefill that could go on."""

    @property
    def lane(self) -> int:
        """Its lane's rank."""

    @property
    def remaining(self) -> int:
        """Tokens left to prefill, as far as known."""

    @property
    def passed(self) -> int:
        """Chunks of others since its last one."""

    @property
    def arrival(self) -> int:
        """Its number in order of arrival."""


def prefill_order(candidate: Candidate) -> tuple[int, bool, int, int]:
    """Sort key: lane, then who waited too long, then the shortest, then the first."""
    patient = candidate.passed < _PATIENCE
    return candidate.lane, patient, candidate.remaining if patient else 0, candidate.arrival


class Pace:
    """How many tokens a prefill may process at once. Alone: `full`; while others decode: as many as fit into the time
    that their streams may stand still, by measured speed."""

    def __init__(self, full: int, stall_s: float) -> None:
        self._full = full
        self._stall_s = stall_s
        self._decode_s: float | None = None
        self._token_s: float | None = None
        self._last = _FIRST_CHUNK

    def chunk(self, *, alone: bool) -> int:
        """Tokens of the next chunk."""
        if alone:
            return self._full
        if self._token_s is None or self._decode_s is None:
            return min(self._full, _FIRST_CHUNK)
        time_s = min(self._stall_s - self._decode_s, self._decode_s * _DECODE_SHARE)
        # one step of doubling at a time: a short chunk's speed says little of a long one's
        return min(self._full, 2 * self._last, max(_MIN_CHUNK, int(time_s / self._token_s)))

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A chunk of `tokens` took `seconds`."""
        if tokens >= _MIN_CHUNK:
            self._token_s = _smoothed(self._token_s, seconds / tokens, 2)
            self._last = tokens

    def decoded(self, seconds: float) -> None:
        """A step of all that decode took `seconds`."""
        self._decode_s = _smoothed(self._decode_s, seconds, 4)


def _smoothed(average: float | None, value: float, weight: int) -> float:
    return value if average is None else average + (value - average) / weight


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch: how many members, and the lengths in tokens of its shortest and longest."""

    members: int
    shortest: int
    longest: int

    def joined(self, length: int) -> Shape:
        """With one more member."""
        return Shape(self.members + 1, min(self.shortest, length), max(self.longest, length))

    @property
    def balanced(self) -> bool:
        """Whether padding stays within reason."""
        return self.longest <= max(_SMALL, _ALIKE * self.shortest)


def choose_batch(shapes: Sequence[Shape], length: int, fits: Callable[[int], bool]) -> int | None:
    """Index of the batch that a sequence of `length` joins: the fullest that stays balanced and `fits` in memory."""
    able = [i for i, shape in enumerate(shapes) if shape.joined(length).balanced and fits(i)]
    return max(able, key=lambda i: shapes[i].members, default=None)


def snapshot_stops(start: int, total: int, ends: Iterable[int]) -> list[int]:
    """Where a prefill from `start` to `total` pauses to take a whole state: at the first boundary, at later ones with
    some distance, and at the end."""
    stops: list[int] = []
    for end in sorted(ends):
        if start < end < total and (not stops or end - stops[-1] >= _STOP_GAP):
            stops.append(end)
    return [*stops, total] if total > start else stops
