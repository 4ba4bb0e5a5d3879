"""The edges of HTTP: other pages, unknown paths, probes, ids, characters cut in two, the end of a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inside import ASK, CHAT, inside

from memra_mlx.fixtures import TINY_ID

WORDS = {"script": ["Hi"]}
PAGE = "https://page.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": ASK, "max_tokens": 40},
    "/v1/responses": {"input": "hi"},
}
ENDS = {
    CHAT: "[DONE]",
    "/v1/completions": "[DONE]",
    "/v1/messages": "message_stop",
    "/v1/responses": "response.completed",
}

# What tells each family of clients that a silent server still works.
SIGNS = {CHAT: ": keepalive", "/v1/completions": ": keepalive", "/v1/messages": "event: ping"}
SIGNS["/v1/responses"] = "event: keepalive"
FIRST = {CHAT: '"role":"assistant"', "/v1/messages": "event: message_start", "/v1/responses": "response.created"}


async def test_other_pages_are_kept_out_unless_named(tmp_path: Path):
    async with inside(tmp_path, WORDS) as here:
        for method, path, sent in (("GET", "/v1/models", {"origin": PAGE}), ("OPTIONS", CHAT, PREFLIGHT)):
            answer = await here.client.request(method, path, headers=sent)
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_named_page_may_use_the_server(tmp_path: Path):
    async with inside(tmp_path, WORDS, cors_origins=f"{PAGE},http://x", api_key="k") as here:
        for path in (CHAT, "/v1/models"):
            asked = await here.client.options(path, headers=PREFLIGHT)
            assert asked.status_code == 204
            assert asked.headers["access-control-allow-origin"] == PAGE
            assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
            assert "POST" in asked.headers["access-control-allow-methods"]
        sent = {"origin": PAGE, "authorization": "Bearer k"}
        for answer in (
            await here.chat(headers=sent),
            await here.chat(headers=sent, stream=True),
            await here.chat(headers=sent, temperature=9),
            await here.client.get("/v1/models", headers={"origin": PAGE}),
        ):
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        foreign = await here.client.options(CHAT, headers={**PREFLIGHT, "origin": "https://evil.example"})
        assert (foreign.status_code, foreign.headers.get("access-control-allow-origin")) == (405, None)


async def test_errors_speak_the_dialect_of_the_path(tmp_path: Path):
    async with inside(tmp_path, WORDS) as here:
        for method, path, headers, status in (
            ("POST", "/v1/nope", {}, 404),
            ("POST", "/v1/nope", ANTHROPIC, 404),
            ("POST", "/v1/messages/nope", {}, 404),
            ("GET", "/v1/messages", {}, 405),
            ("GET", CHAT, ANTHROPIC, 405),
            ("GET", "/v1/models/nope", {}, 404),
            ("GET", "/v1/models/nope", ANTHROPIC, 404),
        ):
            answer = await here.client.request(method, path, headers={**headers, "x-request-id": "mine-7"})
            body = answer.json()
            assert answer.status_code == status
            assert answer.headers["x-request-id"] == answer.headers["request-id"] == "mine-7"
            anthropic = (headers or path.startswith("/v1/messages")) and path != CHAT
            assert (body.get("type"), body.get("request_id")) == (("error", "mine-7") if anthropic else (None, None))
            assert body["error"]["type"] == "not_found_error"


async def test_probes_need_no_key(tmp_path: Path):
    async with inside(tmp_path, WORDS, api_key="k") as here:
        head = await here.client.head("/")
        assert (head.status_code, head.content) == (200, b"")
        assert (await here.client.get("/")).status_code == 200
        assert (await here.client.get("/v1/models")).status_code == 401


async def test_models_are_listed_in_pages(tmp_path: Path):
    async with inside(tmp_path, WORDS, aliases=f"claude-a={TINY_ID},claude-b={TINY_ID},gpt-*={TINY_ID}") as here:
        whole = (await here.client.get("/v1/models")).json()
        assert [row["id"] for row in whole["data"]] == [TINY_ID, "claude-a", "claude-b"]
        assert whole == (await here.client.get("/models")).json()
        part = (await here.client.get("/v1/models", params={"limit": 1, "after_id": TINY_ID})).json()
        assert (part["first_id"], part["last_id"], part["has_more"]) == ("claude-a", "claude-a", True)
        row = (await here.client.get("/v1/models/gpt-7")).json()
        assert (row["id"], row["state"], row["context_window"]) == ("gpt-7", "ready", row["max_input_tokens"])
        for path in ("/v1/models/gpt-org/x", "/v1/models/gpt-org%2Fx"):
            assert (await here.client.get(path)).json()["id"] == "gpt-org/x"
        bad = await here.client.get("/v1/models", params={"limit": "many"}, headers=ANTHROPIC)
        assert (bad.status_code, bad.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("path", BODIES)
async def test_characters_are_whole_and_nothing_follows_the_end(tmp_path: Path, path: str):
    llama = "🦙".encode()
    script = {"script": ["a", {"bytes": llama[:1].hex()}, {"bytes": llama[1:3].hex()}, {"bytes": llama[3:].hex()}, "b"]}
    async with inside(tmp_path, script) as here:
        ask = {"model": TINY_ID, "stream": True, **BODIES[path]}
        async with here.client.stream("POST", path, json=ask) as answer:
            pieces = [piece async for piece in answer.aiter_raw()]
        for piece in pieces:
            piece.decode()
        whole = b"".join(pieces).decode()
        assert "🦙" in whole
        assert "\ufffd" not in whole
        frames = whole.strip().split("\n\n")
        assert ENDS[path] in frames[-1]
        assert sum(ENDS[path] in frame for frame in frames) == 1
        for frame in frames:
            data = next(line[6:] for line in frame.splitlines() if line.startswith("data: "))
            assert data == "[DONE]" or json.loads(data)


@pytest.mark.parametrize("path", BODIES)
async def test_a_long_prefill_is_bridged(tmp_path: Path, path: str):
    async with inside(tmp_path, {**WORDS, "prefill_s": 1.5}, commit_s="0.05", keepalive_s="0.1") as here:
        answer = await here.client.post(path, json={"model": TINY_ID, "stream": True, **BODIES[path]})
        frames = answer.text.strip().split("\n\n")
        said = next(n for n, frame in enumerate(frames) if "Hi" in frame)
        assert FIRST.get(path, SIGNS[path]) in frames[0]
        assert sum(frame.startswith(SIGNS[path]) for frame in frames[:said]) >= 3
        assert ENDS[path] in frames[-1]


@pytest.mark.parametrize("path", BODIES)
async def test_what_was_left_out_is_told_once_in_header_and_answer(tmp_path: Path, path: str):
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    telemetry = {"metadata": {"user_id": "u"}, "user": "u", "service_tier": "auto", "brand_new": {"a": 1}}
    async with inside(tmp_path, {**WORDS, "ctx": 2048}) as here:

        async def told(**more: Any) -> tuple[str, Any]:
            answer = await here.client.post(path, json={"model": TINY_ID, **BODIES[path], **telemetry, **more})
            assert answer.status_code == 200
            header = answer.headers.get("x-memra-warning", "")
            return header, (answer.text if more.get("stream") else answer.json().get("warnings", []))

        assert await told() == ("", [])
        header, [warning] = await told(**{limit: 32000})
        assert warning == header
        assert warning.startswith(f"{limit}: 32000 was cut to ")
        header, text = await told(**{limit: 32000}, stream=True)
        assert header.startswith(limit)
        assert [line for line in text.splitlines() if '"warnings":[' in line]
        header, text = await told(**{limit: 2500}, stream=True)
        assert (header, '"warnings"' in text) == ("", False)
        header, warnings = await told(ctx_size=9999)
        assert header.startswith("ctx_size: 9999 was ignored")
        assert len(warnings) == 1


async def test_tools_that_nobody_runs_are_told(tmp_path: Path):
    async with inside(tmp_path, WORDS) as here:
        ask = {"model": TINY_ID, "input": "hi", "tools": [{"type": "web_search"}, {"type": "web_search"}]}
        answer = await here.client.post("/v1/responses", json=ask)
        [warning] = answer.json()["warnings"]
        assert "web_search" in warning
        assert answer.headers["x-memra-warning"] == warning
