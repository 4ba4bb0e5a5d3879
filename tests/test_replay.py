"""The rules for calls that come back to `/v1/responses`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from talks import CALL, THOUGHT, Desk, answered, text_model, tool, user

from memra_mlx.cache.transcripts import FOLDER
from memra_mlx.errors import ApiError
from memra_mlx.prompt.text_model import Prompt

ASKED = user("responses", "Read it.") | {"instructions": "Be brief."}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def output(call_id: str, text: str = "text") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def call_of(answer: dict[str, Any]) -> str:
    return str(next(i["call_id"] for i in answer["output"] if i["type"] == "function_call"))


def refused(desk: Desk, body: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as caught:
        desk.prompt("responses", body)
    assert (caught.value.rule.status, caught.value.param) == (400, "input")
    return caught.value.message


def shown(prompt: Prompt) -> str:
    return b"".join(map(text_model()._vocabulary.token_bytes, prompt.ids)).decode()


def by(prompt: Prompt) -> tuple[str, int]:
    assert prompt.thread is not None
    return prompt.thread.match.by, prompt.thread.match.ids


def without_reasoning(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "input": [i for i in body["input"] if i.get("type") != "reasoning"]}


@pytest.mark.parametrize("fields", [{}, {"tools": [tool("responses")]}, {"instructions": "Be brief."}])
def test_outputs_alone_go_on_from_their_call(desk: Desk, fields: dict[str, Any], tmp_path: Path) -> None:
    first, answer = desk.ask("responses", ASKED, *THOUGHT, "Let me look.", "\n", CALL)
    after_restart = Desk(tmp_path)
    prompt, more = after_restart.ask("responses", {"input": [output(call_of(answer))], **fields}, *THOUGHT, "Bye.")
    assert prompt.ids[: len(first.ids)] == first.ids
    assert by(prompt) == ("call-ids", 1)
    assert "hidden words" in shown(prompt)
    assert shown(prompt).endswith("<tool_response>\ntext\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    full = answered("responses", ASKED, answer, "text")
    full["input"] += [*more["output"], {"role": "user", "content": "Thanks"}]
    replayed = desk.prompt("responses", full)
    assert replayed.ids[: len(prompt.ids)] == prompt.ids
    assert by(replayed) == ("visible", 0)


def test_outputs_alone_may_be_followed_by_words(desk: Desk) -> None:
    _, answer = desk.ask("responses", ASKED, *THOUGHT, CALL)
    body = {"input": [output(call_of(answer)), {"role": "user", "content": "Hurry"}]}
    assert "</tool_response><|im_end|>\n<|im_start|>user\nHurry<|im_end|>" in shown(desk.prompt("responses", body))


def test_an_unknown_call_is_refused_by_name(desk: Desk) -> None:
    for before in ([], [{"role": "user", "content": "Read it."}]):
        told = refused(desk, {"input": [*before, output("call_nobody")]})
        assert "call_nobody" in told
        assert "replay the full history" in told


def test_a_call_of_another_tenant_is_unknown(desk: Desk, tmp_path: Path) -> None:
    _, answer = desk.ask("responses", ASKED, *THOUGHT, CALL)
    body = {"input": [output(call_of(answer))]}
    assert "unknown tool output" in refused(Desk(tmp_path, namespace="t:two\x1f"), body)
    theirs = Desk(tmp_path, namespace="t:two\x1f")
    _, other = theirs.ask("responses", ASKED, *THOUGHT, CALL)
    assert "unknown tool output" in refused(desk, {"input": [output(call_of(other))]})


def test_a_call_whose_state_is_gone_is_refused(desk: Desk, tmp_path: Path) -> None:
    _, answer = desk.ask("responses", ASKED, *THOUGHT, *["Bye."] * 20_000, CALL)
    for file in (tmp_path / FOLDER).rglob("*.val"):
        file.unlink()
    assert "replay the full input" in refused(desk, {"input": [output(call_of(answer))]})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"instructions": "Be long."}, "instructions"),
        ({"tools": [tool("responses") | {"description": "Write"}]}, "tools"),
    ],
)
def test_outputs_alone_under_other_terms_are_refused(desk: Desk, change: dict[str, Any], why: str) -> None:
    _, answer = desk.ask("responses", ASKED, *THOUGHT, CALL)
    assert why in refused(desk, {"input": [output(call_of(answer))], **change})


def test_known_calls_amid_other_history_need_the_whole_of_it(desk: Desk) -> None:
    _, answer = desk.ask("responses", ASKED, *THOUGHT, CALL)
    body = {"input": [{"role": "user", "content": "Read it."}, output(call_of(answer))]}
    assert "other history" in refused(desk, body)


def test_outputs_of_different_turns_are_refused(desk: Desk) -> None:
    _, one = desk.ask("responses", ASKED, *THOUGHT, CALL)
    _, other = desk.ask("responses", ASKED, CALL)
    assert "different turns" in refused(desk, {"input": [output(call_of(one)), output(call_of(other))]})


def test_a_replay_without_reasoning_needs_its_transcript(desk: Desk, tmp_path: Path) -> None:
    _, answer = desk.ask("responses", ASKED, *THOUGHT, CALL)
    full = answered("responses", ASKED, answer, "text")
    assert by(desk.prompt("responses", without_reasoning(full))) == ("visible", 1)
    fresh = Desk(tmp_path / "elsewhere")
    assert "missing reasoning state" in refused(fresh, without_reasoning(full))
    assert call_of(answer) in refused(fresh, without_reasoning(full))
    assert by(fresh.prompt("responses", full)) == ("tokens", 0)
    assert "hidden words" in shown(fresh.prompt("responses", full))


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "s"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "sealed elsewhere"},
    ],
    ids=["summary", "content", "sealed"],
)
def test_any_reasoning_item_will_do(tmp_path: Path, item: dict[str, Any]) -> None:
    call = {"type": "function_call", "call_id": "call_mr" + "0" * 22, "name": "read", "arguments": "{}"}
    asked = {"role": "user", "content": "q"}
    fresh = Desk(tmp_path)
    assert fresh.prompt("responses", {"input": [asked, item, call, output(call["call_id"])]}).ids
    refused(fresh, {"input": [asked, call, output(call["call_id"])]})


@pytest.mark.parametrize(
    ("call_id", "fields", "accepted"),
    [
        ("call_mp" + "0" * 22, {"reasoning": {"effort": "high"}}, True),
        ("call_mr" + "0" * 22, {}, False),
        ("call_mr" + "0" * 22, {"reasoning": {"effort": "none"}}, True),
        ("foreign", {}, True),
        ("foreign", {"reasoning": {"effort": "high"}}, False),
        ("foreign", {"include": ["reasoning.encrypted_content"]}, False),
        ("foreign", {"reasoning": {"effort": "none"}}, True),
    ],
)
def test_only_turns_that_reasoned_are_missed(
    tmp_path: Path, call_id: str, fields: dict[str, Any], accepted: bool
) -> None:
    call = {"type": "function_call", "call_id": call_id, "name": "read", "arguments": "{}"}
    body = {"input": [{"role": "user", "content": "q"}, call, output(call_id)], **fields}
    if accepted:
        assert Desk(tmp_path).prompt("responses", body).ids
    else:
        assert "missing reasoning state" in refused(Desk(tmp_path), body)


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_the_other_dialects_take_what_they_get(tmp_path: Path, dialect: str) -> None:
    desk = Desk(tmp_path)
    first, answer = desk.ask(dialect, user(dialect, "Read it."), *THOUGHT, CALL)
    body = answered(dialect, user(dialect, "Read it."), answer, "text")
    message = body["messages"][1]
    for key in ("reasoning", "reasoning_content"):
        message.pop(key, None)
    if dialect == "messages":
        message["content"] = [block for block in message["content"] if block["type"] != "thinking"]
    fresh = Desk(tmp_path / "elsewhere").prompt(dialect, body)
    assert by(fresh) == ("tokens", 0)
    assert fresh.ids != first.ids
