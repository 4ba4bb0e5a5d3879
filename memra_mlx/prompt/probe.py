"""Finds out what a template takes by rendering small conversations and looking for their words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from memra_mlx.prompt.conversation import Turn
from memra_mlx.prompt.effort import LEVELS
from memra_mlx.prompt.shape import dicts, fit
from memra_mlx.prompt.template import REFUSALS, Template
from memra_mlx.prompt.tokens import Encoder, Shield
from memra_mlx.prompt.traits import TemplateTraits

Message = dict[str, Any]
_TOOL = {
    "type": "function",
    "function": {
        "name": "toolword",
        "description": "describe é",
        "parameters": {"type": "object", "properties": {"keyword": {"type": "string", "description": "d"}}},
    },
}
_THOUGHT = {"reasoning_content": "thoughtword"}
_CALL_ID = "call_0123456789abcdef"


class Probe:
    """One template under test. Content takes the form (`parts` or text) that the template was found to show."""

    def __init__(self, template: Template):
        self._template = template
        self.parts = False

    def render(self, messages: Sequence[Message], **variables: Any) -> str | None:
        """The rendered text, or None where the template refuses."""
        try:
            return self._template.render([self._formed(message) for message in messages], **variables)
        except REFUSALS:
            return None

    def shows(self, messages: Sequence[Message], words: Sequence[str], **variables: Any) -> bool:
        """Whether all words are rendered, in this order."""
        text = self.render(messages, **variables)
        at = 0
        for word in words:
            at = -1 if text is None else text.find(word, at)
            if at < 0:
                return False
        return True

    def _formed(self, message: Message) -> Message:
        content = message["content"]
        return message | {"content": [{"type": "text", "text": content}]} if self.parts else message


def said(role: str, content: str, **more: Any) -> Message:
    """A message in template form."""
    return {"role": role, "content": content, **more}


def called(arguments: object, call_id: str = _CALL_ID, **more: Any) -> Message:
    """An assistant turn with one call."""
    call = {"type": "function", "id": call_id, "function": {"name": "toolword", "arguments": arguments}}
    return said("assistant", "", tool_calls=[call], **more)


def answered(content: str, call_id: str = _CALL_ID) -> Message:
    """A tool result."""
    return said("tool", content, tool_call_id=call_id, name="toolword")


def probe(template: Template) -> TemplateTraits:
    """What the template takes. A few dozen renderings of some words each."""
    it = Probe(template)
    user = said("user", "userword")
    if not it.shows([user], ["userword"]):
        it.parts = True
        it.parts = it.shows([user], ["userword"])
    start = [user]
    system = it.shows([said("system", "sysword"), user], ["sysword", "userword"])
    arguments = _arguments(it, start)
    short_ids = _needs_short_ids(it, start, arguments)
    call, result = _exchange(arguments, short_ids)
    tool_text = it.render(start, tools=[_TOOL]) or ""
    return TemplateTraits(
        system=system,
        systems=_takes_systems(it, user),
        late_system=_takes_late_system(it, user),
        neighbours=_takes_neighbours(it, user),
        tool_role=it.shows([*start, call, result], ["userword", "resultword"], tools=[_TOOL]),
        tools="toolword" in tool_text,
        calls=it.shows([*start, call, result], ["userword", "argword"], tools=[_TOOL]),
        arguments=arguments,
        parts=it.parts,
        reasoning=it.shows(
            [*start, call | {"reasoning_content": "thoughtword"}, result], ["thoughtword"], tools=[_TOOL]
        ),
        short_ids=short_ids,
        switch=_switch(it, start),
        efforts=_efforts(it, start),
        ascii_json=r"\u00e9" in tool_text,
    )


def _exchange(arguments: Literal["map", "text"], short_ids: bool) -> tuple[Message, Message]:
    call_id = "abc012345" if short_ids else _CALL_ID
    given: object = {"keyword": "argword"} if arguments == "map" else '{"keyword": "argword"}'
    return called(given, call_id), answered("resultword", call_id)


def _takes_systems(it: Probe, user: Message) -> bool:
    return it.shows([said("system", "sysword"), said("system", "second"), user], ["sysword", "second", "userword"])


def _takes_late_system(it: Probe, user: Message) -> bool:
    head = [said("system", "sysword"), user]
    after_answer = [*head, said("assistant", "answer"), said("system", "late"), said("user", "more")]
    return it.shows(after_answer, ["sysword", "userword", "answer", "late", "more"]) and it.shows(
        [*head, said("system", "late")], ["sysword", "userword", "late"]
    )


def _takes_neighbours(it: Probe, user: Message) -> bool:
    answers = [user, said("assistant", "answer"), said("assistant", "another"), said("user", "more")]
    return it.shows([user, said("user", "more")], ["userword", "more"]) and it.shows(
        answers, ["userword", "answer", "another", "more"]
    )


def _arguments(it: Probe, start: list[Message]) -> Literal["map", "text"]:
    """A template that prints a dict as Python does, or can't take it, wants text."""
    for call_id in (_CALL_ID, "abc012345"):
        as_map = it.render([*start, called({"keyword": "argword"}, call_id), answered("r", call_id)], tools=[_TOOL])
        as_text = it.render([*start, called('{"keyword": "argword"}', call_id), answered("r", call_id)], tools=[_TOOL])
        if as_map is not None and "argword" in as_map and "'keyword'" not in as_map:
            return "map"
        if as_text is not None and "argword" in as_text:
            return "text"
    return "map"


def _needs_short_ids(it: Probe, start: list[Message], arguments: Literal["map", "text"]) -> bool:
    long, short = ([*start, *_exchange(arguments, short_ids)] for short_ids in (False, True))
    return it.render(long, tools=[_TOOL]) is None and it.render(short, tools=[_TOOL]) is not None


def _switch(it: Probe, start: list[Message]) -> Literal["enable_thinking", "thinking"] | None:
    names: tuple[Literal["enable_thinking", "thinking"], ...] = ("enable_thinking", "thinking")
    for name in names:
        if it.render(start, **{name: True}) != it.render(start, **{name: False}):
            return name
    return None


def _efforts(it: Probe, start: list[Message]) -> tuple[str, ...]:
    """Levels that the template takes and tells apart. A template that only prints the word knows low to high."""
    shown = {name: text for name in LEVELS if (text := it.render(start, reasoning_effort=name)) is not None}
    if len(set(shown.values())) < 2:
        return ()
    if "none" in shown and "low" in shown and shown["none"] == shown["low"].replace("low", "none"):
        return tuple(name for name in ("low", "medium", "high") if name in shown)
    return tuple(shown)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """`openers`: the control tokens that begin a turn; `generation`: what the template writes before an answer."""

    openers: frozenset[int]
    generation: str


def _talk(template: Template, traits: TemplateTraits, words: Sequence[str], shield: Shield) -> str:
    roles: tuple[Literal["system", "user", "assistant"], ...] = ("system", "user", "assistant")
    turns = [Turn(roles[n % 3] if n < 3 else "user", word) for n, word in enumerate(words)]
    return template.render(dicts(fit(turns, traits), traits, shield, frozenset()))


def sample(template: Template, traits: TemplateTraits) -> str | None:
    """A rendered conversation that is awkward for a tokenizer; None where the template refuses even that."""
    words = ("  Grüße, 世界 🦙\n\n", "\n a\tb  ", "x  \n", " — ça va ?\n\n\n")
    try:
        return _talk(template, traits, words, Shield(()))
    except REFUSALS:
        return None


def boundaries(template: Template, traits: TemplateTraits, encoder: Encoder, ignored: frozenset[int]) -> Boundaries:
    """Looks at what stands between the words of a small conversation. Control tokens in `ignored` begin no turn."""
    words = ("sysword", "userword", "answerword", "lastword")
    try:
        text = _talk(template, traits, words, encoder.shield)
    except REFUSALS:
        return Boundaries(frozenset(), "")
    openers = set()
    for before, after in pairwise(words):
        seam = text[text.find(before) + len(before) : text.find(after)]
        # Of two or more, the first one ends the turn before.
        marks = [i for i in encoder.encode(seam).controls.values() if i not in ignored][:2]
        openers.update(marks[-1:])
    return Boundaries(frozenset(openers), text[text.find(words[-1]) + len(words[-1]) :])
