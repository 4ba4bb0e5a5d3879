"""A run as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memra_mlx.bench.inprocess import NAME as IN_PROCESS
from memra_mlx.bench.stats import Goal, Result


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and how it came out. `against` is the participant that it was compared with, "" for none."""

    goal: Goal
    against: str
    value: float

    @property
    def met(self) -> bool:
        return self.goal.met(self.value)


def verdicts(result: Result, goals: Iterable[Goal]) -> list[Verdict]:
    """Every goal that this result can judge."""
    found = []
    first, *others = result.values
    for goal in goals:
        if goal.scenario != result.scenario:
            continue
        for other in [other for other in others if _meant(goal, other)] if goal.against else [""]:
            value = result.ratio(goal.metric, other) if other else result.median(first, goal.metric)
            if value is not None:
                found.append(Verdict(goal, other, value))
    return found


def _meant(goal: Goal, participant: str) -> bool:
    return (goal.against == IN_PROCESS) == (participant == IN_PROCESS)


def table(result: Result, goals: Iterable[Goal]) -> str:
    """Medians of one scenario, aligned: a line a metric, and what was wanted of it."""
    first, *others = result.values
    judged = verdicts(result, goals)
    rows = [[result.scenario, first, *others, *(f"/ {other}" for other in others), "goal"]]
    for metric in result.metrics:
        medians = [_number(result.median(who, metric)) for who in result.values]
        ratios = [_number(result.ratio(metric, other)) for other in others]
        rows.append([metric, *medians, *ratios, _goal([v for v in judged if v.goal.metric == metric])])
    return aligned(rows)


def _goal(judged: Sequence[Verdict]) -> str:
    if not judged:
        return ""
    return f"{judged[0].goal} {'met' if all(v.met for v in judged) else 'missed'}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Text columns: the first to the left, the last as it is, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        middle = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *middle, row[-1]]).rstrip())
    return "\n".join(lines)


def document(results: Sequence[Result], goals: Sequence[Goal], about: dict[str, Any]) -> dict[str, Any]:
    """All raw values, and what they say about the goals."""
    judged = [verdict for result in results for verdict in verdicts(result, goals)]
    return {
        **about,
        "results": {result.scenario: result.values for result in results},
        "goals": [
            {
                "scenario": v.goal.scenario,
                "metric": v.goal.metric,
                "against": v.against,
                "wanted": str(v.goal),
                "value": v.value,
                "met": v.met,
            }
            for v in judged
        ],
    }
