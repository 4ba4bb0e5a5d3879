"""The legal order of events and the fold."""

from __future__ import annotations

import pytest

from memra_mlx.errors import ApiError
from memra_mlx.events import (
    Begin,
    Block,
    BlockDelta,
    BlockEnd,
    BlockStart,
    Event,
    Fail,
    Finish,
    Order,
    TokenLogprob,
    Usage,
    fold,
)

BEGIN = Begin("id", "m", 3, 1)
FINISH = Finish("end_turn", Usage(3, 1, 2))
FAIL = Fail(ApiError("engine", "gone"))
TEXT = [BlockStart(0, "text"), BlockDelta(0, "a"), BlockDelta(0, "b"), BlockEnd(0)]
CALL = [BlockStart(1, "tool", "call_1", "ls"), BlockDelta(1, "{}"), BlockEnd(1)]


def check(events: list[Event]) -> None:
    order = Order()
    for event in events:
        order.check(event)


@pytest.mark.parametrize(
    "events",
    [
        [BEGIN, FINISH],
        [BEGIN, *TEXT, *CALL, FINISH],
        [FAIL],
        [BEGIN, FAIL],
        [BEGIN, *TEXT[:2], FAIL],
        [BEGIN, *TEXT, FAIL],
    ],
)
def test_legal_streams(events):
    check(events)


@pytest.mark.parametrize(
    "events",
    [
        [FINISH],
        [BEGIN, BEGIN],
        [BEGIN, *TEXT[:2], FINISH],
        [BEGIN, BlockDelta(0, "a")],
        [BEGIN, BlockEnd(0)],
        [BEGIN, *TEXT[:1], *CALL],
        [BEGIN, BlockStart(1, "text")],
        [BEGIN, TEXT[0], BlockDelta(1, "a")],
        [BEGIN, FINISH, FAIL],
        [BEGIN, FAIL, FINISH],
        [BEGIN, FINISH, *TEXT],
    ],
)
def test_illegal_streams(events):
    with pytest.raises(AssertionError):
        check(events)


def test_fold_joins_deltas_and_keeps_ids_seals_and_logprobs():
    lp = TokenLogprob("a", 1, -0.1)
    events = [BEGIN, BlockStart(0, "reasoning"), BlockDelta(0, "t", (lp,)), BlockEnd(0, seal="s"), *CALL, FINISH]
    answer = fold(events)
    assert answer.blocks == (Block("reasoning", "t", seal="s", logprobs=(lp,)), Block("tool", "{}", "call_1", "ls"))
    assert (answer.begin, answer.finish) == (BEGIN, FINISH)


def test_fold_raises_the_error_of_a_failed_stream():
    with pytest.raises(ApiError, match="gone"):
        fold([BEGIN, *TEXT[:2], FAIL])


def test_fold_refuses_a_stream_without_an_end():
    with pytest.raises(AssertionError):
        fold([BEGIN, *TEXT])
