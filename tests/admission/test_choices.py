"""`n` above 1: several answers over one prefill, one receipt, one stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inside import ASK, CHAT, inside, until
from served import Served

from memra_mlx.fixtures import TINY_ID

TURNS = {"script_turns": [["one ", "two"], ["three"], ["four ", "five ", "six"]]}
COMPLETIONS = "/v1/completions"
ROUTES = {CHAT: {"messages": ASK}, COMPLETIONS: {"prompt": "hi"}}


def said(path: str, choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if path == CHAT else choice["text"]


def chunks(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def joined(path: str, found: list[Any]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in found for choice in chunk["choices"]):
        piece = choice["delta"].get("content") if path == CHAT else choice["text"]
        texts[choice["index"]] = texts.get(choice["index"], "") + (piece or "")
    return texts


@pytest.mark.parametrize("path", ROUTES)
async def test_a_body_has_all_answers(tmp_path: Path, path: str):
    async with inside(tmp_path, TURNS) as here:
        answer = await here.client.post(path, json={"model": TINY_ID, "n": 3, **ROUTES[path]})
        body = answer.json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert sorted(said(path, choice) for choice in body["choices"]) == ["four five six", "one two", "three"]
        assert said(path, body["choices"][0]) == "one two"
        assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
        row = await here.row()
        assert (row["outcome"], row["prompt_tokens"]) == ("completed", body["usage"]["prompt_tokens"])
        assert row["debit_completion"] == body["usage"]["completion_tokens"] == 6
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("path", ROUTES)
async def test_a_stream_has_all_answers_and_one_end(tmp_path: Path, path: str):
    async with inside(tmp_path, TURNS) as here:
        more = {"stream": True, "stream_options": {"include_usage": True}}
        answer = await here.client.post(path, json={"model": TINY_ID, "n": 3, **ROUTES[path], **more})
        *found, last = chunks(answer.text)
        assert sorted(joined(path, found).values()) == ["four five six", "one two", "three"]
        ends = [c["index"] for chunk in found for c in chunk["choices"] if c["finish_reason"]]
        assert sorted(ends) == [0, 1, 2]
        assert len({chunk["id"] for chunk in (*found, last)}) == 1
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
        assert (await here.row())["debit_completion"] == 6


async def test_the_others_resume_from_the_prompt_of_the_first(tmp_path: Path):
    async with inside(tmp_path, TURNS) as here:
        seen = []
        engine = here.services.models.default.engine
        assert engine is not None
        submit = engine.submit
        engine.submit = lambda message: seen.append(submit(message)) or seen[-1]  # type: ignore[method-assign]
        await here.chat(n=3, seed=2**63 - 2)
        assert [channel.submit.sampling.seed for channel in seen] == [2**63 - 2, 2**63 - 1, 0]
        assert len({channel.submit.id for channel in seen}) == 3


async def test_one_fault_ends_all(tmp_path: Path):
    script = {"script_turns": [["a ", {"repeat": ["b ", 500], "delay_ms": 20}], ["c ", {"fault": "raise"}], ["d "]]}
    async with inside(tmp_path, script) as here:
        answer = await here.chat(n=3, stream=True)
        lines = [line for line in answer.text.splitlines() if line]
        assert json.loads(lines[-1][6:])["error"]["code"] == "engine_error"
        assert "data: [DONE]" not in lines
        row = await here.row()
        assert (row["outcome"], row["debit_completion"]) == ("rejected", 0)
        await until(lambda: here.services.models.default.engine.status().live == 0)


async def test_who_leaves_ends_all_answers(tmp_path: Path):
    script = {"script": [{"repeat": ["b ", 5000], "delay_ms": 20}]}
    async with inside(tmp_path, script) as here:
        engine = here.services.models.default.engine
        assert engine is not None
        async with here.stream(n=4):
            await until(lambda: engine.status().live == 4)
        await until(lambda: engine.status().live == 0)
        assert (await here.row())["outcome"] == "abandoned"


async def test_a_drain_ends_all_answers(tmp_path: Path):
    script = {"script_turns": [["a"], [{"repeat": ["b ", 5000], "delay_ms": 20}]]}
    async with inside(tmp_path, script, drain_s="0.2") as here, here.stream(n=2) as stream:
        await until(lambda: here.services.models.default.engine.status().live == 1)
        here.server.stop(0)
        text = (await stream.aread()).decode()
        assert '"code":"draining"' in text
        assert "[DONE]" not in text
    assert [row["outcome"] for row in here.rows()] == ["drain_killed"]


@pytest.mark.engine
@pytest.mark.parametrize("stream", [False, True], ids=["blocking", "stream"])
async def test_a_real_engine_gives_different_answers(live: Served, stream: bool):
    import httpx

    ask = {"model": live.model, "prompt": "Once upon a time", "n": 3, "seed": 5, "max_tokens": 12, "temperature": 2}
    async with httpx.AsyncClient(base_url=live.base, timeout=60) as client:
        answers = [await client.post(COMPLETIONS, json={**ask, "stream": stream}) for _ in range(2)]
    texts = []
    for answer in answers:
        found = chunks(answer.text) if stream else [answer.json()]
        texts.append(joined(COMPLETIONS, found))
    assert texts[0] == texts[1]
    assert sorted(texts[0]) == [0, 1, 2]
    assert len(set(texts[0].values())) == 3
