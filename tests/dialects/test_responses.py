"""/v1/responses: what a request becomes, and what is refused by which name."""

import json
from pathlib import Path
from typing import Any

import pytest

from memra_mlx.dialects import responses
from memra_mlx.dialects.responses_wire import Body
from memra_mlx.errors import ApiError, context_overflow
from memra_mlx.request import (
    Conversation,
    Format,
    Image,
    Message,
    Reasoning,
    Request,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
)

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"
PNG = "iVBORw0KGgo="
USER = {"role": "user", "content": "go"}
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"t": {"type": "string"}}}}
NOTES = {"type": "namespace", "name": "mcp__notes", "description": "n", "tools": [ADD]}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}


def parse(headers: dict[str, str] | None = None, **fields: Any) -> Request:
    return responses.parse({"model": "m", "input": "hi", **fields}, headers or {})


def turns(*items: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    request = parse(input=list(items), **fields)
    assert isinstance(request.input, Conversation)
    return request.input.messages


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.kind == "invalid"
    assert str(caught.value.param) in caught.value.message
    return caught.value


def capture(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A captured request, its tool list put back where the capture only names it."""
    record = json.loads((WIRE / name).read_text())
    body = record["body"]
    if body.get("tools") and "_same_as" in body["tools"][0]:
        body["tools"] = json.loads((WIRE / body["tools"][0]["_same_as"]).read_text())["body"]["tools"]
    return body, {name.lower(): value for name, value in record["headers"]}


def captures() -> list[str]:
    names = sorted(path.name for path in WIRE.glob("*.json"))
    records = {name: json.loads((WIRE / name).read_text()) for name in names}
    return [name for name, record in records.items() if record["path"] == "/v1/responses" and record["body"]]


def test_a_string_is_a_user_turn_after_the_instructions() -> None:
    request = parse(instructions="Be brief.")
    assert request.input == Conversation((Message("system", (Text("Be brief."),)), Message("user", (Text("hi"),))))
    assert (request.dialect, request.model, request.stream, request.max_tokens) == ("responses", "m", False, None)


@pytest.mark.parametrize("name", captures())
def test_every_captured_request_is_taken(name: str) -> None:
    body, headers = capture(name)
    request = responses.parse(body, headers)
    assert isinstance(request.input, Conversation)
    assert all(message.parts for message in request.input.messages)
    hosted = [tool for tool in body.get("tools", []) if tool["type"] in ("web_search", "tool_search")]
    assert len([text for text in request.warnings if "left out" in text]) == len(hosted)


def test_codex_history_keeps_turns_arguments_and_names() -> None:
    body, headers = capture("codex_11_namespace_replay.json")
    request = responses.parse(body, headers)
    assert isinstance(request.input, Conversation)
    call, output = request.input.messages[-2:]
    assert call.role == "assistant"
    assert call.parts[0] == Reasoning("I should list the files.")
    arguments = '{"message": "List the files.", "agent_type": "worker"}'
    assert call.parts[1] == ToolCall("call_1", "multi_agent_v1__spawn_agent", arguments)
    assert output.role == "tool"
    tool = next(tool for tool in request.tools if tool.name == "multi_agent_v1__spawn_agent")
    assert (tool.wire_name, tool.namespace) == ("spawn_agent", "multi_agent_v1")
    assert request.affinity == "uuid-1"
    assert request.sealed_reasoning


def test_items_of_one_assistant_turn_merge_in_order() -> None:
    found = turns(
        USER,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "on it"}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": ""},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
        {"role": "developer", "content": [{"type": "input_text", "text": "x"}, {"type": "text", "text": "y"}]},
    )
    assert [message.role for message in found] == ["user", "assistant", "tool", "tool", "system"]
    assert found[1].parts == (Reasoning("hm"), Text("on it"), ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))
    assert found[2].parts == (ToolResult("b", (Text("2"),)),)
    assert found[4].parts == (Text("x"), Text("y"))


@pytest.mark.parametrize(
    ("item", "part"),
    [
        (
            {"summary": [], "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": ""},
            Reasoning("t"),
        ),
        ({"id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "content": None}, Reasoning("s")),
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "zz"}, Reasoning("s", "zz")),
        ({"encrypted_content": "zz"}, Reasoning("", "zz")),
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "memra-unsealed"}, Reasoning("s")),
    ],
)
def test_reasoning_items_in_all_their_shapes(item: dict[str, Any], part: Reasoning) -> None:
    found = turns(USER, {"type": "reasoning", **item}, {"role": "assistant", "content": "a"}, USER)
    assert found[1] == Message("assistant", (part, Text("a")))


def test_reasoning_without_any_state_is_nothing() -> None:
    found = turns(USER, {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}, USER)
    assert [message.role for message in found] == ["user", "user"]


def test_custom_calls_carry_raw_text() -> None:
    found = turns(
        USER,
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin\n"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        tools=[PATCH],
    )
    assert found[1].parts == (ToolCall("c", "apply_patch", "*** Begin\n"),)
    assert found[2].parts == (ToolResult("c", (Text("done"),)),)


def test_history_without_ids_is_paired_in_order() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "output": "x"}
    found = turns(USER, call, call, output, output)
    calls = [part.id for part in found[1].parts if isinstance(part, ToolCall)]
    answered = [part.call_id for message in found[2:] for part in message.parts if isinstance(part, ToolResult)]
    assert calls == answered
    assert len(set(calls)) == 2


def test_unknown_items_and_parts_are_left_out_with_one_warning_a_type() -> None:
    request = parse(
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "hologram"}]},
            {"type": "web_search_call", "id": "w"},
            {"type": "web_search_call", "id": "w2"},
            {"type": "local_shell_call", "call_id": "z", "action": {}},
        ]
    )
    assert request.input == Conversation((Message("user", (Text("a"),)),))
    assert len(request.warnings) == 3


def test_images() -> None:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "low"}
    assert turns({"role": "user", "content": [picture]})[0].parts == (Image(b"\x89PNG\r\n\x1a\n", "image/png"),)
    remote = {"type": "input_image", "image_url": "https://example.com/a.png"}
    assert refusal(input=[{"role": "user", "content": [remote]}]).param == "input[0].content[0].image_url"
    stored = {"type": "input_image", "file_id": "f"}
    assert refusal(input=[{"role": "user", "content": [stored]}]).param == "input[0].content[0].file_id"


def test_an_unusable_image_in_an_output_becomes_a_note() -> None:
    request = parse(
        input=[
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_image", "image_url": "http://x"}],
            },
        ]
    )
    assert isinstance(request.input, Conversation)
    result = request.input.messages[-1].parts[0]
    assert isinstance(result, ToolResult)
    assert isinstance(result.parts[0], Text)
    assert request.warnings


def test_tools_of_all_kinds() -> None:
    request = parse(
        tools=[
            {"type": "function", "name": "plain", "description": None, "parameters": None, "strict": True},
            {"type": "function", "function": {"name": "nested", "description": "d", "parameters": {"type": "object"}}},
            NOTES,
            PATCH,
            {"type": "local_shell"},
            {"type": "mcp", "server_label": "x"},
            {"type": "some_future_tool"},
        ]
    )
    plain, nested, added, patch = request.tools
    assert (plain.name, plain.description, plain.strict) == ("plain", "", True)
    assert plain.parameters == {"type": "object", "properties": {}}
    assert (nested.name, nested.description) == ("nested", "d")
    assert (added.name, added.wire_name, added.namespace) == ("mcp__notes__add", "add", "mcp__notes")
    assert patch.custom
    assert "lark" in patch.description
    assert 'start: "x"' in patch.description
    assert len([text for text in request.warnings if "left out" in text]) == 3


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "add"}, ToolChoice("required", ("add",))),
        ({"type": "function", "function": {"name": "add"}}, ToolChoice("required", ("add",))),
        ({"type": "function", "name": "add", "namespace": "mcp__notes"}, ToolChoice("required", ("mcp__notes__add",))),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice("required", ("apply_patch",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}, {"type": "mcp"}]},
            ToolChoice("auto", ("add",)),
        ),
    ],
)
def test_tool_choice(sent: Any, choice: ToolChoice) -> None:
    assert parse(tools=[ADD, NOTES, PATCH], tool_choice=sent).tool_choice == choice


def test_parallel_calls_can_be_switched_off() -> None:
    assert parse(tools=[ADD], parallel_tool_calls=False).tool_choice == ToolChoice(parallel=False)


def test_text_format() -> None:
    assert parse(text={"verbosity": "low"}).format is None
    assert parse(text={"format": {"type": "text"}}).format is None
    assert parse(text={"format": {"type": "json_object"}}).format == Format()
    sent = {"type": "json_schema", "name": "r", "strict": True, "schema": {"type": "object"}}
    assert parse(text={"format": sent}).format == Format({"type": "object"}, "r", True)


def test_sampling_limits_and_hints() -> None:
    sent = {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": 3, "frequency_penalty": 1}
    limits = {"max_output_tokens": 9, "stop": "END", "stream": True, "timeout_ms": 2000, "ctx_size": 8192}
    request = parse(
        {"session_id": "s"}, **sent, **limits, cache_salt="c", stream_options={"include_obfuscation": False}
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0, 0.5, 0, 0.1, 3)
    assert (request.max_tokens, request.stop, request.stream, request.timeout_ms) == (9, ("END",), True, 2000)
    assert (request.cache_salt, request.affinity, request.ctx_size) == ("c", "s", 8192)
    assert parse(user="u", prompt_cache_key="k").affinity == "k"


def test_logprobs_by_either_field() -> None:
    assert parse().sampling.logprobs is None
    assert parse(include=["message.output_text.logprobs"]).sampling.logprobs == 0
    assert parse(include=["message.output_text.logprobs"], top_logprobs=3).sampling.logprobs == 3


@pytest.mark.parametrize(
    ("sent", "level"), [("minimal", "minimal"), ("high", "high"), ("xhigh", "high"), ("max", "high")]
)
def test_effort_is_canonical(sent: str, level: str) -> None:
    assert parse(reasoning={"effort": sent, "summary": "auto"}).thinking.effort == level
    assert parse(reasoning={"effort": None, "summary": None, "mode": None}).thinking.effort is None


def test_null_is_not_set_and_unknown_fields_are_ignored() -> None:
    names = [name for name in Body.model_fields if name not in ("model", "input")]
    plain, nulls = parse(), parse(**dict.fromkeys(names), brand_new={"a": 1}, client_metadata={"x": "y"})
    assert plain == nulls


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "c"}}, "conversation"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"type": "future_item"}]}, "input"),
        ({"input": [USER, {"type": "item_reference", "id": "x"}]}, "input[1]"),
        ({"input": [{"id": "x"}]}, "input[0].type"),
        ({"input": [{"type": 3}]}, "input[0].type"),
        ({"tools": [{"type": []}]}, "tools[0].type"),
        ({"input": [{"role": "narrator", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "arguments": "{}"}]}, "input[0].name"),
        ({"input": [USER, {"type": "function_call_output", "output": "x"}]}, "input[1].call_id"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [ADD, ADD]}, "tools[1].name"),
        ({"tools": [NOTES, {**ADD, "name": "mcp__notes__add"}]}, "tools[1].name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0].format.definition"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "r"}}}, "text.format.schema"),
        ({"include": "reasoning.encrypted_content"}, "include"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize("fields", [{"store": False}, {"background": False}, {"truncation": "disabled"}, {"tools": []}])
def test_harmless_forms_of_refused_fields_pass(fields: dict[str, Any]) -> None:
    assert parse(**fields).warnings == ()


def test_error_body() -> None:
    fault = context_overflow(10, 5)
    told = responses.error(fault, "req_1")["error"]
    assert told["type"] == "invalid_request_error"
    assert (told["code"], told["param"]) == ("context_length_exceeded", None)
    assert responses.status(fault) == 400
