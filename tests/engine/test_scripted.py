"""The scripted engine, as a server meets it: a process at the other end of a pipe."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_engines import first, request, rest, running, scripted, until, words

from memra_mlx.engine.client import Engine, Limits
from memra_mlx.engine.protocol import Ended, Fault, Progress, Sampling, Started, Token, encode
from memra_mlx.errors import ApiError


async def test_max_tokens_and_stop_ids_end_an_answer(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a", {"repeat": ["b", 9]}, "c"]})) as engine:
        short = await rest(engine.submit(request(max_tokens=4)))
        exact = await rest(engine.submit(request(max_tokens=11)))
        stopped = await rest(engine.submit(request(stop_ids=[1002])))
    assert (words(short), short[-1]) == ([0, 1, 1, 1], Ended(short[-1].id, "length", 4, 12))
    assert exact[-1] == Ended(exact[-1].id, "length", 11, 19)
    assert stopped[-1] == Ended(stopped[-1].id, "stop", 10, 18)


async def test_turns_go_by_arrival_and_the_last_one_stays(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script_turns": [["a"], ["b", "a"], ["c"]]})) as engine:
        channels = [engine.submit(request()) for _ in range(4)]
        assert [words(await rest(channel)) for channel in channels] == [[0], [1, 0], [2], [2]]


async def test_known_prefixes_are_reused_within_their_namespace(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a", "b"]})) as engine:

        async def cached(ids: list[int], namespace: str = "one") -> int:
            submit = request(namespace=namespace)
            channel = engine.submit(type(submit)(submit.id, ids, 10, namespace=namespace))
            started = (await rest(channel))[0]
            assert isinstance(started, Started)
            assert started.source == ("memory" if started.cached else "none")
            return started.cached

        prompt = list(range(20))
        assert await cached(prompt) == 0
        assert await cached(prompt) == 19
        assert await cached([*prompt, 1000, 1001, 5]) == 22
        assert await cached([*prompt[:7], 99, 98]) == 7
        assert await cached([*prompt[:7], 99, 97]) == 8
        assert await cached(prompt, "two") == 0


async def test_cancel_in_prefill_is_immediate_and_keeps_what_was_computed(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a"], "prefill_s": 30})) as engine:
        channel = engine.submit(request(prompt=60))
        progress = await first(channel, Progress)
        assert progress == Progress(channel.submit.id, 2, 60)
        channel.cancel()
        assert await channel.receive() == [Ended(channel.submit.id, "cancelled", 0, 2)]
        again = engine.submit(request(prompt=60))
        assert (await first(again, Started)).cached == 2


async def test_faults_happen_so_often_as_the_script_says(tmp_path: Path) -> None:
    script = [{"fault": "raise_in_prefill", "times": 1}, "a", {"fault": "raise", "times": 1}, "b"]
    async with running(scripted(tmp_path, {"script": script})) as engine:
        one, two, three = [await rest(engine.submit(request())) for _ in range(3)]
    assert (words(one), type(one[-1])) == ([], Fault)
    assert (words(two), type(two[-1])) == ([0], Fault)
    assert (words(three), type(three[-1])) == ([0, 1], Ended)


async def test_a_deadly_fault_is_counted_over_processes(tmp_path: Path) -> None:
    script = {"script": ["a", {"fault": "kill_thread", "times": 1}, "b"]}
    async with running(scripted(tmp_path, script)) as engine:
        deadly = await rest(engine.submit(request()))
        assert (words(deadly), type(deadly[-1])) == ([0], Fault)
        await until(lambda: engine.status().phase == "ready")
        assert words(await rest(engine.submit(request()))) == [0, 1]


async def test_a_hung_engine_beats_on_and_answers_nothing(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a", {"hang": True}]}), Limits(stop_s=0.1)) as engine:
        channel = engine.submit(request())
        await first(channel, Token)
        channel.cancel()
        await until(lambda: engine.status().step_age_s > 0.2)
        assert not channel.over
        assert engine.status().beat_age_s < engine.status().step_age_s


async def test_logprobs_are_those_of_certainty(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": ["a"]})) as engine:
        token = await first(engine.submit(request(sampling=Sampling(logprobs=2))), Token)
    assert (token.logprob, token.top) == (0.0, [(1000, 0.0)])


async def test_steps_are_shared_by_all_that_run(tmp_path: Path) -> None:
    async with running(scripted(tmp_path, {"script": [{"repeat": ["t", 400]}]})) as engine:
        channels = [engine.submit(request()) for _ in range(10)]
        await asyncio.gather(*(rest(channel) for channel in channels))
        await until(lambda: engine.status().steps >= 400)
        assert engine.status().steps < 1000


async def test_a_script_that_cannot_be_read_is_a_load_that_fails(tmp_path: Path) -> None:
    engine = Engine(scripted(tmp_path, {"script": [{"what": 1}]}), Limits())
    await engine.start()
    with pytest.raises(ApiError, match="is not understood") as error:
        await engine.ready()
    assert error.value.code == "model_load_failed"
    await engine.close(0)


def test_it_ends_with_its_server(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    argv = scripted(tmp_path, {"script": ["a"], "prefill_s": 60}).filled(theirs.fileno(), 1)
    with subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        ours.sendall(encode(request()))
        ours.recv(1)
        ours.close()
        assert process.wait(20) == 0


def test_it_imports_no_mlx() -> None:
    code = "import sys, memra_mlx.engine.scripted; sys.exit(any(name.split('.')[0] == 'mlx' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
