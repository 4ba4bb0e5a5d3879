"""Tool calls in all formats: streamed, coerced, malformed, unclosed."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from prompt_samples import BASH, PATCH, WEATHER, Run, ask, chunkings, model, parse

from memra_mlx.prompt.markers import find_markers
from memra_mlx.request import Tool, ToolChoice

AMBIGUOUS = re.compile(r"</parameter>\s*(<parameter=|</function>)")
TOOLS = ask(tools=(WEATHER, BASH, PATCH))
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"town": "Oslo \\"N\\" \\\\ {x}\\n2"}}\n</tool_call>'
TYPED = Tool(
    "set",
    "",
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "on": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "s": {"type": "string"},
            "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "any": {},
        },
    },
)


def test_json_calls_stream_and_join_to_the_arguments() -> None:
    for pieces in chunkings(CALL):
        run = parse(pieces, TOOLS)
        [(kind, name, text)] = run.blocks
        assert (kind, name) == ("tool", "get_weather")
        assert json.loads(text) == {"town": 'Oslo "N" \\ {x}\n2'}
        assert run.parser.finish_reason == "tool_calls"
    assert len(parse(list(CALL), TOOLS).deltas) > 20


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "bash", "arguments": {}}', "{}"),
        ('{"name": "bash"}', "{}"),
        ('{"name": "bash", "arguments": null}', "{}"),
        ('{"name": "bash", "arguments": ""}', "{}"),
        ('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}', '{"command": "ls"}'),
        ('{"arguments": {"command": "ls"}, "name": "bash"}', '{"command": "ls"}'),
        ('{"name": "bash", "arguments": {"command": "a\nb"}}', '{"command": "a\\nb"}'),
        ('{"name": "bash", "arguments": {"command": "</tool_call>"}}', '{"command": "</tool_call>"}'),
        (
            '{"name": "bash", "arguments": {"command": 7, "x": [1, {"y": "}"}]}}',
            '{"command": "7", "x": [1, {"y": "}"}]}',
        ),
    ],
)
def test_shapes_of_json_calls(body: str, arguments: str) -> None:
    for pieces in chunkings(f"<tool_call>\n{body}\n</tool_call>"):
        assert parse(pieces, TOOLS).blocks == [("tool", "bash", arguments)]


def test_values_are_fitted_to_the_schema_in_json_too() -> None:
    given = '{"n": "5", "on": "true", "tags": "[1]", "s": 7, "any": "5"}'
    text = f'<tool_call>{{"name": "set", "arguments": {given}}}</tool_call>'
    for pieces in chunkings(text):
        [(_, _, arguments)] = parse(pieces, ask(tools=(TYPED,))).blocks
        assert json.loads(arguments) == {"n": 5, "on": True, "tags": [1], "s": "7", "any": "5"}


def test_several_calls_and_text_between() -> None:
    one = '<tool_call>\n{"name": "bash", "arguments": {"command": "a"}}\n</tool_call>'
    listed = '[{"name": "bash", "arguments": {}}, {"name": "get_weather", "arguments": {"days": "2"}}]'
    many = f"<tool_call>{listed}</tool_call>"
    for pieces in chunkings(f"First.\n{one}\n{one} then \n{many}\n"):
        run = parse(pieces, TOOLS)
        assert run.blocks == [
            ("text", "", "First.\n"),
            ("tool", "bash", '{"command": "a"}'),
            ("tool", "bash", '{"command": "a"}'),
            ("text", "", "then \n"),
            ("tool", "bash", "{}"),
            ("tool", "get_weather", '{"days": 2}'),
        ]
        ids = [block.call_id for block in run.folded if block.kind == "tool"]
        assert len(set(ids)) == 4


def test_an_unknown_name_is_still_a_call() -> None:
    run = parse(['<tool_call>{"name": "nope", "arguments": {"a": 1}}</tool_call>'], TOOLS)
    assert run.blocks == [("tool", "nope", '{"a": 1}')]


@pytest.mark.parametrize(
    "text",
    [
        "x <tool_call>not json</tool_call> y",
        "x <tool_call>{}</tool_call> y",
        "<tool_call>\n[]\n</tool_call>",
        'a <tool_call>{"name": 5, "arguments": {}}</tool_call>b',
        'a <tool_call>{"name": "bash", "argum',
        "a <tool_call>",
        "a <tool_ca",
        "<tool_call> <tool_call> </tool_call>",
    ],
)
def test_what_is_no_call_comes_back_to_the_byte(text: str) -> None:
    for reason in ("stop", "length"):
        for pieces in chunkings(text):
            run = parse(pieces, TOOLS, reason=reason)
            assert run.blocks == [("text", "", text)]
            assert run.parser.finish_reason == ("length" if reason == "length" else "end_turn")


def test_a_valid_call_inside_a_malformed_block_is_found() -> None:
    run = parse([f"<tool_call>oops {CALL}"], TOOLS)
    assert [kind for kind, _, _ in run.blocks] == ["text", "tool"]
    assert run.blocks[0][2] == "<tool_call>oops "


def test_a_streamed_call_that_breaks_is_passed_on_and_closed() -> None:
    text = '<tool_call>{"name": "bash", "arguments": {"command": "l</tool_call>'
    for pieces in chunkings(text):
        run = parse(pieces, TOOLS, reason="length")
        assert run.blocks == [("tool", "bash", '{"command": "l</tool_call>')]
        assert run.parser.finish_reason == "length"


def test_a_complete_call_without_its_end_marker_counts() -> None:
    for text in (CALL.removesuffix("\n</tool_call>"), CALL[:-3]):
        for pieces in chunkings(text):
            run = parse(pieces, TOOLS)
            assert [kind for kind, _, _ in run.blocks] == ["tool"]
    after = parse(["<tool_call>", '{"name": "bash", "arguments": {}}', "\nNow text"], TOOLS)
    assert after.blocks == [("tool", "bash", "{}"), ("text", "", "Now text")]


@pytest.mark.parametrize("choice", [ToolChoice("none"), None])
def test_markup_is_text_where_no_call_may_be(choice: ToolChoice | None) -> None:
    request = replace(TOOLS, tool_choice=choice) if choice else ask()
    for pieces in chunkings(f"Like {CALL} so."):
        assert parse(pieces, request).blocks == [("text", "", f"Like {CALL} so.")]


def test_a_call_out_of_reasoning_ends_it() -> None:
    for pieces in chunkings(f"<think>I call\n{CALL}</think>ok"):
        run = parse(pieces, TOOLS)
        assert [(kind, text) for kind, _, text in run.blocks][::2] == [("reasoning", "I call"), ("text", "ok")]
    prose = parse(["<think>a <tool_call> is\n", "</think>ok"], TOOLS)
    assert prose.blocks == [("reasoning", "", "a <tool_call> is"), ("text", "", "ok")]


def test_custom_tools_give_their_raw_input() -> None:
    patch = '*** Begin\n"q" \\ 🦙é\n'
    for dumped in (json.dumps(patch), json.dumps(patch, ensure_ascii=False)):
        for pieces in chunkings(
            f'<tool_call>{{"name": "apply_patch", "arguments": {{"input": {dumped}}}}}</tool_call>'
        ):
            assert parse(pieces, TOOLS).blocks == [("tool", "apply_patch", patch)]
    other = '<tool_call>{"name": "apply_patch", "arguments": {"patch": "x"}}</tool_call>'
    assert parse([other], TOOLS).blocks == [("tool", "apply_patch", "x")]


XML = (
    "<tool_call>\n<function=set>\n<parameter=n>\n5\n</parameter>\n<parameter=on>\ntrue\n</parameter>\n"
    '<parameter=tags>\n["a", "b"]\n</parameter>\n<parameter=s>\n07\n</parameter>\n'
    "<parameter=maybe>\nnull\n</parameter>\n<parameter=any>\n5\n</parameter>\n</function>\n</tool_call>"
)


def test_xml_calls_get_the_types_of_the_schema() -> None:
    for pieces in chunkings(f"{XML}\ndone"):
        run = parse(pieces, ask(tools=(TYPED,)), "xml-function")
        [(_, name, text), after] = run.blocks
        assert json.loads(text) == {"n": 5, "on": True, "tags": ["a", "b"], "s": "07", "maybe": None, "any": "5"}
        assert (name, after) == ("set", ("text", "", "done"))


@pytest.mark.parametrize(
    "value", ["", "\n", "two\nlines\n", "</parameter>", '"q" \\ é🦙', "<parameter=x>", "a </function> b", "null", "7"]
)
def test_xml_text_is_exact(value: str) -> None:
    text = f"<tool_call>\n<function=bash>\n<parameter=command>\n{value}\n</parameter>\n</function>\n</tool_call>"
    for pieces in chunkings(text):
        [(_, name, arguments)] = parse(pieces, TOOLS, "xml-function").blocks
        assert (name, json.loads(arguments)) == ("bash", {"command": value})


def test_xml_edges() -> None:
    request, style = TOOLS, "xml-function"
    empty = "<tool_call><function=bash></function></tool_call>"
    two = "<tool_call><function=bash></function>\n<function=get_weather></function></tool_call>"
    raw = "<tool_call><function=apply_patch><parameter=input>\n*** x\n</parameter></function></tool_call>"
    no_end = "<tool_call><function=bash><parameter=command>ls</function>\n</tool_call>"
    for text, blocks in (
        (empty, [("tool", "bash", "{}")]),
        (two, [("tool", "bash", "{}"), ("tool", "get_weather", "{}")]),
        (raw, [("tool", "apply_patch", "*** x")]),
        (no_end, [("tool", "bash", '{"command": "ls"}')]),
        ("<tool_call>{}</tool_call>", [("text", "", "<tool_call>{}</tool_call>")]),
        ("<tool_call><function=", [("text", "", "<tool_call><function=")]),
        ("<tool_call><function=bash><parameter=command>\nls -", [("tool", "bash", '{"command": "ls -')]),
    ):
        for pieces in chunkings(text):
            assert parse(pieces, request, style).blocks == blocks


_GLM = "get_weather<arg_key>town</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key><arg_value>2</arg_value>"
FORMATS = {
    "json_tools": '{"name": "get_weather", "arguments": {"town": "Oslo", "days": 2}}',
    "qwen3_coder": "<function=get_weather>\n<parameter=town>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>",
    "function_gemma": "call:get_weather{town:<escape>Oslo<escape>,days:2}",
    "gemma4": 'call:get_weather{town:<|"|>Oslo<|"|>,days:2}',
    "glm47": _GLM,
    "laguna": _GLM,
    "kimi_k2": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"town": "Oslo", "days": 2}<|tool_call_end|>',
    "kimi_k3": '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="town" type="string"<|sep|>Oslo'
    '<|close|>argument<|sep|><|open|>argument key="days" type="integer"<|sep|>2<|close|>argument<|sep|>'
    "<|close|>call<|sep|>",
    "longcat": "get_weather<longcat_arg_key>town</longcat_arg_key><longcat_arg_value>Oslo</longcat_arg_value>"
    "<longcat_arg_key>days</longcat_arg_key><longcat_arg_value>2</longcat_arg_value>",
    "minicpm5": '"get_weather"><param name="town">Oslo</param><param name="days">2</param>',
    "minimax_m2": '<invoke name="get_weather"><parameter name="town">Oslo</parameter>'
    '<parameter name="days">2</parameter></invoke>',
    "mistral": 'get_weather[ARGS]{"town": "Oslo", "days": "2"}',
    "muse_spark": '<atem:invoke name="get_weather"><atem:parameter name="town">Oslo</atem:parameter>'
    '<atem:parameter name="days">2</atem:parameter></atem:invoke>',
    "pythonic": '[get_weather(town="Oslo", days="2")]',
}


@pytest.mark.parametrize("style", sorted(FORMATS))
def test_every_format_of_mlx_lm(style: str) -> None:
    module = importlib.import_module(f"mlx_lm.tool_parsers.{style}")
    wrapper = TokenizerWrapper(
        model()._tokenizer._tokenizer,
        tool_call_start=module.tool_call_start,
        tool_call_end=module.tool_call_end,
        tool_parser=module.parse_tool_call,
    )
    markers = find_markers(wrapper, "")
    call = module.tool_call_start + FORMATS[style] + module.tool_call_end
    for text, reason in ((f"See: {call}", "stop"), (f"See: {call[: len(call) // 3]}", "length")):
        for pieces in chunkings(text) if reason == "stop" else [[text], list(text)]:
            run = Run(markers, pieces, TOOLS).feed(reason)
            assert run.blocks[0] == ("text", "", text if len(run.blocks) == 1 else "See: ")
            if reason == "stop":
                assert run.blocks[1][:2] == ("tool", "get_weather")
                assert json.loads(run.blocks[1][2]) == {"town": "Oslo", "days": 2}


def test_harmony_channels() -> None:
    analysis = "<|channel|>analysis<|message|>plan<|end|>"
    call = (
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"town":"Oslo"}'
    )
    for pieces in chunkings(f"{analysis}{call}"):
        run = parse(pieces, TOOLS, "harmony")
        assert run.blocks == [("reasoning", "", "plan"), ("tool", "get_weather", '{"town": "Oslo"}')]
        assert run.parser.finish_reason == "tool_calls"
    for pieces in chunkings(f"{analysis}<|start|>assistant<|channel|>final<|message|>Hi"):
        assert parse(pieces, TOOLS, "harmony").blocks == [("reasoning", "", "plan"), ("text", "", "Hi")]
    assert parse(["Fi", "ne."], TOOLS, "harmony").blocks == [("text", "", "Fine.")]


MARKUP = [
    "<tool_call>",
    "</tool_call>",
    "{",
    "}",
    '"name": "bash"',
    ', "arguments": ',
    '{"command": "',
    '"',
    "\\",
    "\n",
    "x",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*MARKUP, "<think>", "</think>", CALL]), max_size=10))
def test_no_markup_breaks_the_order_or_depends_on_chunks(parts: list[str]) -> None:
    text = "".join(parts)
    whole = parse([text], TOOLS).blocks
    assert parse(list(text) or [""], TOOLS).blocks == whole
    assert parse(parts or [""], TOOLS).blocks == whole


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=' \n{}[]",:abc\\<>', max_size=30))
def test_malformed_blocks_lose_nothing(body: str) -> None:
    text = f"a <tool_call>{body}</tool_call>z"
    assert "".join(part for _, _, part in parse(list(text), TOOLS).blocks) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4), st.booleans())
def test_any_arguments_come_through(arguments: dict[str, object], ascii_only: bool) -> None:
    free = Tool("free", "", {"type": "object"})
    dumped = json.dumps({"name": "free", "arguments": arguments}, ensure_ascii=ascii_only)
    for pieces in ([f"<tool_call>{dumped}</tool_call>"], list(f"<tool_call>\n{dumped}\n</tool_call>")):
        [(_, name, text)] = parse(pieces, ask(tools=(free,))).blocks
        assert (name, json.loads(text)) == ("free", arguments)


VALUES = st.lists(
    st.sampled_from(["</parameter>", "<parameter=a>", "</function>", "\n", " ", "x", '"', "\\", "é", "null"]),
    max_size=6,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=3))
def test_any_xml_text_comes_through(values: dict[str, str]) -> None:
    tool = Tool("free", "", {"type": "object", "properties": {key: {"type": "string"} for key in "abcd"}})
    # A value that goes on as a call does can't be told from one.
    values = {key: value for key, value in values.items() if not AMBIGUOUS.search(value + "\n</parameter>")}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    text = f"<tool_call>\n<function=free>\n{body}</function>\n</tool_call>"
    for pieces in ([text], list(text)):
        [(_, _, arguments)] = parse(pieces, ask(tools=(tool,)), "xml-function").blocks
        assert json.loads(arguments) == values
