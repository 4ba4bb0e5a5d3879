"""Lanes: who may use them, and when bulk work runs."""

from __future__ import annotations

import pytest

from memra_mlx.admission import lanes
from memra_mlx.admission.keyring import Key
from memra_mlx.admission.lanes import Gate, Steps
from memra_mlx.errors import ApiError

BATCH = Key("0" * 64, "acme", "batch")
NORMAL = Key("1" * 64, "acme")


@pytest.mark.parametrize(
    ("header", "key", "lane"),
    [
        (None, None, "interactive"),
        ("", NORMAL, "interactive"),
        ("Judge", NORMAL, "judge"),
        ("harvest", None, "harvest"),
        ("judge", BATCH, "judge"),
        (None, BATCH, "harvest"),
    ],
)
def test_the_lane(header, key, lane):
    assert lanes.choose(header, key) == lane


@pytest.mark.parametrize(
    ("header", "key", "status", "code"),
    [("fast", None, 400, "invalid_lane"), ("interactive", BATCH, 403, "lane_forbidden")],
)
def test_what_is_refused(header, key, status, code):
    with pytest.raises(ApiError) as caught:
        lanes.choose(header, key)
    assert (caught.value.rule.status, caught.value.code, caught.value.param) == (status, code, "x-lane")


def test_bulk_lanes_close_at_their_share_and_interactive_never():
    gate = Gate({"judge": 80.0, "harvest": 50.0})
    for lane in ("interactive", "judge", "harvest"):
        gate.check(lane, 49.9)
    gate.check("judge", 60.0)
    gate.check("interactive", 9999.0)
    for lane, p99 in (("harvest", 50.0), ("judge", 80.0)):
        with pytest.raises(ApiError) as caught:
            gate.check(lane, p99)
        assert caught.value.rule.status == 429
        assert caught.value.response_headers()["retry-after"] == "5"


def test_quantiles_forget():
    steps = Steps()
    assert steps.quantiles(0.0, 0.5, 0.99) == [0.0, 0.0]
    for _ in range(99):
        steps.note(1.0, 10.0)
    steps.note(2.0, 500.0)
    assert steps.quantiles(3.0, 0.5, 0.99) == [10.0, 500.0]
    assert steps.quantiles(31.5, 0.5, 0.99) == [500.0, 500.0]
    assert steps.quantiles(33.0, 0.99) == [0.0]


def test_tokens_that_came_together_are_as_many_steps():
    steps = Steps()
    steps.note(0.0, 5.0, tokens=99)
    steps.note(0.0, 90.0)
    assert steps.quantiles(0.0, 0.98) == [5.0]
