"""What came back for one request, and how server-sent events are read from it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ANTHROPIC_PATHS = ("/v1/messages",)


@dataclass(frozen=True)
class Event:
    """One server-sent event. `data` is parsed JSON where it is JSON, `line` the `event:` line if there was one."""

    name: str
    data: Any
    at_ms: float
    line: str | None = None


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. Times are milliseconds since the request began, `began` is on the monotonic clock in seconds;
    `chunks` are the pieces of the body as they arrived."""

    status: int
    headers: dict[str, str]
    chunks: tuple[tuple[float, bytes], ...] = ()
    path: str = ""
    began: float = 0.0
    headers_ms: float = 0.0
    total_ms: float = 0.0
    cut: bool = False

    @cached_property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.chunks)

    @cached_property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @cached_property
    def json(self) -> Any:
        """The body as JSON, None where it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return tuple(parse_events(self.chunks))

    @property
    def anthropic(self) -> bool:
        return self.path.startswith(ANTHROPIC_PATHS)


def parse_events(chunks: tuple[tuple[float, bytes], ...]) -> Iterator[Event]:
    """Events in order, each with the time of the piece that completed it; comments are left out."""
    buffer = b""
    for at_ms, data in chunks:
        buffer = (buffer + data).replace(b"\r\n", b"\n")
        *blocks, buffer = buffer.split(b"\n\n")
        for block in blocks:
            if (event := parse_block(block.decode("utf-8", "replace"), at_ms)) is not None:
                yield event


def parse_block(block: str, at_ms: float) -> Event | None:
    fields: dict[str, list[str]] = {}
    for line in block.split("\n"):
        key, _, value = line.partition(":")
        fields.setdefault(key, []).append(value.removeprefix(" "))
    if "data" not in fields:
        return None
    text = "\n".join(fields["data"])
    try:
        data = json.loads(text)
    except ValueError:
        data = text
    line = fields["event"][-1] if "event" in fields else None
    return Event(line or event_name(data), data, at_ms, line)


def event_name(data: Any) -> str:
    """The name of an event without an `event:` line."""
    if data == "[DONE]":
        return "done"
    if isinstance(data, dict) and data.get("error"):
        return "error"
    return data["type"] if isinstance(data, dict) and isinstance(data.get("type"), str) else "chunk"
