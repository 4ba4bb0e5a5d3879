"""Filler of an exact length: `${FIT:ctx-1}` makes the whole templated prompt exactly that many tokens long."""

import re
from collections.abc import Callable
from typing import Any

from case_answers import Answer
from case_paths import MISSING, get

_FIT = re.compile(r"\$\{FIT:ctx([+-]\d+)?\}")
_WORD = " a"
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_USAGE = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def wanted(text: str, context: int) -> int | None:
    """How many tokens the prompt of this request shall have; None where it does not say."""
    match = _FIT.search(text)
    return context + int(match[1] or 0) if match else None


def filled(value: Any, filler: str) -> Any:
    """The JSON value with `filler` in the place of the variable."""
    if isinstance(value, dict):
        return {key: filled(item, filler) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, filler) for item in value]
    return _FIT.sub(filler, value) if isinstance(value, str) else value


def probe(body: dict[str, Any], words: int) -> dict[str, Any]:
    """The request with so many words of filler, made short: it only has to tell its prompt's length."""
    short = {key: 16 for key in _LIMITS if key in body}
    return {**filled(body, _WORD * words), **short, "stream": False}


def prompt_tokens(answer: Answer) -> int:
    """The prompt's length as the usage of an answer gives it, in any dialect."""
    found = [get(answer.json, f"usage.{name}") for name in _USAGE]
    return sum(number for number in found if number not in (MISSING, None))


def filler(measure: Callable[[int], int], tokens: int) -> str:
    """As many words as make `tokens`; `measure` gives the prompt's length for a number of words.

    Raises ValueError where no number of words does.
    """
    base, more = measure(1), measure(11)
    each = (more - base) / 10
    words = 1 + round((tokens - base) / each) if each > 0 else 0
    if words < 1 or measure(words) != tokens:
        raise ValueError(f"no filler makes exactly {tokens} tokens")
    return _WORD * words
