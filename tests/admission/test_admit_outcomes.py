"""One test per outcome, over HTTP: the row that it leaves, its debit, and what the metrics say."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from inside import inside, until

from memra_mlx.admission.keyring import digest_of

WORDS = {"script": [{"repeat": ["t ", 20]}]}
SLOW = {"script": [{"repeat": ["t ", 5000], "delay_ms": 10}]}
LONG = "lorem " * 400
KEY = {"x-api-key": "mk-a"}


def keyring(folder, text: str) -> str:
    file = folder / "keys.toml"
    file.write_text(f'[[keys]]\nsha256 = "{digest_of("mk-a")}"\ntenant = "acme"\n{text}')
    return str(file)


def priced(folder, budget: float = 1000.0) -> dict[str, str]:
    """A tenant that pays 1 for a million tokens of either kind, half for cached ones."""
    prices = "prices = { prompt = 1, cached = 0.5, completion = 1 }"
    return {"keys_file": keyring(folder, f"[tenants.acme]\nbudget = {budget}\n{prices}\n")}


def debit(row) -> tuple[int, int, int]:
    return row["debit_prompt"], row["debit_completion"], row["cost"]


async def outcome_counts(here) -> dict[str, int]:
    body = (await here.client.get("/metrics", headers={"accept": "application/json", **KEY})).json()
    return {name: n for counts in body["requests"].values() for name, n in counts.items()}


@pytest.mark.parametrize("stream", [False, True])
async def test_completed(tmp_path, stream):
    async with inside(tmp_path, WORDS, **priced(tmp_path)) as here:
        answer = await here.chat(stream=stream, headers=KEY)
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit"] == "256"
        assert answer.headers["x-ratelimit-remaining"] == "255"
        [row] = here.rows()  # synced before the answer ended
        assert (row["outcome"], row["route"], row["tenant"]) == ("completed", "/v1/chat/completions", "acme")
        assert row["request_id"] == answer.headers["x-request-id"]
        assert debit(row) == (row["prompt_tokens"], 20, row["prompt_tokens"] + 20)
        assert await here.services.ledger.account("acme") == (row["cost"], 0)
        assert await outcome_counts(here) == {"completed": 1}
        assert not here.services.slots.live


async def test_cached_tokens_have_their_price(tmp_path):
    async with inside(tmp_path, WORDS, **priced(tmp_path)) as here:
        for _ in range(2):
            assert (await here.chat(headers=KEY)).status_code == 200
        cold, warm = here.rows()
        assert (cold["cached_tokens"], warm["cached_tokens"] > 0) == (0, True)
        assert cold["cost"] - warm["cost"] == warm["cached_tokens"] // 2
        assert warm["debit_prompt"] == cold["debit_prompt"]


async def test_abandoned_in_decode_costs_what_was_generated(tmp_path):
    async with inside(tmp_path, SLOW, **priced(tmp_path)) as here:
        async with here.stream(headers=KEY) as answer:
            lines = answer.aiter_lines()
            while "t " not in await anext(lines):
                pass
        row = await here.row()
        assert row["outcome"] == "abandoned"
        assert 0 < row["completion_tokens"] < 5000
        assert debit(row)[:2] == (row["prompt_tokens"], row["completion_tokens"])
        assert row["cost"] == row["prompt_tokens"] + row["completion_tokens"]
        await until(lambda: not here.services.slots.live)


async def test_abandoned_in_prefill_costs_nothing(tmp_path):
    script = {"script": ["t "], "prefill_s": 30}
    async with inside(tmp_path, script, commit_s="0.05", **priced(tmp_path)) as here:
        async with here.stream(headers=KEY) as answer:
            assert answer.status_code == 200
        row = await here.row()
        assert (row["outcome"], debit(row)) == ("abandoned", (0, 0, 0))
        assert await here.services.ledger.account("acme") == (0, 0)


async def test_abandoned_by_a_client_that_waits_for_the_whole_answer(tmp_path):
    async with inside(tmp_path, SLOW, **priced(tmp_path)) as here:
        with pytest.raises(httpx.ReadTimeout):
            await here.client.post(
                "/v1/messages",
                json={"model": "memra-tiny", "max_tokens": 5000, "messages": [{"role": "user", "content": "hi"}]},
                headers=KEY,
                timeout=0.5,
            )
        row = await here.row()
        assert (row["outcome"], row["debit_completion"]) == ("abandoned", row["completion_tokens"])
        assert row["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_rejected_by_a_fault(tmp_path, stream):
    script = {"script": ["a ", "b ", {"fault": "raise"}]}
    async with inside(tmp_path, script, **priced(tmp_path)) as here:
        answer = await here.chat(stream=stream, headers=KEY)
        assert answer.status_code == (200 if stream else 500)
        row = await here.row()
        assert (row["outcome"], debit(row)) == ("rejected", (0, 0, 0))
        assert await here.services.ledger.account("acme") == (0, 0)


async def test_rejected_for_a_full_tenant(tmp_path):
    file = keyring(tmp_path, "concurrency = 1\n")
    async with inside(tmp_path, SLOW, keys_file=file) as here, here.stream(headers=KEY):
        answer = await here.chat(headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert answer.headers["x-ratelimit-limit"] == "1"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert "x-should-retry" not in answer.headers
        assert [row["outcome"] for row in here.rows()] == [None, "rejected"]


@pytest.mark.parametrize("stream", [False, True])
async def test_deadline_exceeded(tmp_path, stream):
    script = {"script": ["t "], "prefill_s": 30}
    async with inside(tmp_path, script, stream_ttft_ms_max="2000", **priced(tmp_path)) as here:
        answer = await here.chat(stream=stream, timeout_ms=1000, headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "deadline_exceeded")
        assert "x-should-retry" not in answer.headers
        row = await here.row()
        assert (row["outcome"], debit(row)) == ("deadline_exceeded", (0, 0, 0))
        await until(lambda: not here.services.models.default.engine.status().live)


async def test_deadline_exceeded_after_the_headers(tmp_path):
    script = {"script": ["t "], "prefill_s": 30}
    async with inside(tmp_path, script, commit_s="0.05") as here:
        answer = await here.chat(stream=True, timeout_ms=1000)
        assert answer.status_code == 200
        error = json.loads([line for line in answer.text.splitlines() if line.startswith("data: {")][-1][6:])
        assert error["error"]["code"] == "deadline_exceeded"
        assert (await here.row())["outcome"] == "deadline_exceeded"


async def test_deadline_partial_is_billed_for_what_was_delivered(tmp_path):
    async with inside(tmp_path, SLOW, deadline_partial=True, **priced(tmp_path)) as here:
        answer = await here.chat(timeout_ms=1000, headers=KEY)
        body = answer.json()
        assert (answer.status_code, body["choices"][0]["finish_reason"]) == (200, "length")
        row = await here.row()
        assert row["outcome"] == "deadline_partial"
        assert row["debit_completion"] == body["usage"]["completion_tokens"] > 0


async def test_deadline_partial_is_not_for_dialects_that_cannot_say_it(tmp_path):
    async with inside(tmp_path, SLOW, deadline_partial=True) as here:
        body = {"model": "memra-tiny", "max_tokens": 5000, "messages": [{"role": "user", "content": "hi"}]}
        answer = await here.client.post("/v1/messages", json={**body, "timeout_ms": 1000})
        assert answer.status_code == 408
        assert (await here.row())["outcome"] == "deadline_exceeded"


async def test_shed_deadline(tmp_path):
    script = {"script": ["t "], "prefill_s": 1.5}
    async with inside(tmp_path, script, **priced(tmp_path)) as here:
        first = await here.chat(messages=[{"role": "user", "content": LONG}], cache_salt="1", headers=KEY)
        assert first.status_code == 200
        ahead = [
            asyncio.create_task(
                here.chat(messages=[{"role": "user", "content": LONG}], cache_salt=f"x{i}", headers=KEY)
            )
            for i in range(4)
        ]
        await until(lambda: here.services.queue("memra-tiny").depth == 4)
        answer = await here.chat(timeout_ms=1000, headers=KEY)
        assert (answer.status_code, answer.headers["x-memra-shed"]) == (429, "shed_deadline")
        assert [a.status_code for a in await asyncio.gather(*ahead)] == [200] * 4  # who is in stays in
        shed = [row for row in here.rows() if row["outcome"] == "shed_deadline"]
        assert [debit(row) for row in shed] == [(0, 0, 0)]
        assert (await here.services.ledger.account("acme"))[1] == 0


async def test_shed_queue(tmp_path):
    script = {"script": ["t "], "prefill_s": 1}
    async with inside(tmp_path, script, queue_limit="2", **priced(tmp_path)) as here:
        answers = await asyncio.gather(*(here.chat(headers=KEY) for _ in range(6)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200, 200, 429, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert (refused.headers["x-memra-shed"], refused.json()["error"]["code"]) == (
            "shed_queue",
            "rate_limit_exceeded",
        )
        outcomes = sorted(row["outcome"] for row in here.rows())
        assert outcomes == ["completed"] * 2 + ["shed_queue"] * 4
        assert all(row["cost"] == 0 for row in here.rows() if row["outcome"] == "shed_queue")


async def test_drain_killed(tmp_path):
    async with inside(tmp_path, SLOW, drain_s="0.2", **priced(tmp_path)) as here:
        async with here.stream(headers=KEY) as answer:
            lines = answer.aiter_lines()
            while "t " not in await anext(lines):
                pass
            here.server.stop(0)
            rest = [line async for line in lines]
        assert any("draining" in line for line in rest)
        assert await here.task == 0
        [row] = here.rows()
        assert (row["outcome"], debit(row)) == ("drain_killed", (0, 0, 0))


async def test_crashed_in_the_handler(tmp_path, monkeypatch):
    async with inside(tmp_path, WORDS, **priced(tmp_path)) as here:

        def broken(*arguments):
            raise RuntimeError("a bug")

        monkeypatch.setattr("memra_mlx.dialects.chat.body", broken)
        answer = await here.chat(headers=KEY)
        assert answer.status_code == 500
        assert "a bug" not in answer.text
        row = await here.row()
        assert (row["outcome"], debit(row)) == ("crashed", (0, 0, 0))
        assert await here.services.ledger.account("acme") == (0, 0)


async def test_a_spent_budget_is_final_in_each_family_and_leaves_no_row(tmp_path):
    async with inside(tmp_path, WORDS, **priced(tmp_path, budget=0.000001)) as here:
        answer = await here.chat(headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")
        assert answer.headers["x-should-retry"] == "false"
        body = {"model": "memra-tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        answer = await here.client.post("/v1/messages", json=body, headers=KEY)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
        assert here.rows() == []
        total = here.services.metrics.total
        assert total.refusals["/v1/messages", "insufficient_quota"] == 1
