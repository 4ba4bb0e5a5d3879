"""The few statistics of a benchmark, and what is wanted of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value. The metric's name says its unit."""

    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Goal:
    """What the first participant should reach: its own value, or its ratio `against` every participant of that kind."""

    scenario: str
    metric: str
    bound: float
    at_least: bool
    against: str = ""

    def met(self, value: float) -> bool:
        """Whether `value` is good enough."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


@dataclass(slots=True)
class Result:
    """All values of one scenario: participant -> metric -> one value a round, both in order of appearance."""

    scenario: str
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, participant: str, samples: Iterable[Sample]) -> None:
        """Take the samples of one round."""
        metrics = self.values.setdefault(participant, {})
        for sample in samples:
            metrics.setdefault(sample.metric, []).append(sample.value)

    @property
    def metrics(self) -> list[str]:
        """Every metric that somebody has."""
        return list(dict.fromkeys(metric for metrics in self.values.values() for metric in metrics))

    def median(self, participant: str, metric: str) -> float | None:
        """None where the participant could not tell."""
        values = self.values.get(participant, {}).get(metric)
        return statistics.median(values) if values else None

    def ratio(self, metric: str, other: str) -> float | None:
        """Median of the first participant over the median of `other`."""
        mine, theirs = self.median(next(iter(self.values)), metric), self.median(other, metric)
        return mine / theirs if mine is not None and theirs else None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all values don't exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(ceil(share * len(values)), 1) - 1]


def gaps(times: Sequence[float]) -> list[float]:
    """Seconds between neighbours."""
    return [after - before for before, after in pairwise(times)]
