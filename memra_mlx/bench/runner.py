"""Runs scenarios: one round for each participant in turn, A B A B, so that the machine's load hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from memra_mlx.bench import inprocess, rates, sessions
from memra_mlx.bench.inprocess import InProcess
from memra_mlx.bench.overhead import COLD, WARM, overhead
from memra_mlx.bench.plan import Plan
from memra_mlx.bench.stats import Goal, Result, Sample
from memra_mlx.bench.wire import Endpoint

Measure = Callable[[Endpoint, Plan, int], list[Sample]]

PEERS = "peers"
MEASURES: dict[str, Measure] = {
    "session": sessions.session,
    "interleaved": sessions.interleaved,
    "restart": sessions.restart,
    "concurrent": rates.concurrent,
    "single": rates.single,
    "stall": rates.stall,
    "constrained": rates.constrained,
}
OVERHEAD = "overhead"
SCENARIOS = (*MEASURES, OVERHEAD)
_OURS_ALONE = ("restart", "constrained")
GOALS = (
    Goal("session", sessions.PAID, 1.02, at_least=False),
    Goal("session", sessions.OVER_LOCAL, 1.2, at_least=False),
    Goal("interleaved", sessions.PAID, 1.02, at_least=False),
    Goal("restart", sessions.COLD_OVER_RESUMED, 10, at_least=True),
    *(Goal("concurrent", rates.throughput(clients), 1, at_least=True, against=PEERS) for clients in (4, 8)),
    Goal("single", rates.DECODE, 0.97, at_least=True, against=inprocess.NAME),
    Goal("stall", rates.DISTURBED, 3, at_least=False),
    Goal("constrained", rates.ALONE, 0.85, at_least=True),
    Goal("constrained", rates.BATCHED, 0.8, at_least=True),
    Goal(OVERHEAD, WARM, 25, at_least=False),
    Goal(OVERHEAD, COLD, 150, at_least=False),
)


def run(scenarios: Sequence[str], endpoints: Sequence[Endpoint], plan: Plan, rounds: int) -> Iterator[Result]:
    """One result a scenario; the first endpoint is the one that the goals are for. Raises `BenchError`."""
    for scenario in scenarios:
        result = Result(scenario)
        if scenario == OVERHEAD:
            result.add("library", overhead(rounds, plan.salt))
        else:
            for round_ in range(rounds):
                for who in participants(scenario, endpoints, plan):
                    result.add(name(who), _measure(scenario, who, plan, round_))
        yield result


def participants(scenario: str, endpoints: Sequence[Endpoint], plan: Plan) -> list[Endpoint | InProcess]:
    """Who takes part, in the order in which each round goes."""
    servers = endpoints[:1] if scenario in _OURS_ALONE else endpoints
    return [*servers, plan.local] if scenario == "single" and plan.local else [*servers]


def name(who: Endpoint | InProcess) -> str:
    """As in the table."""
    return who.name if isinstance(who, Endpoint) else inprocess.NAME


def _measure(scenario: str, who: Endpoint | InProcess, plan: Plan, round_: int) -> list[Sample]:
    match who:
        case Endpoint():
            return MEASURES[scenario](who, plan, round_)
        case InProcess():
            return rates.single(who, plan, round_)
        case _:
            assert_never(who)
