"""Lanes: which work may run beside the people who wait for an answer.

`interactive` waits in order and is never turned away for load alone. `judge` and `harvest` are bulk: they are admitted
only while interactive decoding is fast enough, and turned away at once otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from memra_mlx.admission.keyring import Key
from memra_mlx.errors import ApiError, invalid

Lane = Literal["interactive", "judge", "harvest"]
_WINDOW_S = 30.0
_WINDOW_STEPS = 2048
_RETRY_S = 5


class Steps:
    """Times between tokens, in milliseconds, of the last half minute. The caller brings the clock (seconds)."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOW_STEPS)

    def note(self, now: float, gap_ms: float, tokens: int = 1) -> None:
        """`tokens` came together, `gap_ms` each."""
        self._steps.extend([(now, gap_ms)] * min(tokens, _WINDOW_STEPS))

    def quantiles(self, now: float, *shares: float) -> list[float]:
        """The values below which these shares of all steps lie; zeros where there were none."""
        while self._steps and self._steps[0][0] < now - _WINDOW_S:
            self._steps.popleft()
        values = sorted(gap for _, gap in self._steps)
        return [values[min(len(values) - 1, int(share * len(values)))] if values else 0.0 for share in shares]


@dataclass(frozen=True, slots=True)
class Gate:
    """`limits_ms`: the interactive p99 from which on a lane is closed."""

    limits_ms: Mapping[str, float]

    def check(self, lane: Lane, p99_ms: float) -> None:
        """Raise a 429 where `lane` may not run beside what runs."""
        limit = self.limits_ms.get(lane)
        if limit is not None and p99_ms >= limit:
            raise ApiError(
                "rate",
                f"lane {lane} is closed while interactive work is slow ({p99_ms:.0f} ms a token, bound {limit:.0f} ms)",
                retry_after_s=_RETRY_S,
            )


def choose(header: str | None, key: Key | None) -> Lane:
    """The lane of a request. Raises a 400 for an unknown one, a 403 for a batch key that claims interactive.

    Without a header it is interactive, and harvest for a batch key.
    """
    batch = key is not None and key.lane_class == "batch"
    name = (header or "").strip().lower()
    if not name:
        return "harvest" if batch else "interactive"
    lane = next((lane for lane in get_args(Lane) if lane == name), None)
    if lane is None:
        raise invalid("x-lane", f"{name[:40]!r} is no lane; accepted: {', '.join(get_args(Lane))}", "invalid_lane")
    if batch and lane == "interactive":
        raise ApiError(
            "permission",
            "x-lane: this key is for bulk work and cannot claim the interactive lane; send judge or harvest",
            param="x-lane",
            code="lane_forbidden",
        )
    chosen: Lane = lane
    return chosen
