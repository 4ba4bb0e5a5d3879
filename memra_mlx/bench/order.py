"""A whole run: the servers and the yardstick it needs, then its scenarios."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from memra_mlx import __version__
from memra_mlx.bench import runner
from memra_mlx.bench.inprocess import InProcess
from memra_mlx.bench.plan import Plan, Sizes, words_per_token
from memra_mlx.bench.process import Serving
from memra_mlx.bench.stats import Result
from memra_mlx.bench.wire import Endpoint, model_of

OURS = "memra-mlx"
RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured. `model` "" is the server's first; `serve` starts the server, "" where it runs already;
    `local` is the model's folder, for the yardstick."""

    base: str
    model: str
    key: str
    peers: Sequence[Endpoint]
    scenarios: Sequence[str]
    rounds: int
    sizes: Sizes
    local: Path | None = None
    serve: str = ""


def carry_out(order: Order) -> Iterator[Result]:
    """Measure; a result is yielded as soon as its scenario is over. Raises `BenchError`."""
    salt = token_hex(4)
    remote = [scenario for scenario in order.scenarios if scenario != runner.OVERHEAD]
    if remote:
        with InProcess(order.local) if order.local else nullcontext() as local:
            yield from _remote(order, remote, salt, local)
    if runner.OVERHEAD in order.scenarios:
        yield from runner.run([runner.OVERHEAD], (), Plan(order.sizes, 1.0, salt), order.rounds)


def _remote(order: Order, scenarios: Sequence[str], salt: str, local: InProcess | None) -> Iterator[Result]:
    """The scenarios that need servers; `restart` comes last, for it needs the server's place."""
    with Serving(order.serve, order.base) if order.serve else nullcontext():
        endpoints = [_endpoint(order), *order.peers]
        density, *_ = [words_per_token(endpoint, salt) for endpoint in endpoints]
        plan = Plan(order.sizes, density, salt, local, order.serve)
        yield from runner.run([name for name in scenarios if name != RESTART], endpoints, plan, order.rounds)
    yield from runner.run([name for name in scenarios if name == RESTART], endpoints, plan, order.rounds)


def _endpoint(order: Order) -> Endpoint:
    return Endpoint(OURS, order.base, order.model or model_of(order.base, order.key), order.key)


def about(order: Order) -> dict[str, Any]:
    """Where and when, for the JSON file."""
    return {
        "version": __version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "rounds": order.rounds,
        "sizes": asdict(order.sizes),
        "peers": {peer.name: peer.base for peer in order.peers},
    }
