"""Two hundred clients at once: what each received is what the ledger says, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import psutil
import pytest
from inside import CHAT, inside, new_client, until

from memra_mlx.admission.keyring import digest_of
from memra_mlx.admission.outcomes import BILLABLE

Kind = Literal["read", "leave", "late"]
TOKENS = 30
SCRIPT = {"script": [{"repeat": ["t ", TOKENS], "delay_ms": 40}], "prefill_s": 0.1}
KINDS: tuple[Kind, ...] = ("read", "read", "leave", "read", "late")
KEYS = ("mk-a", "mk-b")
# what a client saw -> the outcomes that its row may have; who leaves may have left the rest in its socket
MUST = {"whole": ("completed",), "left": ("abandoned", "completed", "rejected"), 408: ("deadline_exceeded",)}
REFUSED = ("rejected", "shed_queue", "shed_deadline")


@dataclass
class Seen:
    """What clients received, by request id: how it ended, and the tokens that they were told of."""

    ends: dict[str, str | int] = field(default_factory=dict)
    usage: dict[str, tuple[int, int]] = field(default_factory=dict)


def options(folder) -> dict[str, str]:
    prices = "prices = { prompt = 1, cached = 0.5, completion = 2 }"
    text = ""
    for key, tenant, concurrency in ((KEYS[0], "acme", 70), (KEYS[1], "beta", 40)):
        text += f"[tenants.{tenant}]\nbudget = 1000\n{prices}\n"
        text += f"[[keys]]\nsha256 = '{digest_of(key)}'\ntenant = '{tenant}'\nconcurrency = {concurrency}\n"
    (folder / "keys.toml").write_text(text)
    return {"keys_file": str(folder / "keys.toml"), "queue_limit": "500"}


async def one(here, seen: Seen, number: int, kind: Kind) -> None:
    """One client. A `late` one asks for a whole answer sooner than it can be had."""
    name = f"client-{number}"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": f"hi {number}"}], "temperature": 0}
    if kind == "late":
        body["timeout_ms"] = 1000
    else:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= {"model": "memra-tiny", "cache_salt": str(number % 7)}
    headers = {"x-api-key": KEYS[number % 2], "x-request-id": name}
    try:
        async with here.client.stream("POST", CHAT, json=body, headers=headers) as answer:
            seen.ends[name] = answer.status_code
            if answer.status_code == 200:
                seen.ends[name] = await read(answer, seen, name, leave_after=5 if kind == "leave" else None)
    except httpx.HTTPError as fault:
        seen.ends[name] = type(fault).__name__


async def read(answer: httpx.Response, seen: Seen, name: str, leave_after: int | None) -> str:
    """Read a stream to its end, or leave in the middle; how it ended."""
    count = itertools.count(1)
    async for line in answer.aiter_lines():
        if line == "data: [DONE]":
            return "whole"
        if not line.startswith("data: {"):
            continue
        data = json.loads(line[6:])
        if "error" in data:
            return "error"
        if usage := data.get("usage"):
            seen.usage[name] = (usage["prompt_tokens"], usage["completion_tokens"])
        if next(count) == leave_after:
            return "left"
    return "cut"


def check(here, seen: Seen) -> Counter[str]:
    """Each receipt has the one outcome that its client saw, and the debit that it was told."""
    rows = {row["request_id"]: row for row in here.rows()}
    for name, row in rows.items():
        end = seen.ends[name]
        assert row["outcome"] is not None, name
        if end in MUST:
            assert row["outcome"] in MUST[end], (name, end, row)
        elif end == "error" or isinstance(end, int):
            assert row["outcome"] in REFUSED, (name, end, row)
        if end == "whole":
            assert (row["debit_prompt"], row["debit_completion"]) == seen.usage[name]
        elif row["outcome"] not in BILLABLE:
            assert (row["debit_prompt"], row["debit_completion"], row["cost"]) == (0, 0, 0)
    for name, end in seen.ends.items():
        assert name in rows or end in (429, 503), (name, end)
    return Counter(row["outcome"] for row in rows.values())


async def settled(here, tasks_before: int) -> None:
    """Nothing is left: places, queues, running requests, engine work, tasks, reservations."""
    services = here.services
    await until(lambda: not services.slots.live and all(row["outcome"] for row in here.rows()))
    assert not services.running
    assert services.queue("memra-tiny").depth == 0
    await until(lambda: here.services.models.default.engine.status().live == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
    spent = Counter()
    for row in here.rows():
        spent[row["tenant"]] += row["cost"]
    for tenant in ("acme", "beta"):
        assert await services.ledger.account(tenant) == (spent[tenant], 0)


async def crowd(here, seen: Seen, numbers: range, during: Any) -> None:
    """All of `numbers` at once; `during` runs beside them."""
    clients = [asyncio.create_task(one(here, seen, n, KINDS[n % len(KINDS)])) for n in numbers]
    await during()
    await asyncio.gather(*clients)
    await here.client.aclose()  # idle connections of clients that are gone
    here.client = new_client(str(here.client.base_url))


async def nothing() -> None:
    """A quiet round."""


async def rounds(folder, count: int) -> None:
    async with inside(folder, SCRIPT, **options(folder)) as here:
        tasks_before = len(asyncio.all_tasks())
        seen = Seen()

        async def kill_engine() -> None:
            await until(lambda: sum(end == 200 for end in seen.ends.values()) > 20)
            os.kill(here.services.models.default.engine.status().pid, signal.SIGKILL)

        await crowd(here, seen, range(200), kill_engine)
        await until(lambda: here.services.models.default.phase == "ready")
        await settled(here, tasks_before)
        gc.collect()
        memory = psutil.Process().memory_info().rss
        for number in range(1, count):
            await crowd(here, seen, range(number * 200, number * 200 + 100), nothing)
            await settled(here, tasks_before)
        outcomes = check(here, seen)
        assert {"completed", "abandoned", "deadline_exceeded", "rejected"} <= set(outcomes)
        gc.collect()
        assert psutil.Process().memory_info().rss - memory < 48 << 20
        body = (await here.client.get("/metrics", headers={"accept": "application/json", "x-api-key": "mk-a"})).json()
        assert sum(body["requests"][CHAT].values()) == sum(row["tenant"] == "acme" for row in here.rows())
        assert body["completion_tokens_out"] == sum(
            row["completion_tokens"] for row in here.rows() if row["tenant"] == "acme"
        )


async def test_two_hundred_clients(tmp_path):
    await rounds(tmp_path, 2)


@pytest.mark.nightly
async def test_two_hundred_clients_again_and_again(tmp_path):
    await rounds(tmp_path, 20)


async def test_a_drain_in_the_middle_loses_nothing_that_was_promised(tmp_path):
    async with inside(tmp_path, SCRIPT, drain_s="60", **options(tmp_path)) as here:
        seen = Seen()
        promised: set[str] = set()

        async def drain() -> None:
            await until(lambda: sum(end == 200 for end in seen.ends.values()) > 20)
            here.server.stop(0)
            await until(lambda: here.services.slots.draining)
            running = {riding.run.channel.submit.id for riding in here.services.running}
            promised.update(row["request_id"] for row in here.rows() if row["id"] in running)
            late = await here.chat(headers={"x-api-key": "mk-a"})
            assert (late.status_code, late.headers["retry-after"]) == (503, "60")

        await crowd(here, seen, range(200), drain)
        assert await here.task == 0
        outcomes = check(here, seen)
        assert outcomes["drain_killed"] == outcomes["crashed"] == 0
        kept = [seen.ends[name] for name in promised]
        assert len(kept) > 20
        assert set(kept) <= {"whole", "left", 408}
