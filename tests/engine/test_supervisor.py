"""Engine processes that behave badly: each is a few lines of Python instead of an engine."""

from __future__ import annotations

import asyncio
import sys

import pytest
from scripted_engines import QUICK, first, request, rest, running, until

from memra_mlx.engine.client import Engine, EngineCommand, Limits
from memra_mlx.engine.protocol import Fault, Started
from memra_mlx.errors import ApiError

SPEAK = """
import os, socket, sys, time
from memra_mlx.engine.protocol import *
pipe = socket.socket(fileno=int(sys.argv[-1]))
def say(*messages): pipe.sendall(b"".join(map(encode, messages)))
def ready(): say(Ready("test", 64, 10, [], "batch", 0, 0, 0, "test"))
"""
START_ALL = """
ready()
frames = Frames(ToEngine)
def take():
    message = frames.push(pipe.recv(65536))[0]
    if not isinstance(message, Submit): sys.exit()
    say(Started(message.id, 0))
take()
"""


def python(code: str, name: str = "bad") -> EngineCommand:
    return EngineCommand((sys.executable, "-c", SPEAK + code), name)


async def load_error(command: EngineCommand, limits: Limits = QUICK) -> ApiError:
    engine = Engine(command, limits)
    await engine.start()
    with pytest.raises(ApiError) as error:
        await asyncio.wait_for(engine.ready(), 20)
    assert engine.status().phase == "failed"
    await engine.close(0)
    return error.value


async def test_the_words_of_a_load_that_fails_reach_the_caller() -> None:
    error = await load_error(python('say(Fault("", "engine", "model.safetensors is cut short")); time.sleep(60)'))
    assert (error.kind, error.code) == ("unavailable", "model_load_failed")
    assert error.message == "model.safetensors is cut short"


async def test_an_exit_while_loading_is_told_by_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = await load_error(EngineCommand.module("tiny", "no_such_module"))
    assert "no_such_module" in error.message
    assert "[tiny] " in capsys.readouterr().err


async def test_a_program_that_does_not_exist() -> None:
    assert "could not be started" in (await load_error(EngineCommand(("/nonexistent/python",)))).message


async def test_a_kill_while_loading_is_tried_again_within_the_limit() -> None:
    engine_dies = python("import signal; os.kill(os.getpid(), signal.SIGKILL)")
    error = await load_error(engine_dies, Limits(respawn_limit=1, backoff_s=0.01))
    assert "SIGKILL" in error.message


@pytest.mark.parametrize(
    "last_deed",
    [
        'pipe.sendall(b"\\x03\\0\\0\\0abc"); time.sleep(60)',
        "pipe.close(); time.sleep(60)",
        "sys.exit(3)",
        "os.fork() or time.sleep(3); os._exit(1)",
    ],
    ids=["foreign frame", "hung up", "exit", "a child of its own holds the socket"],
)
async def test_any_death_is_noticed(last_deed: str) -> None:
    async with running(python(START_ALL + last_deed), Limits(backoff_s=0.01, respawn_limit=0)) as engine:
        messages = await rest(engine.submit(request()))
        assert isinstance(messages[-1], Fault)
        await until(lambda: engine.status().phase == "failed")
        assert engine.status().reason.startswith("the engine process ended: it ")


async def test_a_request_that_two_engines_died_with_gets_no_third() -> None:
    async with running(python("ready(); pipe.recv(65536)")) as engine:
        channel = engine.submit(request())
        assert [type(m) for m in await rest(channel)] == [Fault]
        assert (channel.sends, engine.status().generation) == (2, 2)


async def test_a_fault_of_all_fails_those_that_run_and_the_rest_goes_on() -> None:
    everybody = 'say(Fault("", "memory", "out of memory"))\ntake()\ntime.sleep(60)'
    async with running(python(START_ALL + everybody), Limits(stop_s=0.1)) as engine:
        assert isinstance((await rest(engine.submit(request())))[-1], Fault)
        later = engine.submit(request())
        await first(later, Started)
        assert (engine.status().phase, engine.status().generation) == ("ready", 1)


async def test_generation_and_descriptor_are_filled_in() -> None:
    command = EngineCommand(("engine", "--generation", "{generation}", "{fd}"))
    assert command.filled(7, 2) == ["engine", "--generation", "2", "{fd}", "--fd", "7"]
