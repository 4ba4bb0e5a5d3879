"""The answer of `/v1/chat/completions`: chunks, body and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from memra_mlx.dialects import sse
from memra_mlx.dialects.openai_error import error
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
    TokenLogprob,
    Usage,
)
from memra_mlx.request import Request

UNLIKELY = -9999.0

_FUNCTION = ("function", "arguments")
_CUSTOM = ("custom", "input")

_REASONS: dict[FinishReason, str] = {
    "end_turn": "stop",
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
}


class Frames:
    """Renders one stream. Calls are numbered by their own index; blocks have no brackets here."""

    def __init__(self, request: Request, created: int) -> None:
        self._request = request
        self._custom = _custom_names(request)
        self._head: dict[str, Any] = {"id": "", "object": "chat.completion.chunk", "created": created, "model": ""}
        self._kind: BlockKind = "text"
        self._call = -1
        self._slot = _FUNCTION
        self._owed = ""

    def push(self, event: Event) -> bytes:
        """The bytes for `event`."""
        match event:
            case Begin(id=id, model=model):
                self._head |= {"id": id, "model": model}
                return self._chunk({"role": "assistant", "content": ""})
            case BlockStart():
                return self._start(event)
            case BlockDelta():
                return self._delta(event)
            case BlockEnd():
                return self._more(self._owed) if self._owed else b""
            case Finish():
                return self._finish(event)
            case Fail(error=fault):
                return sse.data(error(fault))
            case _:
                assert_never(event)

    def keepalive(self, quiet_s: float) -> bytes:
        """A comment: it keeps the connection of every client of this API."""
        return sse.comment("keepalive")

    def _start(self, event: BlockStart) -> bytes:
        self._kind = event.kind
        if event.kind != "tool":
            return b""
        custom = event.name in self._custom
        self._call += 1
        self._slot = _CUSTOM if custom else _FUNCTION
        self._owed = "" if custom else "{}"  # what a call without arguments must still join to
        return self._chunk({"tool_calls": [{"index": self._call, **_call(event.call_id, event.name, "", custom)}]})

    def _delta(self, event: BlockDelta) -> bytes:
        if not event.text and not event.logprobs:
            return b""
        match self._kind:
            case "text":
                return self._chunk({"content": event.text}, event.logprobs)
            case "reasoning":
                return self._chunk({"reasoning_content": event.text, "reasoning": event.text}) if event.text else b""
            case "tool":
                return self._more(event.text) if event.text else b""
            case _:
                assert_never(self._kind)

    def _more(self, text: str) -> bytes:
        """More of the open call's arguments or input."""
        self._owed = ""
        outer, inner = self._slot
        return self._chunk({"tool_calls": [{"index": self._call, outer: {inner: text}}]})

    def _finish(self, event: Finish) -> bytes:
        extra = {"warnings": list(event.warnings)} if event.warnings else {}
        out = self._chunk({}, reason=_REASONS[event.reason], extra=extra)
        if self._request.stream_usage:
            out += sse.data({**self._head, "choices": [], "usage": usage(event.usage)})
        return out + sse.DONE

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: tuple[TokenLogprob, ...] = (),
        reason: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        told = _logprobs(logprobs) if logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": told, "finish_reason": reason}
        unknown_yet = {"usage": None} if self._request.stream_usage else {}
        return sse.data({**self._head, "choices": [choice], **unknown_yet, **(extra or {})})


def body(request: Request, answer: Answer, created: int) -> dict[str, Any]:
    """The blocking answer."""
    finish = answer.finish
    choice = {
        "index": 0,
        "message": _message(request, answer.blocks),
        "logprobs": _all_logprobs(request, answer.blocks),
        "finish_reason": _REASONS[finish.reason],
    }
    return {
        "id": answer.begin.id,
        "object": "chat.completion",
        "created": created,
        "model": answer.begin.model,
        "choices": [choice],
        "usage": usage(finish.usage),
        **({"warnings": list(finish.warnings)} if finish.warnings else {}),
    }


def usage(usage: Usage) -> dict[str, Any]:
    """Token counts."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _message(request: Request, blocks: tuple[Block, ...]) -> dict[str, Any]:
    texts: dict[BlockKind, str] = {"text": "", "reasoning": ""}
    calls = []
    custom = _custom_names(request)
    for block in blocks:
        if block.kind == "tool":
            is_custom = block.name in custom
            calls.append(_call(block.call_id, block.name, block.text or ("" if is_custom else "{}"), is_custom))
        else:
            texts[block.kind] += block.text
    thought = texts["reasoning"]
    return {
        "role": "assistant",
        "content": texts["text"] or (None if calls else ""),
        "refusal": None,
        **({"reasoning_content": thought, "reasoning": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _call(call_id: str, name: str, text: str, custom: bool) -> dict[str, Any]:
    outer, inner = _CUSTOM if custom else _FUNCTION
    return {"id": call_id, "type": outer, outer: {"name": name, inner: text}}


def _custom_names(request: Request) -> frozenset[str]:
    return frozenset(tool.name for tool in request.tools if tool.custom)


def _all_logprobs(request: Request, blocks: tuple[Block, ...]) -> dict[str, Any] | None:
    if request.sampling.logprobs is None:
        return None
    return _logprobs(entry for block in blocks if block.kind == "text" for entry in block.logprobs)


def _logprobs(entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    content = [
        {**_token(entry.token, entry.logprob), "top_logprobs": [_token(token, value) for token, _, value in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, UNLIKELY), "bytes": list(token.encode())}
