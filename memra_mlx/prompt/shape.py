"""Turns → the message dicts of a chat template, in an order and a form that it takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memra_mlx.prompt.conversation import Turn, join, orphan_text
from memra_mlx.prompt.tokens import Shield
from memra_mlx.prompt.traits import TemplateTraits
from memra_mlx.request import Tool, ToolCall

CUSTOM_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def fit(turns: Sequence[Turn], traits: TemplateTraits) -> list[Turn]:
    """The same conversation in an order that the template takes, every word at its place in time."""
    fitted = _place_systems(turns, traits)
    if not traits.calls:
        fitted = [_spell_calls(turn) for turn in fitted]
    if not traits.tool_role:
        fitted = [orphan_text(turn) if turn.role == "tool" else turn for turn in fitted]
    if not traits.user_after_result:
        fitted = _hang_on_results(fitted)
    if not traits.neighbours:
        fitted = _alternate(fitted)
    return fitted


def narrower(traits: TemplateTraits) -> tuple[TemplateTraits, ...]:
    """Narrower readings of a template, for conversations that it refuses in spite of what it showed at load."""
    strict = replace(traits, systems=False, late_system=False, neighbours=False, user_after_result=False)
    return strict, replace(strict, tool_role=False, calls=False)


def _place_systems(turns: Sequence[Turn], traits: TemplateTraits) -> list[Turn]:
    lead = next((n for n, turn in enumerate(turns) if turn.role != "system"), len(turns))
    first = list(turns[:lead])
    if len(first) > 1 and not traits.systems:
        first = [Turn("system", "\n\n".join(turn.text for turn in first if turn.text))]
    rest = [
        replace(turn, role="user") if turn.role == "system" and not traits.late_system else turn
        for turn in turns[lead:]
    ]
    if traits.system or not first:
        return first + rest
    words = Turn("user", "\n\n".join(turn.text for turn in first))
    if rest and rest[0].role == "user":
        return [join(words, rest[0]), *rest[1:]]
    return [words, *rest]


def _spell_calls(turn: Turn) -> Turn:
    spelled = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}' for call in turn.calls]
    return replace(turn, text="\n".join(filter(None, [turn.text, *spelled])), calls=())


def _alternate(turns: Sequence[Turn]) -> list[Turn]:
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last and last.role == turn.role and turn.role != "tool" and not (last.calls and turn.calls):
            merged[-1] = join(last, turn)
        else:
            merged.append(turn)
    spoken = next((turn for turn in merged if turn.role != "system"), None)
    if spoken is not None and spoken.role == "assistant":
        merged.insert(merged.index(spoken), Turn("user", "…"))
    return merged


def _hang_on_results(turns: Sequence[Turn]) -> list[Turn]:
    """User words behind a tool result become part of it."""
    hung: list[Turn] = []
    for turn in turns:
        if hung and hung[-1].role == "tool" and turn.role == "user":
            hung[-1] = join(hung[-1], turn)
        else:
            hung.append(turn)
    return hung


def dicts(
    turns: Sequence[Turn], traits: TemplateTraits, shield: Shield, custom: frozenset[str]
) -> list[dict[str, Any]]:
    """Template messages with shielded content. `custom` names the tools whose arguments are free text."""
    return [_message(turn, traits, shield, custom) for turn in turns]


def _message(turn: Turn, traits: TemplateTraits, shield: Shield, custom: frozenset[str]) -> dict[str, Any]:
    text = shield.text(turn.text)
    message: dict[str, Any] = {"role": turn.role, "content": [{"type": "text", "text": text}] if traits.parts else text}
    if turn.reasoning and traits.reasoning:
        message["reasoning_content"] = shield.text(turn.reasoning)
    if turn.calls:
        message["tool_calls"] = [_call(call, traits, shield, custom) for call in turn.calls]
    if turn.role == "tool":
        message["tool_call_id"] = shield.text(_id(turn.call_id, traits))
        message["name"] = shield.text(turn.name)
    return message


def _call(call: ToolCall, traits: TemplateTraits, shield: Shield, custom: frozenset[str]) -> dict[str, Any]:
    arguments = call_arguments(call, custom)
    if traits.arguments == "text":
        shown: Any = shield.text(json.dumps(arguments, ensure_ascii=False))
    else:
        shown = shield.tree(arguments)
    function = {"name": shield.text(call.name), "arguments": shown}
    return {"type": "function", "id": shield.text(_id(call.id, traits)), "function": function}


def call_arguments(call: ToolCall, custom: frozenset[str]) -> dict[str, Any]:
    """The arguments as an object: empty text is no argument, free text is `input`."""
    if call.name in custom:
        return {"input": call.arguments}
    if not call.arguments.strip():
        return {}
    try:
        parsed = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return {"input": call.arguments}
    return parsed if isinstance(parsed, dict) else {"input": call.arguments}


def _id(call_id: str, traits: TemplateTraits) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9] if traits.short_ids else call_id


def tool_dicts(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in the form that templates and mlx-lm's parsers take, not shielded."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": schema_of(tool)},
        }
        for tool in tools
    ]


def schema_of(tool: Tool) -> dict[str, Any]:
    """The schema that the model sees for a tool's arguments."""
    if tool.custom:
        return CUSTOM_SCHEMA
    return tool.parameters or {"type": "object", "properties": {}}
