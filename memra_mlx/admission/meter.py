"""What one generation does while it runs, for its receipt, the metrics and those who wait behind it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from memra_mlx.admission.outcomes import Outcome
from memra_mlx.metrics import GAP_EDGES, Histogram


class Observer(Protocol):
    """Who wants to know at once. Times are on the monotonic clock, in seconds."""

    def started(self, cached: int) -> None:
        """The engine has begun, with so many prompt tokens from a cache."""

    def progress(self, done: int) -> None:
        """So many prompt tokens are in the KV cache."""

    def first_token(self, now: float) -> None:
        """The prompt is done."""

    def step(self, now: float, gap_s: float, tokens: int) -> None:
        """`tokens` came after those before them, `gap_s` each."""


@dataclass(slots=True)
class Meter:
    """Times are on the monotonic clock, in seconds. `source` is None until the engine has begun."""

    observer: Observer | None = None
    began: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    last_token: float = 0.0
    cached: int = 0
    source: str | None = None
    outcome: Outcome = "abandoned"  # until a terminal event says otherwise
    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_EDGES))

    def started(self, cached: int, source: str) -> None:
        """The engine has begun."""
        self.cached, self.source = cached, source
        if self.observer:
            self.observer.started(cached)

    def progress(self, done: int) -> None:
        """Prefill goes on."""
        if self.observer:
            self.observer.progress(done)

    def tokens(self, now: float, count: int) -> None:
        """`count` tokens have come together."""
        if self.first_token is None:
            self.first_token = now
            if self.observer:
                self.observer.first_token(now)
        else:
            gap = (now - self.last_token) / count
            self.gaps.add(gap, count)
            if self.observer:
                self.observer.step(now, gap, count)
        self.last_token = now
