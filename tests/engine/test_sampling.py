from __future__ import annotations

import math

import mlx.core as mx
import pytest
from desk import Desk
from tiny_nets import VOCABULARY, random_net

from memra_mlx.engine.protocol import Sampling, Think
from memra_mlx.engine.sampling import Guard, Sampler, Trouble, draw_seed, penalties

LOGITS = [0.0, 3.0, 1.0, 2.0, -1.0, 2.5, -4.0, 0.5]
PROMPT = [(7 * i) % VOCABULARY for i in range(40)]


def logprobs(logits: list[float] = LOGITS) -> mx.array:
    row = mx.array([logits])
    return row - mx.logsumexp(row, axis=-1, keepdims=True)


def draws(count: int = 300, **fields: object) -> set[int]:
    sampler = Sampler(Sampling(**{"temperature": 1.0, **fields}), 0, Trouble())  # type: ignore[arg-type]
    return {int(sampler(logprobs()).item()) for _ in range(count)}


def test_temperature_zero_is_argmax() -> None:
    assert draws(5, temperature=0.0, seed=3) == {1}


def test_filters() -> None:
    assert draws() >= {0, 1, 2, 3, 5}
    assert draws(top_k=2) == {1, 5}
    assert draws(top_k=1, temperature=5.0) == {1}
    assert draws(top_p=0.6) == {1, 5}
    assert draws(min_p=0.5) == {1, 5}
    assert draws(top_p=0.0) == {1}


@pytest.mark.parametrize("top_k", [8, 9, 100_000])
def test_top_k_of_the_whole_vocabulary_changes_nothing(top_k: int) -> None:
    assert draws(50, top_k=top_k) == draws(50)


def test_a_key_for_every_position() -> None:
    seeds = {draw_seed(seed, position) for seed in range(50) for position in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_a_seed_repeats_from_any_position() -> None:
    whole = Sampler(Sampling(temperature=1.0, seed=5), 0, Trouble())
    tokens = [int(whole(logprobs()).item()) for _ in range(20)]
    rest = Sampler(Sampling(temperature=1.0, seed=5), 8, Trouble())
    assert [int(rest(logprobs()).item()) for _ in range(12)] == tokens[8:]
    assert len(set(tokens)) > 2


def test_logprobs_and_alternatives() -> None:
    sampler = Sampler(Sampling(logprobs=3), 0, Trouble())
    token = sampler(logprobs())
    mx.eval(token)
    drawn = sampler.take()
    expected = logprobs()[0].tolist()
    assert drawn.logprob == pytest.approx(expected[1])
    assert [(id, pytest.approx(value)) for id, value in drawn.top or []] == [(i, expected[i]) for i in (1, 5, 3)]


def test_logprobs_without_alternatives_and_none_at_all() -> None:
    for wanted, top in ((0, []), (-1, None)):
        sampler = Sampler(Sampling(logprobs=wanted), 0, Trouble())
        mx.eval(sampler(logprobs()))
        drawn = sampler.take()
        assert drawn.top == top
        assert (drawn.logprob is None) == (wanted < 0)


@pytest.mark.parametrize("logits", [[math.nan] * 8, [*LOGITS[:-1], math.nan], [-math.inf] * 8])
def test_no_numbers_are_noticed(logits: list[float]) -> None:
    for temperature in (0.0, 1.0):
        sampler = Sampler(Sampling(temperature=temperature), 0, Trouble())
        mx.eval(sampler(logprobs(logits)))
        assert not sampler.take().finite


def test_a_failing_processor_is_trouble_and_changes_nothing() -> None:
    def broken(tokens: mx.array, logits: mx.array) -> mx.array:
        raise ValueError("no")

    trouble = Trouble()
    logits = mx.array([LOGITS])
    assert Guard(broken, trouble)(mx.array([1]), logits) is logits
    assert trouble.message == "a logits processor failed: no"


def test_penalties_reach_8192_tokens_back() -> None:
    (processor,) = penalties(Sampling(presence_penalty=1.0))
    far, near = mx.array([5] + [1] * 8192), mx.array([5] + [1] * 8191)
    assert processor(far, mx.zeros((1, 8)))[0, 5].item() == 0
    assert processor(near, mx.zeros((1, 8)))[0, 5].item() == -1


def test_penalties_that_are_off_cost_nothing() -> None:
    assert penalties(Sampling()) == []
    assert len(penalties(Sampling(repetition_penalty=1.2, frequency_penalty=0.1, logit_bias={3: 1.0}))) == 3


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch() -> None:
    wild = {"temperature": 1.5, "top_p": 0.95, "top_k": 40, "frequency_penalty": 0.4}
    alone = {
        seed: Desk(random_net("full")).answer(PROMPT, 24, sampling=Sampling(seed=seed, **wild)) for seed in (1, 2, 3)
    }
    together = Desk(random_net("full"))
    for seed in alone:
        together.submit(str(seed), PROMPT, 24, sampling=Sampling(seed=seed, **wild))
    together.submit("greedy", PROMPT, 24)
    together.run()
    assert {seed: together.tokens(str(seed)) for seed in alone} == alone
    assert len({tuple(answer) for answer in alone.values()}) == 3


def test_bias_forces_and_forbids() -> None:
    desk = Desk(random_net("full"))
    assert desk.answer(PROMPT, 4, sampling=Sampling(logit_bias={9: 100.0})) == [9] * 4
    first = desk.answer(PROMPT, 1)[0]
    assert desk.answer(PROMPT, 1, sampling=Sampling(logit_bias={first: -100.0})) != [first]


@pytest.mark.parametrize("kind", ["full", "quantized"])
def test_a_reasoning_budget_is_kept_in_both_lanes(kind: str) -> None:
    think = Think([90], [91, 92], opened=True, budget=5)
    desk = Desk(random_net(kind))
    free = desk.answer(PROMPT, 12, sampling=Sampling(logit_bias={91: -100.0}))
    answer = desk.answer(PROMPT, 12, think=think, sampling=Sampling(logit_bias={91: -100.0}))
    assert answer[:5] == free[:5]
    assert answer[5:7] == [91, 92]
    assert len(answer) == 12


def test_a_penalty_counts_the_prompt_in_both_lanes() -> None:
    for kind in ("full", "quantized"):
        desk = Desk(random_net(kind))
        plain = desk.answer(PROMPT, 1)[0]
        prompt = [*PROMPT, plain, 0]
        again = desk.answer(prompt, 1)[0]
        punished = desk.answer(prompt, 1, sampling=Sampling(logit_bias={plain: 50.0}, presence_penalty=200.0))
        assert punished != [plain], again


def test_reported_logprobs_are_those_of_the_processed_logits() -> None:
    desk = Desk(random_net("full"))
    answer = desk.answer(PROMPT, 3, id="it", sampling=Sampling(logprobs=2, logit_bias={9: 100.0}))
    assert answer == [9, 9, 9]
    for item in desk.items("it"):
        assert item.logprob == pytest.approx(0.0, abs=1e-5)
        assert item.top
        assert item.top[0][0] == 9
        assert len(item.top) == 2
