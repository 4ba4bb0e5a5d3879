"""Defaults of sampling, resolved in one place: the client's value, else the model's own, else the API's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from memra_mlx.engine import protocol
from memra_mlx.prompt.text_model import TextModel
from memra_mlx.request import RawPrompt, Request, Sampling

_LOW_SHARE = 0.25  # of the tokens asked for; a stream that may have more is not worth a word
_API_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def sampling(asked: Sampling, model: Mapping[str, Any]) -> protocol.Sampling:
    """Resolve `asked` against a model's generation_config. A seed that was not asked for is fresh entropy."""
    chosen = {name: _choose(name, getattr(asked, name), model) for name in _API_DEFAULTS}
    return protocol.Sampling(
        **chosen,
        seed=asked.seed if asked.seed is not None else secrets.randbits(63),
        frequency_penalty=asked.frequency_penalty or 0.0,
        presence_penalty=asked.presence_penalty or 0.0,
        logit_bias=dict(asked.logit_bias),
        logprobs=-1 if asked.logprobs is None else asked.logprobs,
    )


def _choose(name: str, asked: float | None, model: Mapping[str, Any]) -> Any:
    if asked is not None:
        return asked
    if name == "temperature" and model.get("do_sample") is False:
        return 0.0
    own = model.get(name)
    return own if isinstance(own, int | float) and not isinstance(own, bool) else _API_DEFAULTS[name]


def max_tokens(request: Request, prompt_tokens: int, context: int) -> int:
    """The client's limit, never past what is left of the context; without one, all that is left."""
    left = context - prompt_tokens
    return min(request.max_tokens, left) if request.max_tokens is not None else left


def warnings(request: Request, prompt_tokens: int, context: int) -> Iterator[str]:
    """What was asked of the context and can't be had. Agents always ask for more tokens than they use, so a stream is
    told only where little is left."""
    left = context - prompt_tokens
    asked = request.max_tokens or 0
    if asked > left and (not request.stream or left < _LOW_SHARE * asked):
        field = "max_output_tokens" if request.dialect == "responses" else "max_tokens"
        yield f"{field}: {asked} was cut to the {left} tokens that are left of the context of {context}"
    if request.ctx_size not in (None, context):
        yield f"ctx_size: {request.ctx_size} was ignored: this model is loaded with a context of {context} tokens"


def echoing(request: Request, text: TextModel) -> Request:
    """The request, with the words of a prompt of token ids where they are to be echoed."""
    prompt = request.input
    if not isinstance(prompt, RawPrompt) or not prompt.echo or isinstance(prompt.content, str):
        return request
    return replace(request, input=replace(prompt, shown=text.decode(prompt.content)))
