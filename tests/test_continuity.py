"""Conversations go on from their exact tokens, whatever client, dialect or shape they come back in."""

from __future__ import annotations

import copy
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from talks import CALL, DIALECTS, OPENED, THOUGHT, Desk, answered, text_model, tokens, user

from memra_mlx import config, ids
from memra_mlx.prompt.text_model import Prompt

TALKS = list(DIALECTS)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def shown(prompt: Prompt) -> str:
    """The prompt as text, scripted tokens included."""
    own = text_model()
    return b"".join(map(own._vocabulary.token_bytes, prompt.ids)).decode()


def by(prompt: Prompt) -> tuple[str, int]:
    assert prompt.thread is not None
    return prompt.thread.match.by, prompt.thread.match.ids


@pytest.mark.parametrize("dialect", TALKS)
def test_a_tool_loop_keeps_exact_tokens_and_hidden_reasoning(desk: Desk, dialect: str) -> None:
    first, answer = desk.ask(dialect, user(dialect, "Read it."), *THOUGHT, "Let me look.", "\n", CALL)
    body = answered(dialect, user(dialect, "Read it."), answer, "text")
    second, answer = desk.ask(dialect, body, *THOUGHT, "It says ", "hello", "!")
    said = tokens(*THOUGHT, "Let me look.", "\n", CALL)
    assert second.ids[: len(first.ids) + len(said)] == [*first.ids, *said]
    assert by(second) == ("visible", 1)
    assert shown(second).endswith(
        CALL
        + "<|im_end|>\n<|im_start|>user\n<tool_response>\ntext\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    key = "input" if dialect == "responses" else "messages"
    body[key] += [{"role": "assistant", "content": "It says hello!"}, {"role": "user", "content": "Thanks"}]
    third = desk.prompt(dialect, body)
    assert third.ids[: len(second.ids) + 7] == [*second.ids, *tokens(*THOUGHT, "It says ", "hello", "!")]
    assert by(third) == ("visible", 0)
    assert shown(third).count("hidden words") == 2


def test_a_conversation_may_move_from_dialect_to_dialect(desk: Desk) -> None:
    first, _ = desk.ask("chat", user("chat", "Read it."), *THOUGHT, "Let me look.", "\n", CALL)
    call = {"type": "tool_use", "id": "toolu_x", "name": "read", "input": {"n": 2.0, "path": "a b"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_x", "content": [{"type": "text", "text": "text"}]}
    body = user("messages", "Read it.")
    body["messages"] += [
        {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, call]},
        {"role": "user", "content": [result]},
    ]
    second, _ = desk.ask("messages", body, *THOUGHT, "Bye.")
    assert second.ids[: len(first.ids)] == first.ids
    assert by(second) == ("visible", 1)
    asked = user("responses", "Read it.")
    asked["input"] += [
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me look.\n"}]},
        {"type": "function_call", "call_id": "c", "name": "read", "arguments": '{"path": "a b", "n": 2}'},
        {"type": "function_call_output", "call_id": "c", "output": "text"},
        {"role": "assistant", "content": "Bye."},
        {"role": "user", "content": "More"},
    ]
    third = desk.prompt("responses", asked)
    assert third.ids[: len(second.ids)] == second.ids
    assert shown(third).count("hidden words") == 2


def test_an_edited_answer_is_not_the_one_that_was_given(desk: Desk) -> None:
    body = user("chat", "Hi")
    desk.ask("chat", body, *THOUGHT, "Bye.")
    edited = {
        **body,
        "messages": [*body["messages"], {"role": "assistant", "content": "Bye now."}, body["messages"][0]],
    }
    assert by(desk.prompt("chat", edited)) == ("tokens", 0)
    assert "hidden" not in shown(desk.prompt("chat", edited))


def test_two_answers_to_one_question_are_told_apart_by_call_ids(desk: Desk) -> None:
    body = user("chat", "Read it.")
    _, one = desk.ask("chat", body, "<think>", "deep ", "</think>", CALL)
    _, other = desk.ask("chat", body, *THOUGHT, CALL)
    assert "deep" in shown(desk.prompt("chat", answered("chat", body, one, "text")))
    assert "hidden" in shown(desk.prompt("chat", answered("chat", body, other, "text")))


def test_namespaces_do_not_share_reasoning(desk: Desk, tmp_path: Path) -> None:
    body = user("chat", "Read it.")
    _, answer = desk.ask("chat", body, *THOUGHT, CALL)
    for key in ("reasoning", "reasoning_content"):
        answer["choices"][0]["message"].pop(key, None)
    again = answered("chat", body, answer, "text")
    for other in ("t:two\x1f", "salt"):
        assert "hidden" not in shown(Desk(tmp_path, namespace=other).prompt("chat", again))
    assert "hidden" in shown(Desk(tmp_path).prompt("chat", again))


def test_a_restart_forgets_nothing(desk: Desk, tmp_path: Path) -> None:
    body = user("chat", "Read it.")
    first, answer = desk.ask("chat", body, *THOUGHT, CALL)
    prompt = Desk(tmp_path).prompt("chat", answered("chat", body, answer, "text"))
    assert prompt.ids[: len(first.ids)] == first.ids
    assert "hidden" in shown(prompt)


def test_what_no_longer_fits_is_rendered_before_it_is_refused(desk: Desk, tmp_path: Path) -> None:
    body = user("chat", "Hi")
    first, _ = desk.ask("chat", body, "<think>", *["deep "] * 200, "</think>", "Bye.")
    body["messages"] += [{"role": "assistant", "content": "Bye."}, {"role": "user", "content": "More"}]
    assert len(desk.prompt("chat", body).ids) > len(first.ids) + 200
    tight = Desk(tmp_path, context=len(first.ids) + 100).prompt("chat", body)
    assert len(tight.ids) < len(first.ids) + 100
    assert "deep" not in shown(tight)


def test_the_templates_law_can_be_chosen(desk: Desk, tmp_path: Path) -> None:
    body = user("chat", "Hi")
    desk.ask("chat", body, *THOUGHT, "Bye.")
    body["messages"] += [{"role": "assistant", "content": "Bye."}, {"role": "user", "content": "More"}]
    assert "hidden" in shown(desk.prompt("chat", body))
    lawful = Desk(tmp_path, law="template")
    assert "hidden" not in shown(lawful.prompt("chat", body))
    lawful.ask("chat", body, "It says ", "hello")
    body["messages"] += [{"role": "assistant", "content": "It says hello"}, {"role": "user", "content": "And?"}]
    assert by(lawful.prompt("chat", body)) == ("visible", 0)


class Ends:
    """How an answer may end, and what is stored of it."""

    KEPT = (
        (("Bye.",), {}, "stop", "Bye."),
        (("It says ", "hello"), {}, "length", "It says hello"),
        (("It says ", "hello", " STOP and more"), {"stop": ["STOP"]}, "stop", "It says hello "),
        (("It says ", "é STOP"), {"stop": ["STOP"]}, "stop", "It says é "),
    )
    LOST = (
        (("<think>", "deep "), {}, "length"),
        (("It says ", "<think>", "deep "), {}, "length"),
        (("It says ", "\n<tool_call>\n", OPENED), {}, "length"),
        (("It says ", "hello"), {}, "cancelled"),
        (THOUGHT, {}, "stop"),
    )


@pytest.mark.parametrize(("pieces", "fields", "reason", "text"), Ends.KEPT)
def test_turns_that_are_kept(desk: Desk, pieces: Any, fields: Any, reason: str, text: str) -> None:
    body = {**user("chat", "Hi"), **fields}
    first, answer = desk.ask("chat", body, *THOUGHT, *pieces, reason=reason)
    assert answer["choices"][0]["message"]["content"] == text
    body["messages"] += [{"role": "assistant", "content": text.strip()}, {"role": "user", "content": "More"}]
    prompt = desk.prompt("chat", body)
    assert prompt.ids[: len(first.ids) + 4] == [*first.ids, *tokens(*THOUGHT)]
    assert shown(prompt).removeprefix(shown(first)).startswith("".join(THOUGHT) + text + "<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize(("pieces", "fields", "reason"), Ends.LOST)
def test_turns_that_are_not_kept(desk: Desk, pieces: Any, fields: Any, reason: str) -> None:
    body = {**user("chat", "Hi"), **fields}
    _, answer = desk.ask("chat", body, *pieces, reason=reason)
    text = answer["choices"][0]["message"]["content"] or ""
    body["messages"] += [{"role": "assistant", "content": text}, {"role": "user", "content": "More"}]
    assert by(desk.prompt("chat", body))[0] == "tokens"


def test_the_one_call_that_is_allowed_is_closed(desk: Desk) -> None:
    body = {**user("chat", "Read it."), "parallel_tool_calls": False}
    first, answer = desk.ask("chat", body, "\n<tool_call>\n", OPENED, "}\n</tool_call>", "\n<tool_call>\n")
    prompt = desk.prompt("chat", answered("chat", body, answer, "text"))
    assert by(prompt) == ("visible", 1)
    assert shown(prompt).removeprefix(shown(first)).startswith(f"\n<tool_call>\n{OPENED}}}\n</tool_call><|im_end|>\n")


def test_an_answer_that_the_client_began_is_one_with_its_beginning(desk: Desk) -> None:
    body = user("messages", "Hi")
    begun = copy.deepcopy(body)
    begun["messages"].append({"role": "assistant", "content": "It says "})
    first, _ = desk.ask("messages", begun, "hello", "!")
    body["messages"] += [{"role": "assistant", "content": "It says hello!"}, {"role": "user", "content": "More"}]
    prompt = desk.prompt("messages", body)
    assert by(prompt) == ("visible", 0)
    assert prompt.ids[: len(first.ids) + 2] == [*first.ids, *tokens("hello", "!")]


def test_reasoning_that_comes_back_in_another_form_is_no_other_conversation(desk: Desk) -> None:
    body = user("messages", "Read it.")
    first, answer = desk.ask("messages", body, *THOUGHT, "Let me look.", "\n", CALL)
    for thought in ("", "rewritten", "hidden words"):
        again = copy.deepcopy(answer)
        again["content"][0] |= {"thinking": thought, "signature": "from elsewhere"}
        prompt = desk.prompt("messages", answered("messages", body, again, "text"))
        assert prompt.ids[: len(first.ids)] == first.ids
        assert by(prompt) == ("visible", 1)


def test_ids_say_whether_the_turn_reasoned(desk: Desk) -> None:
    for dialect in TALKS:
        for thought, expected in ((THOUGHT, True), ((), False)):
            _, answer = desk.ask(dialect, user(dialect, "Read it."), *thought, CALL)
            (call_id,) = set(re.findall(r"(?:call|toolu)_m[rp]\w+", json.dumps(answer)))
            assert ids.reasoned(call_id) is expected
    assert ids.reasoned("call_0123456789abcdef01234567") is None
    assert ids.reasoned("toolu_01mr") is None


def test_every_continuation_logs_one_line(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "memra.continuity")
    body = user("chat", "Read it.")
    first, answer = desk.ask("chat", body, *THOUGHT, CALL)
    again = answered("chat", body, answer, "text")
    second, _ = desk.ask("chat", again, "Bye.", cached=len(first.ids) + 5)
    desk.ask("chat", again, "Bye.")
    sizes = f"cached={len(first.ids) + 5} prompt={len(second.ids)}"
    assert [record.getMessage() for record in caplog.records] == [
        f"continuation match=visible ids=1 {sizes} source=memory",
        f"continuation match=visible ids=1 cached=0 prompt={len(second.ids)} source=recompute",
    ]


def test_a_prompt_that_was_rendered_logs_what_the_engine_knew(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "memra.continuity")
    body = user("chat", "Hi")
    body["messages"] += [{"role": "assistant", "content": "foreign"}, {"role": "user", "content": "More"}]
    prompt, _ = desk.ask("chat", body, "Bye.", cached=7)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"continuation match=tokens ids=0 cached=7 prompt={len(prompt.ids)} source=memory"


def test_the_settings_of_history_and_seals(tmp_path: Path) -> None:
    def loaded(**flags: Any) -> config.Config:
        (tmp_path / "config.toml").touch()
        return config.load(flags, tmp_path / "config.toml", env={})

    assert loaded().history_law("m") == "keep"
    assert loaded(history_reasoning="template").history_law("m") == "template"
    both = loaded(history_reasoning="m=template, other=keep")
    assert [both.history_law(name) for name in ("m", "other", "third")] == ["template", "keep", "keep"]
    with pytest.raises(config.ConfigError, match="keep or template"):
        loaded(history_reasoning="drop")
    with pytest.raises(config.ConfigError) as caught:
        loaded(seal_key="secretsecret")
    assert "secretsecret" not in str(caught.value)
