"""A Responses answer: the stream of events, and the body that folds them.

    response.created  response.in_progress
    per item: output_item.added  (its own events)  output_item.done
    response.completed | response.incomplete | response.failed

An item's `done` waits for the next event, because only that tells whether the item was cut short.
"""

from __future__ import annotations

from typing import Any, assert_never

from memra_mlx.dialects import sse
from memra_mlx.dialects.responses_items import Frame, Item, start, whole
from memra_mlx.errors import ApiError
from memra_mlx.events import Answer, Begin, BlockDelta, BlockEnd, BlockStart, Event, Fail, Finish, Usage
from memra_mlx.request import Request


class Frames:
    """Renders one stream. `created` is in unix seconds."""

    def __init__(self, request: Request, created: int) -> None:
        self._request = request
        self._created = created
        self._sequence = 0
        self._begin: Begin | None = None
        self._item: Item | None = None
        self._ended: Item | None = None
        self._done: list[dict[str, Any]] = []

    def push(self, event: Event) -> bytes:
        """The frames of `event`."""
        match event:
            case Begin():
                self._begin = event
                snapshot = self._snapshot("in_progress")
                return self._send("response.created", snapshot) + self._send("response.in_progress", snapshot)
            case BlockStart():
                self._item = start(self._request, self._id, event)
                added = self._send("response.output_item.added", {"item": self._item.wire("in_progress")}, item_id=False)
                return self._finish_item("completed") + added + self._about_item(self._item.opening())
            case BlockDelta(text=text, logprobs=logprobs):
                assert self._item is not None
                return self._about_item(self._item.delta(text, logprobs)) if text or logprobs else b""
            case BlockEnd(seal=seal):
                assert self._item is not None
                self._ended = self._item
                return self._about_item(self._item.closing(seal))
            case Finish():
                return self._finish(event)
            case Fail(error=error):
                return self._finish_item("completed") + self._send("response.failed", self._failed(error))
        assert_never(event)

    def keepalive(self, quiet_s: float) -> bytes:
        """A data event of a type that all clients skip: most of them don't count SSE comments as life."""
        return self._send("keepalive", {})
