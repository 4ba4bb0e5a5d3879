"""Whatever is sent to a POST route: an answer or a refusal in the route's dialect, never a 500 and never silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anything import spoiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import Served, Settings

SCHEMA = {"type": "object", "properties": {"t": {"type": "string"}}}
FUNCTION = {"name": "w", "description": "d", "parameters": SCHEMA, "strict": False}
NAMED = {"type": "function", "name": "w"}
COMMON = {"model": "m", "temperature": 1, "top_p": 0.9, "top_k": 5, "cache_salt": "s", "timeout_ms": 60000}
OPENAI = {**COMMON, "stream": True, "seed": 5, "min_p": 0.1, "stop": ["zz"], "user": "u"}
CALL = {"id": "c", "type": "function", "function": {"name": "w", "arguments": '{"t":"x"}'}}
CHAT: dict[str, Any] = {
    **OPENAI, "max_tokens": 50, "n": 2, "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2,
    "stream_options": {"include_usage": True}, "parallel_tool_calls": True, "frequency_penalty": 0.5,
    "messages": [
        {"role": "developer", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]},
    ],
    "tools": [{"type": "function", "function": FUNCTION}, {"type": "custom", "custom": {"name": "p"}}],
    "tool_choice": "auto", "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True},
}  # fmt: skip
COMPLETIONS: dict[str, Any] = {
    **OPENAI, "prompt": [72, 73], "max_tokens": 9, "n": 2, "best_of": 2, "echo": True, "logit_bias": {"5": 1},
    "stop_token_ids": [7], "stream_options": {"include_usage": True},
}  # fmt: skip
COUNT: dict[str, Any] = {
    **COMMON, "system": [{"type": "text", "text": "S"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "mid_conv_system", "content": "x"}]},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "w", "input": {"t": "x"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": False, "content": [
                {"type": "text", "text": "r"}, {"type": "tool_reference", "tool_name": "w"}]}]},
    ],
    "tools": [{"name": "w", "description": "d", "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "metadata": {"user_id": "u"},
}  # fmt: skip
MESSAGES: dict[str, Any] = {
    **COUNT, "max_tokens": 2048, "stream": True, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high"}, "stop_sequences": ["zz"],
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    **OPENAI, "instructions": "S", "max_output_tokens": 50, "include": ["reasoning.encrypted_content"], "store": False,
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"type": "message", "role": "user", "content": "a"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "encrypted_content": "e"},
        {"type": "function_call", "call_id": "c", "name": "w", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ],
    "tools": [{**NAMED, "parameters": SCHEMA}, {"type": "custom", "name": "p"}, {"type": "web_search"},
              {"type": "namespace", "name": "ns", "tools": [NAMED]}],
    "tool_choice": NAMED, "parallel_tool_calls": False, "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"}, "metadata": {"a": "b"}, "truncation": "disabled",
}  # fmt: skip
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT,
    "/v1/responses": RESPONSES,
}
GOOD_ENDS = ("data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete")
SHORT, WHOLE = 60, 2000  # examples a route
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a scripted server that knows every model name."""
    folder = tmp_path_factory.mktemp("fuzzed")
    words = ["<think>", "hm", "</think>", "Hi ", "🦙"]
    call = {"call": {"tool": "w", "arguments": {"t": "x"}}}
    (folder / "script.json").write_text(json.dumps({"script_turns": [words, [*words, call]], "context": 4096}))
    server = Served(folder, Settings(args=("--any-model", "--engine", f"scripted:{folder / 'script.json'}")))
    with httpx.Client(base_url=server.base, timeout=PATIENCE_S) as client:
        yield client
    assert server.close() == 0, server.output
    assert "Traceback" not in server.output, server.output


def check(path: str, answer: httpx.Response) -> None:
    """The answer is one that a client of this route can read."""
    if answer.status_code == 200:
        if answer.headers["content-type"].startswith("text/event-stream"):
            last = answer.text.strip().split("\n\n")[-1]
            assert last.startswith(GOOD_ENDS), last
        else:
            assert "error" not in answer.json() or answer.json()["error"] is None
        return
    body = answer.json()
    assert answer.status_code in (400, 413, 415), answer.text
    assert isinstance(body["error"]["message"], str)
    assert (body.get("type") == "error") == path.startswith("/v1/messages")
    assert len(body["error"]["message"]) < 2000


def fuzz(client: httpx.Client, path: str, examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=examples, deadline=None, derandomize=examples == SHORT, suppress_health_check=checks)
    @given(spoiled(BODIES[path]))
    def sent(body: dict[str, Any]) -> None:
        check(path, client.post(path, content=json.dumps(body).encode("utf-8", "surrogatepass")))

    sent()


@pytest.mark.parametrize("path", BODIES)
def test_whole_bodies_are_served(fuzzed: httpx.Client, path: str):
    for more in ({}, {"stream": False}):
        answer = fuzzed.post(path, json={**BODIES[path], **more})
        assert answer.status_code == 200, answer.text
        check(path, answer)


@pytest.mark.parametrize("path", BODIES)
def test_anything_is_answered(fuzzed: httpx.Client, path: str):
    fuzz(fuzzed, path, SHORT)


@pytest.mark.nightly
@pytest.mark.parametrize("path", BODIES)
def test_anything_is_answered_whole(fuzzed: httpx.Client, path: str):
    fuzz(fuzzed, path, WHOLE)


@settings(max_examples=SHORT, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(BODIES)), st.binary(max_size=60), st.sampled_from(["", "gzip", "zstd", "deflate", "br, x"]))
def test_any_bytes_are_answered(fuzzed: httpx.Client, path: str, data: bytes, encoding: str):
    headers = {"content-encoding": encoding} if encoding else {}
    answer = fuzzed.post(path, content=data, headers=headers)
    assert answer.status_code in (400, 415)
    check(path, answer)
