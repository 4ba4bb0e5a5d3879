"""Counts of retired requests, and who sees which of them."""

from __future__ import annotations

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from memra_mlx import metrics_view
from memra_mlx.metrics import GAP_EDGES, LCP_EDGES, OTHER, TENANTS, Histogram, Metrics, Retired, Work
from memra_mlx.metrics_view import Gauge


def retired(tenant="acme", outcome="completed", cached=40):
    gaps = Histogram(GAP_EDGES)
    gaps.add(0.02, 9)
    work = Work(100, cached, 10, "memory" if cached else "none", 0.3, gaps)
    return Retired("/v1/messages", tenant, outcome, work=work)


def samples(text):
    """(name, labels) -> value."""
    families = text_string_to_metric_families(text.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def test_totals_and_text():
    metrics = Metrics()
    metrics.retire(retired())
    metrics.retire(retired("beta", "abandoned", cached=0))
    metrics.retire(Retired("/v1/responses", "", "rejected", "invalid_api_key"))
    found = samples(metrics_view.text(metrics_view.for_operator(metrics, [Gauge.plain("queue_depth", "Waiting.", 3)])))
    assert found["memra_prompt_tokens_in_total", ()] == 200
    assert found["memra_cached_tokens_in_total", ()] == 40
    assert found["memra_computed_tokens_in_total", ()] == 160
    assert found["memra_cache_hit_token_ratio", ()] == 0.2
    assert found["memra_prefix_cache_hits_total", ()] == 1
    assert found["memra_prefix_cache_misses_total", ()] == 1
    assert found["memra_requests_total", (("outcome", "abandoned"), ("route", "/v1/messages"))] == 1
    assert found["memra_refusals_total", (("code", "invalid_api_key"), ("route", "/v1/responses"))] == 1
    assert found["memra_tenant_prompt_tokens_in_total", (("tenant", "beta"),)] == 100
    assert found["memra_queue_depth", ()] == 3
    assert found["memra_lcp_histogram_bucket", (("le", "64"),)] == 2
    assert found["memra_lcp_histogram_bucket", (("le", "0"),)] == 1
    assert found["memra_inter_token_seconds_count", ()] == 18


def test_json_has_the_plain_names():
    metrics = Metrics()
    metrics.retire(retired())
    body = msgspec.json.decode(msgspec.json.encode(metrics_view.json(metrics_view.for_operator(metrics, []))))
    assert (body["prompt_tokens_in"], body["computed_tokens_in"], body["completion_tokens_out"]) == (100, 60, 10)
    assert body["lcp_histogram"]["edges"] == list(LCP_EDGES)
    assert sum(body["lcp_histogram"]["counts"]) == 1
    assert body["tenants"]["acme"]["cached_tokens_in"] == 40
    assert body["requests"] == {"/v1/messages": {"completed": 1}}


def test_a_tenant_sees_its_own_rows_alone():
    metrics = Metrics()
    metrics.retire(retired())
    metrics.retire(retired("beta"))
    view = metrics_view.for_tenant(metrics, "beta")
    assert b"acme" not in metrics_view.text(view)
    assert samples(metrics_view.text(view))["memra_prompt_tokens_in_total", ()] == 100
    assert list(metrics_view.json(view)["tenants"]) == ["beta"]
    assert metrics_view.json(metrics_view.for_tenant(metrics, "nobody"))["prompt_tokens_in"] == 0


def test_tenants_are_bounded_and_totals_exact():
    metrics = Metrics()
    for i in range(TENANTS + 50):
        metrics.retire(retired(f"t{i}"))
    assert len(metrics.tenants) == TENANTS + 1
    assert metrics.tenants[OTHER].prompt == 50 * 100
    assert metrics.total.prompt == (TENANTS + 50) * 100


def test_a_histogram_counts_by_upper_edge():
    histogram = Histogram((0, 1, 16))
    for value in (0, 1, 2, 16, 17):
        histogram.add(value)
    assert histogram.counts == [1, 1, 2, 1]
