"""`/v1/chat/completions`: what is sent, also as the official SDK reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from pydantic import BaseModel
from scenes import BROKEN, FAULT, OSLO, SCENES, call, names, read, render, stream, text, thought

from memra_mlx.dialects.chat import Frames, body, parse
from memra_mlx.events import Begin, BlockDelta, BlockEnd, BlockStart, Event, TokenLogprob, fold
from memra_mlx.request import Conversation, Request, Sampling, Tool

REQUEST = Request("chat", "tiny", Conversation(()))
COUNTED = replace(REQUEST, stream_usage=True)
PATCHES = replace(REQUEST, tools=(Tool("patch", "", {}, custom=True),))
HEAD = {"id": "id_1", "object": "chat.completion.chunk", "created": 7, "model": "tiny"}
USAGE = {
    "prompt_tokens": 30, "completion_tokens": 9, "total_tokens": 39, "prompt_tokens_details": {"cached_tokens": 20},
    "completion_tokens_details": {"reasoning_tokens": 4},
}  # fmt: skip
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def rendered(events: list[Event], request: Request = REQUEST) -> list[Any]:
    return [data for name, data in read(render(Frames(request, 7), events)) if name == ""]


def deltas(events: list[Event], request: Request = REQUEST) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in rendered(events, request)]


def client(data: bytes, kind: str) -> openai.OpenAI:
    """The official client, answered with `data`; what it sends must be readable."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        parse(msgspec.json.decode(request.content), request.headers)
        return httpx2.Response(200, content=data, headers={"content-type": kind})

    transport = httpx2.MockTransport(answer)
    return openai.OpenAI(api_key="k", max_retries=0, http_client=httpx2.Client(transport=transport))


def test_a_whole_stream():
    events = stream(thought(0, "hm"), text(1, "Hi"), call(2, "weather", '{"town":', '"Oslo"}'), reason="tool_calls")
    started = {"index": 0, "id": "call_2", "type": "function", "function": {"name": "weather", "arguments": ""}}
    assert deltas(events) == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "Hi"},
        {"tool_calls": [started]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"town":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
        {},
    ]


@pytest.mark.parametrize("request_", [REQUEST, COUNTED])
@pytest.mark.parametrize("name", SCENES)
def test_chunks_are_of_one_answer_with_one_end(name: str, request_: Request):
    data = render(Frames(request_, 7), SCENES[name])
    chunks = rendered(SCENES[name], request_)
    assert all(chunk.items() >= HEAD.items() for chunk in chunks)
    assert all(set(chunk) <= {*HEAD, "choices", "usage", "warnings"} for chunk in chunks)
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [reason is None for reason in reasons] == [True] * (len(reasons) - 1) + [False]
    assert names(data)[-1] == "done"
    assert data.endswith(b"data: [DONE]\n\n")
    counted = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    assert counted == ([USAGE] if request_ is COUNTED else [])


def test_usage_is_null_until_it_comes():
    chunks = rendered(SCENES["text"], COUNTED)
    assert [chunk["usage"] for chunk in chunks] == [None] * (len(chunks) - 1) + [USAGE]


@pytest.mark.parametrize("name", SCENES)
def test_the_sdk_accumulates_what_the_body_says(name: str):
    told = body(COUNTED, fold(SCENES[name]), 7)
    with client(render(Frames(COUNTED, 7), SCENES[name]), "text/event-stream").chat.completions.stream(**ASK) as live:
        streamed = live.until_done().current_completion_snapshot.to_dict(exclude_none=True)
        if SCENES[name][-1].reason != "length":  # type: ignore[union-attr]
            live.get_final_completion()
    blocking = client(msgspec.json.encode(told), "application/json").chat.completions.create(**ASK)
    assert blocking.to_dict() == told
    whole = blocking.to_dict(exclude_none=True)
    for answer in (whole, streamed):
        answer.pop("warnings", None)
        message = answer["choices"][0]["message"]  # type: ignore[index]
        message["content"] = message.get("content") or ""
        for index, made in enumerate(message.get("tool_calls", [])):
            assert made.pop("index", index) == index
    assert streamed == whole


class Weather(BaseModel):
    """A tool, and a form of answer."""

    town: str


def test_the_strict_helpers_parse_calls_and_answers():
    asked: dict[str, Any] = {**ASK, "tools": [openai.pydantic_function_tool(Weather)], "response_format": Weather}
    events = stream(text(0, OSLO[:5], OSLO[5:]), call(1, "Weather", '{"to', 'wn":"Oslo"}'), reason="tool_calls")
    with client(render(Frames(COUNTED, 7), events), "text/event-stream").chat.completions.stream(**asked) as live:
        streamed = live.get_final_completion()
    blocking = client(msgspec.json.encode(body(REQUEST, fold(events), 7)), "application/json")
    for answer in (streamed, blocking.chat.completions.parse(**asked)):
        message = answer.choices[0].message
        (made,) = message.tool_calls or ()
        assert message.parsed == made.function.parsed_arguments == Weather(town="Oslo")


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_the_last_chunk_and_no_done_follows(name: str):
    data = list(read(render(Frames(REQUEST, 7), BROKEN[name])))
    error = {"message": FAULT.message, "type": "server_error", "param": None, "code": "engine_error"}
    assert data[-1] == ("", {"error": error})
    assert all(chunk["choices"][0]["finish_reason"] is None for _, chunk in data[:-1])


def test_the_sdk_raises_at_a_fault():
    live = client(render(Frames(REQUEST, 7), BROKEN["in a block"]), "text/event-stream")
    with pytest.raises(openai.APIError, match="the engine broke"):
        list(live.chat.completions.create(**ASK, stream=True))


def test_each_call_has_its_own_index():
    events = SCENES["two calls"]
    calls = [piece for delta in deltas(events) for piece in delta.get("tool_calls", [])]
    assert [(c["index"], c.get("id")) for c in calls] == [(0, "call_0"), (0, None), (1, "call_2"), (1, None)]


def test_a_call_without_arguments_joins_to_an_empty_object():
    events = stream(call(0, "a"), call(1, "b", "", "{}"), reason="tool_calls")
    joined = ["", ""]
    for delta in deltas(events):
        for piece in delta.get("tool_calls", []):
            joined[piece["index"]] += piece["function"]["arguments"]
    assert joined == ["{}", "{}"]


def test_a_custom_tool_is_called_in_its_own_shape():
    events = stream(call(0, "patch", "*** ", "Begin"), call(1, "patch"), reason="tool_calls")
    pieces = [piece for delta in deltas(events, PATCHES) for piece in delta.get("tool_calls", [])]
    start = {"id": "call_0", "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert pieces == [
        {"index": 0, **start},
        {"index": 0, "custom": {"input": "*** "}},
        {"index": 0, "custom": {"input": "Begin"}},
        {"index": 1, **start, "id": "call_1"},
    ]
    told = body(PATCHES, fold(events), 7)
    parsed = client(msgspec.json.encode(told), "application/json").chat.completions.create(**ASK)
    first, second = parsed.choices[0].message.tool_calls or ()
    assert first.type == second.type == "custom"
    assert (first.custom.input, second.custom.input) == ("*** Begin", "")


@pytest.mark.parametrize(
    ("events", "content"),
    [
        (stream(text(0, "a"), text(1, "b")), "ab"),
        (stream(call(0, "w", OSLO), reason="tool_calls"), None),
        (stream(text(0, "a"), call(1, "w", OSLO), reason="tool_calls"), "a"),
        (stream(thought(0, "hm"), reason="length"), ""),
        (stream(), ""),
    ],
)
def test_content_is_null_only_beside_calls(events: list[Event], content: str | None):
    assert body(REQUEST, fold(events), 7)["choices"][0]["message"]["content"] == content


def test_the_body():
    told = body(REQUEST, fold(SCENES["thinking, text, call"]), 7)
    made = {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": OSLO}}
    assert told == {
        "id": "id_1", "object": "chat.completion", "created": 7, "model": "tiny", "usage": USAGE,
        "choices": [{
            "index": 0, "finish_reason": "tool_calls", "logprobs": None,
            "message": {"role": "assistant", "content": "Checking.", "refusal": None, "reasoning_content": "look",
                        "reasoning": "look", "tool_calls": [made]},
        }],
    }  # fmt: skip


def test_finish_reasons():
    reasons = {"end_turn": "stop", "stop": "stop", "length": "length", "tool_calls": "tool_calls"}
    for reason, told in reasons.items():
        events = stream(text(0, "x"), reason=reason)  # type: ignore[arg-type]
        assert body(REQUEST, fold(events), 7)["choices"][0]["finish_reason"] == told
        assert rendered(events)[-1]["choices"][0]["finish_reason"] == told


def test_warnings_are_in_the_body_and_in_the_last_chunk_of_the_answer():
    assert body(REQUEST, fold(SCENES["warned"]), 7)["warnings"] == ["one", "two"]
    assert [chunk.get("warnings") for chunk in rendered(SCENES["warned"])] == [None, None, ["one", "two"]]


def test_logprobs():
    asked = replace(REQUEST, sampling=Sampling(logprobs=1))
    hi = TokenLogprob("é", 1, -0.5, (("é", 1, -0.5), ("x", 2, float("-inf"))))
    events = stream([BlockStart(0, "text"), BlockDelta(0, "é", (hi,)), BlockDelta(0, "", (hi,)), BlockEnd(0)])
    best = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    entry = {**best, "top_logprobs": [best, {"token": "x", "logprob": -9999.0, "bytes": [120]}]}
    told = body(asked, fold(events), 7)["choices"][0]["logprobs"]
    assert told == {"content": [entry, entry], "refusal": None}
    streamed = [chunk["choices"][0]["logprobs"] for chunk in rendered(events, asked)]
    assert streamed == [None, {"content": [entry], "refusal": None}, {"content": [entry], "refusal": None}, None]
    assert body(asked, fold(stream()), 7)["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_reasoning_has_logprobs_too():
    asked = replace(REQUEST, sampling=Sampling(logprobs=0))
    so, hi = TokenLogprob("so", 1, -0.5), TokenLogprob("hi", 2, -0.25)
    events = stream(
        [BlockStart(0, "reasoning"), BlockDelta(0, "so", (so,)), BlockEnd(0)],
        [BlockStart(1, "text"), BlockDelta(1, "hi", (hi,)), BlockEnd(1)],
    )
    told = body(asked, fold(events), 7)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in told] == ["so", "hi"]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in rendered(events, asked)]
    assert [entry["content"][0]["token"] for entry in streamed if entry] == ["so", "hi"]


@pytest.mark.parametrize("stepwise", [False, True], ids=["one after the other", "in turns"])
def test_several_choices_accumulate(stepwise: bool):
    asked = replace(COUNTED, n=2)
    told = stream(text(0, "Hi"), call(1, "weather", OSLO), reason="tool_calls")
    sides = [told, stream(text(0, "Yo"))]
    pairs = [(event, choice) for choice, side in enumerate(sides) for event in side]
    pairs.sort(key=lambda pair: sides[pair[1]].index(pair[0]) if stepwise else 0)
    frames = Frames(asked, 7)
    data = b"".join(frames.push(event, choice) for event, choice in pairs)
    assert data.endswith(b"data: [DONE]\n\n")
    assert data.count(b"[DONE]") == 1
    with client(data, "text/event-stream").chat.completions.stream(**ASK, n=2) as events:
        final = events.get_final_completion()
    whole = body(asked, fold(sides[0]), 7, [fold(sides[1])])
    for choice, plain in zip(final.choices, whole["choices"], strict=True):
        assert (choice.index, choice.finish_reason) == (plain["index"], plain["finish_reason"])
        assert choice.message.content == plain["message"]["content"]
    (made,) = final.choices[0].message.tool_calls or ()
    assert (made.function.name, made.function.arguments) == ("weather", OSLO)
    assert final.choices[1].message.tool_calls is None
    assert final.usage is not None
    assert final.usage.model_dump(exclude_none=True) == whole["usage"]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (30, 18)


def test_a_comment_keeps_the_stream_alive():
    frames = Frames(REQUEST, 7)
    frames.push(Begin("id_1", "tiny", 3, 0))
    assert frames.keepalive(5) == b": keepalive\n\n"
