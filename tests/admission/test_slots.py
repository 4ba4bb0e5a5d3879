"""Places for requests at the same time: tenants, headers, the drain."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from memra_mlx.admission.slots import Rate, Slots
from memra_mlx.errors import ApiError


def full(slots, *arguments):
    with pytest.raises(ApiError) as caught, slots.enter(*arguments):
        pass
    return caught.value


async def test_a_tenant_has_its_own_gauge_below_the_servers():
    slots = Slots(4, 30)
    with ExitStack() as held:
        assert held.enter_context(slots.enter("a", 2)) == Rate(2, 1, 0)
        assert held.enter_context(slots.enter("a", 2)).remaining == 0
        error = full(slots, "a", 2)
        assert (error.rule.status, error.code) == (429, "rate_limit_exceeded")
        held.enter_context(slots.enter("b"))
        held.enter_context(slots.enter("b"))
        assert full(slots, "b").rule.status == 429
        assert slots.rate("c").remaining == 0
        assert (slots.live, slots.of("a")) == (4, 2)
    assert (slots.live, slots.of("a"), slots.idle.is_set()) == (0, 0, True)


async def test_keys_of_one_tenant_share_its_gauge():
    slots = Slots(10, 30)
    with slots.enter("a", 5), slots.enter("a", 5):
        assert full(slots, "a", 2).headers["x-ratelimit-limit"] == "2"
        with slots.enter("a", 5):
            assert slots.rate("a", 5) == Rate(5, 2, 0)


async def test_a_full_answer_has_all_headers():
    slots = Slots(1, 30)
    slots.served(40.0)
    with slots.enter("a"):
        headers = full(slots, "a").response_headers()
    assert headers["x-ratelimit-remaining"] == "0"
    assert headers["x-ratelimit-reset"] == headers["retry-after"]
    assert headers["retry-after-ms"] == headers["retry-after"] + "000"
    assert 1 <= int(headers["retry-after"]) <= 60
    assert "x-should-retry" not in headers


async def test_a_drain_closes_the_gate_and_ends_when_all_have_left():
    slots = Slots(4, 120)
    with slots.enter("a"):
        slots.drain()
        error = full(slots, "a")
        assert (error.rule.status, error.code) == (503, "draining")
        assert error.response_headers()["retry-after"] == "60"
        assert not slots.idle.is_set()
    assert slots.idle.is_set()
