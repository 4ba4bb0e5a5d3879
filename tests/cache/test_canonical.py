"""The visible key: the same for one conversation whoever tells it, and another for another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memra_mlx.cache.canonical import Chain, chain, extended, spoken
from memra_mlx.dialects import chat, messages, responses
from memra_mlx.prompt.conversation import Turn, turns
from memra_mlx.request import Conversation, Request, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "number"}}}
ARGUMENTS = {"path": "a b/ü.txt", "limit": 2}


def of(request: Request) -> Chain:
    assert isinstance(request.input, Conversation)
    return chain(turns(request.input.messages, request.dialect)[0], request.tools)


def told_in_chat() -> dict[str, Any]:
    function = {"name": "read", "arguments": '{"limit":2.0, "path":"a b/\\u00fc.txt"}'}
    return {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": "read", "description": "Read", "parameters": SCHEMA}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Read it."},
            {
                "role": "assistant",
                "content": "Let me look.\n",
                "reasoning_content": "hidden",
                "tool_calls": [{"id": "call_other", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_other", "content": "text"},
            {"role": "assistant", "content": "It says:\n\n    text\n"},
            {"role": "user", "content": "Thanks"},
        ],
    }


def told_in_messages() -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 9,
        "tools": [{"name": "read", "description": "Read", "input_schema": SCHEMA}],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read it."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "other words", "signature": ""},
                    {"type": "text", "text": "Let me "},
                    {"type": "text", "text": "look."},
                    {"type": "text", "text": ""},
                    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": ARGUMENTS},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "text"}]},
            {"role": "assistant", "content": "It says:\n    text"},
            {"role": "user", "content": "Thanks"},
        ],
    }


def told_in_responses() -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "function", "name": "read", "description": "Read", "parameters": SCHEMA}
    return {
        "model": "m",
        "tools": [parameters],
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Read it."},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
            {"type": "function_call", "call_id": "call_2", "name": "read", "arguments": json.dumps(ARGUMENTS)},
            {"type": "function_call_output", "call_id": "call_2", "output": "text"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "It says:\n\n    text"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
        ],
    }


def test_one_conversation_has_the_same_keys_from_three_dialects() -> None:
    one = of(chat.parse(told_in_chat(), {}))
    assert one == of(messages.parse(told_in_messages(), {})) == of(responses.parse(told_in_responses(), {}))
    assert one.ends == (3, 5)
    assert len(set(one.keys)) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"tools": []},
        {"messages": [{"role": "system", "content": "Be long."}, *told_in_chat()["messages"][1:]]},
        {"messages": told_in_chat()["messages"][1:]},
    ],
    ids=["tools", "system", "no-system"],
)
def test_what_changes_the_head_changes_every_key(change: dict[str, Any]) -> None:
    other = of(chat.parse(told_in_chat() | change, {}))
    assert set(of(chat.parse(told_in_chat(), {})).keys[1:]).isdisjoint(other.keys[1:])


def answer(text: str = "", *calls: ToolCall) -> bytes:
    return extended(b"before", [Turn("assistant", text, calls=calls)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (answer("Hello there.\n"), answer("  Hello there.")),
        (answer("One.\n\nTwo."), answer("One.\nTwo.")),
        (answer("x", ToolCall("a", "f", '{"a": 1, "b": [1.0]}')), answer("x", ToolCall("b", "f", '{"b":[1],"a":1}'))),
        (answer("", ToolCall("a", "f", "")), answer("", ToolCall("a", "f", "{}"))),
        (
            answer("", ToolCall("a", "f", '{"x": 1')),
            answer("", ToolCall("a", "f", json.dumps({"__unparsedToolInput": {"raw": '{"x": 1', "len": 7}}))),
        ),
        (answer("", ToolCall("a", "f", "*** Begin")), answer("", ToolCall("a", "f", '{"input": "*** Begin"}'))),
    ],
)
def test_what_clients_do_to_an_answer_keeps_its_key(one: bytes, other: bytes) -> None:
    assert one == other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (answer("if a:\n    b()\n    c()"), answer("if a:\n    b()\nc()")),
        (answer("yes"), answer("no")),
        (answer("", ToolCall("a", "f", '{"a": 1}')), answer("", ToolCall("a", "f", '{"a": "1"}'))),
        (answer("", ToolCall("a", "f", '{"a": true}')), answer("", ToolCall("a", "f", '{"a": 1}'))),
        (answer("", ToolCall("a", "f", "{}")), answer("", ToolCall("a", "g", "{}"))),
        (answer("", ToolCall("a", "f", "{}")), answer("", *[ToolCall("a", "f", "{}")] * 2)),
    ],
)
def test_what_says_something_else_has_another_key(one: bytes, other: bytes) -> None:
    assert one != other


def test_an_answer_split_over_messages_is_one() -> None:
    whole = chain([Turn("user", "q"), Turn("assistant", "One.\nTwo."), Turn("user", "r")], ())
    split = chain([Turn("user", "q"), Turn("assistant", "One."), Turn("assistant", "Two."), Turn("user", "r")], ())
    assert whole.last == split.last
    assert (whole.ends, split.ends) == ((2,), (3,))


def test_empty_turns_leave_no_trace() -> None:
    bare = chain([Turn("user", "q"), Turn("assistant", "a")], ())
    padded = [Turn("system", ""), Turn("user", "q"), Turn("user", " "), Turn("assistant", "a")]
    assert chain(padded, ()).last == bare.last


def test_the_chain_grows_as_the_answer_did() -> None:
    before = [Turn("system", "s"), Turn("user", "q")]
    given = Turn("assistant", "a", calls=(ToolCall("i", "f", "{}"),))
    tools = (Tool("f", "", SCHEMA),)
    assert extended(chain(before, tools).last, [given]) == chain([*before, given], tools).last


def test_a_results_text_counts_and_its_id_does_not() -> None:
    def with_result(call_id: str, text: str) -> bytes:
        call = Turn("assistant", calls=(ToolCall(call_id, "f", "{}"),))
        return chain([Turn("user", "q"), call, Turn("tool", text, call_id=call_id, name="f")], ()).last

    assert with_result("a", "x") == with_result("b", "x\n") != with_result("a", "y")


def test_spoken_keeps_indentation_alone() -> None:
    assert spoken(" a b\n\tc \n\n  d") == "ab\n\tc\n  d"
