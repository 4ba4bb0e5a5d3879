"""When an answer is constrained, by what, and which field is named where it can't be."""

from __future__ import annotations

from typing import Any

import pytest
from grammar_walks import LLMatcher, tiny_tokens
from prompt_samples import ask, message, model

from memra_mlx.errors import ApiError
from memra_mlx.prompt.text_model import TextModel
from memra_mlx.request import Format, Request, Thinking, Tool, ToolChoice

OFF, ON = Thinking(enabled=False), Thinking(enabled=True)
STRICT = Tool("two", "", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, strict=True)
LOOSE = Tool("one", "", {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]})
ODD = Tool("odd", "", {"type": "object", "properties": {"z": {"type": "string", "pattern": "^(?!x).*$"}}})
BOOL = Format({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})
ONE = '<tool_call>\n{"name": "one", "arguments": {"town": "Oslo"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "one", "arguments": {"n": 1}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "two", "arguments": {"n": 3}}\n</tool_call>'


def written(request: Request, own: TextModel | None = None, **more: Any) -> str:
    own = own or model()
    return own.grammar(request, own.prompt(request), **more)


def takes(grammar: str, text: str) -> bool:
    """Whether `text` is a whole answer."""
    matcher = LLMatcher(tiny_tokens(), grammar, log_level=0)
    ids = tiny_tokens().tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    "request_",
    [
        ask(),
        ask(tools=(LOOSE, ODD)),
        ask(tools=(STRICT,), tool_choice=ToolChoice("none")),
        ask(tools=(LOOSE,), tool_choice=ToolChoice(parallel=False)),
    ],
)
def test_free(request_: Request) -> None:
    assert written(request_) == ""


def test_all_tools_by_configuration() -> None:
    grammar = written(ask(tools=(LOOSE, ODD)), all_tools=True)
    assert takes(grammar, f"Well. {ONE}")
    assert not takes(grammar, WRONG)
    assert takes(grammar, '<tool_call>\n{"name": "odd", "arguments": {"z": "x"}}\n</tool_call>')


def test_strict_tools() -> None:
    grammar = written(ask(tools=(LOOSE, STRICT)))
    for text in ("", "Hi <b> é🦙", f"<think>\nhm\n</think>\n\nFirst: {TWO} and\n{TWO}", ONE, WRONG):
        assert takes(grammar, text), text
    for text in (TWO.replace("3", '"3"'), TWO.replace("two", "three"), "<tool_call>hm</tool_call>"):
        assert not takes(grammar, text), text


def test_allowed_tools() -> None:
    grammar = written(ask(tools=(LOOSE, STRICT), tool_choice=ToolChoice("auto", ("one",))))
    assert takes(grammar, f"Hi {ONE}")
    assert takes(grammar, "Hi")
    assert not takes(grammar, TWO)
    grammar = written(ask(tools=(LOOSE, STRICT), tool_choice=ToolChoice("required", ("one",)), thinking=OFF))
    assert takes(grammar, ONE)
    assert not takes(grammar, TWO)
    assert not takes(grammar, "Hi")


def test_required() -> None:
    grammar = written(ask(tools=(LOOSE, STRICT), tool_choice=ToolChoice("required"), thinking=OFF))
    assert takes(grammar, TWO)
    assert takes(grammar, f"{ONE}\n{TWO}")
    for text in ("", "Hi", WRONG, f"Hi {ONE}", f"<think>\n</think>{ONE}"):
        assert not takes(grammar, text), text
    single = written(ask(tools=(LOOSE,), tool_choice=ToolChoice("required", parallel=False), thinking=OFF))
    assert takes(single, ONE)
    assert not takes(single, f"{ONE}\n{ONE}")


def test_reasoning_comes_first() -> None:
    for thinking in (Thinking(), ON):
        for grammar, answer in (
            (written(ask(format=BOOL, thinking=thinking)), '{"ok":true}'),
            (written(ask(tools=(LOOSE,), tool_choice=ToolChoice("required"), thinking=thinking)), ONE),
        ):
            assert takes(grammar, answer)
            assert takes(grammar, f"<think>\nwell {{}}\n</think>\n\n{answer}")
            assert not takes(grammar, "<think>\nwell")
            assert not takes(grammar, f"<think>\n{TWO}</think>{answer}")


def test_a_prompt_that_opens_reasoning() -> None:
    own = model("think-open")
    request = ask(format=BOOL)
    prompt = own.prompt(request)
    assert prompt.think is not None
    assert prompt.think.opened
    grammar = own.grammar(request, prompt)
    assert takes(grammar, 'so\n</think>\n\n{"ok":false}')
    assert not takes(grammar, '{"ok":false}')


def test_json_or_calls() -> None:
    grammar = written(ask(format=BOOL, tools=(LOOSE,), thinking=OFF))
    assert takes(grammar, '{"ok":true}')
    assert takes(grammar, ONE)
    assert not takes(grammar, "Hi")
    required = written(ask(format=BOOL, tools=(LOOSE,), tool_choice=ToolChoice("required"), thinking=OFF))
    assert not takes(required, '{"ok":true}')
    assert takes(written(ask(format=Format(), thinking=OFF)), '{"a":[1,{"b":null}]}')


def test_harmony() -> None:
    own = model("harmony")
    if own.tool_style != "harmony":
        pytest.skip("the template has no tokens of its own here")
    grammar = written(ask(tools=(LOOSE,), tool_choice=ToolChoice("required")), own)
    assert "functions.one" in grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"format": Format({"type": "objekt"})}, "response_format.json_schema.schema.type"),
        ({"format": Format({"type": "objekt"}), "dialect": "responses"}, "text.format.schema.type"),
        ({"format": Format({"not": {}}), "dialect": "messages"}, "output_config.format.schema.not"),
        ({"tools": (ODD,), "tool_choice": ToolChoice("required")}, "tools"),
        ({"tools": (Tool("s", "", ODD.parameters, strict=True),)}, "tools"),
        ({"tools": (Tool("c", "", {}, custom=True, grammar=("lark", "begin: /a/")),)}, "tools"),
    ],
)
def test_refusals(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        written(ask(**fields))
    assert refused.value.param == param
    assert refused.value.rule.status == 400


def test_a_begun_answer_can_not_become_json() -> None:
    with pytest.raises(ApiError) as refused:
        written(ask(message("user", "x"), message("assistant", "So"), format=BOOL))
    assert refused.value.param == "messages"
    begun = ask(message("user", "x"), message("assistant", "So"), tools=(LOOSE,), tool_choice=ToolChoice("required"))
    assert takes(written(begun), ONE)


def test_a_model_without_a_known_format() -> None:
    own = TextModel.__new__(TextModel)
    own.__dict__.update(model().__dict__)
    own._grammars._style, kept = None, own._grammars._style
    try:
        with pytest.raises(ApiError) as forced:
            written(ask(tools=(LOOSE,), tool_choice=ToolChoice("required")), own)
        with pytest.raises(ApiError) as strict:
            written(ask(tools=(STRICT,)), own)
        assert (forced.value.param, strict.value.param) == ("tool_choice", "tools")
        assert written(ask(tools=(LOOSE,)), own, all_tools=True) == ""
    finally:
        own._grammars._style = kept
