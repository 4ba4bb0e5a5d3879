"""/v1/responses: the answer, streamed and not, read by hand and by the official SDK."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from memra_mlx.dialects import responses
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
    TokenLogprob,
    Usage,
    fold,
)

BEGIN = Begin("resp_7", "m", 10, 4)
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]},
    "strict": True,
}
NOTES = {"type": "namespace", "name": "mcp__notes", "description": "Notes.", "tools": [ADD]}
TOOLS = [ADD, NOTES, {"type": "custom", "name": "apply_patch"}]
SEALED = {"include": ["reasoning.encrypted_content"]}


def text(index: int, *pieces: str) -> list[Event]:
    return [BlockStart(index, "text"), *(BlockDelta(index, piece) for piece in pieces), BlockEnd(index)]


def thought(index: int, *pieces: str, seal: str = "") -> list[Event]:
    return [BlockStart(index, "reasoning"), *(BlockDelta(index, piece) for piece in pieces), BlockEnd(index, seal)]


def call(index: int, name: str, *pieces: str) -> list[Event]:
    start = BlockStart(index, "tool", f"call_{index}", name)
    return [start, *(BlockDelta(index, piece) for piece in pieces), BlockEnd(index)]


def finish(reason: FinishReason = "end_turn", *warnings: str) -> Finish:
    return Finish(reason, Usage(10, 4, 7, 3), warnings=warnings)


def render(events: list[Event], **fields: Any) -> bytes:
    """The stream of `events`, with a keep-alive after `Begin`."""
    request = responses.parse({"model": "m", "input": "hi", "stream": True, **fields}, {})
    order, frames = Order(), responses.Frames(request, 1000)
    first, *rest = events
    out = frames.push(order.check(first)) + frames.keepalive(5.0)
    return out + b"".join(frames.push(order.check(event)) for event in rest)


def read(data: bytes) -> list[dict[str, Any]]:
    found = []
    for frame in data.decode().strip().split("\n\n"):
        name, body = frame.split("\n")
        found.append(json.loads(body.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events if event["type"] != "keepalive"]


def blocking(events: list[Event], **fields: Any) -> dict[str, Any]:
    request = responses.parse({"model": "m", "input": "hi", **fields}, {})
    return responses.body(request, fold(events), 1000)


RICH = [
    BEGIN,
    *thought(0, "let me ", "see", seal="sealed"),
    *text(1, "I ", "add."),
    *call(2, "add", '{"t": ', '"milk"}'),
    *call(3, "mcp__notes__add"),
    *call(4, "apply_patch", "*** Begin\n", "*** End\n"),
    finish("tool_calls"),
]


def test_one_message_in_full_order() -> None:
    events = read(render([BEGIN, *text(0, "Hello", "", " there"), finish()]))
    assert names(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    response = events[-1]["response"]
    assert (response["id"], response["status"], response["created_at"]) == ("resp_7", "completed", 1000)
    assert response["output"][0]["content"] == [
        {"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []}
    ]
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 17,
    }


def test_items_keep_their_ids_and_places() -> None:
    events = read(render(RICH, tools=TOOLS, **SEALED))
    added = [event for event in events if event["type"] == "response.output_item.added"]
    places = {event["item"]["id"]: event["output_index"] for event in added}
    assert list(places) == ["rs_7_0", "msg_7_1", "fc_7_2", "fc_7_3", "ctc_7_4"]
    assert list(places.values()) == [0, 1, 2, 3, 4]
    for event in events:
        if "item_id" in event:
            assert event["output_index"] == places[event["item_id"]]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert all(event["item"]["status"] == "in_progress" for event in added)


def test_reasoning_is_a_summary_with_sealed_state() -> None:
    events = read(render(RICH, tools=TOOLS, **SEALED))
    assert names(events)[2:8] == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done",
    ]  # fmt: skip
    item = events[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "let me see"}]
    assert item["encrypted_content"] == "sealed"


@pytest.mark.parametrize(("fields", "sent"), [({}, None), (SEALED, "memra-unsealed")])
def test_unsealed_reasoning(fields: dict[str, Any], sent: str | None) -> None:
    assert blocking([BEGIN, *thought(0, "x"), finish()], **fields)["output"][0]["encrypted_content"] == sent


def test_calls_carry_the_clients_names_and_whole_arguments() -> None:
    events = read(render(RICH, tools=TOOLS))
    plain, spaced, custom = events[-1]["response"]["output"][2:]
    assert (plain["type"], plain["name"], plain["call_id"]) == ("function_call", "add", "call_2")
    assert plain["arguments"] == '{"t": "milk"}'
    assert "namespace" not in plain
    assert (spaced["name"], spaced["namespace"], spaced["arguments"]) == ("add", "mcp__notes", "{}")
    assert (custom["type"], custom["name"]) == ("custom_tool_call", "apply_patch")
    assert custom["input"] == "*** Begin\n*** End\n"
    for item in (plain, spaced, custom):
        mine = [event for event in events if event.get("item_id") == item["id"]]
        whole = item.get("arguments", item.get("input"))
        assert "".join(event["delta"] for event in mine if "delta" in event) == whole
        assert mine[-1].get("arguments", mine[-1].get("input")) == whole


def test_a_call_of_an_unknown_tool_keeps_its_name() -> None:
    item = blocking([BEGIN, *call(0, "made_up", "{}"), finish("tool_calls")], tools=TOOLS)["output"][0]
    assert (item["type"], item["name"]) == ("function_call", "made_up")


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (text(0, "cut"), "incomplete"),
        (thought(0, "cut"), "incomplete"),
        (call(0, "add", '{"t": "mi'), "incomplete"),
        (call(0, "add"), "incomplete"),
        (call(0, "apply_patch", "*** Be"), "incomplete"),
        (call(0, "add", '{"t": "milk"}'), "completed"),
    ],
)
def test_a_cut_answer_is_incomplete(last: list[Event], status: str) -> None:
    events = read(render([BEGIN, *last, finish("length")], tools=TOOLS))
    response = events[-1]["response"]
    assert names(events)[-1] == response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-2]["item"]["status"] == response["output"][0]["status"] == status


def test_only_the_last_item_can_be_cut() -> None:
    output = blocking([BEGIN, *thought(0, "a"), *text(1, "b"), finish("length")])["output"]
    assert [item["status"] for item in output] == ["completed", "incomplete"]


def test_a_fault_ends_in_failed_and_closes_nothing_falsely() -> None:
    broken = [BEGIN, *thought(0, "a"), BlockStart(1, "text"), BlockDelta(1, "ha"), Fail(ApiError("engine", "it broke"))]
    events = read(render(broken))
    response = events[-1]["response"]
    assert names(events)[-1] == response["status"] == "failed"
    assert response["error"] == {"code": "engine_error", "message": "it broke"}
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert names(events).count("output_item.done") == 1


def test_a_fault_right_after_the_start() -> None:
    error = ApiError("timeout", "too late")
    events = read(render([BEGIN, Fail(error)]))
    assert names(events) == ["created", "in_progress", "failed"]
    assert events[-1]["response"]["error"]["code"] == "deadline_exceeded"


def test_the_body_is_the_last_event_of_the_stream() -> None:
    fields = {"tools": TOOLS, "instructions": "Be brief.", "metadata": {"a": "b"}, **SEALED}
    streamed = read(render(RICH, **fields))[-1]["response"]
    assert blocking(RICH, **fields) == streamed
    assert Response.model_validate(streamed, strict=True).output_text == "I add."


def test_the_answer_repeats_the_request() -> None:
    sent = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 99,
        "metadata": {"a": "b"},
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "xhigh", "summary": "auto"},
        "text": {"verbosity": "low"},
        "prompt_cache_key": "k",
    }
    response = blocking([BEGIN, *text(0, "x"), finish()], **sent)
    text_sent = sent.pop("text")
    assert response["text"] == {"format": {"type": "text"}, **text_sent}
    assert {name: response[name] for name in sent} == sent
    assert (response["store"], response["truncation"], response["previous_response_id"]) == (False, "disabled", None)


def test_warnings_ride_the_last_event() -> None:
    response = blocking([BEGIN, *text(0, "x"), finish("end_turn", "careful")])
    assert response["warnings"] == ["careful"]
    assert "warnings" not in blocking([BEGIN, *text(0, "x"), finish()])


def test_logprobs_come_with_text() -> None:
    score = TokenLogprob("hé", 5, -0.5, (("hé", 5, -0.5), ("ho", 6, float("-inf"))))
    events = read(render([BEGIN, BlockStart(0, "text"), BlockDelta(0, "hé", (score,)), BlockEnd(0), finish()]))
    (sent,) = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert (sent["token"], sent["bytes"], sent["logprob"]) == ("hé", [104, 195, 169], -0.5)
    assert [entry["logprob"] for entry in sent["top_logprobs"]] == [-0.5, -9999.0]
    delta = next(event for event in events if event["type"] == "response.output_text.delta")
    assert delta["logprobs"] == [sent]


def test_every_event_fits_the_published_types() -> None:
    check: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    for event in read(render(RICH, tools=TOOLS, **SEALED)):
        if event["type"] != "keepalive":
            check.validate_python(event)


@pytest.fixture
def client() -> Iterator[OpenAI]:
    """The SDK, answered by our own rendering of `RICH`, or of plain JSON text where the tools are left out."""

    def answer(http: httpx.Request) -> httpx.Response:
        sent = json.loads(http.content)
        request = responses.parse(sent, http.headers)
        events = RICH if sent.get("tools") else [BEGIN, *text(0, '{"n":', " 3}"), finish()]
        if not request.stream:
            return httpx.Response(200, json=responses.body(request, fold(events), 1000))
        return httpx.Response(200, content=render(events, **sent), headers={"content-type": "text/event-stream"})

    transport = httpx.MockTransport(answer)
    with OpenAI(api_key="k", base_url="http://test/v1", http_client=httpx.Client(transport=transport)) as found:
        yield found


def test_sdk_stream_helper_accumulates(client: OpenAI) -> None:
    with client.responses.stream(model="m", input="hi", tools=TOOLS, **SEALED) as stream:  # type: ignore[arg-type]
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert final.output_text == "I add."
    assert [item.type for item in final.output] == [
        "reasoning", "message", "function_call", "function_call", "custom_tool_call",
    ]  # fmt: skip
    assert final.usage is not None
    assert final.usage.total_tokens == 17


def test_sdk_create(client: OpenAI) -> None:
    plain = client.responses.create(model="m", input="hi")
    assert plain.output_text == '{"n": 3}'
    stream = client.responses.create(model="m", input="hi", stream=True)
    assert [event.type for event in stream][-1] == "response.completed"


class Number(BaseModel):
    n: int


def test_sdk_parse(client: OpenAI) -> None:
    assert client.responses.parse(model="m", input="hi", text_format=Number).output_parsed == Number(n=3)
    with client.responses.stream(model="m", input="hi", text_format=Number) as stream:
        assert stream.get_final_response().output_parsed == Number(n=3)


def test_sdk_output_can_be_replayed(client: OpenAI) -> None:
    answer = client.responses.create(model="m", input="hi", tools=TOOLS, include=["reasoning.encrypted_content"])  # type: ignore[call-overload]
    history = [{"role": "user", "content": "hi"}, *(item.model_dump() for item in answer.output)]
    request = responses.parse({"model": "m", "input": history, "tools": TOOLS}, {})
    assert not request.warnings
    turn = request.input.messages[-1]  # type: ignore[union-attr]
    assert [type(part).__name__ for part in turn.parts] == ["Reasoning", "Text", "ToolCall", "ToolCall", "ToolCall"]
    assert [part.name for part in turn.parts[2:]] == ["add", "mcp__notes__add", "apply_patch"]  # type: ignore[union-attr]
