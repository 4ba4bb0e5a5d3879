"""A session over a real server and engine: restarts, kills and lost files change neither answers nor reasoning."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from served import COMMAND, Served, Settings

pytestmark = pytest.mark.engine

QUESTIONS = ("Say hello. " + "Some words to read first. " * 40, "And again, please.", "Once more.")


def ask(server: Served, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": server.model, "max_tokens": 24, "temperature": 0, "messages": messages}
    request = urllib.request.Request(
        server.base + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def visible(answer: dict[str, Any]) -> dict[str, Any]:
    """What a client replays that drops reasoning."""
    return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def lines(server: Served) -> list[dict[str, str]]:
    found = (line for line in server.lines if " continuation " in line)
    return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in found]


def test_a_session_survives_its_servers(tmp_path: Path) -> None:
    settings = Settings(command=COMMAND)
    histories: list[list[dict[str, Any]]] = []
    answers: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    server = Served(tmp_path, settings)
    for question in QUESTIONS:
        told = [*told, {"role": "user", "content": question}]
        histories.append(told)
        answers.append(ask(server, told))
        told = [*told, visible(answers[-1])]
    for before, after in pairwise(answers):
        known = before["usage"]["prompt_tokens"] + before["usage"]["completion_tokens"]
        assert cached(after) >= known
    assert [line["source"] for line in lines(server)] == ["memory", "memory"]
    server.process.kill()
    server.close()

    server = Served(tmp_path, settings)
    again = [ask(server, history) for history in histories[1:]]
    assert [a["choices"] for a in again] == [a["choices"] for a in answers[1:]]
    assert lines(server)[0]["source"] == "disk"
    assert cached(again[1]) >= answers[1]["usage"]["prompt_tokens"]
    assert server.close() == 0

    shutil.rmtree(tmp_path / "cache" / "kv")
    server = Served(tmp_path, settings)
    lost = ask(server, histories[2])
    assert lost["choices"] == answers[2]["choices"]
    assert (cached(lost), lost["usage"]["prompt_tokens"]) == (0, answers[2]["usage"]["prompt_tokens"])
    assert lines(server) == [
        {
            "match": "visible",
            "ids": "0",
            "cached": "0",
            "prompt": str(lost["usage"]["prompt_tokens"]),
            "source": "recompute",
        }
    ]
    assert server.close() == 0
