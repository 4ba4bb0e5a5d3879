"""Calls in XML style: `<function=NAME><parameter=KEY>value</parameter>…</function>` between markers.

Values have no types: text is passed on as it is generated where the schema says string, others when they are whole.
"""

from __future__ import annotations

import json
import re
from typing import Literal

from memra_mlx.prompt import coerce
from memra_mlx.prompt.calls import Act, Closed, Opened, Piece, Toolbox
from memra_mlx.prompt.finder import Finder

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?")
_OPEN, _PARAM, _PARAM_END, _END = "<function=", "<parameter=", "</parameter>", "</function>"
_TAGS = Finder((_PARAM_END, _END))
Phase = Literal["head", "between", "value", "tail"]
Style = Literal["string", "typed", "free", "dropped"]


class XmlReader:
    """Reads one block, which may hold several functions."""

    def __init__(self, marker: str, toolbox: Toolbox):
        self._marker = marker
        self._next = (_PARAM, _END, marker)
        self._last = re.compile(rf"\n?</function>\s*{re.escape(marker)}")
        self._toolbox = toolbox
        self._style: Style = "dropped"
        self._types: frozenset[str] = frozenset()
        self._phase: Phase = "head"
        self._name = ""
        self._key = ""
        self._first = True
        self._at = 0
        self._shown = 0
        self._judged = 0
        self._acts: list[Act] = []
        self.failed = False
        self.end: int | None = None

    def push(self, body: str) -> list[Act]:
        while not self.failed and self.end is None and self._step(body):
            pass
        acts, self._acts = self._acts, []
        return acts

    def finish(self, body: str) -> list[Act]:
        acts = self.push(body)
        if self._phase == "head":
            self.failed = True
            return acts
        if self._phase == "value":
            self._show(body, len(body))
        if self._phase != "tail":
            acts += [*self._acts, Closed()]
        self.end = len(body) if self.end is None else self.end
        return acts

    def _step(self, body: str) -> bool:
        """One step on; False if more text is needed."""
        match self._phase:
            case "head":
                return self._head(body)
            case "between":
                return self._between(body)
            case "value":
                return self._in_value(body)
            case "tail":
                return self._tail(body)

    def _head(self, body: str) -> bool:
        match = _FUNCTION.match(body, self._at)
        if match is None:
            text = body[self._at :].lstrip()
            self.failed = not (_OPEN.startswith(text) or (text.startswith(_OPEN) and not set(">\n") & set(text)))
            return False
        self._name, self._first, self._at, self._phase = match[1].strip(), True, match.end(), "between"
        self._acts.append(Opened(self._name))
        return True

    def _between(self, body: str) -> bool:
        """Past anything up to the next parameter, the end of the function, or the end of the block."""
        found = [(at, mark) for mark in (_PARAM, _END, self._marker) if (at := body.find(mark, self._at)) >= 0]
        if not found:
            return False
        at, mark = min(found)
        if mark == _PARAM:
            match = _PARAMETER.match(body, at)
            # The line break behind the tag belongs to it, so it must have come.
            if match is None or match.end() == len(body):
                return False
            self._key, self._phase = match[1].strip(), "value"
            self._at = self._shown = self._judged = match.end()
            self._begin_value()
            return True
        self._at = at + (len(_END) if mark == _END else 0)
        if not self._toolbox.is_custom(self._name):
            self._acts.append(Piece("{}" if self._first else "}", self._at))
        self._acts.append(Closed())
        self._phase = "tail"
        return True

    def _begin_value(self) -> None:
        schema = coerce.properties(self._toolbox.schema(self._name)).get(self._key)
        self._types = coerce.types(schema)
        if self._toolbox.is_custom(self._name):
            self._style = "free" if self._key == "input" else "dropped"
        else:
            self._style = "string" if self._types == {"string"} else "typed"
        if self._style == "string":
            self._piece(self._lead() + '"', self._at)

    def _in_value(self, body: str) -> bool:
        stop, resume = self._value_end(body)
        self._judged = stop
        # The last line break belongs to the closing tag.
        text_end = stop - 1 if stop > self._at and body[stop - 1] == "\n" else stop
        self._show(body, text_end)
        if resume is None:
            return False
        if self._style == "string":
            self._piece('"', resume)
        elif self._style == "typed":
            typed = coerce.from_text(body[self._at : text_end], self._types)
            self._piece(self._lead() + json.dumps(typed, ensure_ascii=False), resume)
        self._at, self._phase = resume, "between"
        return True

    def _value_end(self, body: str) -> tuple[int, int | None]:
        """Where the value stops and where reading goes on; None while it is open, with the end of what is certain.

        A closing tag counts only if what follows goes on as a call does, since a value may hold such tags itself."""
        last = self._last.search(body, max(self._at, self._judged - 1))
        at = body.find(_PARAM_END, self._judged)
        while at >= 0 and (last is None or at < last.start()):
            after = body[at + len(_PARAM_END) :].lstrip()
            if after.startswith(self._next):
                return at, at + len(_PARAM_END)
            if any(mark.startswith(after) for mark in self._next):
                return at, None
            at = body.find(_PARAM_END, at + 1)
        if last is not None:
            return last.start(), last.start()
        return self._certain(body), None

    def _certain(self, body: str) -> int:
        at = body.rfind(_END, self._judged)
        if at >= 0 and self._marker.startswith(body[at + len(_END) :].lstrip()):
            return at
        return len(body) - _TAGS.held(body[self._judged :])

    def _show(self, body: str, end: int) -> None:
        """Pass on what is new of a value that streams."""
        new, self._shown = body[self._shown : end], max(self._shown, end)
        if self._style == "free":
            self._piece(new, end)
        elif self._style == "string":
            self._piece(json.dumps(new, ensure_ascii=False)[1:-1], end)

    def _lead(self) -> str:
        brace, self._first = ("{" if self._first else ", "), False
        return f"{brace}{json.dumps(self._key, ensure_ascii=False)}: "

    def _tail(self, body: str) -> bool:
        """Behind a function: another one, the end marker, or other text where the marker is missing."""
        text = body[self._at :].lstrip()
        if text.startswith(self._marker):
            self.end = len(body) - len(text) + len(self._marker)
        elif text.startswith(_OPEN):
            self._phase = "head" if _FUNCTION.match(text) else "tail"
            return self._phase == "head"
        elif not any(mark.startswith(text) for mark in (self._marker, _OPEN)):
            self.end = len(body) - len(text)
        return False

    def _piece(self, text: str, end: int) -> None:
        if text:
            self._acts.append(Piece(text, end))
