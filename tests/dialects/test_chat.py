"""`/v1/chat/completions`: what is read, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memra_mlx.dialects import chat
from memra_mlx.dialects import chat_wire as wire
from memra_mlx.errors import ApiError
from memra_mlx.request import (
    Conversation,
    Format,
    Image,
    Message,
    Reasoning,
    Request,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)

WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "p"}}
CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}


def parse(**fields: Any) -> Request:
    return chat.parse({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}, {})


def turns(*sent: dict[str, Any], **fields: Any) -> list[Message]:
    request = parse(messages=list(sent), **fields)
    assert isinstance(request.input, Conversation)
    return list(request.input.messages)


def called(call_id: str | None, arguments: Any, name: str = "weather") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def txt(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_the_smallest_request():
    assert parse() == Request("chat", "m", Conversation((Message("user", (Text("hi"),)),)))


def test_every_generation_field():
    request = parse(
        max_completion_tokens=3, max_tokens=50, stop="x", stream=True, stream_options={"include_usage": True}, n=2,
        temperature=0, top_p=1, top_k=5, min_p=0.1, seed=-7, frequency_penalty=-2, presence_penalty=2,
        repetition_penalty=1.1, logit_bias={"7": -100, "12": 1.5}, logprobs=True, top_logprobs=3,
        timeout_ms=5000, ctx_size=4096, cache_salt="s", prompt_cache_key="k", user="u",
    )  # fmt: skip
    assert request.sampling == Sampling(
        temperature=0.0, top_p=1.0, top_k=5, min_p=0.1, seed=-7, frequency_penalty=-2.0, presence_penalty=2.0,
        repetition_penalty=1.1, logit_bias=((7, -100.0), (12, 1.5)), logprobs=3,
    )  # fmt: skip
    assert (request.max_tokens, request.stop, request.n) == (3, ("x",), 2)
    assert (request.stream, request.stream_usage) == (True, True)
    assert (request.timeout_ms, request.ctx_size) == (5000, 4096)
    assert (request.cache_salt, request.affinity) == ("s", "k")


def test_nulls_are_not_set():
    assert parse(**dict.fromkeys(set(wire.Body.model_fields) - {"model", "messages"})) == parse()


def test_fields_of_telemetry_and_betas_are_ignored_without_a_word():
    request = parse(
        metadata={"a": "b"}, service_tier="auto", safety_identifier="s", verbosity="low", prediction={"x": 1},
        parallel_tool_calls=True, modalities=["text"], store=False, brand_new=[1], stream_options={},
        prompt_cache_retention="24h", web_search_options=None,
    )  # fmt: skip
    assert request == parse()


def test_a_wish_to_store_is_accepted_and_said_to_be_vain():
    assert parse(store=True).warnings == ("store: answers are not stored here",)


@pytest.mark.parametrize(("sent", "stop"), [(None, ()), ([], ()), ("b", ("b",)), (["a", "b"], ("a", "b"))])
def test_stop_has_four_shapes(sent: Any, stop: tuple[str, ...]):
    assert parse(stop=sent).stop == stop


def test_roles_and_content_keep_their_place():
    found = turns(
        {"role": "developer", "content": [txt("Be brief.")]},
        {"role": "system", "content": "B."},
        {"role": "user", "name": "ann", "content": [txt("a"), PICTURE, txt(""), txt("b")]},
        {"role": "assistant", "content": [txt("c"), {"type": "refusal", "refusal": "no"}]},
        {"role": "system", "content": "C."},
        {"role": "user", "content": ""},
    )
    assert found == [
        Message("system", (Text("Be brief."),)),
        Message("system", (Text("B."),)),
        Message("user", (Text("a"), Image(b"hi", "image/png"), Text("b"))),
        Message("assistant", (Text("c"), Text("no"))),
        Message("system", (Text("C."),)),
        Message("user", (Text(""),)),
    ]


def test_an_assistant_turn_of_any_client():
    legacy = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    (plain, think, old, quiet) = turns(
        {"role": "assistant", "content": "b", **legacy, "reasoning_details": []},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [called("c1", '{"a": 1}')]},
        {"role": "assistant", "content": None, "reasoning": "r2", "tool_calls": [called("c2", ""), called("c3", None)]},
        {"role": "assistant"},
    )
    assert plain.parts == (Text("b"),)
    assert think.parts == (Reasoning("r"), ToolCall("c1", "weather", '{"a": 1}'))
    assert old.parts == (Reasoning("r2"), ToolCall("c2", "weather", "{}"), ToolCall("c3", "weather", "{}"))
    assert quiet.parts == (Text(""),)


def test_arguments_that_are_no_object_lose_nothing():
    found = turns({"role": "assistant", "tool_calls": [called("a", {"x": 1}), called("b", '{"x": '), called("c", "5")]})
    assert [part.arguments for part in found[0].parts if isinstance(part, ToolCall)] == [
        '{"x":1}', '{"input":"{\\"x\\": "}', '{"input":"5"}',
    ]  # fmt: skip


def test_tool_messages():
    found = turns(
        {"role": "assistant", "tool_calls": [called("c1", "{}"), called(None, "{}"), {"function": {"name": "f"}},
         {"id": "c4", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}]},
        {"role": "tool", "tool_call_id": "c4", "content": [txt("a"), PICTURE], "name": "patch"},
        {"role": "tool", "tool_call_id": "c1", "content": None},
        {"role": "tool", "content": "second"},
        {"role": "tool", "content": "third"},
        {"role": "tool", "tool_call_id": "ghost", "content": "x"},
    )  # fmt: skip
    calls = [part for part in found[0].parts if isinstance(part, ToolCall)]
    assert [call.id for call in calls] == ["c1", "call_2", "call_3", "c4"]
    assert calls[3] == ToolCall("c4", "patch", "*** Begin")
    assert [m.parts[0] for m in found[1:]] == [
        ToolResult("c4", (Text("a"), Image(b"hi", "image/png"))),
        ToolResult("c1", (Text(""),)),
        ToolResult("call_2", (Text("second"),)),
        ToolResult("call_3", (Text("third"),)),
        ToolResult("ghost", (Text("x"),)),
    ]


def test_a_picture_that_cannot_be_used_is_a_note_in_a_tool_result():
    bad = {"type": "image_url", "image_url": "http://h/x.png"}
    request = parse(messages=[{"role": "tool", "tool_call_id": "c", "content": [bad]}])
    assert isinstance(request.input, Conversation)
    (answer,) = request.input.messages[0].parts
    assert isinstance(answer, ToolResult)
    assert "left out" in str(answer.parts[0])
    assert len(request.warnings) == 1


def test_parts_that_are_not_known_are_left_out_with_a_warning():
    request = parse(messages=[{"role": "user", "content": [txt("a"), {"type": "video", "video": {}}, {"no": "type"}]}])
    assert [warning.split(":")[0] for warning in request.warnings] == [
        "messages[0].content[1]", "messages[0].content[2]",
    ]  # fmt: skip


def test_tools():
    empty = {"type": "object", "properties": {}}
    request = parse(
        tools=[
            WEATHER, {"type": "function", "function": {"name": "b", "parameters": None, "strict": True}},
            {"function": {"name": "mcp__srv-1__do.it", "parameters": {}}}, PATCH, WEATHER,
        ]
    )  # fmt: skip
    assert request.tools == (
        Tool("weather", "d", {"type": "object"}), Tool("b", "", empty, strict=True),
        Tool("mcp__srv-1__do.it", "", empty), Tool("patch", "p", CUSTOM, custom=True),
    )  # fmt: skip
    assert request.warnings == ()


def test_the_grammar_of_a_custom_tool():
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}
    request = parse(tools=[{"type": "custom", "custom": {"name": "p", "format": grammar}}])
    (tool,) = request.tools
    assert tool.grammar == ("lark", "start: /a/")
    assert "start: /a/" in tool.description
    assert (
        parse(tools=[{"type": "custom", "custom": {"name": "p", "format": {"type": "text"}}}]).tools[0].grammar is None
    )


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "weather"}}, ToolChoice("required", ("weather",))),
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice("required", ("patch",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER, PATCH]}},
            ToolChoice("auto", ("weather", "patch")),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER]}},
            ToolChoice("required", ("weather",)),
        ),
    ],
)
def test_tool_choice(sent: Any, choice: ToolChoice):
    assert parse(tools=[WEATHER, PATCH], tool_choice=sent).tool_choice == choice


def test_calls_one_at_a_time():
    assert parse(tools=[WEATHER], parallel_tool_calls=False).tool_choice == ToolChoice(parallel=False)


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({"reasoning_effort": "minimal"}, Thinking(None, "minimal")),
        ({"reasoning_effort": "ultra"}, Thinking(None, "high")),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, Thinking(None, "low")),
        ({"reasoning": {"enabled": True}}, Thinking(True)),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high", "enabled": False}}, Thinking(False, "low")),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking(False)),
        ({"chat_template_kwargs": {"thinking": True, "reasoning_effort": "low"}}, Thinking(True, "low")),
    ],
)
def test_thinking(fields: dict[str, Any], thinking: Thinking):
    assert parse(**fields).thinking == thinking


def test_template_arguments_that_are_not_passed_on_are_said():
    assert parse(chat_template_kwargs={"preserve": 1, "thinking": None}).warnings == (
        "chat_template_kwargs.preserve: not passed to the template",
    )


@pytest.mark.parametrize(
    ("sent", "fmt"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Format()),
        ({"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA, "strict": True}},
         Format(SCHEMA, "r", True)),
        ({"type": "json_schema", "json_schema": {"name": "r", "description": "d"}}, Format(None, "r")),
    ],
)  # fmt: skip
def test_format(sent: Any, fmt: Format | None):
    assert parse(response_format=sent).format == fmt


def test_logprobs():
    assert parse(logprobs=True).sampling.logprobs == 0
    assert parse(logprobs=False, top_logprobs=0).sampling.logprobs is None


def of(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **more}]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    (of("function", "x", name="f"), "messages[0].role"),
    (of("critic", "x"), "messages[0].role"),
    (of("user", None), "messages[0].content"),
    (of("system", 5), "messages[0].content"),
    (of("user", [{"type": "text", "text": None}]), "messages[0].content[0].text"),
    (of("user", [{"type": "input_audio", "input_audio": {}}]), "messages[0].content[0]"),
    (of("user", [{"type": "file", "file": {}}]), "messages[0].content[0]"),
    (of("assistant", [PICTURE]), "messages[0].content[0]"),
    (of("user", [{"type": "image_url", "image_url": {"url": "http://h/x"}}]), "messages[0].content[0].image_url.url"),
    (of("user", [{"type": "image_url", "image_url": "file:///etc/passwd"}]), "messages[0].content[0].image_url"),
    (of("assistant", "x", function_call={"name": "f"}), "messages[0].function_call"),
    (of("assistant", None, tool_calls=[{"id": "c", "function": {}}]), "messages[0].tool_calls[0].function.name"),
    (of("assistant", None, tool_calls=[{"type": "other"}]), "messages[0].tool_calls[0].type"),
    (of("tool", "x"), "messages[0].tool_call_id"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": "9"}, "max_completion_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"n": True}, "n"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"seed": "x"}, "seed"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
     "tool_choice.allowed_tools.tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"reasoning_effort": 3}, "reasoning_effort"),
    ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"reasoning": {"enabled": "yes"}}, "reasoning.enabled"),
    ({"reasoning": "high"}, "reasoning"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities[1]"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"functions": []}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_a_refusal_names_the_field(fields: dict[str, Any], param: str):
    with pytest.raises(ApiError) as fault:
        parse(**fields)
    assert (fault.value.kind, fault.value.param) == ("invalid", param)


def test_errors():
    fault = ApiError("rate", "too many at once", retry_after_s=2)
    assert chat.error(fault, "req_1") == {
        "error": {"message": "too many at once", "type": "rate_limit_error", "param": None,
                  "code": "rate_limit_exceeded"}
    }  # fmt: skip
    assert chat.status(fault) == 429
    assert chat.status(ApiError("quota", "spent")) == 429
