"""Prefill of one job at a time, chunk by chunk, on a cache of its own."""

from __future__ import annotations

import logging
import time

import mlx.core as mx
from mlx.nn.layers.base import Module

from memra_mlx.cache.kv import KvStore, Resumed
from memra_mlx.engine.job import Job
from memra_mlx.engine.plan import Pace, snapshot_stops

log = logging.getLogger("memra.engine.prefill")


class Prefill:
    """Brings jobs to the point where one token is left to be fed, by way of the store."""

    def __init__(self, net: Module, store: KvStore, pace: Pace) -> None:
        self._net = net
        self._store = store
        self._pace = pace

    def start(self, job: Job) -> Resumed:
        """Resume from the longest known prefix."""
        try:
            resumed = self._store.resume(job.submit.namespace, job.tokens)
        except (RuntimeError, ValueError):  # what MLX raises; a prefix that can't be put together is a miss
            log.exception("a stored prefix could not be resumed")
            resumed = self._store.fresh()
        job.cache, job.done = resumed.cache, resumed.length
        return resumed

    def advance(self, job: Job, *, alone: bool) -> None:
        """Evaluate one chunk; `alone` if nothing decodes meanwhile."""
        tokens = job.tokens
        stop = self._stop(job)
        size = min(self._pace.chunk(alone=alone), stop - job.done)
        began = time.perf_counter()
        assert job.cache is not None
        self._net(mx.array([tokens[job.done : job.done + size]]), cache=job.cache)
        mx.eval([leaf.state for leaf in job.cache])
        mx.clear_cache()
        self._pace.prefilled(size, time.perf_counter() - began)
        job.done += size
        if job.done == stop:
            self._store.keep(job.submit.namespace, tokens[: job.done], job.ends, job.cache)

    def _stop(self, job: Job) -> int:
        """Where state is stored next: a cache that can be cut is cut once, at the end."""
        total = job.length - 1
        return total if self._store.cuttable else snapshot_stops(job.done, total, job.ends)[0]
