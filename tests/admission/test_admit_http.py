"""Admission over HTTP: who is let in, what the headers say, what is logged, captured and counted."""

from __future__ import annotations

import json
import logging

import pytest
from inside import ASK, CHAT, inside, until
from prometheus_client.parser import text_string_to_metric_families

from memra_mlx import logs
from memra_mlx.admission import keyfile
from memra_mlx.admission.capture import FILE
from memra_mlx.admission.keyring import digest_of

WORDS = {"script": [{"repeat": ["secretword ", 5]}]}
SLOW = {"script": [{"repeat": ["t ", 5000], "delay_ms": 20}]}
MESSAGES = {"model": "memra-tiny", "max_tokens": 5, "messages": ASK}


def keys_toml(folder, *, consent: bool = False) -> str:
    file = folder / "keys.toml"
    rows = [("mk-a", "acme", ""), ("mk-bulk", "acme", "class = 'batch'\n"), ("mk-old", "beta", "enabled = false\n")]
    rows += [("mk-c", "gamma", "")]
    blocks = [f"[[keys]]\nsha256 = '{digest_of(key)}'\ntenant = '{tenant}'\n{more}" for key, tenant, more in rows]
    terms = "[tenants.acme]\ncapture = true\n" if consent else ""
    file.write_text(terms + "".join(blocks))
    return str(file)


async def test_keys_lanes_and_deadlines(tmp_path):
    async with inside(tmp_path, WORDS, keys_file=keys_toml(tmp_path)) as here:

        async def refusal(headers, path=CHAT, **more):
            answer = await here.client.post(path, json={**MESSAGES, **more}, headers=headers)
            return answer.status_code, answer.json()["error"].get("code")

        ok = {"x-api-key": "mk-a"}
        assert await refusal({}) == (401, "invalid_api_key")
        assert await refusal({"x-api-key": "mk-old"}) == (403, "key_disabled")
        assert await refusal(ok, model="gpt-7") == (400, "model_not_found")
        assert await refusal({}, model="gpt-7") == (400, "model_not_found")  # the order: model, then key
        assert await refusal({**ok, "x-lane": "fast"}) == (400, "invalid_lane")
        assert await refusal({"x-api-key": "mk-bulk", "x-lane": "interactive"}) == (403, "lane_forbidden")
        for path in (CHAT, "/v1/messages"):
            for value in (999, 90_001):
                assert (await refusal(ok, path, timeout_ms=value))[0] == 400
                assert (await refusal(ok, path, timeout_ms=value, stream=True))[0] == 400
        for headers in ({"x-api-key": "mk-bulk"}, {"authorization": "Bearer mk-a", "x-api-key": "nobody"}):
            answer = await here.client.post("/v1/messages", json={**MESSAGES, "timeout_ms": 90_000}, headers=headers)
            assert answer.status_code == 200
        assert [(row["lane"], row["tenant"]) for row in here.rows()] == [("harvest", "acme"), ("interactive", "acme")]
        answer = await here.client.get("/v1/models")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await here.client.get("/livez")).status_code == 200
        assert (await here.client.head("/")).status_code == 200


async def test_a_new_key_holds_at_once_and_a_revoked_one_no_more(tmp_path):
    file = tmp_path / "keys.toml"
    first = keyfile.generate(file, "acme", "interactive", None)
    async with inside(tmp_path, WORDS, keys_file=str(file)) as here:
        second = keyfile.generate(file, "beta", "interactive", None)
        assert [(await here.chat(headers={"x-api-key": key})).status_code for key in (first, second)] == [200, 200]
        keyfile.revoke(file, digest_of(first)[:12])
        assert [(await here.chat(headers={"x-api-key": key})).status_code for key in (first, second)] == [403, 200]
        file.write_text("[[keys]]\nsha256 = 'broken")
        assert (await here.chat(headers={"x-api-key": second})).status_code == 200


async def test_tenants_do_not_share_a_cache(tmp_path):
    async with inside(tmp_path, WORDS, keys_file=keys_toml(tmp_path)) as here:
        for key in ("mk-a", "mk-a", "mk-c"):
            assert (await here.chat(headers={"x-api-key": key}, cache_salt="s")).status_code == 200
        assert [row["cached_tokens"] > 0 for row in here.rows()] == [False, True, False]


async def test_bulk_lanes_wait_outside_while_interactive_work_is_slow(tmp_path):
    async with inside(tmp_path, SLOW, slo_p99_ms="20") as here:
        assert (await here.chat(headers={"x-lane": "judge"}, max_tokens=2)).status_code == 200
        async with here.stream():
            await until(lambda: here.services.steps.quantiles(0, 0.5)[0] >= 16)
            for lane in ("judge", "harvest"):
                answer = await here.chat(headers={"x-lane": lane}, max_tokens=2)
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
            assert (await here.chat(max_tokens=2)).status_code == 200
        assert {row["lane"] for row in here.rows()} == {"judge", "interactive"}


async def test_remaining_is_true_for_the_life_of_a_stream(tmp_path):
    async with inside(tmp_path, SLOW, slots="3") as here:
        async with here.stream() as first, here.stream() as second:
            assert [a.headers["x-ratelimit-remaining"] for a in (first, second)] == ["2", "1"]
            async with here.stream() as third:
                assert third.headers["x-ratelimit-remaining"] == "0"
                assert int(third.headers["x-ratelimit-reset"]) >= 1
                assert (await here.chat()).status_code == 429
            await until(lambda: here.services.slots.live == 2)
            assert (await here.chat(max_tokens=1)).headers["x-ratelimit-remaining"] == "0"
        await until(lambda: not here.services.slots.live)


class Kept(logging.Handler):
    """All log lines in both formats."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines += [logs.Plain().format(record), logs.JsonLines().format(record)]


@pytest.fixture
def kept():
    root, handler = logging.getLogger("memra"), Kept()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(level)


async def test_logs_have_ids_and_neither_text_nor_keys(tmp_path, kept):
    async with inside(tmp_path, WORDS, keys_file=keys_toml(tmp_path)) as here:
        prompt = [{"role": "user", "content": "promptword"}]
        for headers, more in (
            ({"x-api-key": "mk-a", "x-request-id": "mine-1"}, {}),
            ({"x-api-key": "mk-a", "x-request-id": "evil\tid"}, {"stream": True}),
            ({"x-api-key": "mk-wrongword"}, {}),
            ({"x-api-key": "mk-a"}, {"temperature": "promptword"}),
        ):
            answer = await here.client.post(CHAT, json={**MESSAGES, "messages": prompt, **more}, headers=headers)
            assert answer.headers["request-id"] == answer.headers["x-request-id"]
    text = "\n".join(kept)
    for word in ("promptword", "secretword", "mk-a", "wrongword", "evil"):
        assert word not in text
    meters = [json.loads(line) for line in kept if line.startswith("{") and '"meter receipt=' in line]
    assert [row["request_id"] == "mine-1" for row in meters] == [True, False]
    assert meters[0]["receipt"].startswith("rcp_")
    assert (meters[0]["tenant"], meters[0]["lane"], meters[0]["prompt"] > 0) == ("acme", "interactive", True)
    done = [json.loads(line) for line in kept if line.startswith("{") and '"done receipt=' in line]
    assert [row["receipt"] for row in done] == [row["receipt"] for row in meters]


@pytest.mark.parametrize("armed", [True, False])
async def test_only_who_consents_is_captured_and_only_when_armed(tmp_path, armed):
    file = keys_toml(tmp_path, consent=True)
    async with inside(tmp_path, WORDS, keys_file=file, capture=armed) as here:
        for key in ("mk-a", "mk-c"):
            assert (await here.chat(headers={"x-api-key": key})).status_code == 200
        captured = tmp_path / "state" / "capture" / FILE
        if not armed:
            assert not captured.exists()
            return
        [row] = [json.loads(line) for line in captured.read_text().splitlines()]
        assert (row["tenant"], row["receipt"]) == ("acme", here.rows()[0]["id"])
        assert row["input"]["messages"][0]["parts"][0]["text"] == "hi"
        assert "hi" in row["prompt"]
        assert len(row["prompt"]) > len("hi")


async def test_a_scrape_right_after_an_answer_has_it(tmp_path):
    options = {"keys_file": keys_toml(tmp_path), "metrics_token": "see-all"}
    async with inside(tmp_path, WORDS, **options) as here:
        for key in ("mk-a", "mk-c", "mk-nobody"):
            await here.chat(stream=True, headers={"x-api-key": key})

        async def scrape(key):
            answer = await here.client.get("/metrics", headers={"authorization": f"Bearer {key}"})
            families = text_string_to_metric_families(answer.text)
            return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}

        everything, own = await scrape("see-all"), await scrape("mk-a")
        prompt = here.rows()[0]["prompt_tokens"]
        assert everything["memra_prompt_tokens_in_total", ()] == 2 * prompt
        assert everything["memra_completion_tokens_out_total", ()] == 10
        assert everything["memra_refusals_total", (("code", "invalid_api_key"), ("route", CHAT))] == 1
        assert everything["memra_engine_phase", (("model", "memra-tiny"), ("phase", "ready"))] == 1
        assert everything["memra_requests_running", ()] == 0
        assert everything["memra_ttft_seconds_count", ()] == 2
        assert own["memra_prompt_tokens_in_total", ()] == prompt
        assert {labels for name, labels in own if name.startswith("memra_tenant_prompt")} == {(("tenant", "acme"),)}
        assert not any("queue" in name or "gamma" in str(labels) for name, labels in own)
        assert (await here.client.get("/metrics")).status_code == 401
