"""Readers of tool-call blocks. A reader sees the text behind the start marker as it grows and says what it holds.

A block that turns out not to be a call has `failed` with nothing opened: its text goes back to where it came from.
`end` is where the block is over, in characters of the body, its end marker included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from memra_mlx.prompt import coerce
from memra_mlx.prompt.shape import schema_of, tool_dicts
from memra_mlx.request import Tool


@dataclass(frozen=True, slots=True)
class Opened:
    """A call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Piece:
    """More of its arguments, taken from the body up to `end`."""

    text: str
    end: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The call is whole, or as whole as it will be."""


Act = Opened | Piece | Closed
BAD_BLOCK = (ValueError, LookupError, TypeError, AttributeError, SyntaxError, RecursionError)


class CallReader(Protocol):
    """Reads one block."""

    failed: bool
    end: int | None

    def push(self, body: str) -> list[Act]:
        """What is new, given all of the body so far."""

    def finish(self, body: str) -> list[Act]:
        """The same when nothing more will come."""


class Toolbox:
    """The tools that may be called, by the name the model sees."""

    def __init__(self, tools: tuple[Tool, ...]):
        self.by_name: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.dicts = tool_dicts(tools)

    def schema(self, name: str) -> dict[str, Any]:
        """The schema of a tool's arguments; empty for an unknown one."""
        tool = self.by_name.get(name)
        return schema_of(tool) if tool else {}

    def is_custom(self, name: str) -> bool:
        """Whether the tool takes free text."""
        return name in self.by_name and self.by_name[name].custom

    def whole(self, name: str, arguments: dict[str, Any], end: int) -> list[Act]:
        """A call that came all at once."""
        if self.is_custom(name):
            text = free_text(arguments)
        else:
            text = json.dumps(coerce.arguments(arguments, self.schema(name)), ensure_ascii=False)
        return [Opened(name), Piece(text, end), Closed()]


def free_text(arguments: dict[str, Any]) -> str:
    """The input of a custom tool."""
    if isinstance(arguments.get("input"), str):
        return str(arguments["input"])
    return json.dumps(arguments, ensure_ascii=False)


class WholeReader:
    """Waits for the end marker and hands the block to one of mlx-lm's parsers."""

    def __init__(self, parse: Callable[..., Any], marker: str, toolbox: Toolbox):
        self._parse = parse
        self._marker = marker
        self._toolbox = toolbox
        self._seen = 0
        self.failed = False
        self.end: int | None = None

    def push(self, body: str) -> list[Act]:
        at = body.find(self._marker, max(0, self._seen - len(self._marker))) if self._marker else -1
        self._seen = len(body)
        if at < 0:
            return []
        return self._read(body[:at], at + len(self._marker))

    def finish(self, body: str) -> list[Act]:
        return self._read(body, len(body))

    def _read(self, text: str, end: int) -> list[Act]:
        try:
            acts = calls(self._parse(text, self._toolbox.dicts), self._toolbox, end)
        except BAD_BLOCK:
            acts = []
        self.failed = not acts
        self.end = end
        return acts


def calls(parsed: Any, toolbox: Toolbox, end: int) -> list[Act]:
    """The acts of what a parser made of a block. Raises one of `BAD_BLOCK` where it made no call of it."""
    acts: list[Act] = []
    for call in parsed if isinstance(parsed, list) else [parsed]:
        name, given = call["name"], call.get("arguments", call.get("parameters"))
        if isinstance(given, str):
            given = json.loads(given, strict=False) if given.strip() else {}
        given = {} if given is None else given
        if not isinstance(name, str) or not name or not isinstance(given, dict):
            raise ValueError("not a call")
        if list(given) == ["raw"] and name not in toolbox.by_name:
            raise ValueError("prose between call markers")
        acts.extend(toolbox.whole(name, given, end))
    return acts


_HARMONY = re.compile(r"([^\s<]+)(?:(?!<\|message\|>).)*<\|message\|>(.*)", re.DOTALL)


def parse_harmony(text: str, tools: Any = None) -> dict[str, Any]:
    """The rest of a gpt-oss message to a function: `NAME … <|message|>JSON`."""
    match = _HARMONY.match(text)
    if match is None:
        raise ValueError("no function call")
    return {"name": match[1], "arguments": json.loads(match[2] or "{}", strict=False)}
