"""The JSON of /v1/completions requests, as far as we read it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from memra_mlx.dialects.fields import Count, Fraction, Penalty, RepetitionPenalty, Seed, Temperature, TopK, Wire

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class StreamOptions(Wire):
    """`stream_options`."""

    include_usage: bool | None = None


class Body(Wire):
    """A request to /v1/completions."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    prompt: str | list[Any]
    max_tokens: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n: Annotated[int, Field(ge=1, le=8)] | None = None
    best_of: int | None = None
    suffix: str | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: dict[str, Bias] | None = None
    response_format: Any = None
    timeout_ms: int | None = None
    ctx_size: Count | None = None
    cache_salt: str | None = None
    user: str | None = None
