from __future__ import annotations

import random

import mlx.core as mx
import pytest
from desk import BIG, Desk
from mlx_lm.generate import generate_step
from tiny_nets import VOCABULARY, Net, embedded, random_net

from memra_mlx.engine.decode import Batch
from memra_mlx.engine.protocol import Progress, Sampling, Started, Tokens


def prompt_of(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(length)]


def reference(net: Net, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """mlx-lm's own greedy tokens, and the gap between the best two at each."""
    tokens, gaps = [], []
    for token, logprobs in generate_step(mx.array(prompt), net.loaded.net, max_tokens=count):
        if token in net.facts.ready.eos_ids:
            break
        best = mx.sort(logprobs)[-2:].tolist()
        tokens.append(int(token))
        gaps.append(best[1] - best[0])
    return tokens, gaps


def agree(answer: list[int], expected: tuple[list[int], list[float]]) -> None:
    """Equal, or different from a token on whose best two were nearly even."""
    tokens, gaps = expected
    for i, (got, wanted) in enumerate(zip(answer, tokens, strict=False)):
        if got != wanted:
            print(f"token {i}: {got} for {wanted}, gap {gaps[i]:.2e}")
            assert gaps[i] < 1e-3
            return
    assert len(answer) == len(tokens)


@pytest.mark.parametrize("kind", ["full", "sliding", "recurrent", "hybrid"])
def test_alone_as_in_a_batch_as_in_mlx_lm(kind: str) -> None:
    net = random_net(kind)
    prompts = {str(n): prompt_of(n, n) for n in (1, 2, 30, 77, 150)}
    together = Desk(net)
    for id, prompt in prompts.items():
        together.submit(id, prompt, 20)
        together.steps(2)
    together.run()
    for id, prompt in prompts.items():
        expected = reference(net, prompt, 20)
        agree(together.tokens(id), expected)
        agree(Desk(net).answer(prompt, 20), expected)
        assert together.ended(id).reason == "length"


def test_the_embedded_model_alone_as_in_mlx_lm() -> None:
    net = embedded()
    prompt = [4085, 265, 402, 10, 300, 301, 302, 4086, 10]
    desk = Desk(net)
    agree(desk.answer(prompt, 24), reference(net, prompt, 24))


def test_the_life_of_a_request() -> None:
    desk = Desk(random_net("full"))
    desk.submit("one", prompt_of(150, 1), 3)
    desk.run()
    kinds = [type(message).__name__ for message in desk.sent]
    assert kinds == ["Started", "Progress", "Progress", "Progress", "Tokens", "Tokens", "Tokens", "Ended"]
    assert [(m.done, m.total) for m in desk.sent if isinstance(m, Progress)] == [(64, 150), (128, 150), (150, 150)]
    assert desk.ended("one").kv_tokens == 153


def test_a_token_of_every_live_request_in_one_frame() -> None:
    desk = Desk(random_net("full"))
    for id in "abc":
        desk.submit(id, prompt_of(20, ord(id)), 8)
    desk.run()
    frames = [sorted(t.id for t in message.items) for message in desk.sent if isinstance(message, Tokens)]
    assert frames.count(["a", "b", "c"]) >= 5


def test_the_end_of_turn_token_is_not_reported_but_kept() -> None:
    net = random_net("full")
    prompt = prompt_of(40, 3)
    answer = Desk(net).answer(prompt, 10)
    stop = answer[6]
    desk = Desk(net)
    assert desk.answer(prompt, 10, id="it", stop_ids=[stop]) == answer[: answer.index(stop)]
    assert desk.ended("it").reason == "stop"
    assert desk.ended("it").generated == answer.index(stop)
    assert desk.ended("it").kv_tokens == 40 + answer.index(stop) + 1


def test_no_tokens_wanted() -> None:
    desk = Desk(random_net("full"))
    assert desk.answer(prompt_of(20, 1), 0, id="it") == []
    assert desk.ended("it").reason == "length"


def test_the_context_bounds_the_answer() -> None:
    desk = Desk(random_net("full"))
    context = desk.net.facts.ready.context
    assert len(desk.answer(prompt_of(context - 3, 1), 50, id="it")) == 3
    assert desk.ended("it").reason == "length"


@pytest.mark.parametrize(
    ("prompt", "fields", "words"),
    [
        ([], {}, "empty"),
        ([5, VOCABULARY], {}, "outside 0..95"),
        ([-1], {}, "outside 0..95"),
        ([1] * 8192, {}, "context is 8192"),
        ([1], {"sampling": Sampling(logit_bias={96: 1.0})}, "token id 96"),
    ],
)
def test_what_the_model_cannot_run(prompt: list[int], fields: dict[str, Sampling], words: str) -> None:
    desk = Desk(random_net("full"))
    desk.submit("bad", prompt, **fields)
    assert words in desk.fault("bad").message
    assert desk.fault("bad").kind == "request"
    assert not desk.scheduler.busy


def test_a_request_that_has_not_started_is_cancelled_at_once() -> None:
    desk = Desk(random_net("full"))
    desk.submit("one", prompt_of(30, 1))
    desk.cancel("one")
    desk.cancel("one")
    desk.cancel("unknown")
    assert desk.ended("one").reason == "cancelled"
    assert len(desk.sent) == 1
    assert desk.scheduler.steps == 0


def test_a_cancelled_request_takes_no_further_step() -> None:
    desk = Desk(random_net("full"))
    desk.submit("gone", prompt_of(30, 1), 500)
    desk.submit("stays", prompt_of(30, 2), 12)
    desk.until(lambda: len(desk.tokens("gone")) >= 4)
    desk.cancel("gone")
    count = len(desk.tokens("gone"))
    desk.run()
    assert len(desk.tokens("gone")) == count
    assert desk.tokens("stays") == Desk(random_net("full")).answer(prompt_of(30, 2), 12)
    steps = desk.scheduler.steps
    desk.steps(3)
    assert desk.scheduler.steps == steps


def test_a_cancel_in_a_long_prefill_takes_one_step_at_most() -> None:
    desk = Desk(random_net("full"))
    desk.submit("long", prompt_of(8000, 1))
    desk.steps(3)
    desk.cancel("long")
    assert desk.scheduler.steps == 3
    assert desk.ended("long").kv_tokens == 3 * 64


def test_n_answers_share_one_prefill() -> None:
    desk = Desk(random_net("full"))
    prompt = prompt_of(600, 4)
    for i in range(8):
        desk.submit(str(i), prompt, 4, sampling=Sampling(temperature=1.0, seed=i))
    desk.run()
    started = [message.cached for message in desk.sent if isinstance(message, Started)]
    assert started == [0] + [599] * 7


def test_lanes_and_short_requests_first() -> None:
    desk = Desk(random_net("full"))
    desk.submit("harvest", prompt_of(300, 1), 1, lane="harvest")
    desk.submit("judge", prompt_of(300, 2), 1, lane="judge")
    desk.submit("long", prompt_of(2000, 3), 1)
    desk.submit("short", prompt_of(100, 4), 1)
    desk.run()
    order = [message.id for message in desk.sent if isinstance(message, Started)]
    assert order == ["short", "long", "judge", "harvest"]


def test_a_title_does_not_pad_a_long_session() -> None:
    desk = Desk(random_net("full"))
    desk.submit("session", prompt_of(7000, 1), 60)
    desk.until(lambda: len(desk.tokens("session")) > 2)
    desk.submit("title", prompt_of(20, 2), 10)
    desk.submit("topic", prompt_of(30, 3), 10)
    desk.until(lambda: len(desk.tokens("topic")) > 2)
    batches = [d.shape for d in desk.scheduler._decoders if isinstance(d, Batch)]
    assert sorted(shape.members for shape in batches) == [1, 2]
    live = desk.net.facts.shape.bytes(7100) + 3 * desk.net.facts.shape.bytes(100)
    assert desk.scheduler.kv_bytes - desk.store.nbytes <= live
    desk.run()
    assert desk.tokens("title") == Desk(random_net("full")).answer(prompt_of(20, 2), 10)


def test_draining_takes_nothing_new() -> None:
    desk = Desk(random_net("full"))
    desk.submit("old", prompt_of(30, 1), 5)
    desk.scheduler.drain()
    desk.submit("new", prompt_of(30, 1), 5)
    assert desk.fault("new").kind == "engine"
    desk.run()
    assert len(desk.tokens("old")) == 5


def test_namespaces_do_not_share() -> None:
    desk = Desk(random_net("full"), budget=BIG)
    prompt = prompt_of(100, 1)
    desk.answer(prompt, 2, namespace="one")
    desk.answer(prompt, 2, id="two", namespace="two")
    assert desk.started("two").cached == 0
    assert desk.started("two").source == "none"
