"""Custom tools whose input follows a grammar, in JSON strings, in tags, and between Gemma's marks."""

from __future__ import annotations

import json
import re

import pytest
from call_templates import STYLES
from grammar_walks import Walk, tiny_tokens
from llguidance import LLMatcher
from prompt_samples import ask
from test_grammar_styles import OFF, REQUIRED, calls, plain

from memra_mlx.errors import ApiError
from memra_mlx.prompt.grammar_escape import PatternError, escaped
from memra_mlx.prompt.grammar_lark import slashes
from memra_mlx.request import Tool

PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

hunk: added | deleted | updated          // what is done to one file
added: "*** Add File: " path LF plus+
deleted: "*** Delete File: " path LF
updated: "*** Update File: " path LF moved? change?
moved: "*** Move to: " path LF
path: /(.+)/
plus: "+" /(.*)/ LF -> line
change: (context | line)+ last?
context: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF
last: "*** End of File" LF

%import common.LF
"""
IS_PATCH = re.compile(
    r"\*\*\* Begin Patch\n"
    r"(\*\*\* Add File: .+\n(\+.*\n)+|\*\*\* Delete File: .+\n"
    r"|\*\*\* Update File: .+\n(\*\*\* Move to: .+\n)?((@@( .+)?|[-+ ].*)\n)*(\*\*\* End of File\n)?)+"
    r"\*\*\* End Patch\n?"
)
RECURSIVE = 'start: sum\nsum: product | sum "+" product\nproduct: /[0-9]+/ | "(" sum ")"\n'
BY_MODULE = {style.module: style for style in STYLES}
ENDS = ("\n*** End Patch", "\n+x", "\\n*** End Patch", "\\n+x")


def custom(syntax: str, definition: str) -> Tool:
    return Tool("edit", "", {}, custom=True, grammar=(syntax, definition))


def grammar(style: str, tool: Tool) -> str:
    model = plain(BY_MODULE[style])
    request = ask(tools=(tool,), tool_choice=REQUIRED, thinking=OFF)
    return model.grammar(request, model.prompt(request))


def inputs(style: str, tool: Tool, seeds: int) -> list[str]:
    model = plain(BY_MODULE[style])
    request = ask(tools=(tool,), tool_choice=REQUIRED, thinking=OFF)
    text = grammar(style, tool)
    answers = [Walk(text, seed, ends=ENDS).run(patience=80, limit=800) for seed in range(seeds)]
    return [found for answer in answers for _, found in calls(model, request, answer)]


@pytest.mark.parametrize("style", [name for name in BY_MODULE if name != "function_gemma"])
def test_patches(style: str) -> None:
    for text in inputs(style, custom("lark", PATCH), 3):
        assert IS_PATCH.fullmatch(text), text


@pytest.mark.parametrize("style", BY_MODULE)
def test_patterns(style: str) -> None:
    pattern = r'(?:[a-c"\\]{2,3}-[0-9]{2}|x[^y\s]{1,4}z)'
    for text in inputs(style, custom("regex", f"^{pattern}$"), 4):
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("style", ["qwen3_coder", "glm47"])
def test_a_recursive_grammar_in_tags(style: str) -> None:
    for text in inputs(style, custom("lark", RECURSIVE), 3):
        assert re.fullmatch(r"[0-9+()]+", text)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (RECURSIVE, "refers to itself"),
        ("rule: /a/", "no rule named start"),
        ("start: missing", "missing is not defined"),
        ("start: <think>", "can't be read"),
        ("%import secret.X\nstart: X", "can't be used"),
        ("start: %json {}", "can't be used"),
        ('start: "a" b\nb: /(?=x)/', "look-around"),
        ('start: "a" b\nb: /[[:alpha:]&&x]/', "sets within sets"),
        ('%ignore " "\nstart: "a"', "%ignore"),
    ],
)
def test_refused_in_json(definition: str, why: str) -> None:
    with pytest.raises(ApiError, match=re.escape(why)) as fault:
        grammar("json_tools", custom("lark", definition))
    assert fault.value.param == "tools"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r".", "q"), (r".", '"'), (r".", "\t"), (r"(?s:.)", "\n"), (r"\n", "\n"), (r'["\\]', "\\"), (r"[^a]", '"'),
        (r"\s", "\n"), (r"\S", '"'), (r"\x41\u0042\x{43}", "ABC"), (r"a\.b", "a.b"), (r'"+', '"""'),
        (r"(?P<n>[\t ])x", "\tx"), (r"\\+", "\\\\"), (r"[\]x]{2}", "]x"), (r"\/", "/"), (r"\W", "\\"),
    ],
)  # fmt: skip
def test_escapes(pattern: str, text: str) -> None:
    matcher = LLMatcher(tiny_tokens(), f"start: X\nX: /{slashes(escaped(pattern))}/\n", log_level=0)
    ids = tiny_tokens().tokenize_str(json.dumps(text, ensure_ascii=False)[1:-1])
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


@pytest.mark.parametrize("pattern", ["(?!a)", "(?<=a)b", r"\pL", "(?x: a)", "[a"])
def test_unreadable_patterns(pattern: str) -> None:
    with pytest.raises(PatternError):
        escaped(pattern)
