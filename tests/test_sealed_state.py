"""Reasoning that a client carries in a sealed form comes back into its place, for its own tenant alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from talks import CALL, KEY, THOUGHT, Desk, answered, text_model, tokens, user

from memra_mlx.prompt.text_model import Prompt

SEALING = {"messages": {}, "responses": {"include": ["reasoning.encrypted_content"]}}


def shown(prompt: Prompt) -> str:
    return b"".join(map(text_model()._vocabulary.token_bytes, prompt.ids)).decode()


def by(prompt: Prompt) -> tuple[str, int]:
    assert prompt.thread is not None
    return prompt.thread.match.by, prompt.thread.match.ids


def asked(dialect: str, text: str = "Read it.") -> dict[str, Any]:
    return user(dialect, text) | SEALING[dialect]


def hidden(dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same with the text of its reasoning changed: only the sealed state still has it."""
    body = copy.deepcopy(body)
    for item in body["input"] if dialect == "responses" else [b for m in body["messages"] for b in _blocks(m)]:
        if item.get("type") == "reasoning":
            item["summary"] = []
        if item.get("type") == "thinking":
            item["thinking"] = ""
    return body


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []


def state_of(dialect: str, answer: dict[str, Any]) -> str:
    if dialect == "responses":
        return str(answer["output"][0]["encrypted_content"])
    return str(answer["content"][0]["signature"])


@pytest.mark.parametrize("dialect", SEALING)
@pytest.mark.parametrize("said", [(CALL,), ("Let me look.", "\n", CALL)], ids=["call", "text and call"])
def test_on_another_server_with_the_same_key_nothing_is_lost(tmp_path: Path, dialect: str, said: Any) -> None:
    first, answer = Desk(tmp_path / "one").ask(dialect, asked(dialect), *THOUGHT, *said)
    body = hidden(dialect, answered(dialect, asked(dialect), answer, "text"))
    other = Desk(tmp_path / "two")
    prompt, more = other.ask(dialect, body, *THOUGHT, "Bye.")
    assert by(prompt) == ("sealed", 1)
    assert prompt.ids[: len(first.ids) + 3] == [*first.ids, *tokens(*THOUGHT[:3])]
    rest = shown(prompt).removeprefix(shown(first) + "".join(THOUGHT))
    assert rest.split("<tool_call>")[0].strip() == "".join(said[:-1]).strip()
    assert rest.endswith("<tool_response>\ntext\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    body["messages" if dialect == "messages" else "input"] += _said(dialect, more)
    third = Desk(tmp_path / "three").prompt(dialect, hidden(dialect, body))
    assert by(third) == ("sealed", 0)
    assert shown(third).count("hidden words") == 2
    assert by(other.prompt(dialect, hidden(dialect, body))) == ("visible", 0)


def _said(dialect: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    thanks = {"role": "user", "content": "Thanks"}
    if dialect == "responses":
        return [*answer["output"], thanks]
    return [{"role": "assistant", "content": answer["content"]}, thanks]


def test_a_transcript_goes_before_and_what_follows_it_is_unsealed(tmp_path: Path) -> None:
    one, other = Desk(tmp_path / "one"), Desk(tmp_path / "two")
    body = asked("messages")
    _, answer = one.ask("messages", body, *THOUGHT, CALL)
    body = answered("messages", body, answer, "text")
    _, answer = other.ask("messages", body, "<think>", "deep ", "</think>", CALL)
    body = hidden("messages", answered("messages", body, answer, "more"))
    prompt = one.prompt("messages", body)
    assert by(prompt) == ("visible", 1)
    assert shown(prompt).count("hidden words") == 1
    assert shown(prompt).count("deep ") == 1


@pytest.mark.parametrize("dialect", SEALING)
def test_another_tenants_state_is_ignored_both_ways(tmp_path: Path, dialect: str) -> None:
    spaces = ("t:one\x1f", "t:two\x1f")
    answers = {}
    for space in spaces:
        _, answers[space] = Desk(tmp_path, namespace=space).ask(dialect, asked(dialect), *THOUGHT, CALL)
    for space, theirs in zip(spaces, reversed(spaces), strict=True):
        body = hidden(dialect, answered(dialect, asked(dialect), answers[theirs], "text"))
        assert "hidden words" not in shown(Desk(tmp_path / "fresh", namespace=space).prompt(dialect, body))
        own = hidden(dialect, answered(dialect, asked(dialect), answers[space], "text"))
        assert by(Desk(tmp_path / "fresh", namespace=space).prompt(dialect, own)) == ("sealed", 1)


@pytest.mark.parametrize("dialect", SEALING)
@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[:-6] + "AAAAAA",
        lambda s: s + "A" * 200_000,
        lambda s: "sealed elsewhere",
        lambda s: s[: len(s) // 2],
    ],
    ids=["tampered", "oversized", "foreign", "truncated"],
)
def test_what_does_not_open_is_ignored(tmp_path: Path, dialect: str, change: Any) -> None:
    _, answer = Desk(tmp_path / "one").ask(dialect, asked(dialect), *THOUGHT, CALL)
    state = state_of(dialect, answer)
    block = answer["output"][0] if dialect == "responses" else answer["content"][0]
    block["encrypted_content" if dialect == "responses" else "signature"] = change(state)
    prompt = Desk(tmp_path / "two").prompt(dialect, answered(dialect, asked(dialect), answer, "text"))
    assert by(prompt)[0] == "tokens"
    assert "hidden words" in shown(prompt)  # the template shows what came back in clear


def test_a_server_with_another_key_goes_by_the_visible_text(tmp_path: Path) -> None:
    _, answer = Desk(tmp_path / "one").ask("messages", asked("messages"), *THOUGHT, CALL)
    body = hidden("messages", answered("messages", asked("messages"), answer, "text"))
    assert by(Desk(tmp_path / "two", key=b"x" * 32).prompt("messages", body))[0] == "tokens"
    assert by(Desk(tmp_path / "two", key=KEY).prompt("messages", body))[0] == "sealed"


def test_ties_are_broken_by_sealed_state(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    body = asked("messages", "Hi")
    _, one = desk.ask("messages", body, "<think>", "deep ", "</think>", "Bye.")
    desk.ask("messages", body, *THOUGHT, "Bye.")
    body["messages"] += _said("messages", one)
    assert "deep " in shown(desk.prompt("messages", hidden("messages", body)))


def test_states_are_not_sent_unasked(tmp_path: Path) -> None:
    _, answer = Desk(tmp_path).ask("responses", user("responses", "Hi"), *THOUGHT, "Bye.")
    assert answer["output"][0]["encrypted_content"] is None
    _, answer = Desk(tmp_path, key=b"").ask("messages", asked("messages"), *THOUGHT, "Bye.")
    assert answer["content"][0]["signature"] == "memra-unsealed"


def test_reasoning_that_was_cut_has_no_state(tmp_path: Path) -> None:
    _, answer = Desk(tmp_path).ask("messages", asked("messages"), "<think>", "deep ", reason="length")
    assert answer["content"][0]["signature"] == "memra-unsealed"


def test_the_templates_law_ignores_states(tmp_path: Path) -> None:
    _, answer = Desk(tmp_path / "one").ask("messages", asked("messages"), *THOUGHT, CALL)
    body = hidden("messages", answered("messages", asked("messages"), answer, "text"))
    assert by(Desk(tmp_path / "two", law="template").prompt("messages", body))[0] == "tokens"


def test_a_state_that_no_longer_fits_is_left_out(tmp_path: Path) -> None:
    first, answer = Desk(tmp_path / "one").ask(
        "messages", asked("messages"), "<think>", *["deep "] * 300, "</think>", "Bye."
    )
    body = asked("messages")
    body["messages"] += _said("messages", answer)
    tight = Desk(tmp_path / "two", context=len(first.ids) + 200)
    prompt = tight.prompt("messages", hidden("messages", body))
    assert by(prompt)[0] == "tokens"
