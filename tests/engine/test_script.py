"""Scripts: parsing, vocabulary, turns, templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from memra_mlx.engine.script import Break, Say, Script, load, parse, vocabulary
from memra_mlx.request import flat_name

CALL = {"call": {"tool": "mcp__notes/add", "arguments": {"t": "milk", "n": 2}}}

ENTRIES = [
    ("a", Say(b"a")),
    ({"bytes": "f0 9f"}, Say(b"\xf0\x9f")),
    ({"repeat": ["t ", 3], "delay_ms": 20}, Say(b"t ", 3, 0.02)),
    ({"fault": "raise"}, Break("raise")),
    ({"fault": "kill_thread", "times": 2}, Break("kill_thread", 2)),
    ({"hang": True}, Break("hang")),
    (CALL, Say(b'<tool_call>\n{"name": "mcp__notes__add", "arguments": {"t": "milk", "n": 2}}\n</tool_call>')),
]


@pytest.mark.parametrize(("raw", "entry"), ENTRIES)
def test_entries(raw: Any, entry: Say | Break) -> None:
    assert parse({"script": [raw]}).turns == ((entry,),)


def test_a_call_in_xml() -> None:
    (entry,) = parse({"script": [CALL], "tool_format": "xml-function"}).turns[0]
    assert isinstance(entry, Say)
    assert entry.data.decode() == (
        "<tool_call>\n<function=mcp__notes__add>\n<parameter=t>\nmilk\n</parameter>\n"
        "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>"
    )


def test_vocabulary_is_in_order_of_first_appearance() -> None:
    script = parse({"script_turns": [["b", {"repeat": ["a", 2]}, "b"], [{"bytes": "63"}, "a"]]})
    assert vocabulary(script) == [b"b", b"a", b"c"]


def test_settings_and_defaults() -> None:
    assert parse({}) == Script(turns=((),))
    assert parse({"prefill_s": 2, "load_s": 1, "ctx": 64, "engine": "script", "metrics": True}) == Script(
        turns=((),), prefill_s=2.0, load_s=1.0, context=64
    )


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"script": [{"fault": "explode"}]}, "explode"),
        ({"script": [7]}, "script: 7"),
        ({"tool_format": "yaml"}, "hermes, xml-function"),
        ({"template": "telegram"}, "telegram"),
        ([], "JSON object"),
    ],
)
def test_what_is_not_understood_is_named(needs: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(json.dumps(needs))
    with pytest.raises(ValueError, match=words) as error:
        load(file)
    assert str(file) in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("number", "generation", "says"),
    [(0, 1, b"a"), (1, 1, b"b"), (9, 1, b"d"), (0, 2, b"b"), (0, 3, b"d"), (0, 9, b"d")],
)
def test_a_process_goes_on_after_the_turn_that_ended_the_last(number: int, generation: int, says: bytes) -> None:
    script = parse({"script_turns": [["a", {"fault": "kill_thread"}], ["b"], ["c", {"hang": True}], ["d"]]})
    assert script.turn(number, generation)[0] == Say(says)


@pytest.mark.parametrize(
    ("namespace", "name", "flat"),
    [("mcp__notes", "add", "mcp__notes__add"), ("mcp__notes__", "add", "mcp__notes__add"), ("a", "_b", "a___b")],
)
def test_flat_names(namespace: str, name: str, flat: str) -> None:
    assert flat_name(namespace, name) == flat


def test_long_flat_names_stay_short_and_different() -> None:
    one, two = flat_name("n" * 60, "first"), flat_name("n" * 60, "second")
    assert len(one) == len(two) == 64
    assert one != two


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "done"},
]
TEXT_ARGUMENTS = [*MESSAGES[:2], {**MESSAGES[2], "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
REFUSALS = [
    ("system-first-only", [*MESSAGES, MESSAGES[0]], MESSAGES),
    ("system-first-only", [{"role": "developer", "content": "x"}], MESSAGES),
    ("alternating-only", [MESSAGES[1], MESSAGES[1]], MESSAGES),
    ("string-content-only", PARTS, MESSAGES),
    ("args-as-text", MESSAGES, TEXT_ARGUMENTS),
    ("args-as-map", TEXT_ARGUMENTS, MESSAGES),
]


def render(template: str, messages: list[dict[str, Any]], **more: Any) -> str:
    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **more)


@pytest.mark.parametrize(("kind", "bad", "good"), REFUSALS)
def test_a_strict_template_refuses_what_it_is_strict_about(kind: str, bad: Any, good: Any) -> None:
    template = parse({"template": kind}).chat_template()
    assert template
    assert render(template, good).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    with pytest.raises(jinja2.TemplateError):
        render(template, bad)


def test_a_script_without_a_template_uses_the_models_own() -> None:
    assert parse({}).chat_template() is None
    xml = parse({"tool_format": "xml-function"}).chat_template()
    assert xml
    assert "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>" in render(xml, MESSAGES)
