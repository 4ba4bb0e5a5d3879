"""Text, reasoning, stop strings, counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_samples import BASH, WEATHER, ask, chunkings, model, parse

from memra_mlx.request import RawPrompt, Request, ToolChoice

PLAIN = ask()
TOOLS = ask(tools=(WEATHER, BASH))


def test_reasoning_is_told_apart_whatever_the_tokens() -> None:
    run = parse(["<thi", "nk>", "a <", " b", "</", "thi", "nk>", "done"], PLAIN)
    assert run.blocks == [("reasoning", "", "a < b"), ("text", "", "done")]
    assert run.parser.finish_reason == "end_turn"


def test_text_before_thinking_has_its_own_block() -> None:
    run = parse(["--", "-\n", "<think>", "plan", "</think>", "Hi"], PLAIN)
    assert run.blocks == [("text", "", "---\n"), ("reasoning", "", "plan"), ("text", "", "Hi")]


def test_a_prompt_that_opened_reasoning_starts_in_it() -> None:
    run = parse(["two ", "and two", "</think>", "\n\n", "4"], PLAIN, "think-open", opened=True)
    assert run.blocks == [("reasoning", "", "two and two"), ("text", "", "4")]
    assert run.parser.reasoning_tokens == 2


def test_a_budget_that_ends_in_reasoning_leaves_reasoning() -> None:
    run = parse(["hm ", "hm\n", "</thi"], PLAIN, opened=True, reason="length")
    assert run.blocks == [("reasoning", "", "hm hm\n</thi")]
    assert run.parser.finish_reason == "length"
    assert run.parser.reasoning_tokens == 3


@pytest.mark.parametrize("text", ["<think>\n\n</think>\n\nHi", "<think></think>Hi", "</think>Hi"])
def test_empty_reasoning_and_stray_marks_leave_no_block(text: str) -> None:
    for pieces in chunkings(text):
        assert parse(pieces, PLAIN).blocks == [("text", "", "Hi")]


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nplan\n\nmore\n</think>\n\nanswer \n\n",
        " \n leading <thin </think x",
        "a<think>b</think>c<think>d</think>\n",
        "\n\n",
        "é🦙<think>世\n</think>界",
    ],
)
def test_every_chunking_folds_to_the_same(text: str) -> None:
    whole = parse([text], PLAIN).blocks
    for pieces in chunkings(text):
        assert parse(pieces, PLAIN).blocks == whole


def test_only_what_may_be_a_marker_is_held() -> None:
    run = parse(["a<", "b", "<<", "th", "x"], PLAIN)
    assert run.deltas == ["a", "<b", "<", "<th", "x"] or run.deltas == ["a", "<b", "<", "<thx"]


def test_characters_over_several_tokens() -> None:
    pieces = ["ok ", b"\xf0\x9f", b"\xa6", b"\x99 ", b"\xc4", b"\x8f\xc3", b"\xa9"]
    run = parse(pieces, PLAIN)
    assert run.blocks == [("text", "", "ok 🦙 ďé")]
    ids = [logprob.token_id for logprob in run.folded[0].logprobs]
    assert ids == list(range(ids[0], ids[0] + len(pieces)))


def test_broken_bytes_become_one_replacement_and_nothing_hangs() -> None:
    assert parse(["a", b"\xf0\x9f"], PLAIN).blocks == [("text", "", "a�")]


def test_stop_string_over_tokens() -> None:
    run = parse(["alpha", " E", "ND", " O", "F beta", " gamma"], replace(PLAIN, stop=("END OF",)))
    assert run.blocks == [("text", "", "alpha ")]
    assert (run.parser.stopped, run.parser.finish_reason) == ("END OF", "stop")
    assert (run.parser.completion_tokens, run.parser.visible_tokens) == (5, 1)
    assert run.parser.done


def test_the_stop_string_that_is_complete_first_wins_in_every_chunking() -> None:
    request = replace(PLAIN, stop=("c d e", "d", ""))
    for pieces in chunkings("a b c d e f"):
        run = parse(pieces, request)
        assert run.blocks == [("text", "", "a b c ")]
        assert run.parser.stopped == "d"


def test_what_only_began_like_a_stop_string_is_not_lost() -> None:
    for pieces in chunkings("a END O"):
        assert parse(pieces, replace(PLAIN, stop=("END OF",))).blocks == [("text", "", "a END O")]


def test_stop_strings_do_not_match_in_reasoning_or_calls() -> None:
    text = '<think>END</think><tool_call>{"name": "bash", "arguments": {"command": "END"}}</tool_call>'
    for pieces in chunkings(text):
        run = parse(pieces, replace(TOOLS, stop=("END",)))
        assert [kind for kind, _, _ in run.blocks] == ["reasoning", "tool"]
        assert run.parser.stopped is None


def test_a_stop_string_at_once_leaves_no_block() -> None:
    run = parse(["BB", "c"], replace(PLAIN, stop=("BB",)))
    assert run.blocks == []
    assert run.parser.completion_tokens == 1
    assert run.parser.visible_tokens == 0


def test_raw_prompts_know_no_markers() -> None:
    request = Request("completions", "m", RawPrompt("Once"), stop=("|",))
    run = parse([" <think>x", "</think>\n|y"], request)
    assert run.blocks == [("text", "", " <think>x</think>\n")]


def test_logprobs_come_once_for_every_token_of_text() -> None:
    run = parse(["<think>", "a", "b", "</think>", "\n\n", "c ", "d<", "e"], PLAIN)
    texts = [[lp.token for lp in block.logprobs] for block in run.folded]
    assert texts == [["a", "b"], ["c ", "d<", "e"]]


def test_one_call_only_where_parallel_calls_are_off() -> None:
    call = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    request = replace(TOOLS, tool_choice=ToolChoice(parallel=False))
    run = parse([call, call, "x"], request)
    assert run.blocks == [("tool", "bash", "{}")]
    assert run.parser.done
    assert run.parser.finish_reason == "tool_calls"


def test_real_tokens_decode_as_the_tokenizer_does() -> None:
    own = model()
    text = " Grüße, 世界 🦙\n\n\tend "
    ids = own._tokenizer.encode(text)
    stream = own._vocabulary.detokenizer()
    assert "".join([*(stream.add(i) for i in ids), stream.finish()]) == text


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "thi", "nk>", "é", "STOP", "ST"]), max_size=9)
)
def test_any_mix_is_legal_and_the_same_in_every_chunking(parts: list[str]) -> None:
    request = replace(PLAIN, stop=("STOP",))
    text = "".join(parts)
    whole = parse([text], request)
    for pieces in (list(text), parts):
        run = parse(pieces or [""], request)
        assert run.blocks == whole.blocks
        assert run.parser.stopped == whole.parser.stopped
    assert not any("<think>" in part or "</think>" in part for _, _, part in whole.blocks)
