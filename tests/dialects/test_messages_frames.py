"""`/v1/messages`: what is sent, also as the official SDK reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from pydantic import BaseModel
from scenes import BROKEN, FAULT, OSLO, SCENES, call, names, read, render, stream, text, thought

from memra_mlx.dialects.messages import Frames, body, parse
from memra_mlx.events import Begin, BlockDelta, BlockEnd, BlockStart, Event, Fail, Finish, Usage, fold
from memra_mlx.request import Conversation, Request, Thinking

REQUEST = Request("messages", "tiny", Conversation(()))
THINKS = replace(REQUEST, thinking=Thinking(True))
USAGE = {
    "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 20, "output_tokens": 9,
    "output_tokens_details": {"thinking_tokens": 4},
}  # fmt: skip


def rendered(events: list[Event]) -> list[tuple[str, Any]]:
    return list(read(render(Frames(REQUEST, 0), events)))


def client(data: bytes, kind: str) -> anthropic.Anthropic:
    """The official client, answered with `data`; what it sends must be readable."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        parse(msgspec.json.decode(request.content), request.headers)
        return httpx2.Response(200, content=data, headers={"content-type": kind})

    transport = httpx2.MockTransport(answer)
    return anthropic.Anthropic(api_key="k", max_retries=0, http_client=httpx2.Client(transport=transport))


ASK: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


def test_a_whole_stream():
    events = stream(thought(0, "hm", seal="S"), text(1, "Hi"), call(2, "weather", OSLO), reason="tool_calls")
    assert rendered(events) == [
        ("message_start", {"type": "message_start", "message": {
            "id": "id_1", "type": "message", "role": "assistant", "model": "tiny", "content": [],
            "stop_reason": None, "stop_sequence": None,
            "usage": {**USAGE, "output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0}}}}),
        ("ping", {"type": "ping"}),
        ("content_block_start", {"type": "content_block_start", "index": 0,
                                 "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0,
                                 "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0,
                                 "delta": {"type": "signature_delta", "signature": "S"}}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        ("content_block_start", {"type": "content_block_start", "index": 1,
                                 "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"type": "content_block_delta", "index": 1,
                                 "delta": {"type": "text_delta", "text": "Hi"}}),
        ("content_block_stop", {"type": "content_block_stop", "index": 1}),
        ("content_block_start", {"type": "content_block_start", "index": 2, "content_block": {
            "type": "tool_use", "id": "call_2", "name": "weather", "input": {}}}),
        ("content_block_delta", {"type": "content_block_delta", "index": 2,
                                 "delta": {"type": "input_json_delta", "partial_json": OSLO}}),
        ("content_block_stop", {"type": "content_block_stop", "index": 2}),
        ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                           "usage": USAGE}),
        ("message_stop", {"type": "message_stop"}),
    ]  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_the_sdk_accumulates_what_the_body_says(name: str):
    told = body(REQUEST, fold(SCENES[name]), 0)
    with client(render(Frames(REQUEST, 0), SCENES[name]), "text/event-stream").messages.stream(**ASK) as live:
        streamed = live.get_final_message()
    blocking = client(msgspec.json.encode(told), "application/json").messages.create(**ASK)
    assert streamed.to_dict(exclude_none=True) | {"warnings": []} == blocking.to_dict(exclude_none=True) | {
        "warnings": []
    }
    assert blocking.to_dict() == told


class Town(BaseModel):
    """A form of answer."""

    town: str


def test_the_strict_helpers_parse_answers():
    events = stream(thought(0, "hm"), text(1, OSLO[:5], OSLO[5:]))
    with client(render(Frames(REQUEST, 0), events), "text/event-stream").messages.stream(
        **ASK, output_format=Town
    ) as live:
        streamed = live.get_final_message()
    blocking = client(msgspec.json.encode(body(REQUEST, fold(events), 0)), "application/json")
    for answer in (streamed, blocking.messages.parse(**ASK, output_format=Town)):
        assert answer.parsed_output == Town(town="Oslo")


@pytest.mark.parametrize("name", SCENES)
def test_the_blocks_are_numbered_and_each_delta_fits_its_block(name: str):
    kinds = {
        "text": {"text_delta"},
        "thinking": {"thinking_delta", "signature_delta"},
        "tool_use": {"input_json_delta"},
    }
    blocks: list[str] = []
    for event, data in rendered(SCENES[name]):
        assert data["type"] == event
        if event == "content_block_start":
            assert data["index"] == len(blocks)
            blocks.append(data["content_block"]["type"])
        elif event == "content_block_delta":
            assert data["index"] == len(blocks) - 1
            assert data["delta"]["type"] in kinds[blocks[-1]]


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_the_last_event_and_nothing_is_closed(name: str):
    data = rendered(BROKEN[name])
    assert data[-1] == ("error", {"type": "error", "error": {
        "type": "api_error", "message": FAULT.message, "code": "engine_error"}})  # fmt: skip
    assert not {"content_block_stop", "message_delta", "message_stop"} & {event for event, _ in data}


def test_the_sdk_raises_at_a_fault():
    live = client(render(Frames(REQUEST, 0), BROKEN["in a block"]), "text/event-stream").messages.stream(**ASK)
    with pytest.raises(anthropic.APIStatusError, match="the engine broke"), live as events:
        events.get_final_message()


def test_stop_reasons():
    def stopped(**finish: Any) -> tuple[str, str | None]:
        told = body(REQUEST, fold(stream(text(0, "x"), **finish)), 0)
        return told["stop_reason"], told["stop_sequence"]

    assert stopped(reason="end_turn") == ("end_turn", None)
    assert stopped(reason="length") == ("max_tokens", None)
    assert stopped(reason="stop", stop_sequence="BB") == ("stop_sequence", "BB")
    assert stopped(reason="stop") == ("end_turn", None)
    assert stopped(reason="tool_calls") == ("tool_use", None)


def test_a_thinking_block_always_has_a_signature():
    told = body(REQUEST, fold(stream(thought(0, "hm"), thought(1, "so", seal="S"))), 0)
    assert [block["signature"] for block in told["content"]] == ["memra-unsealed", "S"]


def test_the_cached_share_may_become_known_late():
    begin, *rest, finish = stream(text(0, "x"))
    assert isinstance(begin, Begin)
    data = rendered([replace(begin, cached_tokens=0), *rest, finish])
    assert data[0][1]["message"]["usage"]["input_tokens"] == 30
    assert data[-2][1]["usage"] == USAGE


def test_warnings_are_in_the_body_and_in_the_last_delta():
    events = SCENES["warned"]
    assert body(REQUEST, fold(events), 0)["warnings"] == ["one", "two"]
    assert rendered(events)[-2][1]["warnings"] == ["one", "two"]
    assert "warnings" not in rendered(SCENES["text"])[-2][1]


def test_arguments_cut_short_are_read_as_far_as_they_go():
    told = body(REQUEST, fold(SCENES["call cut short"]), 0)
    assert told["content"][0]["input"] == {"town": "Oslo", "days": [1, 2]}
    for broken in ("nonsense", "[1]", '"x"'):
        assert body(REQUEST, fold(stream(call(0, "w", broken))), 0)["content"][0]["input"] == {}


def begun(request: Request = REQUEST) -> Frames:
    frames = Frames(request, 0)
    frames.push(Begin("id_1", "tiny", 3, 0))
    return frames


def test_nothing_is_kept_alive_before_the_beginning():
    assert Frames(REQUEST, 0).keepalive(500) == b""


def test_silence_brings_pings_then_an_empty_delta_a_minute():
    frames = begun()
    seen = [names(frames.keepalive(quiet)) for quiet in (5, 60, 119, 120, 125, 179, 180, 239, 240)]
    ping, beat = ["ping"], ["content_block_delta", "ping"]
    assert seen == [ping, ping, ping, ["content_block_start", *beat], ping, ping, beat, ping, beat]


@pytest.mark.parametrize(
    ("request_", "kind", "first", "indexes"),
    [
        (REQUEST, "text", text(0, "Hi"), [0]),
        (REQUEST, "text", thought(0, "hm"), [0, 1]),
        (REQUEST, "text", call(0, "w", "{}"), [0, 1]),
        (THINKS, "thinking", thought(0, "hm"), [0]),
        (THINKS, "thinking", text(0, "Hi"), [0, 1]),
        (replace(REQUEST, thinking=Thinking(None, "high")), "thinking", text(0, "Hi"), [0, 1]),
        (replace(REQUEST, thinking=Thinking(None, "none")), "text", text(0, "Hi"), [0]),
    ],
)
def test_a_block_opened_early_is_used_or_closed(request_: Request, kind: str, first: list[Event], indexes: list[int]):
    frames = begun(request_)
    data = list(read(frames.keepalive(120) + b"".join(map(frames.push, [*first, Finish("end_turn", Usage(3, 0, 1))]))))
    opened = [d for n, d in data if n == "content_block_start"]
    closed = [d["index"] for n, d in data if n == "content_block_stop"]
    assert opened[0]["content_block"]["type"] == kind
    assert [d["index"] for d in opened] == closed == indexes
    signed = [d["index"] for n, d in data if d.get("delta", {}).get("type") == "signature_delta"]
    assert signed == [d["index"] for d in opened if d["content_block"]["type"] == "thinking"]
    assert data[-1][0] == "message_stop"


def test_an_open_block_takes_the_empty_delta():
    for kind, delta in (("text", "text"), ("reasoning", "thinking"), ("tool", "partial_json")):
        frames = begun()
        frames.push(BlockStart(0, kind, "c", "w"))  # type: ignore[arg-type]
        (_, beat), ping = read(frames.keepalive(130))
        assert (beat["delta"][delta], beat["index"], ping[0]) == ("", 0, "ping")


def test_a_silence_between_blocks_opens_the_next_one_and_the_clock_starts_anew():
    frames = begun()
    for event in text(0, "a"):
        frames.push(event)
    assert names(frames.keepalive(121)) == ["content_block_start", "content_block_delta", "ping"]
    assert frames.push(BlockStart(1, "text")) == b""
    frames.push(BlockDelta(1, "b"))
    assert names(frames.keepalive(119)) == ["ping"]
    assert names(frames.push(BlockEnd(1))) == ["content_block_stop"]


def test_an_early_block_is_closed_by_the_end_and_left_open_by_a_fault():
    ended, broken = begun(THINKS), begun(THINKS)
    ended.keepalive(120)
    broken.keepalive(120)
    finish = Finish("length", Usage(3, 0, 0))
    assert names(ended.push(finish)) == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]
    assert names(broken.push(Fail(FAULT))) == ["error"]


def test_the_sdk_reads_a_stream_that_was_kept_alive():
    frames = begun(THINKS)
    start = render(Frames(THINKS, 0), [Begin("id_1", "tiny", 3, 0)])
    parts = [frames.keepalive(5), frames.keepalive(120), frames.keepalive(180), *map(frames.push, SCENES["text"][1:])]
    with client(start + b"".join(parts), "text/event-stream").messages.stream(**ASK) as live:
        final = live.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.content[1].to_dict() == {"type": "text", "text": "Hello 🦙é"}
