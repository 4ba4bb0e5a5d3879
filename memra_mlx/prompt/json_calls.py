"""Calls in JSON style: `{"name": …, "arguments": {…}}` between markers, streamed as they are generated.

The end marker counts only outside of JSON strings, so that a call may write text that holds it.
"""

from __future__ import annotations

import json
import re

from memra_mlx.prompt.arguments import ArgumentStream, Scan
from memra_mlx.prompt.calls import BAD_BLOCK, Act, Closed, Opened, Piece, Toolbox, calls

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL)
_TAIL = re.compile(r"[\s}\]]*")


class JsonReader:
    """Streams a call that names its tool first; reads lists and other orders when they are whole."""

    def __init__(self, marker: str, toolbox: Toolbox):
        self._marker = marker
        self._toolbox = toolbox
        self._scan = Scan(marker)
        self._stream: ArgumentStream | None = None
        self._at = 0
        self._closed = False
        self.failed = False
        self.end: int | None = None

    def push(self, body: str) -> list[Act]:
        acts = [] if self._stream else self._begin(body)
        if self._stream and not self._closed:
            acts.extend(self._more(body))
        if self._closed and self.end is None:
            self._leave(body)
        return acts

    def finish(self, body: str) -> list[Act]:
        if self._stream is None:
            return self._whole(body, len(body))
        self.end = len(body) if self.end is None else self.end
        if self._closed:
            return []
        self._closed = True
        return [*_piece(self._stream.rest(), self.end), Closed()]

    def _begin(self, body: str) -> list[Act]:
        text = body.lstrip()
        if text and text[0] not in "{[":
            self.failed = True
            return []
        head = _HEAD.match(body)
        if head is None:
            at = self._scan.find(body)
            return [] if at is None else self._whole(body[:at], at + len(self._marker))
        name = json.loads(head[1], strict=False)
        self._stream = ArgumentStream(self._toolbox.schema(name), self._toolbox.is_custom(name), self._marker)
        self._at = head.end()
        return [Opened(name)]

    def _more(self, body: str) -> list[Act]:
        assert self._stream is not None
        text = self._stream.push(body[self._at :])
        self._at += self._stream.taken
        acts: list[Act] = _piece(text, self._at)
        if self._stream.over:
            self._closed = True
            acts.append(Closed())
        return acts

    def _leave(self, body: str) -> None:
        """Over at the end marker; or where other text shows that it is missing."""
        tail = _TAIL.match(body, self._at)
        assert tail is not None
        rest = body[tail.end() :]
        if rest.startswith(self._marker):
            self.end = tail.end() + len(self._marker)
        elif not self._marker.startswith(rest):
            self.end = tail.end()

    def _whole(self, text: str, end: int) -> list[Act]:
        try:
            acts = calls(json.loads(text, strict=False), self._toolbox, end)
        except BAD_BLOCK:
            acts = []
        self.failed = not acts
        self.end = end
        return acts


def _piece(text: str, end: int) -> list[Act]:
    return [Piece(text, end)] if text else []
