"""Events of one request from scripted engine messages: order, deadline, silence, stop."""

from __future__ import annotations

from dataclasses import dataclass, field

from memra_mlx.deadline import Deadline
from memra_mlx.engine.protocol import Ended, Fault, Progress, Started, Token
from memra_mlx.events import Begin, BlockDelta, BlockEnd, BlockStart, Fail, Finish, Order
from memra_mlx.generation import Generation, batches
from memra_mlx.prompt.text_model import Prompt
from memra_mlx.request import Conversation, Request

SOON = Deadline(float("inf"))
PAST = Deadline(0.0)


class Passing:
    """A deadline that is over when it is asked for the second time."""

    def __init__(self):
        self.asked = 0

    def left_s(self):
        self.asked += 1
        return 60.0 if self.asked == 1 else 0.0


@dataclass
class FakeChannel:
    lists: list
    cancelled: list = field(default_factory=list)

    async def receive(self):
        if not self.lists:
            raise TimeoutError
        return self.lists.pop(0)

    def cancel(self, keep=-1):
        self.cancelled.append(keep)


@dataclass
class LetterParser:
    """Each token is one letter of one text block; 'z' is a stop string."""

    completion_tokens: int = 0
    reasoning_tokens: int = 0
    visible_tokens: int = 0
    done: bool = False
    stopped: str | None = None
    finish_reason: str = "end_turn"

    def push(self, token):
        self.completion_tokens += 1
        letter = chr(token.token)
        if letter == "z":
            self.stopped, self.finish_reason, self.done = "z", "stop", True
            return []
        self.visible_tokens += 1
        start = [BlockStart(0, "text")] if self.completion_tokens == 1 else []
        return [*start, BlockDelta(0, letter)]

    def finish(self, reason):
        self.finish_reason = "length" if reason == "length" else self.finish_reason
        return [BlockEnd(0)] if self.completion_tokens else []


def no_other(submit, prompt):
    raise AssertionError("one answer was asked for")


def run(lists, *, stream=True, deadline=SOON) -> Generation:
    request = Request("chat", "m", Conversation(()), stream=stream)
    prompt = Prompt(ids=[1, 2, 3], segment_ends=[], think=None)
    return Generation("id", request, prompt, LetterParser(), FakeChannel(lists), deadline, (), no_other)


async def events(generation, begin_at=SOON, most=50):
    out, order = [], Order()
    async for batch in batches(generation, begin_at, 1.0):
        out += [order.check(event) for event in batch]
        most -= 1
        if not most:
            break
    return out


async def test_a_whole_stream():
    got = await events(
        run(
            [
                [Started("r", 2, "memory")],
                [Progress("r", 3, 3), Token("r", 97)],
                [Token("r", 98), Ended("r", "stop", 2)],
            ]
        )
    )
    assert got[0] == Begin("id", "m", 3, 2)
    assert [e.text for e in got if isinstance(e, BlockDelta)] == ["a", "b"]
    assert got[-1] == Finish("end_turn", got[-1].usage)
    assert (got[-1].usage.prompt, got[-1].usage.cached, got[-1].usage.completion) == (3, 2, 2)


async def test_length_is_told():
    got = await events(run([[Started("r", 0), Token("r", 97), Ended("r", "length", 1)]]))
    assert got[-1].reason == "length"


async def test_a_stop_string_cancels_and_keeps_what_belongs():
    generation = run([[Started("r", 0), Token("r", 97), Token("r", 122), Token("r", 98)], [Ended("r", "cancelled", 3)]])
    got = await events(generation)
    assert (got[-1].reason, got[-1].stop_sequence) == ("stop", "z")
    assert generation.channel.cancelled == [1]
    assert [e.text for e in got if isinstance(e, BlockDelta)] == ["a"]


async def test_begin_does_not_wait_past_its_time_and_the_split_comes_at_the_end():
    generation = run([[], [Started("r", 2), Token("r", 97), Ended("r", "stop", 1)]])
    got = await events(generation, begin_at=PAST)
    assert got[0] == Begin("id", "m", 3, 0)
    assert got[-1].usage.cached == 2


async def test_a_fault_ends_the_stream():
    got = await events(run([[Started("r", 0), Token("r", 97)], [Fault("r", "engine", "gone")]]))
    assert isinstance(got[-1], Fail)
    assert (got[-1].error.rule.status, got[-1].error.message) == (500, "gone")


async def test_what_never_fits_is_a_400():
    got = await events(run([[Fault("r", "memory", "needs 9 GB of 4")]]))
    assert [e.error.rule.status for e in got] == [400]


async def test_a_stream_that_missed_its_first_token_fails_with_408():
    generation = run([[Started("r", 0)]], deadline=PAST)
    got = await events(generation)
    assert (got[-1].error.rule.status, generation.meter.outcome) == (408, "deadline_exceeded")
    assert generation.channel.cancelled == [-1]


async def test_a_stream_with_a_token_has_no_deadline_a_blocking_answer_has():
    lists = [[Started("r", 0), Token("r", 97)], [Ended("r", "stop", 1)]]
    assert isinstance((await events(run(list(lists), deadline=Passing())))[-1], Finish)
    assert isinstance((await events(run(list(lists), stream=False, deadline=Passing())))[-1], Fail)


async def test_silence_is_an_empty_batch():
    generation = run([[Started("r", 0)]])
    got = [batch async for batch, _ in _first(batches(generation, SOON, 1.0), 3)]
    assert got[1:] == [[], []]


async def _first(stream, count):
    async for batch in stream:
        yield batch, count
        count -= 1
        if not count:
            return
