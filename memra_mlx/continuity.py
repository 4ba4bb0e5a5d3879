"""From a request to its prompt, by way of what is known of the conversation.

The longest beginning that ends in an answer and has a transcript is taken as the exact tokens that it was, hidden
reasoning included; what follows it is rendered. Without one the prompt is the template's rendering of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from memra_mlx import replay
from memra_mlx.cache.canonical import Chain, chain, digest_of_system, digest_of_tools, fold
from memra_mlx.cache.transcripts import Space, Transcript, closest, packed
from memra_mlx.errors import context_overflow
from memra_mlx.prompt.conversation import Turn, turns
from memra_mlx.prompt.suffix import Known
from memra_mlx.prompt.text_model import Prompt
from memra_mlx.request import Conversation, Request
from memra_mlx.thread import Keeping, Match, Place, Thread

Law = Literal["keep", "template"]


@dataclass(frozen=True, slots=True)
class Settings:
    """`law` decides whether hidden reasoning stays in history (`keep`) or goes as the template says. `context` is the
    model's window in tokens."""

    context: int
    law: Law = "keep"


class History:
    """What one model knows of conversations. Blocking; callable from several threads."""

    def __init__(self, keeping: Keeping, fingerprint: str, settings: Settings) -> None:
        self._keeping = keeping
        self._text = keeping.text
        self._store = keeping.store
        self._fingerprint = fingerprint
        self._settings = settings

    def prompt(self, request: Request, namespace: str) -> Prompt:
        """The prompt of a request, with the thread that follows its answer. Raises a 400 for what this model can't take
        or can't continue."""
        if not isinstance(request.input, Conversation):
            return self._text.prompt(request)
        space = Space(namespace, self._fingerprint)
        if request.dialect == "responses" and (orphans := replay.orphans(request.input.messages)):
            return self._from_outputs(request, space, orphans)
        return self._from_history(request, space, request.input)

    def _from_history(self, request: Request, space: Space, conversation: Conversation) -> Prompt:
        spoken, warnings = turns(conversation.messages, request.dialect)
        told = chain(spoken, request.tools, self._text.switches(request))
        place = _place(request, space, spoken, told)
        at, transcript = self._known(space, spoken, told)
        if request.dialect == "responses" and self._text.thinks:
            replay.refuse_without_reasoning(request, spoken[at:])
        sealed = self._sealed(space, spoken, at)
        known = Known(transcript.ids, transcript.ends) if transcript else Known()
        if sealed and (prompt := self._fitting(request, spoken, at, known, sealed)):
            behind = at if transcript else max(sealed) + 1
            match = Match("visible" if transcript else "sealed", replay.answered(spoken[behind:]), True)
            return self._with(request, prompt, place, match, warnings)
        if transcript and (prompt := self._fitting(request, spoken, at, known, {})):
            match = Match("visible", replay.answered(spoken[at:]), transcript.reasoned)
            return self._with(request, prompt, place, match, warnings)
        return self._with(request, self._text.prompt(request), place, Match())

    def _fitting(
        self, request: Request, spoken: Sequence[Turn], at: int, known: Known, sealed: dict[int, list[int]]
    ) -> Prompt | None:
        """The prompt behind what is known, unless the template doesn't allow it or it is too long."""
        prompt = self._text.continued(request, spoken, at, known, sealed)
        return prompt if prompt and len(prompt.ids) < self._settings.context else None

    def _sealed(self, space: Space, spoken: Sequence[Turn], at: int) -> dict[int, list[int]]:
        """The tokens with which turns from `at` on begin, where their reasoning came back sealed."""
        if self._settings.law != "keep":
            return {}
        opened = {n: self._opened(space, turn) for n, turn in enumerate(spoken) if n >= at and turn.sealed}
        return {n: max(states, key=len) for n, states in opened.items() if states and self._text.splices(spoken[n])}

    def _opened(self, space: Space, turn: Turn) -> list[list[int]]:
        sealer = self._keeping.sealer
        if sealer is None:
            return []
        states = (sealer.open(space, text, self._settings.context) for text in turn.sealed)
        return [ids for ids in states if ids and max(ids) < self._text.vocab_size]

    def _known(self, space: Space, spoken: Sequence[Turn], told: Chain) -> tuple[int, Transcript | None]:
        """The longest beginning that has a transcript, in turns."""
        for at in reversed(told.ends):
            if not self._store.knows_visible(space, told.keys[at]):
                continue
            found = [t for t in self._store.visible(space, told.keys[at]) if self._lawful(t)]
            states = [packed(ids) for ids in self._opened(space, spoken[at - 1])] if len(found) > 1 else []
            if (best := closest(found, [call.id for call in spoken[at - 1].calls], states)) is not None:
                return at, best
        return 0, None

    def _from_outputs(self, request: Request, space: Space, orphans: Sequence[str]) -> Prompt:
        """Tool outputs alone, which go on from the answer that made the calls."""
        assert isinstance(request.input, Conversation)
        found = replay.called(self._store, space, orphans)
        replay.check_outputs_alone(request, orphans, found)
        spoken, warnings = turns(replay.answered_by(found, request.input.messages), request.dialect)
        prompt = self._text.continued(request, spoken, replay.AT, Known(found.ids, found.ends))
        if prompt is None:
            raise replay.needs_full_input(orphans[0], "this model's template can't go on from a call alone")
        if len(prompt.ids) >= self._settings.context:
            raise context_overflow(len(prompt.ids), self._settings.context, "input")
        told = fold(found.visible, spoken[replay.AT :])
        place = replace(_place(request, space, spoken, told), system=found.system, tools=found.tools)
        return self._with(request, prompt, place, Match("call-ids", len(orphans), found.reasoned), warnings)

    def _lawful(self, transcript: Transcript) -> bool:
        return self._settings.law == "keep" or not transcript.reasoned

    def _with(
        self, request: Request, prompt: Prompt, place: Place, match: Match, warnings: Sequence[str] = ()
    ) -> Prompt:
        seals = request.dialect == "messages" or request.sealed_reasoning
        thread = Thread(self._keeping, place, match, seals=seals)
        return replace(prompt, thread=thread, warnings=(*warnings, *prompt.warnings))


def _place(request: Request, space: Space, spoken: Sequence[Turn], told: Chain) -> Place:
    begun = 0
    while begun < len(spoken) and spoken[len(spoken) - 1 - begun].role == "assistant":
        begun += 1
    behind = len(spoken) - begun
    return Place(
        space=space,
        key=told.keys[len(told.keys) - 1 - begun],
        begun=tuple(spoken[behind:]),
        system=digest_of_system(spoken),
        tools=digest_of_tools(request.tools),
        history=bool(told.ends),
    )
