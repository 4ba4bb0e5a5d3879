"""Decoding: batches over mlx-lm's BatchGenerator, single sequences over generate_step where a cache can't be batched.

Both are fed a prefilled cache and the one token that is not in it, give a token a step, and hand the cache back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.generate import BatchGenerator, StopSequences, generate_step

from memra_mlx.engine.job import Job
from memra_mlx.engine.plan import Shape
from memra_mlx.engine.sampling import Processor


@dataclass(frozen=True, slots=True)
class Advance:
    """One token of a job. At the end of the answer: why, and the cache with all tokens, this one included."""

    job: Job
    token: int
    finish: Literal["stop", "length"] | None = None
    cache: list[Any] | None = None


class Decoder(Protocol):
    """A set of jobs that decode together."""

    jobs: list[Job]

    def join(self, job: Job) -> None:
        """Take over a prefilled job."""

    def step(self) -> list[Advance]:
        """Evaluate the model once; a job that has just joined may have no token yet."""

    def remove(self, job: Job) -> tuple[list[Any], int]:
        """Let a job go; returns its cache and how many of its tokens that holds."""

    def close(self) -> None:
        """Give up, whatever state it is in."""


class Batch:
    """Jobs of alike length in one BatchGenerator. Prefill is done before they join, so each inserts one token."""

    def __init__(self, net: Module, eos_ids: Sequence[int]) -> None:
        self.jobs: list[Job] = []
        self._eos_ids = eos_ids
        self._uids: dict[int, Job] = {}
        self._generator = BatchGenerator(net)

    @property
    def shape(self) -> Shape:
        """Its size."""
        lengths = [job.length for job in self.jobs]
        return Shape(len(lengths), min(lengths, default=0), max(lengths, default=0))

    def join(self, job: Job) -> None:
        """Take over a prefilled job."""
        *known, last = job.tokens
        sampler, processors = job.arm(self._eos_ids)
        (uid,) = self._generator.insert(
            [[last]],
            [job.left],
            caches=[job.cache or []],
            all_tokens=[known],
            samplers=[sampler],
            logits_processors=[processors],
            stop_sequences=[job.stops(self._eos_ids)],
        )
        job.cache = None
        self._uids[uid] = job
        self.jobs.append(job)

    def step(self) -> list[Advance]:
        """Evaluate the model once for all."""
        _, responses = self._generator.next()
        out = []
        for response in responses:
            job = self._uids[response.uid]
            out.append(Advance(job, response.token, response.finish_reason, response.prompt_cache))
            if response.finish_reason is not None:
                self._drop(response.uid)
        return out

    def remove(self, job: Job) -> tuple[list[Any], int]:
        """Let a job go."""
        uid = next(uid for uid, member in self._uids.items() if member is job)
        cache, tokens = self._generator.remove([uid], return_prompt_caches=True)[uid]
        self._drop(uid)
        return list(cache), len(tokens)

    def close(self) -> None:
        """Restore what the generator changed."""
        self._generator.close()

    def _drop(self, uid: int) -> None:
        self.jobs.remove(self._uids.pop(uid))


class Solo:
    """One job whose cache can't be merged with others."""

    def __init__(self, net: Module, eos_ids: Sequence[int]) -> None:
        self.jobs: list[Job] = []
        self._net = net
        self._eos_ids = eos_ids
        self._steps: Iterator[tuple[Any, Any]] = iter(())
        self._cache: list[Any] = []
        self._matcher = StopSequences().matcher()
        self._stepped = False

    def join(self, job: Job) -> None:
        """Take over a prefilled job; there is no other."""
        *known, last = job.tokens
        sampler, processors = job.arm(self._eos_ids)
        self._cache, job.cache = job.cache or [], None
        self._matcher = job.stops(self._eos_ids).matcher()
        self._steps = generate_step(
            mx.array([last]),
            self._net,
            max_tokens=job.left,
            sampler=sampler,
            logits_processors=[_After(known, processor) for processor in processors],
            prompt_cache=self._cache,
        )
        self.jobs.append(job)

    def step(self) -> list[Advance]:
        """Evaluate the model once."""
        (job,) = self.jobs
        token, _ = next(self._steps)
        self._stepped = True
        if self._matcher.advance(int(token)):
            return [Advance(job, int(token), "stop", self._leave())]
        if job.left == 1:
            return [Advance(job, int(token), "length", self._leave())]
        return [Advance(job, int(token))]

    def remove(self, job: Job) -> tuple[list[Any], int]:
        """Let the job go."""
        return self._leave(), job.length - (not self._stepped)

    def close(self) -> None:
        """Nothing outlives it."""
        self._steps = iter(())

    def _leave(self) -> list[Any]:
        self.jobs.clear()
        self.close()
        return self._cache


class _After:
    """Gives a processor the tokens that generate_step does not know of."""

    def __init__(self, known: list[int], processor: Processor) -> None:
        self._known = mx.array(known, dtype=mx.int32)
        self._processor = processor

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return self._processor(mx.concatenate([self._known, tokens.astype(mx.int32)]), logits)
