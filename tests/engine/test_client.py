"""The asyncio side of an engine: routing, hand-off, deaths, restarts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from scripted_engines import QUICK, first, request, rest, running, scripted, until, words

from memra_mlx.engine.client import Engine, Limits
from memra_mlx.engine.protocol import Ended, Fault, Progress, Started, Token
from memra_mlx.errors import ApiError

ENDLESS = {"script": [{"repeat": ["t ", 100_000], "delay_ms": 2}]}
STALL = Limits(stall_s=0.2, backoff_s=0.01)


def phase_is(engine: Engine, phase: str) -> Any:
    return lambda: engine.status().phase == phase


async def test_a_stream(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a", "b", "a"], "ctx": 512})) as engine:
        facts = await engine.ready()
        assert (facts.context, facts.vocab_size) == (512, 1002)
        submit = request(prompt=5)
        messages = await rest(engine.submit(submit))
    assert messages[:2] == [Started(submit.id, 0), Progress(submit.id, 5, 5)]
    assert words(messages) == [0, 1, 0]
    assert messages[-1] == Ended(submit.id, "stop", 3, 8)


async def test_a_consumer_that_lags_gets_one_list(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": [{"repeat": ["t", 50]}], "prefill_s": 1.5})) as engine:
        channel = engine.submit(request())
        await until(lambda: channel.over)
        messages = await channel.receive()
        assert [type(m) for m in messages] == [Started, Progress, *[Token] * 50, Ended]
        with pytest.raises(EOFError):
            await channel.receive()


async def test_two_hundred_requests_interleave(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a", {"repeat": ["t", 20]}]})) as engine:
        channels = [engine.submit(request()) for _ in range(200)]
        streams = await asyncio.gather(*(rest(channel) for channel in channels))
        assert engine.status().live == engine.status().waiting == 0
    assert [words(messages) for messages in streams] == [[0, *[1] * 20]] * 200


async def test_cancel_ends_a_stream_and_keeps_what_belongs_to_it(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, ENDLESS)) as engine:
        channel = engine.submit(request(prompt=8))
        await first(channel, Token)
        channel.cancel(keep=1)
        channel.cancel()
        ended = (await rest(channel))[-1]
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.kv_tokens) == ("cancelled", 9)


async def test_kill_in_mid_stream(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, ENDLESS), Limits(backoff_s=0.3)) as engine:
        one, two = engine.submit(request()), engine.submit(request())
        await first(one, Token)
        await first(two, Token)
        pid = engine.status().pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        for channel in (one, two):
            fault = (await rest(channel))[-1]
            assert isinstance(fault, Fault)
            assert fault.kind == "engine"
        assert engine.status().phase == "restarting"
        with pytest.raises(ApiError) as refusal:
            engine.submit(request())
        assert (refusal.value.kind, refusal.value.retry_after_s) == ("unavailable", 5)
        await until(phase_is(engine, "ready"))
        await first(engine.submit(request()), Token)
        assert (engine.status().generation, engine.status().pid != pid) == (2, True)
        assert "SIGKILL" in engine.status().reason


async def test_a_hung_engine_is_replaced_and_serves_what_had_not_started(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script_turns": [["a", {"hang": True}], ["b"]]}), STALL) as engine:
        hung = engine.submit(request())
        await first(hung, Token)
        waiting = engine.submit(request())
        assert (engine.status().live, engine.status().waiting) == (1, 1)
        assert isinstance((await rest(hung))[-1], Fault)
        messages = await rest(waiting)
        assert (words(messages), type(messages[-1])) == ([1], Ended)
        assert engine.status().generation == 2


async def test_a_silent_engine_is_replaced(tmp_path: Path) -> None:
    limits = Limits(beat_s=0.5, backoff_s=0.01)
    async with running(scripted(tmp_path, {"script": ["a"]}), limits) as engine:
        pid = engine.status().pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: engine.status().generation == 2 and engine.status().phase == "ready")
        assert "silent" in engine.status().reason
        assert words(await rest(engine.submit(request()))) == [0]


async def test_a_long_prefill_is_no_hang(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a"], "prefill_s": 1.6}), Limits(stall_s=1.2)) as engine:
        assert words(await rest(engine.submit(request()))) == [0]
        assert engine.status().generation == 1


async def test_past_the_respawn_limit_the_engine_has_failed(tmp_path: Path) -> None:
    reasons: list[str] = []
    command = scripted(tmp_path, {"script": [{"fault": "kill_thread"}]})
    limits = Limits(respawn_limit=1, backoff_s=0.01)
    async with running(command, limits, on_failed=reasons.append) as engine:
        assert isinstance((await rest(engine.submit(request())))[-1], Fault)
        await until(phase_is(engine, "ready"))
        assert not reasons
        assert isinstance((await rest(engine.submit(request())))[-1], Fault)
        await until(phase_is(engine, "failed"))
        with pytest.raises(ApiError, match="failed"):
            engine.submit(request())
    assert reasons == [engine.status().reason]
    assert engine.status().phase == "failed"


async def test_a_fault_of_one_request_is_its_own(tmp_path: Path) -> None:
    turns = {"script_turns": [["a", {"fault": "raise"}], ["a", {"repeat": ["t", 30]}]]}
    async with running(scripted(tmp_path, turns)) as engine:
        broken, whole = engine.submit(request()), engine.submit(request())
        fault = (await rest(broken))[-1]
        assert isinstance(fault, Fault)
        assert words(await rest(whole)) == [0, *[1] * 30]


async def test_cancel_while_no_engine_is_there(tmp_path: Path) -> None:
    limits = Limits(stall_s=0.2, backoff_s=60)
    async with running(scripted(tmp_path, {"script": ["a", {"hang": True}]}), limits) as engine:
        await first(engine.submit(request()), Token)
        waiting = engine.submit(request())
        await until(phase_is(engine, "restarting"))
        waiting.cancel()
        assert await waiting.receive() == [Ended(waiting.submit.id, "cancelled", 0)]
    assert engine.status().phase == "closed"


async def test_close_waits_for_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": [{"repeat": ["t", 40], "delay_ms": 5}]})) as engine:
        channel = engine.submit(request())
        await first(channel, Token)
        closing = asyncio.create_task(engine.close(20))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refusal:
            engine.submit(request())
        assert refusal.value.kind == "draining"
        end = (await rest(channel))[-1]
        assert isinstance(end, Ended)
        assert (end.reason, end.generated) == ("stop", 40)
        await closing
        assert engine.status().phase == "closed"


async def test_close_ends_what_does_not_end_in_time(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, ENDLESS)) as engine:
        channel = engine.submit(request())
        await first(channel, Token)
        await engine.close(0)
        assert isinstance((await rest(channel))[-1], Fault)


async def test_close_leaves_no_process_and_no_descriptor(tmp_path: Path) -> None:
    async def life(needs: dict[str, Any], limits: Limits) -> None:
        async with running(scripted(tmp_path, needs), limits) as engine:
            await first(engine.submit(request()), Token)
            pid = engine.status().pid
            assert pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    await life({"script": ["a"]}, QUICK)
    before = sorted(os.listdir("/dev/fd"))
    await life({"script": ["a"]}, QUICK)
    await life({"script": ["a", {"hang": True}]}, Limits(stop_s=0.1))
    assert sorted(os.listdir("/dev/fd")) == before


async def test_close_before_start_and_twice(tmp_path: Path) -> None:
    engine = Engine(scripted(tmp_path, {}), QUICK)
    await engine.close(0)
    await engine.close(0)
    assert engine.status().phase == "closed"
    with pytest.raises(ApiError, match="shutting down"):
        await engine.ready()
