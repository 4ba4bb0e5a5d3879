"""Faults stay with their request; a failing step loses no live request; memory stays within its budget."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from desk import Desk
from tiny_nets import VOCABULARY, Net, random_net

from memra_mlx.engine.loader import Loaded
from memra_mlx.engine.protocol import Ended, Fault, Sampling, SetBudget


def prompt_of(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(length)]


class Faulty:
    """A model that raises, or answers NaN for sequences that begin a step with a certain token."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self.layers = net.layers
        self.raises: Iterator[bool] = iter(())
        self.poison: int | None = None

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if next(self.raises, False):
            raise RuntimeError("the device is on fire")
        logits = self._net(inputs, cache=cache)
        if self.poison is None:
            return logits
        return mx.where((inputs[:, -1] == self.poison)[:, None, None], mx.nan, logits)


@pytest.fixture
def faulty() -> tuple[Faulty, Desk]:
    net = random_net("full")
    model = Faulty(net.loaded.net)
    loaded = Loaded(net.loaded.path, model, net.loaded.config)  # type: ignore[arg-type]
    return model, Desk(Net(loaded, net.facts))


def test_nan_fails_its_request_alone(faulty: tuple[Faulty, Desk]) -> None:
    model, desk = faulty
    good, bad = prompt_of(30, 1), [*prompt_of(30, 2), 95]
    expected = Desk(random_net("full")).answer(good, 12)
    assert 95 not in expected
    model.poison = 95
    desk.submit("good", good, 12)
    desk.submit("bad", bad, 12)
    desk.run()
    assert desk.tokens("good") == expected
    assert desk.fault("bad").kind == "request"
    assert "NaN" in desk.fault("bad").message


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_failing_step_loses_nothing(faulty: tuple[Faulty, Desk], temperature: float) -> None:
    model, desk = faulty
    sampling = Sampling(temperature=temperature, seed=4)
    prompts = {id: prompt_of(40, ord(id)) for id in "abc"}
    for id, prompt in prompts.items():
        desk.submit(id, prompt, 12, sampling=sampling)
    desk.until(lambda: len(desk.tokens("a")) >= 5)
    model.raises = iter([True])
    desk.run()
    for id, prompt in prompts.items():
        assert desk.tokens(id) == Desk(random_net("full")).answer(prompt, 12, sampling=sampling)
        assert desk.ended(id).generated == 12


def test_a_step_that_keeps_failing_ends_its_requests(faulty: tuple[Faulty, Desk]) -> None:
    model, desk = faulty
    desk.submit("a", prompt_of(40, 1), 12)
    desk.until(lambda: len(desk.tokens("a")) >= 2)
    model.raises = iter([True] * 50)
    desk.run()
    assert desk.fault("a").kind == "engine"
    assert "on fire" in desk.fault("a").message
    model.raises = iter(())
    assert len(desk.answer(prompt_of(40, 1), 12)) == 12


def test_a_failing_prefill_fails_its_request_alone(faulty: tuple[Faulty, Desk]) -> None:
    model, desk = faulty
    desk.submit("a", prompt_of(40, 1), 5)
    model.raises = iter([True])
    desk.steps(1)
    assert desk.fault("a").kind == "engine"
    assert len(desk.answer(prompt_of(40, 2), 5)) == 5


def budget_for(tokens: int) -> int:
    return random_net("full").facts.shape.bytes(tokens)


def test_what_never_fits_is_refused() -> None:
    desk = Desk(random_net("full"), budget=budget_for(2000))
    desk.submit("big", prompt_of(1500, 1))
    assert desk.fault("big").kind == "memory"
    assert "1500 tokens" in desk.fault("big").message
    assert len(desk.answer(prompt_of(700, 1), 5)) == 5


def test_what_does_not_fit_now_waits() -> None:
    desk = Desk(random_net("full"), budget=budget_for(4096))
    for id in "abcd":
        desk.submit(id, prompt_of(1400, ord(id)), 8)
    live = []

    def over() -> bool:
        live.append(desk.scheduler.counts[0])
        assert desk.scheduler.kv_bytes <= desk.scheduler._room.budget
        return not desk.scheduler.busy

    desk.until(over)
    assert max(live) < 4
    for id in "abcd":
        assert desk.tokens(id) == Desk(random_net("full")).answer(prompt_of(1400, ord(id)), 8)


def test_answers_that_outgrow_the_budget_take_turns() -> None:
    desk = Desk(random_net("full"))
    for id in "abc":
        desk.submit(id, prompt_of(100, ord(id)), 30)
    desk.until(lambda: len(desk.tokens("c")) >= 10)
    desk.scheduler.set_budget(1100 * desk.net.facts.shape.growing)
    assert desk.scheduler.counts == (3, 0)
    assert [job.id for job in desk.scheduler._queue] == ["c"]
    desk.run()
    for id in "abc":
        assert desk.tokens(id) == Desk(random_net("full")).answer(prompt_of(100, ord(id)), 30)


def test_an_answer_that_outgrows_the_budget_alone_fails() -> None:
    desk = Desk(random_net("full"))
    desk.submit("a", prompt_of(100, 1), 3000)
    desk.until(lambda: len(desk.tokens("a")) >= 3)
    desk.scheduler.set_budget(400 * desk.net.facts.shape.growing)
    assert desk.fault("a").kind == "memory"
    assert "outgrew" in desk.fault("a").message
    assert not desk.scheduler.busy


def test_a_smaller_budget_empties_the_store_and_is_kept() -> None:
    desk = Desk(random_net("full"))
    for seed in range(8):
        desk.answer(prompt_of(300, seed), 2)
    before = desk.store.nbytes
    desk.scheduler.set_budget(SetBudget(before // 2).bytes)
    assert 0 < desk.store.nbytes <= before // 2


def test_200_mixed_requests_stay_within_the_budget() -> None:
    budget = budget_for(8192)
    desk = Desk(random_net("full"), budget=budget)
    source = random.Random(5)
    base = mx.get_active_memory() + mx.get_cache_memory()
    submitted = 0
    while submitted < 200 or desk.scheduler.busy:
        if submitted < 200 and source.random() < 0.3:
            length = source.choice([5, 40, 40, 200, 700])
            desk.submit(str(submitted), prompt_of(length, source.randrange(40)), source.choice([1, 4, 20]))
            submitted += 1
        desk.steps(1)
        if source.random() < 0.02 and submitted:
            desk.cancel(str(source.randrange(submitted)))
        assert desk.scheduler.kv_bytes <= budget
        assert mx.get_active_memory() - base <= 2 * budget
    over = [message for message in desk.sent if isinstance(message, Ended | Fault)]
    assert len(over) == 200
    assert not [message for message in over if isinstance(message, Fault)]
