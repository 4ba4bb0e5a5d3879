"""A hit gives the tokens of a cold run, for every kind of cache."""

from __future__ import annotations

import random

import pytest
from desk import Desk
from tiny_nets import KINDS, VOCABULARY, random_net

WHOLE = ("sliding", "recurrent", "hybrid")


def prompt_of(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(length)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def warm(kind: str) -> Desk:
    return Desk(random_net(kind))


def cold(kind: str, prompt: list[int]) -> list[int]:
    return Desk(random_net(kind)).answer(prompt)


def test_answers_depend_on_the_prompt(kind: str) -> None:
    answers = {tuple(cold(kind, prompt_of(70, seed))) for seed in range(4)}
    assert len(answers) > 1
    assert max(len(set(answer)) for answer in answers) > 2


def test_the_same_prompt_again(kind: str, warm: Desk) -> None:
    prompt = prompt_of(150, 1)
    assert warm.answer(prompt, id="first") == warm.answer(prompt, id="second") == cold(kind, prompt)
    assert warm.started("first").cached == 0
    assert warm.started("second").cached == len(prompt) - 1


def test_extension(kind: str, warm: Desk) -> None:
    prompt = prompt_of(150, 2)
    longer = [*prompt, *warm.answer(prompt), *prompt_of(40, 3)]
    assert warm.answer(longer, id="longer") == cold(kind, longer)
    assert warm.started("longer").cached == 166
    assert warm.started("longer").source == "memory"


def test_branch_at_a_boundary(kind: str, warm: Desk) -> None:
    system = prompt_of(90, 4)
    one, two = [*system, *prompt_of(50, 5)], [*system, *prompt_of(60, 6)]
    warm.answer(one, segment_ends=[90])
    assert warm.answer(two, id="two", segment_ends=[90]) == cold(kind, two)
    assert warm.started("two").cached >= 90
    assert warm.answer(one, id="again") == cold(kind, one)
    assert warm.started("again").cached == len(one) - 1


def test_edit_in_the_middle(kind: str, warm: Desk) -> None:
    prompt = prompt_of(150, 7)
    edited = list(prompt)
    edited[100] = (edited[100] + 1) % VOCABULARY
    warm.answer(prompt, segment_ends=[90])
    assert warm.answer(edited, id="edited", segment_ends=[90]) == cold(kind, edited)
    assert warm.started("edited").cached == (90 if kind in WHOLE else 100)


def test_cancelled_answer_is_cut(kind: str, warm: Desk) -> None:
    prompt = prompt_of(80, 8)
    answer = cold(kind, prompt)
    warm.submit("cut", prompt)
    warm.until(lambda: len(warm.tokens("cut")) >= 6)
    warm.cancel("cut", keep=4)
    kept = 79 if kind in WHOLE else 84
    assert warm.ended("cut").kv_tokens == kept
    assert warm.ended("cut").generated == 4
    longer = [*prompt, *answer[:4], *prompt_of(20, 9)]
    assert warm.answer(longer, id="longer") == cold(kind, longer)
    assert warm.started("longer").cached == kept


def test_cancelled_prefill_is_kept(kind: str, warm: Desk) -> None:
    prompt = prompt_of(400, 10)
    warm.submit("gone", prompt)
    warm.steps(2)
    steps = warm.scheduler.steps
    warm.cancel("gone")
    assert warm.ended("gone").kv_tokens == 128
    assert not warm.scheduler.busy
    assert warm.scheduler.steps == steps
    assert warm.answer(prompt, id="back") == cold(kind, prompt)
    assert warm.started("back").cached == 128


def test_lane(kind: str) -> None:
    expected = "sequential" if kind == "quantized" else "batch"
    assert random_net(kind).facts.ready.lane_kind == expected
