"""The checks themselves: each holds where it should, and fails where it should."""

# ruff: noqa: E501  one check a line

import json
from typing import Any

import case_checks
import pytest
from case_answers import Answer
from case_paths import MISSING, get, holds

ANTHROPIC = [
    ("message_start", {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}),
    ("ping", {"type": "ping"}),
    ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}),
    ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}),
    ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}}),
    ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
    ("message_stop", {"type": "message_stop"}),
]
RESPONSES = [
    ("response.created", {"type": "response.created", "sequence_number": 0, "response": {"id": "r"}}),
    (
        "response.output_item.added",
        {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": {"id": "i"}},
    ),
    (
        "response.output_text.delta",
        {"type": "response.output_text.delta", "sequence_number": 2, "output_index": 0, "item_id": "i", "delta": "x"},
    ),
]


def call(index: int, text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": f"c{index}", "function": {"arguments": text}}]}


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c", "created": 1, "model": "m", "object": "x", "choices": [{"index": 0, "delta": delta}], **more}


CHAT = [
    chunk({"role": "assistant", "content": "a"}),
    chunk(call(0, '{"t": ')),
    chunk(call(0, "1}")),
    chunk(call(1, "{}")),
    {**chunk({}), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


def blocking(body: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(status, headers, ((5.0, json.dumps(body).encode()),), "/v1/chat/completions", 0.0, 4.0, 6.0)


def stream(events: list[tuple[str, Any]], path: str = "/v1/messages", step_ms: float = 10.0) -> Answer:
    lines = [f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events]
    chunks = tuple((step_ms * (n + 1), line) for n, line in enumerate(lines))
    return Answer(200, {"content-type": "text/event-stream"}, chunks, path, 0.0, 1.0, step_ms * len(lines))


def chat(chunks: list[Any], end: str = "data: [DONE]\n\n") -> Answer:
    text = ": hello\n\n" + "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + end
    return Answer(200, {}, ((10.0, text.encode()),), "/v1/chat/completions", 0.0, 1.0, 10.0)


def broken(events: list[tuple[str, Any]], place: int, **change: Any) -> Answer:
    name, data = events[place]
    return stream([*events[:place], (name, {**data, **change}), *events[place + 1 :]])


BODY = blocking({"a": {"b": [1, {"c": "x"}], "n": None, "j": '{"k": 1}'}, "t": True}, 200, **{"x-id": "7"})
MESSAGES, ITEMS, CHUNKS = stream(ANTHROPIC), stream(RESPONSES, "/v1/responses"), chat(CHAT)

HOLD = [
    (BODY, {"status": 200}),
    (BODY, {"status": [200, 400]}),
    (BODY, {"path": "a.b[1].c", "op": "eq", "value": "x"}),
    (BODY, {"path": "a.b[-1].c", "op": "startswith", "value": "x"}),
    (BODY, {"path": "a.b", "op": "len_eq", "value": 2}),
    (BODY, {"path": "a", "op": "has_key", "value": "n"}),
    (BODY, {"path": "a.n", "op": "exists"}),
    (BODY, {"path": "a.z", "op": "absent"}),
    (BODY, {"path": "a.z", "op": "in", "value": [None]}),
    (BODY, {"path": "t", "op": "is", "value": "bool"}),
    (BODY, {"header": "X-Id", "op": "match", "value": "^7$"}),
    (BODY, {"header": "x-no", "op": "in", "value": [None]}),
    (BODY, {"body": "not_contains", "value": "Traceback"}),
    (BODY, {"json_in": "a.j", "op": "eq", "value": {"k": 1}}),
    (BODY, {"json_in": "a.j", "schema": {"required": ["k"]}}),
    (BODY, {"if_status": 200, "path": "t", "op": "eq", "value": True}),
    (BODY, {"if_status": [400], "path": "t", "op": "eq", "value": 5}),
    (BODY, {"if_status": 400, "path": "t", "op": "eq", "value": 5, "else": {"path": "t", "op": "eq", "value": True}}),
    (BODY, {"status_each": [200]}),
    (BODY, {"timing": {"each_ms_max": 6, "headers_ms_max": 4, "total_ms_max": 6.1}}),
    (BODY, {"rule": "utf8"}),
    (MESSAGES, {"events": "^message_start content_block_start (content_block_delta )*content_block_stop message_delta "}),
    (MESSAGES, {"events_raw": "^message_start ping "}),
    (MESSAGES, {"event": "message_start", "which": "first", "path": "message.usage.input_tokens", "op": "gt", "value": 0}),
    (MESSAGES, {"event": "content_block_delta", "which": "all", "path": "delta.type", "op": "eq", "value": "text_delta"}),
    (MESSAGES, {"event": "content_block_delta", "which": "any", "path": "delta.text", "op": "eq", "value": "b"}),
    (MESSAGES, {"no_event": "error"}),
    (MESSAGES, {"join": {"event": "content_block_delta", "path": "delta.text", "where": {"index": 0}}, "op": "eq", "value": "ab"}),
    (MESSAGES, {"equal": [{"event": "content_block_start", "path": "index"}, {"event": "content_block_stop", "path": "index"}]}),
    (MESSAGES, {"timing": {"first_event_ms_max": 10, "gap_ms_max": 10}}),
    (MESSAGES, {"rule": "delta_type_matches_block"}),
    (MESSAGES, {"rule": "event_name_equals_type"}),
    (ITEMS, {"rule": "sequence_contiguous"}),
    (ITEMS, {"rule": "item_id_stable"}),
    (CHUNKS, {"events": "^chunk chunk chunk chunk chunk done$"}),
    (CHUNKS, {"rule": "chunk_identity_constant"}),
    (CHUNKS, {"rule": "chunk_keys_known"}),
    (CHUNKS, {"rule": "tool_args_by_index", "value": [{"t": 1}, {}]}),
    (CHUNKS, {"set": {"event": "chunk", "path": "choices[0].delta.tool_calls[*].index"}, "op": "eq", "value": [1, 0]}),
    (CHUNKS, {"set": {"event": "chunk", "path": "choices[0].delta.tool_calls[*].id"}, "op": "len_eq", "value": 2}),
    (CHUNKS, {"count": {"event": "chunk", "path": "choices[0].delta", "op": "len_eq", "value": 0}, "op": "le", "value": 1}),
    (CHUNKS, {"values": {"event": "chunk", "path": "choices[0].finish_reason", "skip_null": True}, "op": "eq", "value": ["stop"]}),
    (CHUNKS, {"event": "chunk", "which": "first_with:choices[0].delta.tool_calls", "path": "choices[0].delta.tool_calls[0].id", "op": "eq", "value": "c0"}),
    (CHUNKS, {"join_json": {"event": "chunk", "path": "choices[0].delta.tool_calls[0].function.arguments", "where": {"choices[0].delta.tool_calls[0].index": 0}}, "is": "object"}),
]  # fmt: skip

FAIL = [
    (BODY, {"status": 400}),
    (BODY, {"path": "a.b[7].c", "op": "eq", "value": "x"}),
    (BODY, {"path": "t", "op": "eq", "value": 1}),
    (BODY, {"path": "a.z", "op": "exists"}),
    (BODY, {"path": "a.n", "op": "absent"}),
    (BODY, {"path": "a.n", "op": "gt", "value": 0}),
    (BODY, {"path": "a.n", "op": "match", "value": "."}),
    (BODY, {"path": "a.b", "op": "len_ge", "value": 3}),
    (BODY, {"header": "x-no", "op": "match", "value": "."}),
    (BODY, {"body": "contains", "value": "Traceback"}),
    (BODY, {"json_in": "a.j", "schema": {"required": ["z"]}}),
    (BODY, {"json_in": "a.n", "op": "eq", "value": None}),
    (BODY, {"if_status": 400, "path": "t", "op": "eq", "value": 5, "else": {"path": "t", "op": "eq", "value": False}}),
    (BODY, {"status_each": [400]}),
    (BODY, {"timing": {"each_ms_max": 5}}),
    (BODY, {"rule": "chunk_keys_known"}),
    (MESSAGES, {"events": "^message_start ping "}),
    (MESSAGES, {"no_event": "ping"}),
    (MESSAGES, {"event": "error", "which": "last", "path": "type", "op": "eq", "value": "error"}),
    (MESSAGES, {"event": "error", "which": "all", "path": "type", "op": "eq", "value": "error"}),
    (MESSAGES, {"event": "content_block_delta", "which": "all", "path": "delta.text", "op": "eq", "value": "a"}),
    (MESSAGES, {"join": {"event": "content_block_delta", "path": "delta.text", "where": {"index": 1}}, "op": "eq", "value": "ab"}),
    (MESSAGES, {"equal": [{"event": "error", "path": "type"}, {"event": "error", "path": "type"}]}),
    (MESSAGES, {"timing": {"gap_ms_max": 9}}),
    (stream(ANTHROPIC, step_ms=11000), {"timing": {"gap_ms_max": 10500}}),
    (broken(ANTHROPIC, 3, delta={"type": "thinking_delta"}), {"rule": "delta_type_matches_block"}),
    (broken(ANTHROPIC, 3, delta={}), {"rule": "delta_type_matches_block"}),
    (broken(ANTHROPIC, 3, type="other"), {"rule": "event_name_equals_type"}),
    (broken(RESPONSES, 2, sequence_number=3), {"rule": "sequence_contiguous"}),
    (broken(RESPONSES, 2, output_index=1), {"rule": "item_id_stable"}),
    (broken(RESPONSES, 2, item_id="other"), {"rule": "item_id_stable"}),
    (chat([*CHAT, chunk({}, model="other")]), {"rule": "chunk_identity_constant"}),
    (chat([chunk({}, made_up=1)]), {"rule": "chunk_keys_known"}),
    (CHUNKS, {"rule": "tool_args_by_index", "value": [{}, {"t": 1}]}),
    (CHUNKS, {"set": {"event": "chunk", "path": "choices[0].delta.tool_calls[*].index"}, "op": "eq", "value": [0]}),
    (CHUNKS, {"values": {"event": "chunk", "path": "choices[0].finish_reason"}, "op": "eq", "value": ["stop"]}),
    (chat(CHAT, end=""), {"events": " done$"}),
    (CHUNKS, {"join_json": {"event": "chunk", "path": "choices[0].delta.content"}, "is": "object"}),
    (Answer(200, {}, ((1.0, b"\xff"),)), {"rule": "utf8"}),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "spec"), HOLD)
def test_holds(answer: Answer, spec: dict[str, Any]) -> None:
    assert case_checks.failures(spec, [[answer]]) == []


@pytest.mark.parametrize(("answer", "spec"), FAIL)
def test_fails(answer: Answer, spec: dict[str, Any]) -> None:
    assert case_checks.failures(spec, [[answer]])


def test_an_unknown_check_is_an_error() -> None:
    with pytest.raises(KeyError):
        case_checks.failures({"colour": "red"}, [[BODY]])
    with pytest.raises(KeyError):
        case_checks.failures({"path": "a", "op": "like", "value": 1}, [[BODY]])


def test_a_check_must_hold_for_every_answer() -> None:
    other = blocking({}, 500)
    assert case_checks.failures({"status": 200}, [[BODY, other]])
    assert case_checks.failures({"status_each": [200, 500]}, [[BODY, other]]) == []
    assert case_checks.failures({"timing": {"total_ms_max": 5}}, [[BODY, other]])


@pytest.mark.parametrize(
    ("spec", "ok"),
    [
        ({"compare": ["0:n", "eq", "1:n"]}, False),
        ({"compare": ["0:n", "lt", "1:n"]}, True),
        ({"compare": ["0:n+m+missing", "eq", "1:n"]}, True),
        ({"compare": ["1:n", "ge", "0:n+2"]}, True),
        ({"compare": ["1:n", "ge", "0:n+3"]}, False),
        ({"compare": ["0:missing", "eq", "1:n"]}, False),
        ({"compare_num": ["0:n", "1:n"], "tol": 2}, True),
        ({"compare_num": ["0:n", "1:n"], "tol": 1}, False),
        ({"compare_num": ["0:missing", "1:n"], "tol": 9}, False),
    ],
)
def test_comparing_steps(spec: dict[str, Any], ok: bool) -> None:
    steps = [[blocking({"n": 1, "m": 2})], [blocking({"n": 3})]]
    assert (case_checks.failures(spec, steps) == []) is ok


def test_comparing_the_last_chunk() -> None:
    steps = [[chat([chunk({}, usage={"n": 4})])], [blocking({"n": 4})]]
    assert case_checks.failures({"compare": ["0:last(chunk).usage.n", "eq", "1:n"]}, steps) == []


def test_parallel_against_solo() -> None:
    a, b = (blocking({"choices": [{"message": {"content": text}}]}) for text in "ab")
    spec = {"rule": "parallel_equals_solo", "allow": 1}
    assert case_checks.failures(spec, [[a, b]], [a, b]) == []
    assert case_checks.failures(spec, [[a, b]], [a, a]) == []
    assert case_checks.failures(spec, [[a, b]], [b, a])
    assert case_checks.failures(spec, [[a, b]], [])
    assert case_checks.failures({"rule": "distinct_at_least", "value": 2}, [[a, b]]) == []
    assert case_checks.failures({"rule": "distinct_at_least", "value": 2}, [[a, a]])


def test_paths() -> None:
    value = {"o": [{"c": [{"t": 1}, {"t": 2}]}, {"c": [{"t": 3}]}, {}]}
    assert get(value, "o[*].c[*].t") == [1, 2, 3]
    assert get(value, "o[0].c[-1].t") == 2
    assert get(value, "o.x") is MISSING
    assert holds("json_eq", '{"a": 1}', {"a": 1})
    assert not holds("json_eq", '{"a": true}', {"a": 1})
