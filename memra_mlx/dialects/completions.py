"""/v1/completions: a raw prompt, no chat template.

What the model writes is text as it is; marks of reasoning or of calls are part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memra_mlx.dialects import completions_wire as wire
from memra_mlx.dialects.completions_frames import Frames, body
from memra_mlx.dialects.content import affinity
from memra_mlx.dialects.fields import brief, item, stops, top_k, unknown, validate
from memra_mlx.dialects.openai_error import error, status
from memra_mlx.errors import invalid
from memra_mlx.request import RawPrompt, Request, Sampling

__all__ = ["DEFAULT_MAX_TOKENS", "Frames", "body", "error", "parse", "status"]

DEFAULT_MAX_TOKENS = 16
"""What this API has always meant by no `max_tokens`; the agents' routes have no such limit."""


def parse(body: dict[str, Any], headers: Mapping[str, str]) -> Request:
    """A request's JSON as a `Request`. Raises a 400 that names the field which is wrong or can't be honoured."""
    sent = validate(wire.Body, body)
    _refuse(sent)
    options = sent.stream_options
    return Request(
        dialect="completions",
        model=sent.model,
        input=_prompt(sent),
        sampling=_sampling(sent),
        max_tokens=sent.max_tokens or DEFAULT_MAX_TOKENS,
        stop=stops(sent.stop, "stop"),
        stop_token_ids=tuple(sent.stop_token_ids or ()),
        n=sent.n or 1,
        stream=bool(sent.stream),
        stream_usage=bool(options and options.include_usage),
        timeout_ms=sent.timeout_ms,
        ctx_size=sent.ctx_size,
        cache_salt=sent.cache_salt or "",
        affinity=affinity(headers, sent.user),
    )


def _refuse(sent: wire.Body) -> None:
    if sent.suffix:
        raise invalid("suffix", "text is not inserted before a suffix here; put both into prompt")
    if sent.best_of is not None and sent.best_of not in (1, sent.n):
        raise invalid("best_of", f"{sent.best_of} is not supported; leave it out and choose among n answers yourself")
    if sent.response_format is not None:
        raise invalid("response_format", "is not supported here; use /v1/chat/completions")
    if sent.echo and sent.logprobs is not None:
        raise invalid("echo", "is not supported together with logprobs: the prompt's tokens are not scored")


def _prompt(sent: wire.Body) -> RawPrompt:
    """The one prompt: text, or token ids."""
    content = _single(sent.prompt)
    if not content:
        raise invalid("prompt", "must not be empty", "invalid_argument")
    return RawPrompt(content, bool(sent.echo))


def _single(sent: str | list[Any]) -> str | tuple[int, ...]:
    match sent:
        case str() as text:
            return text
        case [str() as text]:
            return text
        case [list() as tokens]:
            return _ids(tokens, item("prompt", 0))
        case [str() | list(), *_]:
            raise invalid("prompt", f"one prompt a request is supported, not {len(sent)}; send them one by one")
        case tokens:
            return _ids(tokens, "prompt")


def _ids(tokens: list[Any], at: str) -> tuple[int, ...]:
    for index, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < 2**31:
            raise unknown(item(at, index), token, "one text, or a list of token ids")
    return tuple(tokens)


def _sampling(sent: wire.Body) -> Sampling:
    return Sampling(
        temperature=sent.temperature,
        top_p=sent.top_p,
        top_k=top_k(sent.top_k),
        min_p=sent.min_p,
        seed=sent.seed,
        frequency_penalty=sent.frequency_penalty,
        presence_penalty=sent.presence_penalty,
        repetition_penalty=sent.repetition_penalty,
        logit_bias=tuple((_token(name), bias) for name, bias in (sent.logit_bias or {}).items()),
        logprobs=sent.logprobs,
    )


def _token(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) <= 9):
        raise invalid("logit_bias", f"keys are token ids, not {brief(name)}")
    return int(name)
