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
_FORMS: tuple[Literal["map", "text"], ...] = ("map", "text")


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


def probe(template: Template) -> TemplateTraits:
    """What the template takes. A few dozen renderings of some words each."""
    it = Probe(template)
    user = said("user", "userword")
    if not it.shows([user], ["userword"]):
        it.parts = True
        it.parts = it.shows([user], ["userword"])
    exchange = _exchange(it, user)
    call, result = exchange.call, exchange.result
    tool_text = it.render([user], tools=[_TOOL]) or ""
    tool_role = it.shows([user, call, result], ["userword", "resultword"], tools=[_TOOL])
    after = result if tool_role else said("user", "more")
    return TemplateTraits(
        system=it.shows([said("system", "sysword"), user], ["sysword", "userword"]),
        systems=_takes_systems(it, user),
        late_system=_takes_late_system(it, user),
        neighbours=_takes_neighbours(it, user),
        tool_role=tool_role,
        user_after_result=it.shows([user, call, result, said("user", "more")], ["userword", "more"], tools=[_TOOL]),
        tools="toolword" in tool_text,
        calls=it.shows([user, call, after], ["userword", "argword"], tools=[_TOOL]),
        arguments=exchange.arguments,
        parts=it.parts,
        reasoning=it.shows([user, call | _THOUGHT, after], ["thoughtword"], tools=[_TOOL]),
        short_ids=exchange.short_ids,
        switch=_switch(it, user),
        efforts=_efforts(it, user),
        ascii_json=r"\u00e9" in tool_text,
    )


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A call and its result in the form that the template takes."""

    arguments: Literal["map", "text"]
    short_ids: bool

    @property
    def call_id(self) -> str:
        return "abc012345" if self.short_ids else "call_0123456789abcdef"

    @property
    def call(self) -> Message:
        given: object = {"keyword": "argword"} if self.arguments == "map" else '{"keyword": "argword"}'
        function = {"name": "toolword", "arguments": given}
        return said("assistant", "", tool_calls=[{"type": "function", "id": self.call_id, "function": function}])

    @property
    def result(self) -> Message:
        return said("tool", "resultword", tool_call_id=self.call_id, name="toolword")


def _exchange(it: Probe, user: Message) -> _Exchange:
    """The first form that is shown, and not as Python prints a dict."""
    forms = [_Exchange(arguments, short) for short in (False, True) for arguments in _FORMS]
    for with_result in (True, False):
        for form in forms:
            after = form.result if with_result else said("user", "more")
            text = it.render([user, form.call, after], tools=[_TOOL]) or ""
            if "argword" in text and "'keyword'" not in text:
                return form
    return forms[0]


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


def _switch(it: Probe, user: Message) -> Literal["enable_thinking", "thinking"] | None:
    names: tuple[Literal["enable_thinking", "thinking"], ...] = ("enable_thinking", "thinking")
    for name in names:
        if it.render([user], **{name: True}) != it.render([user], **{name: False}):
            return name
    return None


def _efforts(it: Probe, user: Message) -> tuple[str, ...]:
    """Levels that the template takes and tells apart. A template that only prints the word knows low to high."""
    shown = {name: text for name in LEVELS if (text := it.render([user], reasoning_effort=name)) is not None}
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


def boundaries(
    template: Template, traits: TemplateTraits, encoder: Encoder, reasoning_marks: Sequence[str]
) -> Boundaries:
    """Looks at what stands between the words of a small conversation."""
    words = ("sysword", "userword", "answerword", "lastword")
    try:
        text = _talk(template, traits, words, encoder.shield)
    except REFUSALS:
        return Boundaries(frozenset(), "")
    openers = set()
    ignored = {i for mark in reasoning_marks for i in encoder.encode(mark).controls.values()}
    for before, after in pairwise(words):
        seam = text[text.find(before) + len(before) : text.find(after)]
        # Of two or more, the first one ends the turn before.
        marks = [i for i in encoder.encode(seam).controls.values() if i not in ignored][:2]
        openers.update(marks[-1:])
    return Boundaries(frozenset(openers), text[text.find(words[-1]) + len(words[-1]) :])


def switches_history(template: Template, traits: TemplateTraits) -> bool:
    """Whether the variables that steer reasoning change what is rendered of the turns before the answer."""
    values: list[dict[str, Any]] = [{traits.switch: on} for on in (True, False)] if traits.switch else []
    values += [{"reasoning_effort": name} for name in traits.efforts]
    it = Probe(template)
    it.parts = traits.parts
    talk = [said("system", "sysword"), said("user", "userword"), said("assistant", "answer"), said("user", "more")]
    return len({it.render(talk, generate=False, **variables) for variables in values}) > 1
