"""Writes block events: one block open at a time, opened by its first text."""

from __future__ import annotations

from memra_mlx.events import BlockDelta, BlockEnd, BlockKind, BlockStart, Event
from memra_mlx.prompt.finder import Finder
from memra_mlx.prompt.tape import Tape


class BlockWriter:
    """Collects events. Offsets are those of the `Tape`, from which the logprobs come."""

    def __init__(self, tape: Tape):
        self._tape = tape
        self._events: list[Event] = []
        self._index = -1
        self._given = 0
        self.open: BlockKind | None = None

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def start(self, kind: BlockKind, call_id: str = "", name: str = "") -> None:
        """Open a block; an open one is closed first."""
        self.close()
        self._index += 1
        self.open = kind
        self._events.append(BlockStart(self._index, kind, call_id, name))

    def write(self, kind: BlockKind, text: str, end: int) -> None:
        """More of a block of this kind: text that reaches up to `end`."""
        if not text:
            return
        if self.open != kind:
            self.start(kind)
        start = max(self._given, end - len(text)) if kind != "tool" else self._given
        self._given = end
        self._events.append(BlockDelta(self._index, text, self._tape.claim(start, end)))

    def close(self) -> None:
        """Close the open block, if there is one."""
        if self.open is not None:
            self._events.append(BlockEnd(self._index))
            self.open = None


class TextSink:
    """Visible text on its way to the writer: blank text before the first word, and stop strings.

    `lead` is what happens to white space before the next word: dropped behind reasoning and calls; kept at the start of
    an answer, but only if a word follows before anything else does."""

    def __init__(self, writer: BlockWriter, stops: Finder, hold_lead: bool):
        self._writer = writer
        self._stops = stops
        self._lead: str | None = "" if hold_lead else None
        self._drop_lead = False
        self._held = ""
        self._end = 0
        self.stop: tuple[str, int, int] | None = None

    def write(self, text: str, end: int) -> None:
        """More text, which reaches up to `end`."""
        if self.stop is not None or not text:
            return
        if self._lead is not None:
            self._lead += text
            word = self._lead.lstrip()
            if not word:
                return
            text, self._lead = (word if self._drop_lead else self._lead), None
        self._scan(self._held + text, end)

    def _scan(self, text: str, end: int) -> None:
        self._end = end
        begin = end - len(text)
        match = self._stops.find(text)
        if match is not None:
            self._writer.write("text", text[: match.start], begin + match.start)
            self.stop = (match.literal, begin + match.start, begin + match.end)
            return
        keep = len(text) - self._stops.held(text)
        self._held = text[keep:]
        self._writer.write("text", text[:keep], begin + keep)

    def interrupt(self) -> None:
        """Something else comes: let go of what was held, and drop white space before the next word."""
        self._release()
        self._lead, self._drop_lead = "", True

    def finish(self) -> None:
        """Nothing more comes. An answer of white space alone is still an answer."""
        if self._lead and not self._drop_lead and self.stop is None:
            text, self._lead = self._lead, None
            self._scan(text, self._end + len(text))
        self._release()

    def _release(self) -> None:
        if self.stop is None:
            self._writer.write("text", self._held, self._end)
        self._held = ""


class ReasoningSink:
    """Reasoning on its way to the writer, without the line breaks behind the opening and before the closing mark. A
    segment of white space alone is none."""

    def __init__(self, writer: BlockWriter):
        self._writer = writer
        self._lead: str | None = ""
        self._breaks = ""
        self._end = 0

    def write(self, text: str, end: int) -> None:
        """More reasoning, which reaches up to `end`."""
        if self._lead is not None:
            self._lead += text
            if self._lead.isspace() or not self._lead:
                return
            text, self._lead = self._lead.lstrip("\r\n"), None
        text = self._breaks + text
        kept = text.rstrip("\r\n")
        self._breaks, self._end = text[len(kept) :], end
        self._writer.write("reasoning", kept, end - len(self._breaks))

    def leave(self) -> None:
        """The segment is closed."""
        self._lead, self._breaks = "", ""
        if self._writer.open == "reasoning":
            self._writer.close()

    def finish(self) -> None:
        """The segment was cut off: nothing of it is lost."""
        self._writer.write("reasoning", self._breaks, self._end)
