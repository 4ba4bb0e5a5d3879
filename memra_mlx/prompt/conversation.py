"""Messages of a request → turns: one flat value a message, every tool result behind its call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from memra_mlx.errors import invalid
from memra_mlx.request import Dialect, Image, Message, Reasoning, Role, Text, ToolCall, ToolResult

IMAGE_NOTE = "[image omitted: this model reads text only]"
IMAGE_WARNING = "images in tool results were replaced by a note: this model reads text only"


@dataclass(frozen=True, slots=True)
class Turn:
    """A message as templates see it. `call_id` and `name` belong to results (role `tool`) alone; `sealed` is opaque
    reasoning state of ours or of others, which no template sees."""

    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    sealed: tuple[str, ...] = ()


def field_of(dialect: Dialect) -> str:
    """The request field that holds the conversation."""
    return "input" if dialect == "responses" else "messages"


def turns(messages: Iterable[Message], dialect: Dialect) -> tuple[list[Turn], list[str]]:
    """Turns in order, results paired with their calls, and warnings. Raises a 400 for an image outside a result."""
    flat: list[Turn] = []
    warnings: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult) and any(isinstance(p, Image) for p in part.parts):
                warnings.append(IMAGE_WARNING)
        flat.extend(_flatten(message, field_of(dialect)))
    return join_assistants(_pair(flat)), warnings[:1]


def _flatten(message: Message, field: str) -> Iterator[Turn]:
    texts: list[str] = []
    thoughts: list[str] = []
    sealed: list[str] = []
    calls: list[ToolCall] = []
    results: list[Turn] = []
    for part in message.parts:
        match part:
            case Text(text):
                texts.append(text)
            case Reasoning(text=text, sealed=state):
                thoughts.append(text)
                sealed += [state] if state else []
            case ToolCall():
                calls.append(part)
            case ToolResult():
                results.append(Turn("tool", _result_text(part), call_id=part.call_id))
            case Image():
                raise invalid(
                    field, "an image was sent, this model reads text only; leave it out or use a vision model"
                )
            case _:
                assert_never(part)
    yield from results
    if message.role != "tool":
        thought = "\n".join(filter(None, thoughts))
        yield Turn(message.role, "\n".join(texts), thought, tuple(calls), sealed=tuple(sealed))


def _result_text(result: ToolResult) -> str:
    text = "\n".join(part.text if isinstance(part, Text) else IMAGE_NOTE for part in result.parts)
    if result.is_error and "error" not in text.lower():
        return f"Error: {text}"
    return text


def _pair(flat: list[Turn]) -> list[Turn]:
    """Results right behind the turn that called, in the order of its calls; one without a call becomes user text."""
    answers: dict[tuple[int, int], Turn] = {}
    early: list[int] = []
    unanswered: list[tuple[int, int, ToolCall]] = []
    placed: set[int] = set()
    for at, turn in enumerate(flat):
        unanswered.extend((at, n, call) for n, call in enumerate(turn.calls))
        if turn.role == "tool" and (slot := _find(unanswered, turn.call_id)) is not None:
            answers[slot[:2]] = replace(turn, name=slot[2].name, call_id=_call_id(slot))
            unanswered.remove(slot)
            placed.add(at)
        elif turn.role == "tool":
            early.append(at)
    for at in early:
        slot = next((s for s in unanswered if s[2].id and s[2].id == flat[at].call_id), None)
        if slot is not None:
            answers[slot[:2]] = replace(flat[at], name=slot[2].name, call_id=_call_id(slot))
            unanswered.remove(slot)
            placed.add(at)
    return list(_ordered(flat, answers, placed))


def _find(unanswered: list[tuple[int, int, ToolCall]], call_id: str) -> tuple[int, int, ToolCall] | None:
    if call_id:
        return next((slot for slot in reversed(unanswered) if slot[2].id == call_id), None)
    return next((slot for slot in unanswered if slot[0] == unanswered[-1][0]), None)


def _call_id(slot: tuple[int, int, ToolCall]) -> str:
    return slot[2].id or f"call_{slot[0]}_{slot[1]}"


def _ordered(flat: list[Turn], answers: dict[tuple[int, int], Turn], placed: set[int]) -> Iterator[Turn]:
    for at, turn in enumerate(flat):
        if at in placed:
            continue
        if turn.role == "tool":
            yield orphan_text(turn)
            continue
        calls = tuple(replace(call, id=_call_id((at, n, call))) for n, call in enumerate(turn.calls))
        yield replace(turn, calls=calls)
        yield from (answers[at, n] for n in range(len(calls)) if (at, n) in answers)


def orphan_text(turn: Turn) -> Turn:
    """A tool result as the user's words, for those whose call is not there, and for templates without a tool role."""
    of = f" of {turn.name}" if turn.name else f" {turn.call_id}" if turn.call_id else ""
    return Turn("user", f"Tool result{of}:\n{turn.text}")


def join_assistants(flat: list[Turn]) -> list[Turn]:
    """Assistant items in a row are one turn as it was generated, unless two of them speak."""
    joined: list[Turn] = []
    for turn in flat:
        last = joined[-1] if joined else None
        if last and last.role == turn.role == "assistant" and not (last.text and turn.text):
            joined[-1] = join(last, turn)
        else:
            joined.append(turn)
    return joined


def join(first: Turn, second: Turn) -> Turn:
    """Two turns of one role as one."""
    return replace(
        first,
        text="\n\n".join(filter(None, (first.text, second.text))),
        reasoning="\n".join(filter(None, (first.reasoning, second.reasoning))),
        calls=first.calls + second.calls,
        sealed=first.sealed + second.sealed,
    )
