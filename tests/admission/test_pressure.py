"""Backpressure: the estimate, its sources, and who is turned away."""

from __future__ import annotations

import pytest

from memra_mlx.admission.pressure import Pressure
from memra_mlx.errors import ApiError


def measured(rate=1000.0, limit=8):
    """A queue that has seen prefill at `rate` tokens a second."""
    pressure = Pressure(limit)
    pressure.enter("w", 1000, 0.0)
    pressure.started("w", 0)
    pressure.first_token("w", 1000 / rate)
    return pressure


def shed(pressure, deadline_s):
    with pytest.raises(ApiError) as caught:
        pressure.check(deadline_s)
    return caught.value


def test_nothing_measured_nothing_shed():
    pressure = Pressure(8)
    pressure.enter("a", 10**9, 0.0)
    assert pressure.estimate_s() == 0.0
    pressure.check(0.001)


def test_what_is_ahead_is_what_is_left_to_prefill():
    pressure = measured(1000.0)
    pressure.enter("a", 5000, 10.0)
    pressure.enter("b", 3000, 10.0)
    assert pressure.estimate_s() == pytest.approx(8.0)
    pressure.started("a", 1000)
    pressure.progress("a", 3000)
    pressure.started("b", 3000)
    assert pressure.estimate_s() == pytest.approx(2.0)
    pressure.leave("a")
    pressure.first_token("b", 10.1)
    assert (pressure.estimate_s(), pressure.depth) == (0.0, 0)


def test_a_cache_that_hits_shortens_the_estimate_of_what_has_not_started():
    pressure = measured(1000.0)
    for i in range(30):
        pressure.enter(str(i), 1000, 1.0)
        pressure.started(str(i), 900)
        pressure.leave(str(i))
    pressure.enter("a", 1000, 2.0)
    assert pressure.estimate_s() == pytest.approx(0.1, rel=0.05)


def test_shed_for_the_deadline():
    pressure = measured(1000.0)
    pressure.enter("a", 30_000, 10.0)
    pressure.check(31.0)
    error = shed(pressure, 10.0)
    assert (error.rule.status, error.code, error.headers["x-memra-shed"]) == (
        429,
        "rate_limit_exceeded",
        "shed_deadline",
    )
    assert error.response_headers()["retry-after"] == "20"


def test_shed_for_the_bound():
    pressure = Pressure(2)
    pressure.enter("a", 1, 0.0)
    pressure.check(1.0)
    pressure.enter("b", 1, 0.0)
    error = shed(pressure, 1000.0)
    assert error.headers["x-memra-shed"] == "shed_queue"
    assert error.response_headers()["retry-after"] == "1"
    pressure.leave("a")
    pressure.check(1.0)


def test_small_prompts_tell_nothing_of_the_speed():
    pressure = Pressure(8)
    for i in range(100):
        pressure.enter(str(i), 5, float(i))
        pressure.started(str(i), 0)
        pressure.first_token(str(i), i + 0.5)
    pressure.enter("a", 50_000, 200.0)
    assert pressure.estimate_s() == 0.0


def test_prompts_that_overlap_share_the_time():
    pressure = Pressure(8)
    for name in "abcd":
        pressure.enter(name, 500, 0.0)
        pressure.started(name, 0)
        pressure.progress(name, 500)
    for name in "abcd":
        pressure.first_token(name, 2.0)
    pressure.enter("e", 1000, 3.0)
    assert pressure.estimate_s() == pytest.approx(1.0)
