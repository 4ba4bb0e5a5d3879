"""The text of a conversation behind an answer, without knowing the template: render it all with a sentinel in place of
the answer, and take what follows.

A text is replaced whole. Of a turn that calls, the last string argument of the last call is replaced, and the suffix
begins behind the mark that ends a call block, or where the turn ends if there is no such mark. Whether that is really
what the template writes behind an answer is checked once at load, for each kind of turn.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from memra_mlx.errors import ApiError
from memra_mlx.prompt.conversation import Turn
from memra_mlx.prompt.shape import call_arguments
from memra_mlx.request import Conversation, Request, Tool, ToolCall

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Kind = Literal["text", "calls"]
Render = Callable[[Sequence[Turn], Request, bool], str]

log = logging.getLogger("memra.prompt")

# Letters and digits, which no template trims or escapes and no content holds by accident.
SENTINEL = f"zq{secrets.token_hex(12)}qz"
_WORD = "answerword"
_TOOL = Tool(
    "toolword", "d", {"type": "object", "properties": {"keyword": {"type": "string"}, "n": {"type": "number"}}}
)
_CALL = ToolCall("call_0123456789abcdef", "toolword", json.dumps({"keyword": _WORD, "n": 3}))
_ASKED = (Turn("system", "sysword"), Turn("user", "userword"))
_RESULT = Turn("tool", "resultword", call_id=_CALL.id, name="toolword")
_MORE = Turn("user", "more")
_SAMPLES: dict[Kind, tuple[Turn, tuple[tuple[Turn, ...], ...]]] = {
    "text": (Turn("assistant", _WORD), ((_MORE,),)),
    "calls": (Turn("assistant", calls=(_CALL,)), ((_RESULT,), (_RESULT, Turn("assistant", "done"), _MORE))),
}


@dataclass(frozen=True, slots=True)
class Known:
    """The exact tokens of a conversation up to the end of an answer. `ends` are offsets at which state is worth
    keeping."""

    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


def call_end(tokenizer: TokenizerWrapper, style: str | None) -> str:
    """What ends a block of calls; "" where nothing does."""
    if style == "harmony":
        return "<|call|>"
    return str(tokenizer.tool_call_end) if style and tokenizer.tool_call_end else ""


def kind_of(turn: Turn) -> Kind:
    """How the suffix of an answer is found."""
    return "calls" if turn.calls else "text"


class Suffixes:
    """Suffixes of one template. `render` takes turns, their request, and whether the last of them is to be continued;
    `call_end` ends a block of calls, "" where nothing does; `eos` are the texts that end a
    turn. `kinds` are the turns whose suffix is known to be exact."""

    def __init__(self, render: Render, call_end: str, eos: Collection[str]) -> None:
        self._render = render
        self._call_end = "" if call_end in eos else call_end
        self._eos = [mark for mark in (*eos, call_end) if mark and mark != self._call_end]
        kinds: tuple[Kind, ...] = ("text", "calls")
        self.kinds = frozenset(kind for kind in kinds if self._exact(kind))
        for kind in kinds:
            if kind not in self.kinds:
                log.info("the template shows no exact suffix behind %s turns, they are rendered anew", kind)

    def of(self, spoken: Sequence[Turn], at: int, request: Request, continued: bool, tail: str) -> str | None:
        """What is rendered behind the answer that ends before turn `at`; None where that can't be told. `tail` is how
        the answer really ended: what of it the template would repeat is left out."""
        text = self._behind(spoken, at, request, continued) if kind_of(spoken[at - 1]) in self.kinds else None
        if text is None or not spoken[at - 1].calls:
            return text
        said = tail.rpartition(self._call_end)[2].strip() if self._call_end and self._call_end in tail else ""
        led = text.lstrip()
        return led[len(said) :] if said and led.startswith(said) else text

    def _behind(self, spoken: Sequence[Turn], at: int, request: Request, continued: bool = False) -> str | None:
        turn = spoken[at - 1]
        try:
            full = self._render([*spoken[: at - 1], _marked(turn, request), *spoken[at:]], request, continued)
        except ApiError:
            return None
        _, mark, text = full.partition(SENTINEL)
        if not mark or SENTINEL in text:
            return None
        return self._cut(text) if turn.calls else text

    def _cut(self, text: str) -> str | None:
        """Behind the mark that ends a call, or from the mark on that ends the turn."""
        if self._call_end:
            _, mark, rest = text.partition(self._call_end)
            return rest if mark else None
        found = [at for mark in self._eos if (at := text.find(mark)) >= 0]
        return text[min(found) :] if found else None

    def _exact(self, kind: Kind) -> bool:
        answer, followings = _SAMPLES[kind]
        request = Request("chat", "", Conversation(()), tools=(_TOOL,) if kind == "calls" else ())
        return all(self._holds([*_ASKED, answer, *following], request, kind) for following in followings)

    def _holds(self, spoken: Sequence[Turn], request: Request, kind: Kind) -> bool:
        """Whether the suffix of a sample is the end of its full rendering, with the whole answer before it."""
        rest = self._behind(spoken, len(_ASKED) + 1, request)
        if not rest:
            return False
        try:
            full = self._render(spoken, request, False)
        except ApiError:
            return False
        before = full.removesuffix(rest)
        ended = before.endswith(_WORD) if kind == "text" else before.endswith(self._call_end) and _WORD in before
        return before != full and ended and _WORD not in rest


def _marked(turn: Turn, request: Request) -> Turn:
    """The answer with the sentinel in it."""
    if not turn.calls:
        return replace(turn, text=SENTINEL, reasoning="")
    *others, last = turn.calls
    return replace(turn, reasoning="", calls=(*others, replace(last, arguments=_probing(last, request))))


def _probing(call: ToolCall, request: Request) -> str:
    """Arguments with the sentinel as their only value; a call without a text argument gets one."""
    custom = frozenset(tool.name for tool in request.tools if tool.custom)
    if call.name in custom:
        return SENTINEL
    names = [name for name, value in call_arguments(call, custom).items() if isinstance(value, str)]
    return json.dumps({names[-1] if names else "input": SENTINEL})
