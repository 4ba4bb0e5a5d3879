"""The one input of a custom tool that comes with a grammar, in the places where models write it."""

from __future__ import annotations

import re

from memra_mlx.prompt.grammar_escape import PatternError, escaped
from memra_mlx.prompt.grammar_lark import LarkError, read, slashes, terminal, tokens
from memra_mlx.prompt.grammar_rules import Offer, Rules


class GrammarError(ValueError):
    """A tool whose calls can't be constrained; the message names it."""


def input_terminal(rules: Rules, offer: Offer, *, escape: bool) -> str:
    """The name of a terminal for the input; `escape`: as it stands inside a JSON string. Raises `GrammarError`."""
    assert offer.grammar is not None
    syntax, definition = offer.grammar

    def add(body: str) -> str:
        return rules.add("INPUT", body)

    try:
        if syntax == "regex":
            pattern = re.sub(r"^\^|(?<!\\)\$$", "", definition)
            return add(f"/{slashes(escaped(pattern) if escape else pattern)}/")
        return terminal(read(definition), add, escape=escape)
    except (LarkError, PatternError) as fault:
        raise GrammarError(f"the tool {offer.name}: format.definition: {fault}") from fault


def nested_input(rules: Rules, offer: Offer) -> str:
    """The name of a rule for an input that needs no escapes and whose grammar can't be one terminal; "" where it can,
    or where it can't be read."""
    assert offer.grammar is not None
    syntax, definition = offer.grammar
    if syntax == "regex":
        return ""
    try:
        signs = [token.text for token in tokens(definition)]
        terminal(read(definition), lambda body: "X", escape=False)
    except (LarkError, PatternError) as fault:
        recursive = isinstance(fault, LarkError) and fault.recursive
        if recursive and signs.count("{") == signs.count("}"):
            return rules.add("input", f"%lark {{\n{definition}\n}}")
    return ""
