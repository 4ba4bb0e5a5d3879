"""Which value of a sampling parameter wins."""

from __future__ import annotations

from typing import Any

from memra_mlx.admission import resolve
from memra_mlx.request import RawPrompt, Request, Sampling


def test_the_clients_value_beats_the_models_beats_the_apis():
    own = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    got = resolve.sampling(Sampling(temperature=0.0, top_p=None), own)
    assert (got.temperature, got.top_k, got.top_p, got.min_p) == (0.0, 20, 0.95, 0.0)
    assert resolve.sampling(Sampling(), {}).temperature == 1.0


def test_do_sample_false_means_greedy_unless_asked():
    assert resolve.sampling(Sampling(), {"do_sample": False}).temperature == 0.0
    assert resolve.sampling(Sampling(temperature=0.7), {"do_sample": False}).temperature == 0.7


def test_a_broken_generation_config_is_not_believed():
    assert resolve.sampling(Sampling(), {"temperature": "hot", "top_k": True}).top_k == 0


def test_seeds_are_kept_or_fresh():
    assert resolve.sampling(Sampling(seed=7), {}).seed == 7
    assert len({resolve.sampling(Sampling(), {}).seed for _ in range(10)}) == 10


def test_max_tokens_shrinks_to_the_context():
    def request(limit: int | None) -> Request:
        return Request("completions", "m", RawPrompt("x"), max_tokens=limit)

    assert resolve.max_tokens(request(32_000), 400, 512) == 112
    assert resolve.max_tokens(request(None), 400, 512) == 112
    assert resolve.max_tokens(request(5), 400, 512) == 5


def test_a_cut_limit_is_told_where_it_matters():
    def told(asked: int | None, **more: Any) -> list[str]:
        request = Request("chat", "m", RawPrompt("x"), max_tokens=asked, **more)
        return list(resolve.warnings(request, 400, 512))

    assert told(None) == told(112) == told(448, stream=True) == []
    assert told(113) == ["max_tokens: 113 was cut to the 112 tokens that are left of the context of 512"]
    assert len(told(449, stream=True)) == 1


def test_a_context_that_is_not_had_is_told():
    request = Request("chat", "m", RawPrompt("x"), ctx_size=1024)
    assert [text.partition(":")[0] for text in resolve.warnings(request, 400, 512)] == ["ctx_size"]
    assert list(resolve.warnings(request, 400, 1024)) == []
