"""An admitted request and its account: opened before any work, settled once, whatever happens."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memra_mlx import logs
from memra_mlx.admission.ledger import Ledger
from memra_mlx.admission.outcomes import Debit, Outcome, Receipt, Settlement
from memra_mlx.admission.slots import Rate
from memra_mlx.errors import ApiError
from memra_mlx.metrics import Metrics, Retired, Work

if TYPE_CHECKING:
    from memra_mlx.generation import Generation

log = logging.getLogger("memra.meter")

_SHED: dict[str, Outcome] = {"shed_deadline": "shed_deadline", "shed_queue": "shed_queue"}


@dataclass(slots=True)
class Ticket:
    """What a handler holds of its request. `run` and `rate` are there once the engine has it."""

    receipt: Receipt
    ledger: Ledger
    metrics: Metrics
    opened: float = field(default_factory=time.monotonic)
    settled: bool = False
    _run: Generation | None = None
    _rate: Rate | None = None

    def ride(self, run: Generation, rate: Rate) -> None:
        """The engine has it."""
        self._run, self._rate = run, rate

    @property
    def run(self) -> Generation:
        """The running generation."""
        assert self._run is not None
        return self._run

    @property
    def rate(self) -> Rate:
        """What the rate headers of its answer say."""
        assert self._rate is not None
        return self._rate

    async def settle(self, error: BaseException | None = None) -> None:
        """The one terminal write: ledger, then metrics and the log. Later calls do nothing.

        `error` is what ended the request if no terminal event did.
        """
        if self.settled:
            return
        self.settled = True
        outcome = self._outcome(error)
        end = self._settlement(outcome)
        due = Debit()
        try:
            due = await self.ledger.settle(self.receipt, end)
        except (OSError, sqlite3.Error) as fault:
            log.error("receipt %s could not be closed and stays open: %s", self.receipt.id, fault)
        finally:
            code = error.code or error.kind if isinstance(error, ApiError) else ""
            work = self._work()
            self.metrics.retire(Retired(self.receipt.route, self.receipt.tenant, outcome, code, work))
            self._log(end, due)

    def _outcome(self, error: BaseException | None) -> Outcome:
        told: Outcome = self._run.outcome if self._run else "abandoned"
        match error:
            case None | asyncio.CancelledError() | GeneratorExit():
                return told
            case ApiError(headers=headers):
                return _SHED.get(headers.get("x-memra-shed", ""), "rejected") if told == "abandoned" else told
            case _:
                return "crashed"

    def _settlement(self, outcome: Outcome) -> Settlement:
        run = self._run
        if run is None:
            return Settlement(outcome, 0, 0, None, time.time())
        first = run.meter.first_token
        first_at = None if first is None else self.receipt.opened + first - self.opened
        return Settlement(outcome, run.meter.cached, run.completion_tokens, first_at, time.time())

    def _work(self) -> Work | None:
        run = self._run
        if run is None or run.meter.source is None:
            return None
        meter = run.meter
        ttft = None if meter.first_token is None else meter.first_token - self.opened
        tokens = (self.receipt.prompt_tokens, meter.cached, run.completion_tokens)
        return Work(*tokens, meter.source or "none", ttft, meter.gaps)

    def _log(self, end: Settlement, due: Debit) -> None:
        ttft = None if end.first_token is None else round((end.first_token - self.receipt.opened) * 1000)
        logs.line(
            log,
            "done",
            receipt=self.receipt.id,
            route=self.receipt.route,
            tenant=self.receipt.tenant,
            outcome=end.outcome,
            prompt=self.receipt.prompt_tokens,
            cached=end.cached_tokens,
            source=self._run.meter.source if self._run else None,
            completion=end.completion_tokens,
            ttft_ms=ttft,
            total_ms=round((time.monotonic() - self.opened) * 1000),
            debit_prompt=due.prompt,
            debit_completion=due.completion,
            cost=due.cost,
        )
