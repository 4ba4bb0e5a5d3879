"""A Responses answer: the stream of events, and the body that folds them.

    response.created  response.in_progress
    per item: response.output_item.added  (its own events)  response.output_item.done
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
        self._output: list[dict[str, Any]] = []

    def push(self, event: Event) -> bytes:
        """The frames of `event`."""
        return b"".join(self._numbered(frame) for frame in self._frames(event))

    def keepalive(self, quiet_s: float) -> bytes:
        """A data event of a type that all clients skip: most of them don't count SSE comments as life."""
        return self._numbered(("keepalive", {})) if self._begin else b""

    def _numbered(self, frame: Frame) -> bytes:
        kind, fields = frame
        number = self._sequence
        self._sequence += 1
        return sse.event(kind, {"type": kind, "sequence_number": number, **fields})

    def _frames(self, event: Event) -> list[Frame]:
        match event:
            case Begin():
                self._begin = event
                opened = self._response("in_progress")
                return [("response.created", opened), ("response.in_progress", opened)]
            case BlockStart(index=index):
                done = self._settle(cut=False)
                self._item = start(self._request, self._begun.id, event)
                added = {"output_index": index, "item": self._item.wire("in_progress")}
                return [*done, ("response.output_item.added", added), *self._placed(self._item.opening())]
            case BlockDelta(text=text, logprobs=logprobs):
                return self._placed(self._opened.delta(text, logprobs)) if text or logprobs else []
            case BlockEnd(seal=seal):
                frames = self._placed(self._opened.closing(seal))
                self._item, self._ended = None, self._item
                return frames
            case Finish():
                return [*self._settle(cut=event.reason == "length"), self._finished(event)]
            case Fail(error=error):
                return [*self._settle(cut=False), ("response.failed", self._response("failed", **_broken(error)))]
        assert_never(event)

    @property
    def _begun(self) -> Begin:
        assert self._begin is not None
        return self._begin

    @property
    def _opened(self) -> Item:
        assert self._item is not None
        return self._item

    def _placed(self, frames: list[Frame]) -> list[Frame]:
        """Frames of the open item, with its id and place."""
        place = {"item_id": self._opened.id, "output_index": len(self._output)}
        return [(kind, {**place, **fields}) for kind, fields in frames]

    def _settle(self, *, cut: bool) -> list[Frame]:
        """The `done` of the item that ended last, if it is still due."""
        if self._ended is None:
            return []
        item = self._ended.wire(_status(self._ended, cut))
        done = {"output_index": len(self._output), "item": item}
        self._ended = None
        self._output.append(item)
        return [("response.output_item.done", done)]

    def _finished(self, event: Finish) -> Frame:
        status, changes = _outcome(event)
        return f"response.{status}", self._response(status, **changes)

    def _response(self, status: str, **changes: Any) -> dict[str, Any]:
        given = {"output": list(self._output), **changes}
        return {"response": {**_response(self._request, self._begun, self._created), "status": status, **given}}


def body(request: Request, answer: Answer, created: int) -> dict[str, Any]:
    """The non-streaming answer: the response object of the stream's last event."""
    items = [whole(request, answer.begin.id, index, block) for index, block in enumerate(answer.blocks)]
    cut = answer.finish.reason == "length"
    output = [item.wire(_status(item, cut and item is items[-1])) for item in items]
    status, changes = _outcome(answer.finish)
    return {**_response(request, answer.begin, created), "status": status, "output": output, **changes}


def _response(request: Request, begin: Begin, created: int) -> dict[str, Any]:
    """The response object at its start, with the request's fields as the client sent them."""
    return {
        "id": begin.id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": begin.model,
        "output": [],
        "usage": None,
        **request.echo_fields,
    }


def _status(item: Item, cut: bool) -> str:
    return "incomplete" if cut and item.torn() else "completed"


def _outcome(finish: Finish) -> tuple[str, dict[str, Any]]:
    """Status and final fields of a good answer; a cut by the token limit is never called completed."""
    changes: dict[str, Any] = {"usage": _usage(finish.usage)}
    if finish.warnings:
        changes["warnings"] = list(finish.warnings)
    if finish.reason != "length":
        return "completed", changes
    return "incomplete", {**changes, "incomplete_details": {"reason": "max_output_tokens"}}


def _broken(error: ApiError) -> dict[str, Any]:
    return {"error": {"code": error.code or "server_error", "message": error.message}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
