"""Signs of life and restarts, on a clock of our own."""

from __future__ import annotations

import pytest

from memra_mlx.engine.protocol import Heartbeat, Started
from memra_mlx.engine.pulse import Limits, Pulse, Respawns

LIMITS = Limits(stall_s=120, beat_s=30, load_s=1800, respawn_limit=2, respawn_window_s=600, backoff_s=2)


@pytest.mark.parametrize(
    ("heard", "now", "complains"),
    [
        ([], 1799, False),
        ([], 1800, True),
        ([(10, Heartbeat(0, 0, 0, 0))], 39, False),
        ([(10, Heartbeat(0, 0, 0, 0))], 40, True),
        ([(10, Heartbeat(0, 0, 0, 0)), (35, Started("r", 0))], 40, False),
        ([(10, Heartbeat(120, 5, 1, 0))], 10, False),
        ([(10, Heartbeat(121, 5, 1, 0))], 10, True),
        ([(10, Heartbeat(121, 5, 1, 0)), (11, Heartbeat(0, 6, 1, 0))], 11, False),
    ],
)
def test_complaints(heard: list[tuple[float, Heartbeat | Started]], now: float, complains: bool) -> None:
    pulse = Pulse(LIMITS, 0)
    for at, message in heard:
        pulse.hear(message, at)
    assert (pulse.complaint(now) is not None) == complains


def test_the_longest_step_is_kept() -> None:
    pulse = Pulse(LIMITS, 0)
    for age in (0.5, 3.0, 0.0):
        pulse.hear(Heartbeat(age, 1, 1, 0), 1)
    assert pulse.longest_step_s == 3.0


def test_the_backoff_grows_and_the_window_slides() -> None:
    respawns = Respawns(LIMITS)
    assert [respawns.after_death(now) for now in (0, 100, 200)] == [2, 4, None]
    assert [respawns.after_death(now) for now in (650, 1300)] == [None, 2]
