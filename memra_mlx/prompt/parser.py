"""Generated tokens → block events: reasoning, text and tool calls, told apart by the model's markers.

Text plus calls always rebuild what was generated, up to white space at the edges of segments: what looked like a call
and is none comes back verbatim. Only what may still become a marker or a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, assert_never

from memra_mlx.engine.protocol import Token
from memra_mlx.events import Event, FinishReason, TokenLogprob
from memra_mlx.prompt.blocks import BlockWriter, ReasoningSink, TextSink
from memra_mlx.prompt.calls import Act, CallReader, Closed, Opened, Piece, Toolbox
from memra_mlx.prompt.detokenizer import Vocabulary
from memra_mlx.prompt.finder import Finder
from memra_mlx.prompt.markers import Markers, State, Table
from memra_mlx.prompt.tape import Tape
from memra_mlx.request import RawPrompt, Request

EndReason = Literal["stop", "length", "cancelled"]


class OutputParser:
    """Parses one generation. Push its tokens, cancel the engine when `done` turns true, then call `finish`."""

    def __init__(
        self, vocabulary: Vocabulary, markers: Markers, request: Request, mint: Callable[[], str], opened: bool
    ):
        raw = isinstance(request.input, RawPrompt)
        self._vocabulary = vocabulary
        self._detokenizer = vocabulary.detokenizer()
        self._mint = mint
        self._toolbox = Toolbox(request.tools)
        self._single = not request.tool_choice.parallel
        callable_ = bool(request.tools) and request.tool_choice.mode != "none" and markers.reader is not None
        self._reader_of = markers.reader if callable_ else None
        self._table = Table.of({}) if raw else markers.with_tools if callable_ else markers.without
        self._tape = Tape()
        self._writer = BlockWriter(self._tape)
        marked = not raw and bool(self._table.edges.get("normal"))
        self._text = TextSink(self._writer, Finder(request.stop), hold_lead=marked)
        self._reasoning = ReasoningSink(self._writer)
        self._state: State = "normal" if raw else "reasoning" if opened else markers.start
        self._reasoned = 0
        self._span: int | None = 0 if self._state == "reasoning" else None
        self._buffer = ""
        self._at = 0
        self._origin: State = "normal"
        self._marker = ""
        self._reader: CallReader | None = None
        self._calls = 0
        self.thoughts: list[int] = []  # where each reasoning block ended, its closing mark included
        self._end: EndReason | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that matched."""
        return self._text.stop[0] if self._text.stop else None

    @property
    def cut(self) -> int | None:
        """Where a stop string cut the answer, in characters since its start."""
        return self._text.stop[1] if self._text.stop else None

    @property
    def done(self) -> bool:
        """The answer is complete, whatever the engine still generates: a stop string, or the one call allowed."""
        return self._text.stop is not None or (self._single and self._calls > 0 and self._writer.open != "tool")

    @property
    def completion_tokens(self) -> int:
        """Tokens generated, up to and including the one that completed a stop string."""
        return self._tape.tokens_to(self._text.stop[2]) if self._text.stop else self._tape.tokens

    @property
    def visible_tokens(self) -> int:
        """Tokens that belong to the answer: those wholly before a stop string."""
        return self._tape.tokens_within(self._text.stop[1]) if self._text.stop else self._tape.tokens

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that began inside a reasoning segment."""
        open_now = 0 if self._span is None else self._tape.tokens_from(self._span, self._tape.end + 1)
        return self._reasoned + open_now

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ended. To be read after `finish`."""
        if self._text.stop is not None:
            return "stop"
        if self._end == "length" and not self.done:
            return "length"
        return "tool_calls" if self._calls else "end_turn"

    def push(self, token: Token) -> list[Event]:
        """The next token. Nothing comes of it once `done`."""
        if self.done:
            return []
        text = self._detokenizer.add(token.token)
        self._tape.add(text, self._logprob(token))
        self._buffer += text
        self._run(final=False)
        return self._writer.take()

    def finish(self, reason: EndReason) -> list[Event]:
        """No token follows: let go of what was held back and close the open block."""
        self._end = reason
        if not self.done:
            rest = self._detokenizer.finish()
            self._tape.stretch(rest)
            self._buffer += rest
            self._run(final=True)
        if self._state == "reasoning":
            self._reasoning.finish()
        self._text.finish()
        self._writer.close()
        return self._writer.take()

    def _logprob(self, token: Token) -> TokenLogprob | None:
        if token.logprob is None:
            return None
        text = self._vocabulary.token_text
        top = tuple((text(other), other, logprob) for other, logprob in token.top or [])
        return TokenLogprob(text(token.token), token.token, token.logprob, top)

    def _run(self, final: bool) -> None:
        while not self.done and self._step(final):
            pass

    def _step(self, final: bool) -> bool:
        """One step through the buffer; False when it must wait for more."""
        match self._state:
            case "tool":
                return self._call(final)
            case "header":
                return self._header(final)
            case "normal" | "reasoning":
                return self._segment(final)
            case _:
                assert_never(self._state)

    def _segment(self, final: bool) -> bool:
        finder = self._table.finders.get(self._state)
        match = finder.find(self._buffer) if finder else None
        if match is not None:
            self._emit(self._take(match.start))
            self._enter(match.literal)
            return True
        held = 0 if final or finder is None else finder.held(self._buffer)
        self._emit(self._take(len(self._buffer) - held))
        return False

    def _header(self, final: bool) -> bool:
        """The text of a header is dropped, but an answer that begins without one is an answer."""
        match = self._table.finders["header"].find(self._buffer)
        if match is not None:
            self._take(match.start)
            self._enter(match.literal)
            return True
        marks = ("<|start|>", *self._table.edges["header"])
        if self._buffer and not any(m.startswith(self._buffer) or self._buffer.startswith(m) for m in marks):
            self._state = "normal"
            return True
        if final:
            self._take(len(self._buffer))
        return False

    def _take(self, size: int) -> str:
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        self._at += size
        return text

    def _emit(self, text: str) -> None:
        if self._state == "reasoning":
            self._reasoning.write(text, self._at)
        else:
            self._text.write(text, self._at)

    def _enter(self, marker: str) -> None:
        """Move over a marker at the head of the buffer."""
        if self._text.stop is not None:
            return
        start = self._at
        self._take(len(marker))
        before, self._state = self._state, self._table.edges[self._state][marker]
        if self._state == "tool":
            assert self._reader_of is not None
            self._origin, self._marker, self._reader = before, marker, self._reader_of(self._toolbox)
            return
        if before == self._state:
            return
        if before == "reasoning":
            self._leave_reasoning(start, self._at)
        if self._state == "reasoning":
            self._text.interrupt()
            self._span = self._at
        if self._state == "header":
            self._text.interrupt()
            self._writer.close()

    def _leave_reasoning(self, end: int, over: int) -> None:
        if self._writer.open == "reasoning":
            self.thoughts.append(over)
        self._reasoning.leave()
        self._text.interrupt()
        if self._span is not None:
            self._reasoned += self._tape.tokens_from(self._span, end)
        self._span = None

    def _call(self, final: bool) -> bool:
        reader = self._reader
        assert reader is not None
        base = self._at
        for act in reader.finish(self._buffer) if final else reader.push(self._buffer):
            self._act(act, base)
            if self.done:
                return False
        if reader.failed:
            self._reject()
            return True
        if reader.end is None:
            return False
        self._take(reader.end)
        self._state, self._reader = "normal", None
        return True

    def _act(self, act: Act, base: int) -> None:
        match act:
            case Opened(name):
                if self._origin == "reasoning":
                    self._leave_reasoning(base - len(self._marker), base - len(self._marker))
                self._text.interrupt()
                self._calls += 1
                self._writer.start("tool", self._mint(), name)
            case Piece(text, end):
                self._writer.write("tool", text, base + end)
            case Closed():
                self._writer.close()
            case _:
                assert_never(act)

    def _reject(self) -> None:
        """No call after all: the marker is text where it stood, and what follows it is read again."""
        self._state, self._reader = self._origin, None
        if self._state == "header":
            self._state = "normal"
        self._emit(self._marker)
