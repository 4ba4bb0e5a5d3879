"""The engine's loop body: joins, prefills, decodes and ends requests, one step at a time.

    submit -> queue (waiting, prefilling, or ready) -> decoder -> ended

A step evaluates every decoder once and then one chunk of one prefill. All state belongs to the calling thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from memra_mlx.cache.kv import KvStore
from memra_mlx.engine.decode import Advance, Decoder
from memra_mlx.engine.decoders import Decoders
from memra_mlx.engine.grammar import Compiled
from memra_mlx.engine.intake import problem
from memra_mlx.engine.job import Job
from memra_mlx.engine.memory import used_bytes
from memra_mlx.engine.plan import Pace, prefill_order
from memra_mlx.engine.prefill import Prefill
from memra_mlx.engine.protocol import (
    Cancel,
    Ended,
    EndReason,
    Fault,
    FaultKind,
    FromEngine,
    KvFigures,
    Progress,
    Ready,
    Started,
    Submit,
    Token,
    Tokens,
)
from memra_mlx.engine.room import Room
from memra_mlx.engine.sampling import Drawn

log = logging.getLogger("memra.engine.scheduler")

_PATIENCE = 16  # times that a request without room is passed by smaller ones
_REBUILDS = 2
_COMPILE_WAIT_S = 0.005  # where there is nothing else to do


class Scheduler:
    """Runs the requests of one model. `send` gets the messages to the server, in order."""

    def __init__(
        self, net: Module, ready: Ready, store: KvStore, room: Room, pace: Pace, send: Callable[[FromEngine], None]
    ) -> None:
        self._ready = ready
        self._store = store
        self._room = room
        self._send = send
        self._pace = pace
        self._prefill = Prefill(net, store, pace)
        self._jobs: dict[str, Job] = {}
        self._queue: list[Job] = []
        self._decoders = Decoders(net, ready, room)
        self._arrivals = 0
        self._draining = False
        self.steps = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._jobs)

    @property
    def counts(self) -> tuple[int, int]:
        """Requests that have started, and those that wait."""
        live = sum(job.announced for job in self._jobs.values())
        return live, len(self._jobs) - live

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV state, live and kept."""
        return self._live_bytes() + self._store.nbytes

    @property
    def kv_figures(self) -> KvFigures:
        """What the prefix cache has done."""
        return self._store.figures

    def submit(self, submit: Submit, grammar: Compiled | None = None) -> None:
        """Take a request, or refuse it with a Fault. `grammar` is that of the request, compiled or about to be."""
        if self._draining:
            return self._send(Fault(submit.id, "engine", "the engine is shutting down"))
        if unable := problem(submit, self._ready):
            return self._send(Fault(submit.id, "request", unable))
        if refusal := self._room.refusal(len(submit.prompt_ids)):
            return self._send(Fault(submit.id, "memory", refusal))
        limit = min(submit.max_tokens, self._ready.context - len(submit.prompt_ids))
        job = Job(submit, self._arrivals, limit, grammar, self._store.peek(submit.namespace, submit.prompt_ids))
        self._arrivals += 1
        self._jobs[job.id] = job
        self._queue.append(job)
        return None

    def cancel(self, cancel: Cancel) -> None:
        """End a request now; what it computed stays as a prefix, as far as it belongs to the answer."""
        job = self._jobs.get(cancel.id)
        if job is None:
            return
        kept = len(job.generated) if cancel.keep < 0 else min(cancel.keep, len(job.generated))
        cache, length = self._release(job)
        del job.generated[kept:]
        self._end(job, "cancelled", self._keep(job, job.tokens, cache, length))

    def set_budget(self, size: int) -> None:
        """Change the memory for KV state and caches."""
        self._room.budget = size
        self._relieve()

    def drain(self) -> None:
        """Take nothing new."""
        self._draining = True

    def step(self) -> None:
        """Evaluate every decoder once, then one chunk of prefill."""
        alone = not self._decoders
        self._decode()
        self._prefill_one(alone=alone)
        self._relieve()

    def _decode(self) -> None:
        began = time.perf_counter()
        advances = [advance for decoder in self._decoders for advance in self._step(decoder)]
        taken = [(advance, advance.job.draw()) for advance in advances]
        if items := [item for advance, drawn in taken if (item := _token(advance, drawn))]:
            self._send(Tokens(items))
        for advance, drawn in taken:
            self._settle(advance, drawn)
        if advances:
            self._pace.decoded(time.perf_counter() - began)
        self._decoders.close_empty()

    def _settle(self, advance: Advance, drawn: Drawn) -> None:
        """End the job of a token that ends it, or that is none. Trouble belongs to the token after, already begun."""
        job = advance.job
        reason = job.trouble.message if drawn.finite else "the model's output is not a number (NaN)"
        if drawn.finite and advance.finish is not None:
            self._finish(advance, advance.finish)
        elif reason is not None:
            self._release(job)
            self._fail(job, "request", reason)

    def _step(self, decoder: Decoder) -> list[Advance]:
        """One evaluation. A failing decoder is given up, and its jobs start again from their tokens."""
        self.steps += 1
        try:
            return decoder.step()
        except Exception as fault:
            log.exception("a decoding step failed")
            jobs = list(decoder.jobs)
            decoder.jobs.clear()
            for job in jobs:
                self._rebuild(job, fault)
            return []

    def _finish(self, advance: Advance, reason: EndReason) -> None:
        job = advance.job
        tokens = [*job.tokens, advance.token] if reason == "stop" else job.tokens
        self._end(job, reason, self._keep(job, tokens, advance.cache, len(tokens)))

    def _prefill_one(self, *, alone: bool) -> None:
        barred = False  # behind one that has waited long for room, none may start; those that have started go on
        for job in sorted(self._queue, key=prefill_order):
            if job.cache is None and (barred or not self._start(job)):
                barred = barred or job.passed >= _PATIENCE
            elif job.remaining > 0:
                return self._chunk(job, alone=alone)
            elif self._join(job):
                self._queue.remove(job)
        return None

    def _start(self, job: Job) -> bool:
        live = self._live_bytes()
        if live and not self._room.admits(job.length, job.left, live):
            job.passed += 1
            return False
        if refusal := self._room.refusal(job.length):  # the budget may have shrunk since it was taken
            self._queue.remove(job)
            self._fail(job, "memory", refusal)
            return False
        resumed = self._prefill.start(job)
        if not job.announced:
            self._send(Started(job.id, resumed.length, resumed.source))
            job.announced = True
        return True

    def _chunk(self, job: Job, *, alone: bool) -> None:
        self.steps += 1
        try:
            self._prefill.advance(job, alone=alone)
        except Exception as fault:
            log.exception("a prefill failed")
            self._queue.remove(job)
            self._fail(job, "engine", f"the prefill failed: {fault}")
            return
        job.passed = 0
        for other in self._queue:
            other.passed += other is not job
        total = len(job.submit.prompt_ids)
        if not job.generated:
            self._send(Progress(job.id, total if job.remaining == 0 else job.done, total))

    def _join(self, job: Job) -> bool:
        """Move a prefilled job to a decoder; False while its grammar is not ready."""
        if job.left <= 0:
            self._end(job, "length", job.done)
            return True
        if job.grammar is not None and not job.grammar.ready(0.0 if self._decoders else _COMPILE_WAIT_S):
            return False
        if job.grammar is not None and job.grammar.problem:
            self._fail(job, "request", f"the grammar of the answer: {job.grammar.problem}")
            return True
        self._decoders.join(job, self._live_bytes())
        return True

    def _release(self, job: Job) -> tuple[Sequence[Any] | None, int]:
        """Take a job from wherever it is; its cache and how many of its tokens that holds."""
        if job in self._queue:
            self._queue.remove(job)
            return job.cache, job.done
        return self._decoders.release(job) or (None, 0)

    def _keep(self, job: Job, tokens: list[int], cache: Sequence[Any] | None, length: int) -> int:
        """Store the cache of `length` tokens as a prefix, cut to `tokens` if it can be; returns what can be resumed."""
        kept = tokens[:length]
        if cache is None or not kept or (length > len(kept) and not self._store.cuttable):
            return self._store.peek(job.submit.namespace, [*tokens, 0]) if job.announced else 0
        try:
            return self._store.keep(job.submit.namespace, kept, job.ends, cache)
        except (RuntimeError, ValueError):  # what MLX raises; the answer itself is whole
            log.exception("a prefix could not be kept")
            return 0

    def _rebuild(self, job: Job, fault: Exception) -> None:
        job.rebuilds += 1
        if job.rebuilds > _REBUILDS:
            self._fail(job, "engine", f"the engine failed in this request's step: {fault}")
            return
        self._restart(job)

    def _restart(self, job: Job) -> None:
        job.cache, job.done, job.passed = None, 0, 0
        self._queue.append(job)

    def _relieve(self) -> None:
        """Let the prefix cache have what live requests leave; then check against what MLX really holds."""
        while (live := self._live_bytes()) > self._room.budget and self._decoders:
            self._give_way()
        self._store.resize(self._room.budget - live)
        if self._room.excess(used_bytes()) > 0:
            mx.clear_cache()
            excess = max(0, self._room.excess(used_bytes()))
            self._store.resize(min(self._room.budget - live, self._store.nbytes - excess))

    def _give_way(self) -> None:
        """Answers have outgrown the budget: the youngest of the lowest lane waits, unless it is the only one."""
        job = max(self._decoders.jobs, key=lambda job: (job.lane, job.arrival))
        self._release(job)
        self._decoders.close_empty()
        if len(self._jobs) == 1:
            self._fail(job, "memory", f"the answer outgrew the memory for KV state after {job.length} tokens")
        else:
            self._restart(job)

    def _live_bytes(self) -> int:
        return self._decoders.live_bytes(job.length for job in self._queue if job.cache is not None)

    def _fail(self, job: Job, kind: FaultKind, message: str) -> None:
        del self._jobs[job.id]
        self._send(Fault(job.id, kind, message))

    def _end(self, job: Job, reason: EndReason, kv_tokens: int) -> None:
        del self._jobs[job.id]
        self._send(Ended(job.id, reason, len(job.generated), kv_tokens))


def _token(advance: Advance, drawn: Drawn) -> Token | None:
    """What the server hears of a step: not the end-of-turn token."""
    if advance.finish == "stop" or not drawn.finite:
        return None
    advance.job.generated.append(advance.token)
    return Token(advance.job.id, advance.token, drawn.logprob, drawn.top)
