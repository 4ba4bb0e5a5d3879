"""Backpressure: how long a new request would wait for its turn, and when it is better turned away at once.

A request waits from its admission to its first token. What is ahead is the prompt tokens that those before it have
still to prefill; how fast that goes is measured. Nothing measured yet: nothing is turned away for its deadline. What
has been admitted is never turned away any more. Sans-I/O: the caller brings the clock (seconds).
"""

from __future__ import annotations

from dataclasses import dataclass

from memra_mlx.errors import ApiError

SAMPLE_TOKENS = 256  # fewer tell more of the overhead than of the speed
_WEIGHT = 0.3


@dataclass(slots=True)
class Waiting:
    """A request without a first token: its prompt tokens, and how many the cache gave it (None: not known yet)."""

    prompt: int
    cached: int | None = None
    done: int = 0


class Pressure:
    """The queue as the server sees it."""

    def __init__(self, limit: int):
        self._limit = limit
        self._waiting: dict[str, Waiting] = {}
        self._rate: float | None = None  # prompt tokens a second
        self._hit_ratio = 0.0
        self._sample_from = 0.0
        self._sample_tokens = 0

    @property
    def depth(self) -> int:
        """Requests that wait for their first token."""
        return len(self._waiting)

    def estimate_s(self) -> float:
        """Seconds until a request that came now would have its turn."""
        return sum(map(self._left, self._waiting.values())) / self._rate if self._rate else 0.0

    def check(self, deadline_s: float) -> None:
        """Raise a 429 where the queue is full, or longer than a request can wait. `x-memra-shed` says which."""
        if self.depth >= self._limit:
            raise _shed("shed_queue", f"{self.depth} requests wait already, which is the bound", self.estimate_s())
        wait = self.estimate_s()
        if wait > deadline_s:
            why = f"the wait would be about {wait:.0f} s, which is longer than this request's deadline"
            raise _shed("shed_deadline", why, wait - deadline_s)

    def enter(self, id: str, prompt: int, now: float) -> None:
        """An admitted request begins to wait."""
        if not self._waiting:
            self._sample_from, self._sample_tokens = now, 0
        self._waiting[id] = Waiting(prompt)

    def started(self, id: str, cached: int) -> None:
        """The engine has begun with it."""
        if waiting := self._waiting.get(id):
            waiting.cached = waiting.done = cached
            self._hit_ratio += _WEIGHT * (cached / max(1, waiting.prompt) - self._hit_ratio)

    def progress(self, id: str, done: int) -> None:
        """So many prompt tokens are in the cache."""
        if waiting := self._waiting.get(id):
            self._sample_tokens += max(0, done - waiting.done)
            waiting.done = max(waiting.done, done)

    def first_token(self, id: str, now: float) -> None:
        """It waits no more. What was prefilled since the last time tells how fast that goes."""
        waiting = self._waiting.pop(id, None)
        if waiting is None:
            return
        self._sample_tokens += waiting.prompt - waiting.done
        if self._sample_tokens >= SAMPLE_TOKENS and now > self._sample_from:
            rate = self._sample_tokens / (now - self._sample_from)
            self._rate = rate if self._rate is None else self._rate + _WEIGHT * (rate - self._rate)
            self._sample_from, self._sample_tokens = now, 0

    def leave(self, id: str) -> None:
        """It is over, whether it had its turn or not."""
        self._waiting.pop(id, None)

    def _left(self, waiting: Waiting) -> float:
        if waiting.cached is None:
            return waiting.prompt * (1 - self._hit_ratio)
        return waiting.prompt - waiting.done


def _shed(outcome: str, why: str, wait_s: float) -> ApiError:
    return ApiError(
        "rate", f"too busy: {why}; try again later", retry_after_s=round(wait_s), headers={"x-memra-shed": outcome}
    )
