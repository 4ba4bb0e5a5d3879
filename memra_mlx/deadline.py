"""A point in time by which something must have happened."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is on the monotonic clock, in seconds."""

    at: float

    @classmethod
    def after_ms(cls, milliseconds: int) -> Deadline:
        """The moment `milliseconds` from now."""
        return cls(time.monotonic() + milliseconds / 1000)

    def left_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - time.monotonic())
