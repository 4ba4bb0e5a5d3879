"""A completions answer: chunks, and the body that folds them.

With `n` above 1 each choice has an event stream of its own: `push` is told which, and the stream ends with the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from memra_mlx.dialects import sse
from memra_mlx.dialects.content import UNLIKELY
from memra_mlx.dialects.openai_error import error
from memra_mlx.events import Answer, Begin, BlockDelta, BlockEnd, BlockStart, Event, Fail, Finish, TokenLogprob, Usage
from memra_mlx.request import RawPrompt, Request

Object = dict[str, Any]

"""Stands for minus infinity, which JSON does not have."""


class Frames:
    """Renders one stream. `created` is in unix seconds."""

    def __init__(self, request: Request, created: int) -> None:
        self._request = request
        self._created = created
        self._begin: Begin | None = None
        self._offsets = [len(_echo(request))] * request.n
        self._usages: dict[int, Usage] = {}

    def push(self, event: Event, choice: int = 0) -> bytes:
        """The chunks of `event`, which belongs to the answer number `choice`."""
        match event:
            case Begin():
                self._begin = self._begin or event
                echo = _echo(self._request)
                return self._chunk(choice, echo) if echo else b""
            case BlockDelta(text=text, logprobs=logprobs):
                return self._delta(choice, text, logprobs) if text or logprobs else b""
            case BlockStart() | BlockEnd():
                return b""
            case Finish():
                return self._finish(choice, event)
            case Fail(error=fault):
                return sse.data(error(fault))
        assert_never(event)

    def keepalive(self, quiet_s: float) -> bytes:
        """A comment: clients of this route count any byte as life."""
        return sse.comment("keepalive")

    def _delta(self, choice: int, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        scores = _logprobs(self._request, logprobs, self._offsets[choice])
        self._offsets[choice] += sum(len(entry.token) for entry in logprobs)
        return self._chunk(choice, text, scores)

    def _finish(self, choice: int, event: Finish) -> bytes:
        """The choice's last chunk and, once every choice is finished, the end of the stream."""
        self._usages[choice] = event.usage
        last = {"index": choice, "text": "", "logprobs": None, "finish_reason": _reason(event)}
        out = self._send([last], **self._no_usage, **_warned(event.warnings))
        if len(self._usages) < self._request.n:
            return out
        if self._request.stream_usage:
            out += self._send([], usage=_usage([self._usages[each] for each in range(self._request.n)]))
        return out + sse.DONE

    def _chunk(self, choice: int, text: str, logprobs: Object | None = None) -> bytes:
        piece = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": None}
        return self._send([piece], **self._no_usage)

    @property
    def _no_usage(self) -> Object:
        """Where usage is asked for, all chunks but the last say that it isn't known yet."""
        return {"usage": None} if self._request.stream_usage else {}

    def _send(self, choices: list[Object], **more: Any) -> bytes:
        assert self._begin is not None
        return sse.data({**_envelope(self._begin, self._created), "choices": choices, **more})


def body(request: Request, answer: Answer, created: int, more: Sequence[Answer] = ()) -> Object:
    """The non-streaming answer; `more` holds the answers beyond the first where the request asks for several."""
    answers = (answer, *more)
    warnings = [text for each in answers for text in each.finish.warnings]
    return {
        **_envelope(answer.begin, created),
        "choices": [_choice(request, index, each) for index, each in enumerate(answers)],
        "usage": _usage([each.finish.usage for each in answers]),
        **_warned(warnings),
    }


def _choice(request: Request, index: int, answer: Answer) -> Object:
    echo = _echo(request)
    scores = tuple(entry for block in answer.blocks for entry in block.logprobs)
    return {
        "index": index,
        "text": echo + "".join(block.text for block in answer.blocks),
        "logprobs": _logprobs(request, scores, len(echo)),
        "finish_reason": _reason(answer.finish),
    }


def _envelope(begin: Begin, created: int) -> Object:
    return {"id": begin.id, "object": "text_completion", "created": created, "model": begin.model}


def _echo(request: Request) -> str:
    """The prompt, where it is to lead the answer's text."""
    prompt = request.input
    assert isinstance(prompt, RawPrompt)
    if not prompt.echo:
        return ""
    return prompt.content if isinstance(prompt.content, str) else prompt.shown


def _reason(finish: Finish) -> str:
    return "length" if finish.reason == "length" else "stop"


def _logprobs(request: Request, scores: tuple[TokenLogprob, ...], offset: int) -> Object | None:
    """The lists of this API, one entry a token; `text_offset` counts characters from the start of the choice's text."""
    if request.sampling.logprobs is None:
        return None
    offsets = []
    for entry in scores:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in scores],
        "token_logprobs": [max(entry.logprob, UNLIKELY) for entry in scores],
        "top_logprobs": [_alternatives(entry) for entry in scores],
        "text_offset": offsets,
    }


def _alternatives(entry: TokenLogprob) -> dict[str, float]:
    """The best alternatives, and the chosen token if it is none of them."""
    scored = ((entry.token, entry.logprob), *((token, logprob) for token, _, logprob in entry.top))
    return {token: max(logprob, UNLIKELY) for token, logprob in scored}


def _usage(usages: Sequence[Usage]) -> Object:
    """The prompt counts once, however many answers it got."""
    first = usages[0]
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": first.prompt,
        "completion_tokens": completion,
        "total_tokens": first.prompt + completion,
        "prompt_tokens_details": {"cached_tokens": first.cached},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning for usage in usages)},
    }


def _warned(warnings: Iterable[str]) -> Object:
    unique = list(dict.fromkeys(warnings))
    return {"warnings": unique} if unique else {}
