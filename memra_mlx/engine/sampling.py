"""Sampling of one request: processors on its logits, then a token.

Everything here runs inside a step that other requests share, so nothing raises: trouble is noted, and the scheduler
ends that request after the step. The key of each draw comes from the request's seed and the token's position alone, so
that a seed gives the same tokens alone, in a batch, and after a rebuild.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from memra_mlx.engine.protocol import Sampling

Processor = Callable[[mx.array, mx.array], mx.array]

PENALTY_WINDOW = 8192
_MIN_TOP_P = 1e-6
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Trouble:
    """What went wrong in a request, if anything did. The first complaint stays."""

    message: str | None = None

    def note(self, message: str) -> None:
        """Complain."""
        self.message = self.message or message


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is known of a drawn token: its log-probability and the best alternatives, where asked for. Not `finite`:
    the model's output was no number, and the token means nothing."""

    finite: bool
    logprob: float | None
    top: list[tuple[int, float]] | None


@dataclass(frozen=True, slots=True)
class _Record:
    logprob: mx.array
    best: tuple[mx.array, mx.array] | None


class Sampler:
    """Draws the tokens of one request; `position` is the index of the first one in its answer."""

    def __init__(self, sampling: Sampling, position: int, trouble: Trouble) -> None:
        self._sampling = sampling
        self._position = position
        self._trouble = trouble
        self._records: deque[_Record] = deque()

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Token ids (1,) for log-probabilities (1, vocabulary)."""
        try:
            token = self._draw(logprobs)
            record = self._record(logprobs, token)
        except Exception as fault:
            self._trouble.note(f"sampling failed: {fault}")
            token = mx.argmax(logprobs, axis=-1)
            record = _Record(mx.zeros((1, 1)), None)
        self._position += 1
        self._records.append(record)
        # evaluated with the token, so that reading them later waits for nothing
        tied: list[mx.array] = mx.depends([token], [record.logprob, *(record.best or ())])
        return tied[0]

    def take(self) -> Drawn:
        """What belongs to the oldest drawn token not yet taken."""
        record = self._records.popleft()
        logprob = cast(float, record.logprob.item())
        finite = math.isfinite(logprob)
        if self._sampling.logprobs < 0:
            return Drawn(finite, None, None)
        return Drawn(finite, logprob, _pairs(record.best) if record.best else [])

    def _draw(self, logprobs: mx.array) -> mx.array:
        sampling, vocabulary = self._sampling, logprobs.shape[-1]
        if sampling.temperature == 0:
            return mx.argmax(logprobs, axis=-1)
        if sampling.top_p < 1:
            logprobs = apply_top_p(logprobs, max(sampling.top_p, _MIN_TOP_P))
        if sampling.min_p > 0:
            logprobs = apply_min_p(logprobs, sampling.min_p)
        if 0 < sampling.top_k < vocabulary:
            logprobs = apply_top_k(logprobs, sampling.top_k)
        key = mx.random.key(draw_seed(sampling.seed, self._position))
        return mx.random.categorical(logprobs * (1 / sampling.temperature), key=key)

    def _record(self, logprobs: mx.array, token: mx.array) -> _Record:
        chosen = mx.take_along_axis(logprobs, token[:, None], axis=-1)
        count = min(self._sampling.logprobs, logprobs.shape[-1])
        if count <= 0:
            return _Record(chosen, None)
        order = mx.argsort(-logprobs, axis=-1)[:, :count]
        return _Record(chosen, (order, mx.take_along_axis(logprobs, order, axis=-1)))


class Guard:
    """A logits processor that notes its trouble and passes the logits on."""

    def __init__(self, processor: Processor, trouble: Trouble) -> None:
        self._processor = processor
        self._trouble = trouble

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Logits (1, vocabulary) after the processor; `tokens` are all tokens so far."""
        if self._trouble.message is not None:
            return logits
        try:
            return self._processor(tokens, logits)
        except Exception as fault:
            self._trouble.note(f"a logits processor failed: {fault}")
            return logits


def penalties(sampling: Sampling) -> list[Processor]:
    """Bias and penalties, in mlx-lm's order, over the last `PENALTY_WINDOW` tokens."""
    repetition = sampling.repetition_penalty
    return list(
        make_logits_processors(
            logit_bias=sampling.logit_bias or None,
            repetition_penalty=None if repetition == 1.0 else repetition,
            repetition_context_size=PENALTY_WINDOW,
            presence_penalty=sampling.presence_penalty,
            presence_context_size=PENALTY_WINDOW,
            frequency_penalty=sampling.frequency_penalty,
            frequency_context_size=PENALTY_WINDOW,
        )
    )


def draw_seed(seed: int, position: int) -> int:
    """64 well-mixed bits for the draw at `position` (splitmix64)."""
    x = (seed * 0x2545F4914F6CDD1D + (position + 1) * _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _pairs(best: tuple[mx.array, mx.array]) -> list[tuple[int, float]]:
    ids, values = (cast(list[Any], array[0].tolist()) for array in best)
    return list(zip(ids, values, strict=True))
