"""Event streams that every dialect must render, and a reader of what it rendered."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from memra_mlx.errors import ApiError
from memra_mlx.events import (
    Begin,
    BlockDelta,
    BlockEnd,
    BlockStart,
    Event,
    Fail,
    Finish,
    FinishReason,
    Order,
    Usage,
)

USAGE = Usage(prompt=30, cached=20, completion=9, reasoning=4)
OSLO = '{"town":"Oslo"}'


class Renders(Protocol):
    """A dialect's `Frames`."""

    def push(self, event: Event) -> bytes: ...


def text(index: int, *pieces: str) -> list[Event]:
    return [BlockStart(index, "text"), *(BlockDelta(index, p) for p in pieces), BlockEnd(index)]


def thought(index: int, *pieces: str, seal: str = "") -> list[Event]:
    return [BlockStart(index, "reasoning"), *(BlockDelta(index, p) for p in pieces), BlockEnd(index, seal)]


def call(index: int, name: str, *pieces: str) -> list[Event]:
    start = BlockStart(index, "tool", call_id=f"call_{index}", name=name)
    return [start, *(BlockDelta(index, p) for p in pieces), BlockEnd(index)]


def stream(*blocks: list[Event], reason: FinishReason = "end_turn", **finish: Any) -> list[Event]:
    begin = Begin("id_1", "tiny", 30, 20)
    return [begin, *itertools.chain(*blocks), Finish(reason, USAGE, **finish)]


SCENES: dict[str, list[Event]] = {
    "text": stream(text(0, "Hel", "lo ", "🦙é")),
    "empty": stream(),
    "empty text": stream(text(0)),
    "thinking, text": stream(thought(0, "hm", " so", seal="sealed-1"), text(1, "Hi")),
    "thinking, text, call": stream(
        thought(0, "look"), text(1, "Checking."), call(2, "weather", '{"to', 'wn":"Oslo"}'), reason="tool_calls"
    ),
    "two calls": stream(
        call(0, "weather", OSLO), text(1, "\n"), call(2, "weather", '{"town":"Rome \\"N\\""}'), reason="tool_calls"
    ),
    "call without arguments": stream(call(0, "list_tasks"), reason="tool_calls"),
    "length": stream(thought(0, "hm hm"), reason="length"),
    "call cut short": stream(call(0, "weather", '{"town":"Oslo","days":[1,2'), reason="length"),
    "stop": stream(text(0, "a "), reason="stop", stop_sequence="BB"),
    "text, thinking, text": stream(text(0, "---\n"), thought(1, "plan"), text(2, "Hi")),
    "warned": stream(text(0, "x"), warnings=("one", "two")),
}
FAULT = ApiError("engine", "the engine broke")
BROKEN: dict[str, list[Event]] = {
    "before content": [Begin("id_1", "tiny", 30, 0), Fail(FAULT)],
    "in a block": [Begin("id_1", "tiny", 30, 0), BlockStart(0, "text"), BlockDelta(0, "Half an "), Fail(FAULT)],
    "first": [Fail(FAULT)],
}


def render(frames: Renders, events: Iterable[Event]) -> bytes:
    """All bytes of a legal stream."""
    order = Order()
    return b"".join(frames.push(order.check(event)) for event in events)


def read(data: bytes) -> Iterator[tuple[str, Any]]:
    """(event name, parsed data) of each event; `comment` and `done` for these."""
    assert data == b"" or data.endswith(b"\n\n")
    for part in data.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in part.split("\n"))
        if "" in lines:
            yield "comment", lines[""]
        elif lines["data"] == "[DONE]":
            yield "done", None
        else:
            yield lines.get("event", ""), msgspec.json.decode(lines["data"])


def names(data: bytes) -> list[str]:
    """The event names."""
    return [name for name, _ in read(data)]
