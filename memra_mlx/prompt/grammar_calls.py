"""How the models write tool calls, as grammars: one `CallFormat` a style.

    block    start lead call (between call)* tail end

Arguments are one JSON object here; `grammar_keyed` and `grammar_gemma` write them key by key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memra_mlx.prompt.grammar_custom import input_terminal
from memra_mlx.prompt.grammar_marks import any_of, join, literal
from memra_mlx.prompt.grammar_rules import FREE_SCHEMA, Offer, Rules
from memra_mlx.prompt.grammar_schema import SPACED


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A style. `call` gives the expression of one call; `many`: a block may hold several, `between` apart; `gap` stands
    between blocks. Texts may hold the model's control tokens."""

    start: str
    end: str
    call: Callable[[Rules, Offer], str]
    lead: str = ""
    tail: str = ""
    between: str | None = None
    gap: str = ""

    def rest(self, rules: Rules, calls: str, several: bool) -> str:
        """A block behind its start marker. `calls` is the expression of a call to any of the tools."""
        more = f"({join(rules.marks.lark(self.between), calls)})*" if several and self.between is not None else ""
        return join(rules.marks.lark(self.lead), calls, more, rules.marks.lark(self.tail + self.end))

    def blocks(self, rules: Rules, calls: str, several: bool) -> str:
        """One block; or where there may be `several` calls, one or more."""
        block = rules.add("block", join(rules.marks.lark(self.start), self.rest(rules, calls, several)))
        if not several or self.between is not None:
            return block
        return f"{block} ({join(rules.marks.lark(self.gap), block)})*"


def json_object(rules: Rules, offer: Offer) -> str:
    """The arguments as one JSON object."""
    if offer.grammar is not None:
        terminal = input_terminal(rules, offer, escape=True)
        return join(literal('{"input": "'), terminal, literal('"}'))
    schema = offer.schema or FREE_SCHEMA
    return rules.add("arguments", f"%json {schema.text(schema.root, SPACED)}")


def framed(head: str, tail: str) -> Callable[[Rules, Offer], str]:
    """A call with its arguments as one JSON object between two texts; `NAME` stands for the tool's name."""

    def call(rules: Rules, offer: Offer) -> str:
        opening = rules.marks.lark(head.replace("NAME", offer.name))
        return rules.add("call", join(opening, json_object(rules, offer), rules.marks.lark(tail)))

    return call


def named(rules: Rules, offer: Offer) -> str:
    """`{"name": …, "arguments": …}`."""
    return framed(f'{{"name": {json.dumps(offer.name, ensure_ascii=False)}, "arguments": ', "}")(rules, offer)


def kimi_k2(rules: Rules, offer: Offer) -> str:
    """`functions.NAME:0` and a JSON object between tokens of their own."""
    head = join(rules.marks.lark("<|tool_call_begin|>"), literal(f"functions.{offer.name}:"), "/[0-9]{1,2}/")
    middle, tail = rules.marks.lark("<|tool_call_argument_begin|>"), rules.marks.lark("<|tool_call_end|>")
    return rules.add("call", join(head, middle, json_object(rules, offer), tail))


def calls_to(rules: Rules, style: CallFormat, offers: tuple[Offer, ...]) -> str:
    """A call to any of the tools."""
    return rules.add("calls", any_of(style.call(rules, offer) for offer in offers))


JSON_FORMATS: Mapping[str, CallFormat] = {
    "json_tools": CallFormat("<tool_call>", "</tool_call>", named, "\n", "\n", gap="\n"),
    "mistral": CallFormat("[TOOL_CALLS]", "", framed("NAME[ARGS]", "")),
    "mistral_list": CallFormat("[TOOL_CALLS]", "", named, "[", "]", between=", "),
    "kimi_k2": CallFormat("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", kimi_k2, between=""),
}
