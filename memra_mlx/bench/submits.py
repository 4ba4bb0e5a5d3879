"""Requests from their last byte to the engine's `Submit`, timed.

The admission path runs here as it does in the server, on the embedded model's tokenizer and a scripted engine.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from memra_mlx import config
from memra_mlx.admission.admit import Call, admit
from memra_mlx.admission.services import Services
from memra_mlx.bench import claude_body
from memra_mlx.choices import chosen
from memra_mlx.deadline import Deadline
from memra_mlx.dialects import messages
from memra_mlx.engine import spawn
from memra_mlx.events import fold
from memra_mlx.models import Models

_WARM_TURNS = 5
_CALL = {"call": {"tool": "Tool1", "arguments": {"file_path": "src/main.py"}}}
_SCRIPT = {"script": [_CALL], "ctx": 1 << 20}


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds up to one submit, by the clock and of this process's CPU. `known`: the conversation was there before."""

    known: bool
    wall_s: float
    cpu_s: float


async def conversations(rounds: int, salt: str, size: int) -> list[Spent]:
    """`rounds` new conversations of `size` bytes, and some turns more of each."""
    spent: list[Spent] = []
    with TemporaryDirectory() as folder:
        async with _services(Path(folder)) as services:
            await _turn(services, claude_body.body(size, f"{salt}-unmeasured"), known=False)
            for number in range(rounds):
                spent += await _conversation(services, claude_body.body(size, f"{salt}-{number}"), f"{salt}-{number}")
    return spent


async def _conversation(services: Services, request: dict[str, Any], seed: str) -> list[Spent]:
    first, content = await _turn(services, request, known=False)
    spent = [first]
    for number in range(_WARM_TURNS):
        request = claude_body.answered(request, content, f"{seed}-warm-{number}")
        turn, content = await _turn(services, request, known=True)
        spent.append(turn)
    return spent


async def _turn(services: Services, request: dict[str, Any], *, known: bool) -> tuple[Spent, list[dict[str, Any]]]:
    """One request, and the content of its answer."""
    data = json.dumps(request).encode()
    began, began_cpu = time.perf_counter(), time.process_time()
    parsed = messages.parse(msgspec.json.decode(data), {})
    async with admit(services, parsed, Call("/v1/messages", "bench", {})) as ticket:
        spent = Spent(known, time.perf_counter() - began, time.process_time() - began_cpu)
        run = ticket.run
        events = [event async for batch in chosen(run, Deadline.after_ms(0), 1.0) for _, event in batch]
        await ticket.settle()
    content: list[dict[str, Any]] = messages.body(run.request, fold(events), 0)["content"]
    return spent, content


@asynccontextmanager
async def _services(folder: Path) -> AsyncIterator[Services]:
    script = folder / "script.json"
    script.write_text(json.dumps(_SCRIPT))
    folders = {"state_dir": str(folder / "state"), "cache_dir": str(folder / "cache")}
    (folder / "config.toml").touch()
    flags = {"engine": f"scripted:{script}", "any_model": True, **folders}
    settings = config.load(flags, folder / "config.toml", {})
    models = Models(settings, partial(spawn.command, settings), _failed)
    services = Services.of(settings, models)
    await services.ledger.start()
    try:
        await models.get(models.default)
        yield services
    finally:
        await models.close(0)
        await services.ledger.close()


def _failed(reason: str) -> None:
    raise RuntimeError(reason)
