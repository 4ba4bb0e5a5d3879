"""Grammars in the engine: compiled in the background, kept, and obeyed by the requests that bring one."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from desk import Desk, greedy
from llguidance import LLMatcher
from tiny_nets import embedded

from memra_mlx.engine.grammar import Compiled, Constraint, GrammarError, Grammars, apply
from memra_mlx.engine.grammar_tokens import load_tokens
from memra_mlx.engine.protocol import Submit, Think
from memra_mlx.fixtures import TINY_PATH

EOS, THINK, THOUGHT, SIZE = 4086, 4088, 4089, 4096
TOKENS = load_tokens(TINY_PATH, SIZE, [EOS])
WORDS = 'start: ("red" | "green")\n'
DATA = 'start: %json {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}, '
DATA += '"required": ["n"], "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}\n'
ENDLESS = "start: /[a-z]*/\n"
PROMPT = TOKENS.tokenize_str("<|im_start|>user\nTell me.<|im_end|>\n<|im_start|>assistant\n", parse_special=True)


def compiled(text: str) -> Compiled:
    one = Compiled(text)
    one.finish(TOKENS)
    return one


@pytest.fixture
def desk() -> Desk:
    return Desk(embedded())


def submit(desk: Desk, id: str, grammar: Compiled | None, seed: int = 0, **fields: object) -> None:
    sampling = greedy(fields.pop("temperature", 1.0), seed=seed, logprobs=fields.pop("logprobs", -1))
    fields = {"max_tokens": 40, "sampling": sampling, **fields}
    desk.scheduler.submit(Submit(id, PROMPT, grammar=grammar.text if grammar else "", **fields), grammar)


def text(desk: Desk, id: str) -> str:
    return TOKENS.decode_str(desk.tokens(id))


def test_answers_follow_their_grammar_alone_and_in_a_batch(desk: Desk) -> None:
    words, data = compiled(WORDS), compiled(DATA)
    for n in range(4):
        submit(desk, f"words-{n}", words, seed=n)
        submit(desk, f"data-{n}", data, seed=n)
    submit(desk, "free", None, temperature=0.0)
    desk.run()
    for n in range(4):
        assert text(desk, f"words-{n}") in ("red", "green")
        assert 10 <= json.loads(text(desk, f"data-{n}"))["n"] <= 99
        assert desk.ended(f"data-{n}").reason == "stop"
    free = desk.tokens("free")
    submit(desk, "alone", None, temperature=0.0)
    submit(desk, "again", data, seed=2)
    desk.run()
    assert desk.tokens("alone") == free
    assert desk.tokens("again") == desk.tokens("data-2")


def test_length_logprobs_and_stop_ids(desk: Desk) -> None:
    endless = compiled(ENDLESS)
    submit(desk, "cut", endless, max_tokens=5, logprobs=2)
    submit(desk, "stopped", endless, stop_ids=[EOS], max_tokens=30)
    desk.run()
    assert desk.ended("cut").reason in ("length", "stop")
    for item in desk.items("cut"):
        assert item.logprob is not None
        assert item.logprob <= 0
        assert item.top is not None
        assert all(token == EOS or TOKENS.decode_str([token]).isalpha() for token, p in item.top if p > -1e9)
    assert text(desk, "stopped").isalpha() or not text(desk, "stopped")


def test_a_bad_grammar_fails_its_request_alone(desk: Desk) -> None:
    submit(desk, "bad", compiled("start: missing\n"))
    submit(desk, "good", compiled(WORDS))
    desk.run()
    assert desk.fault("bad").kind == "request"
    assert "missing" in desk.fault("bad").message
    assert text(desk, "good") in ("red", "green")


def test_a_grammar_that_stops_working_fails_its_request_alone(desk: Desk) -> None:
    too_deep = 'start: a\na: "(" a ")" | "(" a "]" | "(" a "}"\n'
    submit(desk, "deep", compiled(too_deep), max_tokens=4000)
    submit(desk, "good", compiled(WORDS))
    desk.run()
    assert text(desk, "good") in ("red", "green")
    assert desk.fault("deep").kind == "request"


def test_a_request_waits_for_its_grammar(desk: Desk) -> None:
    late = Compiled(WORDS)
    submit(desk, "late", late)
    submit(desk, "other", None, max_tokens=3)
    desk.until(lambda: any(getattr(message, "id", "") == "other" for message in desk.sent[-1:]))
    desk.steps(10)
    assert not desk.items("late")
    late.finish(TOKENS)
    desk.run()
    assert text(desk, "late") in ("red", "green")


def test_cancelled_while_it_waits(desk: Desk) -> None:
    submit(desk, "late", Compiled(WORDS))
    desk.steps(3)
    desk.cancel("late")
    assert desk.ended("late").reason == "cancelled"
    assert not desk.scheduler.busy


def test_a_reasoning_budget_goes_with_a_grammar(desk: Desk) -> None:
    thought = f'start: <[{THINK}]> TEXT <[{THOUGHT}]> ("yes" | "no")\nTEXT: /(?s:.)*/\n'
    think = Think(start_ids=[THINK], end_ids=[THOUGHT], opened=False, budget=4)
    for seed in range(3):
        submit(desk, f"r{seed}", compiled(thought), seed=seed, think=think)
    desk.run()
    for seed in range(3):
        tokens = desk.tokens(f"r{seed}")
        end = tokens.index(THOUGHT)
        assert end <= 1 + 4 + 3  # a character may have to be finished first
        assert TOKENS.decode_str(tokens[end + 1 :]) in ("yes", "no")


def test_compiled_once_and_kept() -> None:
    loads = []

    def load() -> object:
        loads.append(1)
        return TOKENS

    grammars = Grammars(load)  # type: ignore[arg-type]
    first, other = grammars.compile(WORDS), grammars.compile(DATA)
    assert grammars.compile(WORDS) is first
    assert first.ready(30)
    assert other.ready(30)
    assert (first.problem, other.problem, loads) == ("", "", [1])
    broken = grammars.compile("start: (")
    assert broken.ready(30)
    assert broken.problem


def test_a_tokenizer_that_can_not_be_loaded_is_the_problem_of_its_grammar() -> None:
    def load() -> object:
        raise OSError("no such file")

    one = Grammars(load).compile(WORDS)  # type: ignore[arg-type]
    assert one.ready(30)
    assert "no such file" in one.problem


def test_a_foreign_token_is_an_error_of_the_processor() -> None:
    constraint = Constraint(LLMatcher(TOKENS, WORDS, log_level=0), 1, [EOS])
    logits = mx.zeros((1, SIZE))
    masked = np.array(constraint(mx.array([5]), logits))
    allowed = np.flatnonzero(np.isfinite(masked[0]))
    assert {TOKENS.decode_str([int(i)])[:1] for i in allowed} == {"r", "g"}
    assert constraint.permits(int(allowed[0]))
    assert not constraint.permits(EOS)
    with pytest.raises(GrammarError):
        constraint(mx.array([5, 2]), logits)


def test_nothing_is_masked_behind_the_end() -> None:
    constraint = Constraint(LLMatcher(TOKENS, "start: /x?/\n", log_level=0), 1, [EOS])
    constraint(mx.array([5]), mx.zeros((1, SIZE)))
    assert np.isfinite(np.array(constraint(mx.array([5, EOS]), mx.zeros((1, SIZE))))).all()


def test_masks_of_odd_sizes() -> None:
    mask = np.array([[-1, 0b101]], dtype=np.int32)
    out = np.array(apply(mask, mx.zeros((1, 40))))
    assert np.flatnonzero(np.isfinite(out[0])).tolist() == [*range(32), 32, 34]
