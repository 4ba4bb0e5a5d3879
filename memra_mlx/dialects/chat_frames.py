"""The answer of `/v1/chat/completions`: chunks, body and errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from memra_mlx.dialects import sse
from memra_mlx.dialects.content import UNLIKELY
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

_FUNCTION = ("function", "arguments")
_CUSTOM = ("custom", "input")

_REASONS: dict[FinishReason, str] = {
    "end_turn": "stop",
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
}


class Frames:
    """Renders one stream. With `n` above 1 each choice has an event stream of its own: `push` is told which, and the
    stream ends with the last."""

    def __init__(self, request: Request, created: int) -> None:
        self._request = request
        self._head: dict[str, Any] = {"id": "", "object": "chat.completion.chunk", "created": created, "model": ""}
        self._choices = [_Choice(_custom_names(request)) for _ in range(request.n)]
        self._usages: dict[int, Usage] = {}

    def push(self, event: Event, choice: int = 0) -> bytes:
        """The bytes for `event`, which belongs to the answer number `choice`."""
        match event:
            case Begin(id=id, model=model):
                self._head |= {"id": id, "model": model}
                return self._chunk(choice, {"role": "assistant", "content": ""})
            case Finish():
                return self._finish(choice, event)
            case Fail(error=fault):
                return sse.data(error(fault))
            case BlockStart() | BlockDelta() | BlockEnd():
                scores = event.logprobs if isinstance(event, BlockDelta) else ()
                delta = self._choices[choice].delta(event)
                return b"" if delta is None else self._chunk(choice, delta, () if "tool_calls" in delta else scores)
            case _:
                assert_never(event)

    def keepalive(self, quiet_s: float) -> bytes:
        """A comment: it keeps the connection of every client of this API."""
        return sse.comment("keepalive")

    def _finish(self, choice: int, event: Finish) -> bytes:
        """The choice's last chunk and, once every choice is finished, the end of the stream."""
        self._usages[choice] = event.usage
        extra = {"warnings": list(event.warnings)} if event.warnings else {}
        out = self._chunk(choice, {}, reason=_REASONS[event.reason], extra=extra)
        if len(self._usages) < self._request.n:
            return out
        if self._request.stream_usage:
            counted = usage([self._usages[each] for each in range(self._request.n)])
            out += sse.data({**self._head, "choices": [], "usage": counted})
        return out + sse.DONE

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        logprobs: tuple[TokenLogprob, ...] = (),
        reason: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        told = _logprobs(logprobs) if logprobs else None
        piece = {"index": choice, "delta": delta, "logprobs": told, "finish_reason": reason}
        unknown_yet = {"usage": None} if self._request.stream_usage else {}
        return sse.data({**self._head, "choices": [piece], **unknown_yet, **(extra or {})})


class _Choice:
    """The deltas of one choice. Calls are numbered by their own index; blocks have no brackets here."""

    def __init__(self, custom: frozenset[str]) -> None:
        self._custom = custom
        self._kind: BlockKind = "text"
        self._call = -1
        self._slot = _FUNCTION
        self._owed = ""

    def delta(self, event: BlockStart | BlockDelta | BlockEnd) -> dict[str, Any] | None:
        """What `event` says; None where that is nothing."""
        match event:
            case BlockStart():
                return self._start(event)
            case BlockDelta():
                return self._delta(event)
            case BlockEnd():
                return self._more(self._owed) if self._owed else None
            case _:
                assert_never(event)

    def _start(self, event: BlockStart) -> dict[str, Any] | None:
        self._kind = event.kind
        if event.kind != "tool":
            return None
        custom = event.name in self._custom
        self._call += 1
        self._slot = _CUSTOM if custom else _FUNCTION
        self._owed = "" if custom else "{}"  # what a call without arguments must still join to
        return {"tool_calls": [{"index": self._call, **_call(event.call_id, event.name, "", custom)}]}

    def _delta(self, event: BlockDelta) -> dict[str, Any] | None:
        match self._kind:
            case "text":
                return {"content": event.text} if event.text or event.logprobs else None
            case "reasoning":
                spoken = event.text or event.logprobs
                return {"reasoning_content": event.text, "reasoning": event.text} if spoken else None
            case "tool":
                return self._more(event.text) if event.text else None
            case _:
                assert_never(self._kind)

    def _more(self, text: str) -> dict[str, Any]:
        """More of the open call's arguments or input."""
        self._owed = ""
        outer, inner = self._slot
        return {"tool_calls": [{"index": self._call, outer: {inner: text}}]}


def body(request: Request, answer: Answer, created: int, more: Sequence[Answer] = ()) -> dict[str, Any]:
    """The blocking answer; `more` holds the answers beyond the first where the request asks for several."""
    answers = (answer, *more)
    warnings = [text for each in answers for text in each.finish.warnings]
    return {
        "id": answer.begin.id,
        "object": "chat.completion",
        "created": created,
        "model": answer.begin.model,
        "choices": [_choice(request, index, each) for index, each in enumerate(answers)],
        "usage": usage([each.finish.usage for each in answers]),
        **({"warnings": warnings} if warnings else {}),
    }


def _choice(request: Request, index: int, answer: Answer) -> dict[str, Any]:
    return {
        "index": index,
        "message": _message(request, answer.blocks),
        "logprobs": _all_logprobs(request, answer.blocks),
        "finish_reason": _REASONS[answer.finish.reason],
    }


def usage(usages: Sequence[Usage]) -> dict[str, Any]:
    """Token counts. The prompt counts once, however many answers it got."""
    first = usages[0]
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": first.prompt,
        "completion_tokens": completion,
        "total_tokens": first.prompt + completion,
        "prompt_tokens_details": {"cached_tokens": first.cached},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning for usage in usages)},
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
    return _logprobs(entry for block in blocks if block.kind != "tool" for entry in block.logprobs)


def _logprobs(entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    content = [
        {**_token(entry.token, entry.logprob), "top_logprobs": [_token(token, value) for token, _, value in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, UNLIKELY), "bytes": list(token.encode())}
