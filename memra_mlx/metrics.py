"""What the server has done, counted when a request retires: totals, and one account for each of the first 256 tenants.

Plain numbers; `metrics_view` renders them. Times are seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

LCP_EDGES = (0, 1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TTFT_EDGES = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 90, 180, 600)
GAP_EDGES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
TENANTS = 256
OTHER = "(other)"


class Histogram:
    """Counts by upper edge (inclusive); the last count is of what lies above all edges."""

    def __init__(self, edges: tuple[float, ...]):
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    def merge(self, other: Histogram) -> None:
        """Add what `other`, of the same edges, has counted."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine did for a request. `source` is where its prefix came from; `ttft_s` None: no token came."""

    prompt: int
    cached: int
    completion: int
    source: str
    ttft_s: float | None
    gaps: Histogram


@dataclass(frozen=True, slots=True)
class Retired:
    """A request that is over. `code` says why it was refused or failed; `work` is None if no engine began with it."""

    route: str
    tenant: str
    outcome: str
    code: str = ""
    work: Work | None = None


@dataclass(slots=True)
class Account:
    """Sums over retired requests. `hits` by source: memory, disk, recompute."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)  # (route, outcome)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)  # (route, code)
    hits: Counter[str] = field(default_factory=Counter)
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    lcp: Histogram = field(default_factory=lambda: Histogram(LCP_EDGES))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_EDGES))
    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_EDGES))

    def add(self, retired: Retired) -> None:
        """Count a request."""
        self.requests[retired.route, retired.outcome] += 1
        if retired.code:
            self.refusals[retired.route, retired.code] += 1
        if work := retired.work:
            self._add_work(work)

    def _add_work(self, work: Work) -> None:
        self.hits["recompute" if work.source == "none" else work.source] += 1
        self.prompt += work.prompt
        self.cached += work.cached
        self.completion += work.completion
        self.lcp.add(work.cached)
        self.gaps.merge(work.gaps)
        if work.ttft_s is not None:
            self.ttft.add(work.ttft_s)

    @property
    def computed(self) -> int:
        """Prompt tokens that no cache had."""
        return self.prompt - self.cached

    @property
    def hit_ratio(self) -> float:
        """Cached share of all prompt tokens."""
        return self.cached / self.prompt if self.prompt else 0.0


class Metrics:
    """All accounts. Totals are exact; tenants past the bound share one row."""

    def __init__(self) -> None:
        self.total = Account()
        self.tenants: dict[str, Account] = {}

    def retire(self, retired: Retired) -> None:
        """Count a request that is over. An empty tenant (refused before it was known) counts in the totals alone."""
        self.total.add(retired)
        if retired.tenant:
            self._row(retired.tenant).add(retired)

    def _row(self, tenant: str) -> Account:
        if tenant not in self.tenants and len(self.tenants) >= TENANTS:
            tenant = OTHER
        return self.tenants.setdefault(tenant, Account())
