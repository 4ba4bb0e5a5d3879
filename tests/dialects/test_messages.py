"""`/v1/messages`: what is read, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memra_mlx.dialects import messages
from memra_mlx.dialects import messages_wire as wire
from memra_mlx.errors import ApiError
from memra_mlx.request import (
    Conversation,
    Format,
    Image,
    Message,
    Reasoning,
    Request,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)

PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
IMAGE = {"type": "image", "source": PNG}
WEATHER = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"t": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def parse(**fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 2048, "messages": [{"role": "user", "content": "hi"}], **fields}
    return messages.parse(body, {})


def turns(*sent: dict[str, Any], **fields: Any) -> list[Message]:
    request = parse(messages=list(sent), **fields)
    assert isinstance(request.input, Conversation)
    return list(request.input.messages)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(call_id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def use(call_id: str, name: str = "weather", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def txt(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral", "ttl": "1h"}}


def test_the_smallest_request():
    assert parse() == Request(
        dialect="messages", model="m", input=Conversation((Message("user", (Text("hi"),)),)), max_tokens=2048
    )


def test_every_generation_field():
    request = parse(
        stop_sequences=["A", "B"], temperature=1, top_p=0.5, top_k=-1, stream=True, timeout_ms=5000, ctx_size=4096,
        metadata={"user_id": "u"}, cache_salt="s",
    )  # fmt: skip
    assert request.stop == ("A", "B")
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.5, 0)
    assert (request.stream, request.timeout_ms, request.ctx_size) == (True, 5000, 4096)
    assert (request.affinity, request.cache_salt) == ("u", "s")


def test_nulls_are_not_set():
    names = set(wire.Body.model_fields) - {"model", "messages", "max_tokens"}
    assert parse(**dict.fromkeys(names)) == parse()


def test_fields_of_telemetry_and_betas_are_ignored_without_a_word():
    request = parse(
        context_management={"edits": []}, service_tier="auto", speed="fast", mcp_servers=[], container=None,
        brand_new={"a": 1}, diagnostics={}, output_config={"task_budget": None}, metadata={"x": 1},
    )  # fmt: skip
    assert request == parse()


@pytest.mark.parametrize(
    "system",
    [
        "x-anthropic-billing-header: cc_version=1; cch=a;\nBe brief.",
        [txt("x-anthropic-billing-header: cc_version=1; cch=b;"), txt("Be brief.")],
        [txt("x-anthropic-billing-header: one\nBe brief."), txt("")],
        "Be brief.",
    ],
)
def test_a_billing_line_never_reaches_the_prompt(system: Any):
    assert turns(user(txt("hi")), system=system)[0] == Message("system", (Text("Be brief."),))


@pytest.mark.parametrize("system", [None, "", [], [txt("")], [txt("x-anthropic-billing-header: x;")]])
def test_no_system_prompt_is_no_message(system: Any):
    assert turns(user(txt("hi")), system=system) == [Message("user", (Text("hi"),))]


def test_system_turns_keep_their_place():
    late = {"type": "mid_conv_system", "content": [txt("Later.")]}
    found = turns(
        user(txt("a")), {"role": "system", "content": "Agents."}, {"role": "system", "content": [txt("R.")]},
        assistant(txt("b")), user(txt("c"), late, txt("d"), {"type": "mid_conv_system", "text": "Last."}),
        system=[txt("Top."), txt("More.")],
    )  # fmt: skip
    assert [(m.role, [p.text for p in m.parts if isinstance(p, Text)]) for m in found] == [
        ("system", ["Top.", "More."]), ("user", ["a"]), ("system", ["Agents."]), ("system", ["R."]),
        ("assistant", ["b"]), ("user", ["c"]), ("system", ["Later."]), ("user", ["d"]), ("system", ["Last."]),
    ]  # fmt: skip


def test_tool_results_come_first_each_in_a_message_of_its_own():
    found = turns(
        user(txt("go")),
        assistant(use("t1", town="Oslo"), use("t2")),
        user(txt("and"), result("t2", [txt("file:"), IMAGE]), txt("then"), result("t1", None, is_error=True)),
    )
    assert found[1] == Message(
        "assistant", (ToolCall("t1", "weather", '{"town":"Oslo"}'), ToolCall("t2", "weather", "{}"))
    )
    assert found[2:] == [
        Message("tool", (ToolResult("t2", (Text("file:"), Image(b"hi", "image/png"))),)),
        Message("tool", (ToolResult("t1", (Text(""),), is_error=True),)),
        Message("user", (Text("and"), Text("then"))),
    ]


def test_a_message_of_results_alone_leaves_no_empty_turn():
    found = turns(user(txt("go")), assistant(use("t1")), user(result("t1", "rain"), txt("")))
    assert [m.role for m in found] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_turn_stays_a_turn(content: Any):
    assert turns({"role": "user", "content": content}) == [Message("user", (Text(""),))]


def test_ids_that_lack_are_matched_in_order():
    found = turns(
        user(txt("go")),
        assistant({"type": "tool_use", "name": "weather"}, {"type": "tool_use", "name": "weather", "input": None}),
        user({"type": "tool_result", "content": "a"}, {"type": "tool_result", "content": "b"}),
    )
    calls = [part.id for part in found[1].parts if isinstance(part, ToolCall)]
    answers = [part.call_id for m in found[2:] for part in m.parts if isinstance(part, ToolResult)]
    assert calls == answers
    assert len(set(calls)) == 2


def test_reasoning_in_history():
    found = turns(
        user(txt("a")),
        assistant(
            {"type": "thinking", "thinking": "", "signature": "memra-unsealed"},
            {"type": "thinking", "thinking": "x", "signature": "sealed"},
            {"type": "redacted_thinking", "data": "AAAA"},
            txt("b"),
            {"type": "thinking", "thinking": "y", "signature": ""},
            {"type": "thinking", "thinking": "z", "signature": "memra-unsealed"},
            {"type": "thinking", "thinking": "", "signature": "only-sealed"},
            {"type": "thinking", "thinking": "", "signature": ""},
            txt(""),
        ),
        user(txt("c")),
    )
    assert found[1].parts == (
        Reasoning("x", "sealed"), Text("b"), Reasoning("y"), Reasoning("z"), Reasoning("", "only-sealed"),
    )  # fmt: skip


def test_blocks_that_are_not_known_are_left_out_with_a_warning():
    request = parse(
        messages=[
            user(txt("a"), {"type": "container_upload", "file_id": "f"}, {"type": "container_upload"}),
            assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, use("t")),
            user(result("t", [{"type": "tool_reference", "tool_name": "weather"}, {"type": "search_result"}])),
            user({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}),
            user({"type": "document", "title": "T", "source": {"type": "text", "data": "D", "media_type": "x"}}),
        ]
    )
    assert isinstance(request.input, Conversation)
    found = request.input.messages
    assert found[2].parts == (ToolResult("t", (Text("The tool weather is available now."),)),)
    assert [m.parts for m in found[3:]] == [(Text(""),), (Text("T\n\nD"),)]
    assert [warning.split(":")[0] for warning in request.warnings] == [
        "messages[0].content[1]", "messages[1].content[0]", "messages[2].content[0].content[1]",
        "messages[3].content[0]",
    ]  # fmt: skip


def test_a_bad_picture_is_refused_but_in_a_tool_result_noted():
    broken = {"type": "image", "source": {**PNG, "data": "?"}}
    with pytest.raises(ApiError, match=r"^messages\[0\]\.content\[0\]\.source: the image is not valid base64"):
        turns(user(broken))
    request = parse(messages=[user(txt("go")), assistant(use("t")), user(result("t", [broken]))])
    assert isinstance(request.input, Conversation)
    (answer,) = request.input.messages[2].parts
    assert isinstance(answer, ToolResult)
    assert "left out" in str(answer.parts[0])
    assert len(request.warnings) == 1


def test_tools():
    typed = {"type": "custom", "name": "s", "input_schema": {}, "strict": True, "defer_loading": True}
    beta = {"eager_input_streaming": True, "input_examples": [{}], "cache_control": None}
    request = parse(tools=[WEATHER, {"name": "bare"}, {**typed, **beta}])
    empty = {"type": "object", "properties": {}}
    assert request.tools == (
        Tool("weather", "d", WEATHER["input_schema"]), Tool("bare", "", empty), Tool("s", "", empty, strict=True),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", ("weather",))),
    ],
)
def test_tool_choice(sent: Any, choice: ToolChoice):
    assert parse(tools=[WEATHER], tool_choice=sent).tool_choice == choice


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}}, Thinking(True, None, 1024)),
        ({"thinking": {"type": "enabled"}}, Thinking(True)),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"thinking": {"type": "disabled", "budget_tokens": 0}}, Thinking(False)),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, Thinking()),
        ({"output_config": {"effort": "none"}}, Thinking(None, "none")),
        ({"output_config": {"effort": "xhigh"}}, Thinking(None, "high")),
        ({"output_config": {"effort": None}}, Thinking()),
        ({"thinking": {"type": "enabled"}, "output_config": {"effort": "none"}}, Thinking(True, "none")),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, Thinking(False, "high")),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, Thinking(None, "low")),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "minimal"}}, Thinking()),
    ],
)
def test_thinking_type_rules_the_switch_and_effort_the_level(fields: dict[str, Any], thinking: Thinking):
    assert parse(**fields).thinking == thinking


@pytest.mark.parametrize(
    ("fields", "fmt"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, Format(SCHEMA, strict=True)),
        ({"output_config": {"format": {"type": "json_object"}}}, Format()),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, Format(SCHEMA, strict=True)),
        ({"output_config": {"format": None}, "output_format": None}, None),
    ],
)
def test_format(fields: dict[str, Any], fmt: Format | None):
    assert parse(**fields).format == fmt


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
    ({"messages": [user({"type": "image", "source": {"type": "url", "url": "http://h/x"}})]},
     "messages[0].content[0].source.type"),
    ({"messages": [user({"type": "image", "source": {"type": "base64", "data": "aGk="}})]},
     "messages[0].content[0].source.media_type"),
    ({"messages": [user(use("t"))]}, "messages[0].content[0]"),
    ({"messages": [assistant(result("t"))]}, "messages[0].content[0]"),
    ({"messages": [user({"type": "tool_result", "content": "x"})]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [assistant({"type": "tool_use", "id": "t"})]}, "messages[0].content[0].name"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "text", "text": 5}]}, "system[0].text"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"stream": 1}, "stream"),
    ({"timeout_ms": 1.5}, "timeout_ms"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [WEATHER, {"name": "weather"}]}, "tools[1].name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "often"}}, "tool_choice.type"),
    ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
    ({"output_config": {"effort": ["low"]}}, "output_config.effort"),
    ({"output_config": {"task_budget": {"total": 1}}}, "output_config.task_budget"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type"),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_a_refusal_names_the_field(fields: dict[str, Any], param: str):
    with pytest.raises(ApiError) as fault:
        parse(**fields)
    assert (fault.value.kind, fault.value.param) == ("invalid", param)


def test_counting_takes_the_same_prompt_and_no_limit():
    body = {
        "model": "m", "messages": [user(txt("hi"))], "system": "S", "tools": [WEATHER],
        "thinking": {"type": "enabled", "budget_tokens": 4096}, "stream": True, "max_tokens": "ignored",
    }  # fmt: skip
    counted = messages.parse_count(body, {})
    served = messages.parse({**body, "max_tokens": 5000}, {})
    assert (counted.input, counted.tools, counted.thinking) == (served.input, served.tools, served.thinking)
    assert counted.max_tokens is None
    with pytest.raises(ApiError, match=r"^messages: "):
        messages.parse_count({"model": "m"}, {})


def test_errors():
    fault = ApiError("invalid", "x: no", param="x", code="invalid_argument")
    assert messages.error(fault, "req_1") == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "x: no", "code": "invalid_argument"},
        "request_id": "req_1",
    }
    assert messages.error(ApiError("permission", "no"), "r")["error"] == {"type": "permission_error", "message": "no"}
    assert messages.status(ApiError("quota", "spent")) == 403
    assert messages.error(ApiError("quota", "spent"), "r")["error"]["type"] == "permission_error"
    assert [messages.status(ApiError(kind, "")) for kind in ("invalid", "auth", "rate", "engine", "draining")] == [
        400, 401, 429, 500, 503,
    ]  # fmt: skip
