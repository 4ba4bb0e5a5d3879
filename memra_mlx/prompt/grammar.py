"""The grammar that an answer must follow, from a request and the model's own format; empty where the answer is free.

reasoning? (JSON | calls)        a structured output; tools that may be called instead
reasoning? calls                 a call is required
free text, calls anywhere in it  tools whose calls are constrained once they begin
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from llguidance import LLMatcher

from memra_mlx.errors import invalid
from memra_mlx.prompt import effort
from memra_mlx.prompt.conversation import field_of
from memra_mlx.prompt.grammar_answer import answer
from memra_mlx.prompt.grammar_custom import GrammarError
from memra_mlx.prompt.grammar_harmony import harmony_answer
from memra_mlx.prompt.grammar_keywords import SchemaError
from memra_mlx.prompt.grammar_marks import Marks
from memra_mlx.prompt.grammar_rules import FREE_SCHEMA, Offer, Plan, Rules
from memra_mlx.prompt.grammar_schema import LIMITS, Schema, checked
from memra_mlx.prompt.grammar_styles import call_format
from memra_mlx.prompt.markers import Markers
from memra_mlx.prompt.shape import schema_of
from memra_mlx.request import Conversation, Request, Text, Tool

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

log = logging.getLogger("memra.grammar")

_FORMAT = {"chat": "response_format", "messages": "output_config.format", "responses": "text.format"}
_SCHEMA = {**_FORMAT, "chat": "response_format.json_schema"}
_CANT = "this model's format can't be constrained"


class Grammars:
    """Writes the grammars of one model. `thinks` says that it reasons."""

    def __init__(self, tokenizer: TokenizerWrapper, markers: Markers, thinks: bool):
        self._markers = markers
        self._thinks = thinks
        self._marks = Marks.of(tokenizer)
        self._style = call_format(tokenizer, markers.style, self._marks)
        self._foreign = bool(tokenizer.response_transitions)

    def of(self, request: Request, *, opened: bool, all_tools: bool) -> str:
        """The grammar for the answer to `request` in llguidance's Lark syntax, or "". `opened`: the prompt ends inside
        a segment of reasoning; `all_tools`: calls of all tools are constrained, not of strict ones alone.

        Raises a 400 that names the field which can't be honoured."""
        if not isinstance(request.input, Conversation):
            return ""
        offers = self._offers(request, all_tools)
        if request.format is None and not offers:
            return ""
        schema = None if request.tool_choice.mode == "required" else _format_schema(request)
        if schema is not None:
            self._check_format(request)
        plan = Plan(
            offers,
            schema,
            free=schema is None and request.tool_choice.mode == "auto",
            several=request.tool_choice.parallel and len(request.tool_choice.names) != 1,
            reasoning=self._reasoning(request, opened),
        )
        return self._text(plan, "tools" if offers else _FORMAT[request.dialect])

    def _text(self, plan: Plan, field: str) -> str:
        rules = Rules(self._marks)
        try:
            harmony = self._markers.style == "harmony"
            start = harmony_answer(rules, plan) if harmony else answer(rules, plan, self._markers, self._style)
        except GrammarError as fault:
            raise invalid("tools", str(fault)) from fault
        text = rules.text(start)
        if problem := _problem(text):
            log.warning("a grammar was refused: %s", problem)
            raise invalid(field, f"it makes a grammar that can't be enforced: {problem}")
        return text

    def _reasoning(self, request: Request, opened: bool) -> Literal["begun", "may", "none"]:
        if opened:
            return "begun"
        off = effort.wanted(request.thinking) is False or _continues(request)
        return "may" if self._thinks and not off else "none"

    def _check_format(self, request: Request) -> None:
        if self._foreign:
            raise invalid(_FORMAT[request.dialect], f"{_CANT}; ask for JSON in the prompt, or use another model")
        if _continues(request):
            field = field_of(request.dialect)
            raise invalid(field, "the last turn is the assistant's, and a structured output can't continue it")

    def _offers(self, request: Request, all_tools: bool) -> tuple[Offer, ...]:
        """The tools that may be called, if any of their calls is to be constrained."""
        choice = request.tool_choice
        tools = [tool for tool in request.tools if not choice.names or tool.name in choice.names]
        firm = choice.mode == "required" or bool(choice.names)
        asked = request.format is not None or any(tool.strict or tool.grammar for tool in tools)
        if choice.mode == "none" or not tools or not (firm or asked or all_tools):
            return ()
        if self._style is None and self._markers.style != "harmony":
            if firm:
                raise invalid("tool_choice", f"{_CANT}; use auto, or another model")
            if asked:
                raise invalid("tools", f"{_CANT}; send no strict tools, grammars or structured output with tools")
            return ()
        return tuple(_offer(tool, choice.mode == "required", all_tools) for tool in tools)


def _offer(tool: Tool, required: bool, all_tools: bool) -> Offer:
    if tool.grammar is not None:
        return Offer(tool.name, grammar=tool.grammar)
    if not (required or tool.strict or all_tools or tool.custom):
        return Offer(tool.name)
    try:
        return Offer(tool.name, checked(json.dumps(schema_of(tool))))
    except SchemaError as fault:
        if required or tool.strict:
            at = f"parameters{fault.path}"
            raise invalid("tools", f"the tool {tool.name}: {at}: {fault.message}") from fault
        log.info("calls of a tool are not constrained: %s", fault.message)
        return Offer(tool.name)


def _format_schema(request: Request) -> Schema | None:
    if request.format is None:
        return None
    if request.format.schema is None:
        return FREE_SCHEMA
    try:
        return checked(json.dumps(request.format.schema))
    except SchemaError as fault:
        raise invalid(f"{_SCHEMA[request.dialect]}.schema{fault.path}", fault.message) from fault


def _continues(request: Request) -> bool:
    """Whether the answer goes on from what the client began."""
    assert isinstance(request.input, Conversation)
    last = request.input.messages[-1] if request.input.messages else None
    begun = last is not None and last.role == "assistant" and request.dialect != "responses"
    return begun and any(isinstance(part, Text) and part.text for part in last.parts) if last else False


@lru_cache(maxsize=128)
def _problem(text: str) -> str:
    failed, messages = LLMatcher.validate_grammar_with_warnings(text, limits=LIMITS)
    return next(iter(str(messages[0]).splitlines()), "unknown")[:300] if failed else ""
