"""Sealed reasoning back in its place: the tokens of an answer's beginning stand where its header was, and the rest of
the answer follows as the template renders it.

A sentinel before the words of the answer shows where they begin. Sealed tokens start at the control token that opens
the turn, so what was rendered from there to the sentinel gives way to them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memra_mlx.errors import ApiError
from memra_mlx.prompt.conversation import Turn
from memra_mlx.prompt.suffix import Kind, Render, kind_of
from memra_mlx.prompt.tokens import Encoded, Encoder
from memra_mlx.request import Conversation, Request, Tool, ToolCall

SENTINEL = f"zs{secrets.token_hex(12)}sz"
_TOOL = Tool("toolword", "d", {"type": "object", "properties": {"keyword": {"type": "string"}}})
_CALL = ToolCall("call_0123456789abcdef", "toolword", json.dumps({"keyword": "argword"}))
_USER = Turn("user", "userword")
_SAMPLES: dict[Kind, tuple[Turn, Turn, tuple[str, ...]]] = {
    "text": (Turn("assistant", "answerword"), Turn("user", "more"), ("answerword", "more")),
    "calls": (
        Turn("assistant", calls=(_CALL,)),
        Turn("tool", "resultword", call_id=_CALL.id, name="toolword"),
        ("toolword", "argword", "resultword"),
    ),
}


@dataclass(frozen=True, slots=True)
class Frame:
    """How a template frames an answer: `openers` are the control tokens that begin a turn, `generation` is what is
    written before an answer; the marks of reasoning are None where there are none."""

    openers: tuple[str, ...]
    generation: str
    think_start: str | None
    think_end: str | None

    def words(self, text: str) -> str:
        """Text without marks of reasoning and without white space."""
        for mark in (self.think_start, self.think_end):
            text = text.replace(mark, "") if mark else text
        return "".join(text.split())

    def opener(self, text: str) -> int:
        """Where the last turn of `text` is opened; -1 where none is."""
        return max((text.rfind(literal) for literal in self.openers), default=-1)


class Splice:
    """Puts sealed tokens into rendered text. `kinds` are the turns for which that is known to work."""

    def __init__(self, render: Render, encoder: Encoder, frame: Frame) -> None:
        self._render = render
        self._encoder = encoder
        self._frame = frame
        self._header = frame.words(frame.generation[max(0, frame.opener(frame.generation)) :])
        self._gap = self._between_thought_and_words()
        kinds: tuple[Kind, ...] = ("text", "calls")
        self.kinds = frozenset(kind for kind in kinds if self._works(kind))

    def takes(self, turn: Turn) -> bool:
        """Whether sealed tokens can be put before what is left of this turn."""
        return turn.role == "assistant" and kind_of(turn) in self.kinds

    def marked(self, spoken: Sequence[Turn], sealed: Mapping[int, list[int]]) -> list[Turn]:
        """The turns with a sentinel in those whose numbers are in `sealed`."""
        return [_marked(turn) if n in sealed else turn for n, turn in enumerate(spoken)]

    def encode(self, text: str, turns: Sequence[Turn], sealed: Sequence[list[int]]) -> Encoded | None:
        """Tokens of a rendering of `marked` turns, of which `turns` were marked; None where a sentinel is not where it
        should be."""
        parts = text.split(SENTINEL)
        if len(parts) != len(turns) + 1:
            return None
        for n, turn in enumerate(turns, 1):
            parts[n] = self._gap + (parts[n] if turn.text.strip() else parts[n].lstrip())
        ids: list[int] = []
        controls: dict[int, int] = {}

        def add(part: str) -> None:
            encoded = self._encoder.encode(part)
            controls.update({len(ids) + at: i for at, i in encoded.controls.items()})
            ids.extend(encoded.ids)

        for part, tokens in zip(parts[:-1], sealed, strict=True):
            at = self._frame.opener(part)
            if at < 0 or self._frame.words(part[at:]) != self._header:
                return None
            add(part[:at])
            ids.extend(tokens)
        add(parts[-1])
        return Encoded(ids, controls)

    def _between_thought_and_words(self) -> str:
        """What stands between a thought and the words after it where the template shows both."""
        end = self._frame.think_end
        answer = Turn("assistant", "answerword", reasoning="thoughtword")
        text = self._rendered([_USER, answer], ())
        if end and text and "thoughtword" in text and (seam := text.partition("thoughtword")[2].partition(end)[2]):
            gap = seam.partition("answerword")[0]
            return gap if gap.isspace() else ""
        return "\n\n" if end else ""

    def _works(self, kind: Kind) -> bool:
        answer, after, words = _SAMPLES[kind]
        marked = _marked(answer)
        text = self._rendered([_USER, marked, after], (_TOOL,) if kind == "calls" else ())
        if text is None or self._frame.think_end is None:
            return False
        rest = text.partition(SENTINEL)[2]
        places = [rest.find(word) for word in words]
        return -1 not in places and places == sorted(places) and self.encode(text, [answer], [[]]) is not None

    def _rendered(self, spoken: Sequence[Turn], tools: tuple[Tool, ...]) -> str | None:
        try:
            return self._render(spoken, Request("chat", "", Conversation(()), tools=tools), False)
        except ApiError:
            return None


def _marked(turn: Turn) -> Turn:
    return replace(turn, text=SENTINEL + turn.text, reasoning="")
