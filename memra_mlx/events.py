"""The event stream that every generation is, and its fold.

One union of small values; the legal orders are the table `LEGAL`. Blocks are bracketed and at most one is open, since
the richest protocols (messages, responses) need the brackets and chat drops them easily. A non-streaming answer is
`fold` over the same events: there is no second path.

    Begin (BlockStart BlockDelta* BlockEnd)* (Finish | Fail)      Fail may come at any point, also first
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from memra_mlx.errors import ApiError

BlockKind = Literal["text", "reasoning", "tool"]
FinishReason = Literal["end_turn", "length", "stop", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability (natural log) of one generated token, with its best alternatives."""

    token: str
    token_id: int
    logprob: float
    top: tuple[tuple[str, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens: `prompt` includes `cached`; `completion` includes `reasoning`."""

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """Admitted and started. `cached` is what was really resumed (0 if the stream had to begin before it was known)."""

    id: str
    model: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class BlockStart:
    """A block opens. `call_id` and `name` (as shown to the model) belong to tool blocks alone."""

    index: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """More text of the open block; for a tool block a piece of its JSON arguments (or a custom tool's raw input)."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """The open block closes. `seal` is the opaque state of a reasoning block, empty elsewhere."""

    index: int
    seal: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a good stream. `stop_sequence` is the stop string that matched, for reason `stop`."""

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The end of a stream that broke. A block may still be open."""

    error: ApiError


Event = Begin | BlockStart | BlockDelta | BlockEnd | Finish | Fail
State = Literal["idle", "between", "open", "over"]

LEGAL: dict[tuple[State, type], State] = {
    ("idle", Begin): "between",
    ("idle", Fail): "over",
    ("between", BlockStart): "open",
    ("between", Finish): "over",
    ("between", Fail): "over",
    ("open", BlockDelta): "open",
    ("open", BlockEnd): "between",
    ("open", Fail): "over",
}


class Order:
    """Checks a stream against `LEGAL` and the block indexes (0, 1, 2 …) as it goes by."""

    def __init__(self) -> None:
        self.state: State = "idle"
        self._index = -1

    def check(self, event: Event) -> Event:
        """Return `event`, or raise `AssertionError` if it may not come now."""
        state = LEGAL.get((self.state, type(event)))
        assert state is not None, f"{type(event).__name__} in state {self.state}"
        if isinstance(event, BlockStart):
            self._index += 1
        if isinstance(event, BlockStart | BlockDelta | BlockEnd):
            assert event.index == self._index, f"index {event.index}, open block is {self._index}"
        self.state = state
        return event


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block of an answer."""

    kind: BlockKind
    text: str
    call_id: str = ""
    name: str = ""
    seal: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a whole stream says."""

    begin: Begin
    blocks: tuple[Block, ...]
    finish: Finish


def fold(events: Iterable[Event]) -> Answer:
    """Fold a whole stream into an `Answer`. Raises the `ApiError` of a `Fail`."""
    begin: Begin | None = None
    blocks: list[Block] = []
    pieces: list[BlockDelta] = []
    start: BlockStart | None = None
    for event in events:
        match event:
            case Begin():
                begin = event
            case BlockStart():
                start, pieces = event, []
            case BlockDelta():
                pieces.append(event)
            case BlockEnd(seal=seal):
                assert start is not None
                text = "".join(p.text for p in pieces)
                logprobs = tuple(lp for p in pieces for lp in p.logprobs)
                blocks.append(Block(start.kind, text, start.call_id, start.name, seal, logprobs))
            case Finish():
                assert begin is not None
                return Answer(begin, tuple(blocks), event)
            case Fail(error=error):
                raise error
    raise AssertionError("the stream has no terminal event")
