"""A JSON object of arguments as it is generated: passed on piece by piece, typed by the schema on the way."""

from __future__ import annotations

import json
from typing import Any, Literal

from memra_mlx.prompt import coerce

Mode = Literal["key", "value", "pass", "hold", "input"]


class Scan:
    """Looks for a marker outside of JSON strings. A marker on a line of its own ends a string too: JSON has no raw line
    breaks in strings, so such a string has lost its closing quote."""

    def __init__(self, marker: str):
        self._marker = marker
        self._at = 0
        self._string = False

    def find(self, body: str) -> int | None:
        """Where the marker begins, given all text so far."""
        while self._at < len(body):
            char = body[self._at]
            if char == self._marker[0] and (not self._string or body[self._at - 1] == "\n"):
                rest = body[self._at : self._at + len(self._marker)]
                if rest == self._marker:
                    return self._at
                if self._marker.startswith(rest):
                    return None
            if self._string and char == "\\":
                if self._at + 1 == len(body):
                    return None
                self._at += 1
            elif char == '"':
                self._string = not self._string
            self._at += 1
        return None


class ArgumentStream:
    """Reads from the opening brace. What `push` returns, joined, is one JSON object if the model wrote one; for a
    custom tool it is the text of `input`. `taken` is what the last push used; `over`: the object or the block ended."""

    def __init__(self, schema: dict[str, Any], custom: bool, marker: str):
        self._types = {name: coerce.types(sub) for name, sub in coerce.properties(schema).items()}
        self._custom = custom
        self._marker = marker
        self._mode: Mode = "key"
        self._depth = 0
        self._string = False
        self._key = ""
        self._token = ""
        self._raw: list[str] = []
        self._out: list[str] = []
        self._shown = False
        self._last = ""
        self.taken = 0
        self.over = False

    def push(self, text: str) -> str:
        """The text to pass on now. `text` begins where the last push stopped."""
        at = 0
        while at < len(text) and not self.over:
            unit = self._unit(text, at)
            if unit is None:
                break
            if unit == self._marker:
                self._break()
                break
            self._take(unit)
            self._last = unit[-1]
            at += len(unit)
        self.taken = at
        return self._drain()

    def rest(self) -> str:
        """What is still held when nothing more comes, as it is."""
        if self._custom and not self._shown:
            return "".join(self._raw)
        return self._token if self._mode == "hold" else ""

    def _drain(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def _break(self) -> None:
        self._out.append(self.rest())
        self.over = True

    def _unit(self, text: str, at: int) -> str | None:
        """The next character, escape or end marker; None if it isn't whole yet."""
        if text[at] == self._marker[0] and (not self._string or self._last == "\n"):
            rest = text[at : at + len(self._marker)]
            if rest == self._marker:
                return rest
            if self._marker.startswith(rest):
                return None
        if text[at] != "\\" or not self._string:
            return text[at]
        size = _escape_size(text, at)
        return text[at : at + size] if size and at + size <= len(text) else None

    def _take(self, unit: str) -> None:
        if self._custom and not self._shown:
            self._raw.append(unit)
        quote = unit == '"'
        inside = self._string
        if quote:
            self._string = not self._string
        elif not inside and unit in "{[":
            self._depth += 1
        elif not inside and unit in "}]":
            self._depth -= 1
        if inside and len(unit) == 1 and unit < " ":
            unit = json.dumps(unit)[1:-1]
        self._place(unit, inside)
        if self._depth == 0:
            self.over = True
            if self._custom and not self._shown:
                self._out.append(_any_text("".join(self._raw)))

    def _place(self, unit: str, inside: bool) -> None:
        top = self._depth == 1 and not inside
        match self._mode:
            case "key":
                if inside and unit != '"':
                    self._token += unit
                elif top and unit == ":":
                    self._key, self._token, self._mode = self._token, "", "value"
                self._show(unit)
            case "value":
                if not unit.isspace():
                    self._begin_value(unit)
                else:
                    self._show(unit)
            case "hold":
                self._hold(unit, inside)
            case "input":
                self._input(unit, inside)
            case "pass":
                if (top and unit == ",") or self._depth == 0:
                    self._mode = "key"
                self._show(unit)

    def _begin_value(self, unit: str) -> None:
        allowed = self._types.get(self._key, frozenset())
        if self._custom and self._key == "input" and unit == '"':
            self._mode, self._shown = "input", True
        elif not self._custom and allowed and _may_differ(unit, allowed):
            self._mode, self._token = "hold", unit
        else:
            self._mode = "pass"
            self._show(unit)

    def _hold(self, unit: str, inside: bool) -> None:
        """A scalar whose type may not fit: kept until it is whole."""
        over = self._depth == 0 or (self._depth == 1 and not inside and unit == ",")
        if not over:
            self._token += unit
            return
        self._show(_typed(self._token, self._types[self._key]) + unit)
        self._token, self._mode = "", "key"

    def _input(self, unit: str, inside: bool) -> None:
        if inside and unit != '"':
            self._out.append(unit if len(unit) == 1 else json.loads(f'"{unit}"', strict=False))
        elif self._depth == 1 and unit == ",":
            self._mode = "key"

    def _show(self, unit: str) -> None:
        if not self._custom:
            self._out.append(unit)


def _may_differ(first: str, allowed: frozenset[str]) -> bool:
    if first == '"':
        return "string" not in allowed
    return first not in "{[" and allowed == {"string"}


def _typed(token: str, allowed: frozenset[str]) -> str:
    try:
        value = json.loads(token, strict=False)
    except ValueError:
        return token
    return json.dumps(coerce.fitted(value, allowed), ensure_ascii=False)


def _any_text(raw: str) -> str:
    """The input of a custom tool that was given under another name: the only string there is, else all of it."""
    try:
        values = list(json.loads(raw, strict=False).values())
    except ValueError:
        return raw
    return values[0] if len(values) == 1 and isinstance(values[0], str) else raw


def _escape_size(text: str, at: int) -> int:
    """Characters of the escape at `at`, both halves of a surrogate pair; 0 if that can't be told yet."""
    if at + 1 >= len(text):
        return 0
    if text[at + 1] != "u":
        return 2
    if text[at + 2 : at + 4].lower() not in ("d8", "d9", "da", "db"):
        return 6
    after = text[at + 6 : at + 8]
    if len(after) < 2 and "\\u".startswith(after):
        return 0
    return 12 if after == "\\u" else 6
