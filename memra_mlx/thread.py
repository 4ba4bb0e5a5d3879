"""One generation as a step of its conversation: what it continues, and what the next request will find of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from memra_mlx import logs
from memra_mlx.cache.canonical import Key, extended
from memra_mlx.cache.seal import Sealer
from memra_mlx.cache.transcripts import Space, Transcript, Transcripts, packed
from memra_mlx.engine.channel import Message
from memra_mlx.engine.protocol import Started, Token
from memra_mlx.events import BlockDelta, BlockEnd, BlockKind, BlockStart, Event, Finish
from memra_mlx.prompt.conversation import Turn
from memra_mlx.prompt.parser import OutputParser
from memra_mlx.prompt.text_model import Prompt, TextModel
from memra_mlx.request import ToolCall

log = logging.getLogger("memra.continuity")


@dataclass(frozen=True, slots=True)
class Match:
    """How the beginning of a prompt was found: by the visible transcript, by call ids alone, by sealed state, or not at
    all (`tokens`: the template's rendering, of which the engine may know a prefix). `ids` counts the calls that it
    answers; `reasoned`: hidden reasoning came with it."""

    by: str = "tokens"
    ids: int = 0
    reasoned: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a conversation an answer stands: behind `key`, and behind `begun`, turns of the same answer that the
    client sent. `system` and `tools` are digests of how it began."""

    space: Space
    key: Key
    begun: tuple[Turn, ...]
    system: str
    tools: str
    history: bool  # there were answers before


@dataclass(slots=True)
class _Said:
    kind: BlockKind
    name: str
    call_id: str
    pieces: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where transcripts go, and who seals reasoning (None: it is not sealed)."""

    text: TextModel
    store: Transcripts
    sealer: Sealer | None = None


class Thread:
    """Follows one generation: seals its reasoning, and stores its transcript before its end is told."""

    def __init__(self, keeping: Keeping, place: Place, match: Match, *, seals: bool) -> None:
        self._keeping = keeping
        self._text = keeping.text
        self._store = keeping.store
        self._sealer = keeping.sealer if seals else None
        self._place = place
        self.match = match
        self._tokens: list[int] = []
        self._said: list[_Said] = []

    def another(self) -> Thread:
        """One that follows another answer to the same prompt."""
        return Thread(self._keeping, self._place, self.match, seals=self._sealer is not None)

    async def follow(
        self, prompt: Prompt, parser: OutputParser, messages: Sequence[Message], events: Sequence[Event]
    ) -> list[Event]:
        """What came from the engine, and what the parser made of it; returns that with its seals."""
        for message in messages:
            match message:
                case Started():
                    self._tell(prompt, message)
                case Token(token=token):
                    self._tokens.append(token)
        out = []
        for event in events:
            match event:
                case BlockStart(kind=kind, name=name, call_id=call_id):
                    self._said.append(_Said(kind, name, call_id))
                case BlockDelta(text=text):
                    self._said[-1].pieces.append(text)
                case BlockEnd(index=index) if self._sealer and self._said[-1].kind == "reasoning":
                    event = BlockEnd(index, self._seal(self._sealer, prompt, parser))
                case Finish():
                    await asyncio.to_thread(self._keep, prompt, parser, event)
            out.append(event)
        return out

    def _tell(self, prompt: Prompt, started: Started) -> None:
        if self.match.by == "tokens" and not (self._place.history and started.cached):
            return
        source = "recompute" if started.source == "none" else started.source
        sizes = {"ids": self.match.ids, "cached": started.cached, "prompt": len(prompt.ids)}
        logs.line(log, "continuation", match=self.match.by, **sizes, source=source)

    def _seal(self, sealer: Sealer, prompt: Prompt, parser: OutputParser) -> str:
        """All tokens of the turn up to the end of this segment. Reasoning behind words or calls stays unsealed: where
        in the turn it belongs could not be told when it comes back."""
        count = len(self._said)
        early = all(said.kind == "reasoning" for said in self._said) and not self._place.begun
        if not early or len(parser.thoughts) < count or not 0 <= prompt.opened < len(prompt.ids):
            return ""
        thought = self._text.answer_ids(self._tokens, 0, parser.thoughts[count - 1], calls=False) or []
        return sealer.seal(self._place.space, [*prompt.ids[prompt.opened :], *thought])

    def _keep(self, prompt: Prompt, parser: OutputParser, finish: Finish) -> None:
        answer = Turn("assistant", "\n".join(self._texts()), calls=tuple(self._calls()))
        last = self._said[-1].kind if self._said else "reasoning"
        if last == "reasoning" or (finish.reason == "length" and last == "tool"):
            return
        ids = self._text.answer_ids(self._tokens, parser.visible_tokens, parser.cut, bool(answer.calls))
        if ids is None:
            return
        place = self._place
        transcript = Transcript(
            tokens=packed([*prompt.ids, *ids]),
            ends=prompt.segment_ends,
            calls=[(call.id, call.name) for call in answer.calls],
            reasoned=self.match.reasoned or finish.usage.reasoning > 0,
            visible=extended(place.key, [*place.begun, answer]),
            system=place.system,
            tools=place.tools,
        )
        self._store.keep(place.space, transcript)

    def _texts(self) -> list[str]:
        return ["".join(said.pieces) for said in self._said if said.kind == "text"]

    def _calls(self) -> list[ToolCall]:
        return [ToolCall(said.call_id, said.name, "".join(said.pieces)) for said in self._said if said.kind == "tool"]
