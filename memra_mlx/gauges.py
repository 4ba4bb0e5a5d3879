"""What the server is doing now, for `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from memra_mlx.admission.services import Services
from memra_mlx.engine.client import EngineStatus
from memra_mlx.metrics_view import Gauge

_STATES = {
    "generation": "Processes started for this model.",
    "live": "Requests that the engine works on.",
    "waiting": "Requests that the engine has not begun.",
    "steps": "Model evaluations of the current process.",
    "step_age_s": "Age of the last finished step of a busy engine.",
    "longest_step_s": "Longest step seen.",
    "memory_bytes": "Memory of MLX, active and cached.",
}
_PHASES = ("unloaded", "loading", "ready", "restarting", "failed", "closed")


def gauges(services: Services) -> Iterator[Gauge]:
    """All gauges; times in seconds, sizes in bytes."""
    p50, p99 = services.steps.quantiles(time.monotonic(), 0.5, 0.99)
    yield Gauge.plain("requests_running", "Requests that have a place.", services.slots.live)
    yield Gauge.plain("draining", "Whether the server is shutting down.", float(services.slots.draining))
    yield Gauge.plain("queue_depth", "Requests without a first token.", sum(q.depth for q in services.queues.values()))
    waits = [queue.estimate_s() for queue in services.queues.values()]
    yield Gauge.plain("queue_wait_seconds", "Estimated wait of a request that comes now.", max(waits, default=0.0))
    yield Gauge.plain("step_p50_seconds", "Median time between interactive tokens, last 30 s.", p50 / 1000)
    yield Gauge.plain("step_p99_seconds", "The same, 99th percentile.", p99 / 1000)
    yield from _engines(services)


def _engines(services: Services) -> Iterator[Gauge]:
    entries = services.models.entries.items()
    phases = [
        ({"model": id, "phase": phase}, float(entry.phase == phase)) for id, entry in entries for phase in _PHASES
    ]
    yield Gauge("engine_phase", "1 for the phase that the model's engine is in.", tuple(phases))
    states = [(id, entry.engine.status()) for id, entry in entries if entry.engine]
    for field, help in _STATES.items():
        rows = tuple(({"model": id}, float(getattr(state, field))) for id, state in states)
        yield Gauge(f"engine_{field}".removesuffix("_s") + "_seconds" * field.endswith("_s"), help, rows)
    for field in ("entries", "inserts", "evictions"):
        total = sum(getattr(state.kv, field) for _, state in states)
        yield Gauge.plain(f"prefix_cache_{field}", f"Blocks and whole states in memory, all models: {field}.", total)
    total = sum(state.kv_bytes for _, state in states)
    yield Gauge.plain("prefix_cache_bytes", "Bytes of KV state in memory, all models.", total)
    yield Gauge("kv_bytes", "Bytes of KV state by tier.", tuple(_tiers(states)))


def _tiers(states: list[tuple[str, EngineStatus]]) -> Iterator[tuple[dict[str, str], float]]:
    for id, state in states:
        yield {"model": id, "tier": "memory"}, float(state.kv_bytes)
        yield {"model": id, "tier": "disk"}, float(state.kv.disk_bytes)
