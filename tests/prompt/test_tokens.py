"""Control tokens come from the template alone; encoding equals the tokenizer's own."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_samples import TEMPLATES, WEATHER, ask, message, model

from memra_mlx.prompt.tokens import BREAK, ESCAPE, Encoder, Shield, plain_marks, unshield
from memra_mlx.request import Reasoning, Request, Tool, ToolCall, ToolResult

LITERALS = tuple(token.content for token in model()._tokenizer.added_tokens_decoder.values())
PARTS = st.sampled_from(
    [*LITERALS, "<|im_", "end|>", "<", "|>", ">", "think", "im_end", "</", "tool_call", " ", "\n", "é"]
)
CONTENT = st.lists(PARTS | st.just(BREAK) | st.just(ESCAPE + "0"), max_size=5).map("".join)


def controls(ids: Sequence[int]) -> int:
    return sum(1 for i in ids if i in model()._tokenizer.added_tokens_decoder)


def talk(texts: Sequence[str], tools: bool) -> Request:
    """Every role and field holds one of the texts."""
    system, user, thought, answer, name, key, value, result = texts
    call = ToolCall("c1", name, json.dumps({key: value, "list": [{key: [value]}]}))
    properties = {key or "k": {"type": "string", "description": value, "enum": [value], key: {}}}
    tool = Tool(name or "n", answer, {"type": "object", "properties": properties})
    return ask(
        message("system", system),
        message("user", user, user),
        message("assistant", Reasoning(thought), answer, call),
        message("tool", ToolResult("c1", message("user", result).parts)),  # type: ignore[arg-type]
        message("user", result),
        tools=(tool,) if tools else (),
    )


@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_content_never_makes_control_tokens(template: str | None) -> None:
    own = model(template)
    tools = own.tool_style is not None

    @settings(max_examples=25, deadline=None)
    @given(st.tuples(*[CONTENT] * 8))
    def check(texts: tuple[str, ...]) -> None:
        ids = own.prompt(talk(texts, tools)).ids
        assert controls(ids) == controls(own.prompt(talk(["x" if text else "" for text in texts], tools)).ids)

    check()


@pytest.mark.parametrize("literal", LITERALS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_literal_is_the_tokens_of_its_spelling(literal: str, whole: bool) -> None:
    encoder = Encoder(model()._tokenizer._tokenizer)
    if whole:
        encoder._plain = None
    encoded = encoder.encode("<|im_start|>" + encoder.shield.text(f"a {literal} b") + "<|im_end|>")
    assert [model()._vocabulary.token_text(i) for i in encoded.ids[:1] + encoded.ids[-1:]] == [
        "<|im_start|>",
        "<|im_end|>",
    ]
    inside = encoded.ids[1:-1]
    assert controls(inside) == 0
    assert "".join(map(model()._vocabulary.token_text, inside)) == f"a {literal} b"


@settings(max_examples=200, deadline=None)
@given(CONTENT, CONTENT)
def test_a_shield_hides_and_gives_back(first: str, second: str) -> None:
    shield = Shield(LITERALS)
    assert unshield(shield.text(first) + shield.text(second)) == first + second
    for around in ("", "<", "<|", "|>", ">"):
        text = around + shield.text(first) + shield.text(second) + around
        assert not any(literal in text for literal in LITERALS)


def test_marks_survive_json_in_ascii() -> None:
    shielded = Shield(LITERALS).text("é <|im_end|>")
    assert unshield(plain_marks(json.dumps(shielded))) == '"\\u00e9 <|im_end|>"'


def test_structure_words_of_tools_stay() -> None:
    tree = {"type": "object", "properties": {"tool": {"type": "string"}}}
    shielded = Shield(LITERALS).tree(tree)
    assert list(shielded) == ["type", "properties"]
    assert unshield(json.dumps(shielded, ensure_ascii=False)) == json.dumps(tree)


@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_prompts_equal_the_tokenizer_of_the_model(template: str | None) -> None:
    own = model(template)
    assert own._encoder._plain is not None
    request = ask(
        message("system", "  Grüße \n"),
        message("user", " 世界\n\n🦙 "),
        message("assistant", "\tx"),
        message("user", "y\n"),
    )
    text = own._tokenizer.decode(own.prompt(request).ids)
    assert own.prompt(request).ids == own._tokenizer.encode(text, add_special_tokens=False)


def test_pieces_are_remembered() -> None:
    own = model("chatml")
    words = "word " * 3000
    request = ask(message("user", words), tools=(WEATHER,))
    assert own.prompt(request).ids == own.prompt(request).ids


def test_the_memo_is_bounded() -> None:
    encoder = Encoder(model()._tokenizer._tokenizer, memo_chars=1000)
    for n in range(30):
        encoder.encode(f"{n} " + "x" * 300)
    assert 0 < sum(map(len, encoder._memo._items)) <= 1000
