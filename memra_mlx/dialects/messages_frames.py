"""The answer of `/v1/messages`: frames, body and errors."""

from __future__ import annotations

from typing import Any, assert_never

from pydantic_core import from_json

from memra_mlx.dialects.content import UNSEALED
from memra_mlx.dialects.sse import event as frame
from memra_mlx.errors import ApiError
from memra_mlx.events import (
    Answer,
    Begin,
    Block,
    BlockDelta,
    BlockEnd,
    BlockKind,
    BlockStart,
    Event,
    Fail,
    Finish,
    FinishReason,
    Usage,
)
from memra_mlx.prompt.effort import wanted
from memra_mlx.request import Request

BEAT_AFTER_S = 120.0
BEAT_EVERY_S = 60.0

_STOP_REASONS: dict[FinishReason, str] = {
    "end_turn": "end_turn",
    "length": "max_tokens",
    "stop": "stop_sequence",
    "tool_calls": "tool_use",
}
_DELTAS: dict[BlockKind, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool": ("input_json_delta", "partial_json"),
}
_PING = frame("ping", {"type": "ping"})


class Frames:
    """Renders one stream. A block that a keep-alive opened is used by the next block if of its kind, else closed."""

    def __init__(self, request: Request, created: int) -> None:
        self._thinks = wanted(request.thinking) is True
        self._begun = False
        self._open: BlockKind | None = None
        self._early = False
        self._index = -1
        self._beat_due_s = BEAT_AFTER_S

    def push(self, event: Event) -> bytes:
        """The bytes for `event`."""
        match event:
            case Begin():
                self._begun = True
                return frame("message_start", {"type": "message_start", "message": _start(event)}) + _PING
            case BlockStart():
                return self._start(event)
            case BlockDelta(text=text):
                self._beat_due_s = BEAT_AFTER_S
                return self._delta(text) if text else b""
            case BlockEnd(seal=seal):
                return self._close(seal)
            case Finish():
                return self._close_early() + _end(event)
            case Fail(error=fault):
                return frame("error", error(fault))
            case _:
                assert_never(event)

    def keepalive(self, quiet_s: float) -> bytes:
        """A ping. Clients that wait for content alone get an empty delta too, first after two minutes: once content has
        begun, an error is final to them."""
        if not self._begun:
            return b""
        if quiet_s < self._beat_due_s:
            return _PING
        self._beat_due_s = quiet_s + BEAT_EVERY_S
        return self._open_early() + self._delta("") + _PING

    def _start(self, event: BlockStart) -> bytes:
        self._beat_due_s = BEAT_AFTER_S
        if self._early and self._open == event.kind:
            self._early = False
            return b""
        return self._close_early() + self._opened(event)

    def _opened(self, event: BlockStart) -> bytes:
        self._open = event.kind
        self._index += 1
        return self._frame("content_block_start", {"content_block": _empty_block(event)})

    def _open_early(self) -> bytes:
        if self._open is not None:
            return b""
        self._early = True
        return self._opened(BlockStart(0, "reasoning" if self._thinks else "text"))

    def _close_early(self) -> bytes:
        return self._close("") if self._early else b""

    def _delta(self, text: str) -> bytes:
        assert self._open is not None
        kind, key = _DELTAS[self._open]
        return self._frame("content_block_delta", {"delta": {"type": kind, key: text}})

    def _close(self, seal: str) -> bytes:
        out = b""
        if self._open == "reasoning":
            signature = {"type": "signature_delta", "signature": seal or UNSEALED}
            out = self._frame("content_block_delta", {"delta": signature})
        self._open, self._early = None, False
        return out + self._frame("content_block_stop", {})

    def _frame(self, name: str, data: dict[str, Any]) -> bytes:
        return frame(name, {"type": name, "index": self._index, **data})


def body(request: Request, answer: Answer, created: int) -> dict[str, Any]:
    """The blocking answer."""
    finish = answer.finish
    return {
        **_start(answer.begin),
        "content": [_block(block) for block in answer.blocks],
        **_stop(finish),
        "usage": usage(finish.usage),
        **({"warnings": list(finish.warnings)} if finish.warnings else {}),
    }


def error(error: ApiError, request_id: str = "") -> dict[str, Any]:
    """An error body. Without a `request_id` (inside a stream, whose headers carry it) the key is left out."""
    told: dict[str, Any] = {"type": error.rule.anthropic_type, "message": error.message}
    if error.code:
        told["code"] = error.code
    return {"type": "error", "error": told, **({"request_id": request_id} if request_id else {})}


def status(error: ApiError) -> int:
    """The HTTP status: clients of this API take 403, not 429, as final."""
    return 403 if error.kind == "quota" else error.rule.status


def usage(usage: Usage) -> dict[str, Any]:
    """Token counts: input without what came from the cache."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def _start(begin: Begin) -> dict[str, Any]:
    return {
        "id": begin.id,
        "type": "message",
        "role": "assistant",
        "model": begin.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(Usage(begin.prompt_tokens, begin.cached_tokens, 0)),
    }


def _end(finish: Finish) -> bytes:
    data: dict[str, Any] = {"type": "message_delta", "delta": _stop(finish), "usage": usage(finish.usage)}
    if finish.warnings:
        data["warnings"] = list(finish.warnings)
    return frame("message_delta", data) + frame("message_stop", {"type": "message_stop"})


def _stop(finish: Finish) -> dict[str, Any]:
    reason = finish.reason
    if reason == "stop" and finish.stop_sequence is None:
        reason = "end_turn"
    matched = finish.stop_sequence if reason == "stop" else None
    return {"stop_reason": _STOP_REASONS[reason], "stop_sequence": matched}


def _empty_block(event: BlockStart) -> dict[str, Any]:
    match event.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "tool":
            return {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}
        case _:
            assert_never(event.kind)


def _block(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text}
        case "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": block.seal or UNSEALED}
        case "tool":
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": _input(block.text)}
        case _:
            assert_never(block.kind)


def _input(text: str) -> dict[str, Any]:
    """A call's arguments; of a call that the token limit cut short, as far as they go."""
    try:
        found = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
