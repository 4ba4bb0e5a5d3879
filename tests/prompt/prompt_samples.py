"""Models with test templates, requests, and ways to feed a parser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import memra_mlx.fixtures
from memra_mlx.engine.protocol import Token
from memra_mlx.events import Begin, Block, BlockDelta, Event, Finish, Order, Usage, fold
from memra_mlx.prompt.detokenizer import Vocabulary
from memra_mlx.prompt.markers import Markers
from memra_mlx.prompt.parser import EndReason, OutputParser
from memra_mlx.prompt.text_model import TextModel
from memra_mlx.request import Conversation, Message, Part, Request, Role, Text, Tool

FIXTURES = Path(memra_mlx.fixtures.__file__).parent
TEMPLATES = sorted(path.stem for path in (FIXTURES / "templates").glob("*.jinja"))
WEATHER = Tool(
    "get_weather",
    "Look up the weather of a town",
    {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}, "required": ["town"]},
)
BASH = Tool("bash", "Run", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]})
PATCH = Tool("apply_patch", "Edit files", {}, custom=True)


@cache
def model(template: str | None = None) -> TextModel:
    """The embedded model, with one of `TEMPLATES` or its own."""
    text = (FIXTURES / "templates" / f"{template}.jinja").read_text() if template else None
    return TextModel.load(FIXTURES / "tiny", chat_template=text)


def message(role: Role, *parts: Part | str) -> Message:
    return Message(role, tuple(Text(part) if isinstance(part, str) else part for part in parts))


def ask(*messages: Message, **fields: Any) -> Request:
    """A chat request; one user message if none is given."""
    return Request(fields.pop("dialect", "chat"), "m", Conversation(messages or (message("user", "hello"),)), **fields)


def rendered(request: Request, template: str | None = None) -> str:
    """The prompt as text."""
    own = model(template)
    return str(own._tokenizer.decode(own.prompt(request).ids))


class Run:
    """A parser and what came out of it, checked for legal order."""

    def __init__(self, markers: Markers, pieces: Sequence[str | bytes], request: Request, *, opened: bool = False):
        tokens = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        vocabulary = Vocabulary(model()._tokenizer, tokens)
        ids = iter(range(1000))
        self.parser = OutputParser(vocabulary, markers, request, lambda: f"call_{next(ids)}", opened=opened)
        self._first = vocabulary.size - len(tokens)
        self._order = Order()
        self.events: list[Event] = [self._order.check(Begin("id", "m", 1, 0))]
        self._count = len(tokens)

    def feed(self, reason: EndReason = "stop") -> Run:
        for n in range(self._count):
            self._add(self.parser.push(Token("r", self._first + n, -float(n), [(self._first + n, -float(n))])))
        self._add(self.parser.finish(reason))
        usage = Usage(1, 0, self.parser.completion_tokens, self.parser.reasoning_tokens)
        self._add([Finish(self.parser.finish_reason, usage, self.parser.stopped)])
        return self

    def _add(self, events: Sequence[Event]) -> None:
        self.events.extend(self._order.check(event) for event in events)

    @property
    def blocks(self) -> list[tuple[str, str, str]]:
        """(kind, name, text) of every block."""
        return [(block.kind, block.name, block.text) for block in self.folded]

    @property
    def folded(self) -> tuple[Block, ...]:
        return fold(self.events).blocks

    @property
    def deltas(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, BlockDelta)]


def parse(pieces: Sequence[str | bytes], request: Request, template: str = "chatml", **more: Any) -> Run:
    """Feed pieces, one a token, to a parser of the model with this template."""
    reason = more.pop("reason", "stop")
    return Run(model(template)._markers, pieces, request, **more).feed(reason)


def chunkings(text: str) -> Iterator[list[str]]:
    """Whole, by character, and every two-way split."""
    yield [text]
    yield list(text)
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
