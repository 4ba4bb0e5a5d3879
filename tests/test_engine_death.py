"""Kill -9 of the engine in the middle of a stream: an error frame at once, 503, a new engine, then all works."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from served import Served, Settings

SLOW = {"script": [{"repeat": ["t ", 200], "delay_ms": 20}]}
ASK = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/completions": {"prompt": "hi", "max_tokens": 200},
    "/v1/messages": {"messages": ASK, "max_tokens": 200},
    "/v1/responses": {"input": "hi"},
}
LAST = {
    "/v1/chat/completions": lambda lines: json.loads(lines[-1][6:])["error"]["code"] == "engine_error",
    "/v1/completions": lambda lines: json.loads(lines[-1][6:])["error"]["code"] == "engine_error",
    "/v1/messages": lambda lines: lines[-2] == "event: error" and json.loads(lines[-1][6:])["type"] == "error",
    "/v1/responses": lambda lines: json.loads(lines[-1][6:])["response"]["status"] == "failed",
}


def engine_of(server: Served) -> psutil.Process:
    [child] = psutil.Process(server.process.pid).children()
    return child


def wait_for_status(server: Served, status: int) -> None:
    pause = threading.Event()
    for _ in range(600):
        if httpx.get(server.base + "/readyz").status_code == status:
            return
        pause.wait(0.05)
    raise AssertionError(f"/readyz did not become {status}:\n{server.output}")


def kill_in_mid_stream(server: Served, path: str, body: dict) -> list[str]:
    """The lines of a stream whose engine dies at its eighth event, which is content in every dialect."""
    lines: list[str] = []
    died = None
    ask = {"model": server.model, "stream": True, **body}
    with httpx.stream("POST", server.base + path, json=ask, timeout=30) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            lines += [line] if line else []
            if line.startswith("data:") and sum(text.startswith("data:") for text in lines) == 8:
                engine_of(server).kill()
                died = time.monotonic()
    assert died is not None
    assert time.monotonic() - died < 1.0
    return lines


@pytest.mark.parametrize("path", BODIES)
def test_a_killed_engine_ends_the_stream_and_is_replaced(tmp_path: Path, path: str):
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SLOW))
    server = Served(tmp_path, Settings(args=("--engine", f"scripted:{script}")))
    try:
        lines = kill_in_mid_stream(server, path, BODIES[path])
        assert LAST[path](lines), lines[-3:]
        assert "data: [DONE]" not in lines
        assert httpx.get(server.base + "/readyz").status_code == 503
        wait_for_status(server, 200)
        answer = httpx.post(server.base + path, json={"model": server.model, **BODIES[path]}, timeout=30)
        assert answer.status_code == 200
    finally:
        assert server.close() == 0, server.output


@pytest.mark.engine
def test_a_killed_real_engine_is_replaced(tmp_path: Path):
    server = Served(tmp_path, Settings())
    try:
        prompt = {"prompt": "Once upon a time", "max_tokens": 2000, "logit_bias": {"0": -100, "2": -100}}
        lines = kill_in_mid_stream(server, "/v1/completions", prompt)
        assert LAST["/v1/completions"](lines), lines[-3:]
        wait_for_status(server, 200)
        ask = {"model": server.model, "messages": [{"role": "user", "content": "Say hello"}]}
        answer = httpx.post(server.base + "/v1/chat/completions", json=ask, timeout=60)
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
    finally:
        assert server.close() == 0, server.output
