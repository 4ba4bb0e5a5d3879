"""Signs of life of an engine, and what follows from their absence. Sans-I/O: the caller brings the clock.

Three bounds: a process that has never spoken (it imports and loads), one that spoke and fell silent, and one that
speaks but finishes no step. A long prefill finishes steps, so it is none of these.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from memra_mlx.engine.protocol import FromEngine, Heartbeat


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in seconds. Past `respawn_limit` restarts within `respawn_window_s` the engine has failed for good.

    `load_s`: silence before the first message; `beat_s`: silence after it; `stall_s`: age of the last finished step of
    a busy engine; `backoff_s`: wait before a restart, times the attempt; `stop_s`: from Stop to SIGKILL.
    """

    stall_s: float = 120.0
    beat_s: float = 30.0
    load_s: float = 1800.0
    respawn_limit: int = 3
    respawn_window_s: float = 600.0
    backoff_s: float = 2.0
    stop_s: float = 10.0


class Pulse:
    """The signs of life of one process, on the monotonic clock."""

    def __init__(self, limits: Limits, now: float):
        self._limits = limits
        self._spoken = False
        self.heard_at = now
        self.beat = Heartbeat(0.0, 0, 0, 0)
        self.longest_step_s = 0.0

    def hear(self, message: FromEngine, now: float) -> None:
        """Any message is a sign of life; a heartbeat also tells the age of the step."""
        self._spoken = True
        self.heard_at = now
        if isinstance(message, Heartbeat):
            self.beat = message
            self.longest_step_s = max(self.longest_step_s, message.step_age_s)

    def due_at(self) -> float:
        """The moment at which silence becomes a fault."""
        return self.heard_at + (self._limits.beat_s if self._spoken else self._limits.load_s)

    def complaint(self, now: float) -> str | None:
        """Why the process must be killed, if it must."""
        if self.beat.step_age_s > self._limits.stall_s:
            return f"it finished no step for {self.beat.step_age_s:.0f} s while busy"
        if now >= self.due_at():
            return f"it was silent for {now - self.heard_at:.0f} s"
        return None


class Respawns:
    """Counts deaths and grants restarts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deaths: deque[float] = deque()

    def after_death(self, now: float) -> float | None:
        """Seconds to wait before the next start; None past the limit."""
        self._deaths.append(now)
        while self._deaths[0] <= now - self._limits.respawn_window_s:
            self._deaths.popleft()
        attempt = len(self._deaths)
        return None if attempt > self._limits.respawn_limit else self._limits.backoff_s * attempt
