"""What admission works with: one value for the life of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from memra_mlx.admission.capture import Capture
from memra_mlx.admission.keyfile import Keyring
from memra_mlx.admission.lanes import Gate, Steps
from memra_mlx.admission.ledger import Ledger
from memra_mlx.admission.pressure import Pressure
from memra_mlx.admission.slots import Slots
from memra_mlx.config import Config
from memra_mlx.errors import ApiError
from memra_mlx.generation import Generation
from memra_mlx.metrics import Metrics
from memra_mlx.models import Models


@dataclass(frozen=True, slots=True, eq=False)
class Riding:
    """A request that an engine has, and the task that serves it."""

    run: Generation
    task: asyncio.Task[Any] | None


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all requests. Everything but the ledger's thread lives on the loop."""

    config: Config
    models: Models
    keyring: Keyring
    slots: Slots
    ledger: Ledger
    gate: Gate
    capture: Capture | None
    metrics: Metrics = field(default_factory=Metrics)
    steps: Steps = field(default_factory=Steps)
    queues: dict[str, Pressure] = field(default_factory=dict)
    running: set[Riding] = field(default_factory=set)

    @classmethod
    def of(cls, config: Config, models: Models) -> Services:
        """The services of a configuration. Raises `ConfigError` for a keyring that cannot be used."""
        shares = {"judge": config.judge_share, "harvest": config.harvest_share}
        return cls(
            config=config,
            models=models,
            keyring=Keyring.of(config),
            slots=Slots(config.slots, config.drain_s),
            ledger=Ledger(config.state_dir),
            gate=Gate({lane: share * config.slo_p99_ms for lane, share in shares.items()}),
            capture=Capture(config.state_dir / "capture", config.capture_bytes) if config.capture else None,
        )

    def queue(self, model: str) -> Pressure:
        """The queue before a model's engine."""
        return self.queues.setdefault(model, Pressure(self.config.queue_limit))

    @contextmanager
    def riding(self, riding: Riding) -> Iterator[None]:
        """Be known to the drain."""
        self.running.add(riding)
        try:
            yield
        finally:
            self.running.discard(riding)

    def kill(self, error: ApiError) -> None:
        """End all that runs with `error`, as the dialects say it."""
        for riding in list(self.running):
            riding.run.kill(error)
