"""The counts of `metrics` as Prometheus text or JSON, for the operator or for one tenant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from memra_mlx.metrics import Account, Histogram, Metrics

TEXT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
Row = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value of the moment; one row for each set of labels."""

    name: str
    help: str
    rows: tuple[Row, ...]

    @classmethod
    def plain(cls, name: str, help: str, value: float) -> Gauge:
        """A gauge without labels."""
        return cls(name, help, (({}, value),))


@dataclass(frozen=True, slots=True)
class View:
    """What somebody may see: one account, and for the operator the rows of all tenants and the gauges."""

    account: Account
    tenants: Mapping[str, Account]
    gauges: tuple[Gauge, ...] = field(default=())


def for_operator(metrics: Metrics, gauges: Iterable[Gauge]) -> View:
    """Everything."""
    return View(metrics.total, metrics.tenants, tuple(gauges))


def for_tenant(metrics: Metrics, tenant: str) -> View:
    """The tenant's own counts and nothing else."""
    account = metrics.tenants.get(tenant, Account())
    return View(account, {tenant: account})


def text(view: View) -> bytes:
    """The Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(view))
    return generate_latest(registry)


def json(view: View) -> dict[str, Any]:
    """The same as one JSON object."""
    out = _sums(view.account)
    out["requests"] = _nested(view.account.requests)
    out["refusals"] = _nested(view.account.refusals)
    histograms = {"lcp": view.account.lcp, "ttft_seconds": view.account.ttft, "inter_token_seconds": view.account.gaps}
    for name, histogram in histograms.items():
        rows = {"edges": histogram.edges, "counts": histogram.counts, "sum": histogram.sum}
        out[f"{name}_histogram" if name == "lcp" else name] = rows
    out["tenants"] = {name: _sums(account) for name, account in view.tenants.items()}
    for gauge in view.gauges:
        out[gauge.name] = (
            gauge.rows[0][1] if not gauge.rows[0][0] else [{**labels, "value": v} for labels, v in gauge.rows]
        )
    return out


def _sums(account: Account) -> dict[str, Any]:
    return {
        "prompt_tokens_in": account.prompt,
        "cached_tokens_in": account.cached,
        "computed_tokens_in": account.computed,
        "completion_tokens_out": account.completion,
        "cache_hit_token_ratio": account.hit_ratio,
        "prefix_cache_hits": account.hits["memory"] + account.hits["disk"],
        "prefix_cache_misses": account.hits["recompute"],
        "prefix_cache_sources": dict(account.hits),
        "requests_total": account.requests.total(),
    }


def _nested(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for (outer, inner), count in counts.items():
        out.setdefault(outer, {})[inner] = count
    return out


class _Families(Collector):
    """A view as metric families."""

    def __init__(self, view: View):
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """All families."""
        account = self._view.account
        yield _counter("requests", "Requests that are over.", ("route", "outcome"), account.requests)
        yield _counter("refusals", "Refused or failed requests by error code.", ("route", "code"), account.refusals)
        sources = {(source,): count for source, count in account.hits.items()}
        yield _counter("prefix_cache_sources", "Where prefixes came from.", ("source",), sources)
        yield from self._tokens(account)
        yield from self._tenants()
        yield _histogram("lcp_histogram", "Prompt tokens resumed from a cache.", account.lcp)
        yield _histogram("ttft_seconds", "From admission to the first token.", account.ttft)
        yield _histogram("inter_token_seconds", "Between two tokens of a request.", account.gaps)
        for gauge in self._view.gauges:
            yield _gauge(gauge)

    def _tokens(self, account: Account) -> Iterator[Metric]:
        for name, value in _sums(account).items():
            if name in ("requests_total", "prefix_cache_sources"):
                continue
            if name == "cache_hit_token_ratio":
                yield GaugeMetricFamily("memra_" + name, "Cached share of prompt tokens.", value=value)
            else:
                yield CounterMetricFamily("memra_" + name, name.replace("_", " ").capitalize() + ".", value=value)

    def _tenants(self) -> Iterator[Metric]:
        for name in ("prompt_tokens_in", "cached_tokens_in", "computed_tokens_in", "completion_tokens_out"):
            rows = {(tenant,): _sums(account)[name] for tenant, account in self._view.tenants.items()}
            yield _counter(f"tenant_{name}", name.replace("_", " ").capitalize() + " by tenant.", ("tenant",), rows)
        outcomes = {
            (tenant, outcome): sum(n for (_, o), n in account.requests.items() if o == outcome)
            for tenant, account in self._view.tenants.items()
            for _, outcome in account.requests
        }
        yield _counter("tenant_requests", "Requests by tenant.", ("tenant", "outcome"), outcomes)


def _counter(name: str, help: str, labels: tuple[str, ...], rows: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily("memra_" + name, help, labels=labels)
    for values, count in rows.items():
        family.add_metric(values, count)
    return family


def _gauge(gauge: Gauge) -> Metric:
    labels = tuple(gauge.rows[0][0]) if gauge.rows else ()
    family = GaugeMetricFamily("memra_" + gauge.name, gauge.help, labels=labels)
    for values, value in gauge.rows:
        family.add_metric(tuple(values.values()), value)
    return family


def _histogram(name: str, help: str, histogram: Histogram) -> Metric:
    buckets, running = [], 0
    for edge, count in zip((*histogram.edges, float("inf")), histogram.counts, strict=True):
        running += count
        buckets.append(("+Inf" if edge == float("inf") else str(edge), running))
    family = HistogramMetricFamily("memra_" + name, help)
    family.add_metric((), buckets, histogram.sum)
    return family
