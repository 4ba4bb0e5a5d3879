"""Every call format: what its grammar allows is read back as calls that satisfy the tools' schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from call_templates import STYLES, Style
from grammar_walks import TINY, Walk
from llguidance import LLTokenizer
from prompt_samples import Run, ask

from memra_mlx.engine.grammar_tokens import load_tokens
from memra_mlx.errors import ApiError
from memra_mlx.prompt.text_model import TextModel
from memra_mlx.request import Request, Thinking, Tool, ToolChoice

OFF = Thinking(enabled=False)
REQUIRED = ToolChoice("required")
EOS = 4086


def tool(name: str, properties: dict[str, Any], *required: str, **fields: Any) -> Tool:
    return Tool(name, "", {"type": "object", "properties": properties, "required": list(required)}, **fields)


SCALARS = tool(
    "get_weather",
    {
        "town": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "only": {"const": "x y"},
        "ok": {"type": "boolean"},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    },
    "town",
    "code",
)
NESTED = tool(
    "two",
    {
        "where": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2},
        "o": {"type": "object", "properties": {"x": {"type": "string", "maxLength": 4}}, "required": ["x"]},
        "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "o",
)
UNIONS = tool(
    "three",
    {"a": {"type": ["string", "null"], "maxLength": 5}, "b": {"$ref": "#/$defs/B"}},
    "a",
    "b",
)
UNIONS.parameters["$defs"] = {"B": {"anyOf": [{"const": 3}, {"type": "array", "items": {"type": "boolean"}}]}}
NONE = Tool("none", "", {"type": "object", "properties": {}})
TAGS_ALONE = ("minimax_m2", "minicpm5")  # an argument has one type there
BY_STYLE = {"function_gemma": (SCALARS, NONE), **dict.fromkeys(TAGS_ALONE, (SCALARS, NESTED, NONE))}
MARKS = {
    "glm47": ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]"],
    "kimi_k2": [
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ],
    "gemma4": ["<|tool_call>", "<tool_call|>", '<|"|>'],
    "function_gemma": ["<start_function_call>", "<end_function_call>", "<escape>"],
    "pythonic": ["<|tool_call_start|>", "<|tool_call_end|>"],
    "minimax_m2": ["<minimax:tool_call>", "</minimax:tool_call>"],
    "longcat": ["<longcat_tool_call>", "</longcat_tool_call>"],
}  # fmt: skip


@cache
def plain(style: Style) -> TextModel:
    return TextModel.load(TINY, chat_template=style.template())


def with_marks(folder: Path, template: str, marks: list[str]) -> tuple[TextModel, LLTokenizer]:
    """The embedded tokenizer with control tokens of its own for `marks`."""
    folder.mkdir()
    settings = json.loads((TINY / "tokenizer.json").read_text())
    fields = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    settings["added_tokens"] += [{"id": 4096 + n, "content": mark, **fields} for n, mark in enumerate(marks)]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    for name in ("tokenizer_config.json", "config.json"):
        (folder / name).write_text((TINY / name).read_text())
    return TextModel.load(folder, chat_template=template), load_tokens(folder, 4096 + len(marks), [EOS])


def required(model: TextModel, tools: tuple[Tool, ...], **fields: Any) -> tuple[str, Request]:
    request = ask(tools=tools, tool_choice=fields.pop("tool_choice", REQUIRED), thinking=OFF, **fields)
    return model.grammar(request, model.prompt(request)), request


def calls(model: TextModel, request: Request, text: bytes) -> list[tuple[str, str]]:
    run = Run(model._markers, [bytes([byte]) for byte in text], request).feed()
    assert run.blocks, text
    assert {kind for kind, _, _ in run.blocks} == {"tool"}, (text, run.blocks)
    return [(name, arguments) for _, name, arguments in run.blocks]


def check(found: list[tuple[str, str]], tools: tuple[Tool, ...]) -> None:
    schemas = {one.name: one.parameters for one in tools}
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), schemas[name])


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.module)
def test_calls_are_valid(style: Style) -> None:
    tools = BY_STYLE.get(style.module, (SCALARS, NESTED, UNIONS, NONE))
    grammar, request = required(plain(style), tools)
    found = []
    for seed in range(6):
        found += calls(plain(style), request, Walk(grammar, seed).run())
        check(found, tools)
    assert len({name for name, _ in found}) > 1


@pytest.mark.parametrize("style", [s for s in STYLES if s.module in MARKS], ids=lambda style: style.module)
def test_with_control_tokens(tmp_path: Path, style: Style) -> None:
    model, tokens = with_marks(tmp_path / "model", style.template(), MARKS[style.module])
    tools = BY_STYLE.get(style.module, (SCALARS, NESTED, NONE))
    grammar, request = required(model, tools)
    assert "<[4096]>" in grammar
    for seed in range(3):
        check(calls(model, request, Walk(grammar, seed, tokens).run()), tools)


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.module)
def test_one_call_where_one_is_named_or_allowed(style: Style) -> None:
    for choice in (ToolChoice("required", ("none",)), ToolChoice("required", parallel=False)):
        grammar, request = required(plain(style), (SCALARS, NONE), tool_choice=choice)
        for seed in range(2):
            found = calls(plain(style), request, Walk(grammar, seed).run())
            assert len(found) == 1
            assert not choice.names or found[0] == ("none", "{}")


@pytest.mark.parametrize("style", [s for s in STYLES if "gemma" not in s.module], ids=lambda style: style.module)
def test_free_text_with_strict_calls(style: Style) -> None:
    strict = tool("get_weather", {"days": {"type": "integer", "maximum": 99}}, "days", strict=True)
    model = plain(style)
    grammar, request = required(model, (strict,), tool_choice=ToolChoice())
    for seed in range(3):
        run = Run(model._markers, [bytes([byte]) for byte in Walk(grammar, seed).run()], request).feed()
        check([(name, text) for kind, name, text in run.blocks if kind == "tool"], (strict,))


def test_what_a_format_can_not_carry_is_refused() -> None:
    models = {style.module: plain(style) for style in STYLES}
    refused = {
        "qwen3_coder": tool("x", {"a b": {}}, "a b"),
        "glm47": tool("x", {"a": {"type": "string", "format": "ipv6"}}),
        "minimax_m2": UNIONS,
        "function_gemma": NESTED,
        "gemma4": Tool("x", "", {"allOf": [{"type": "object"}]}),
        "pythonic": tool("x", {"class": {"type": "integer"}}, "class"),
        "minicpm5": tool("x", {"a": {"type": "string", "pattern": "a|^b"}}),
    }
    for style, one in refused.items():
        with pytest.raises(ApiError, match=f"tools: the tool {one.name}") as fault:
            required(models[style], (one,))
        assert fault.value.param == "tools"
