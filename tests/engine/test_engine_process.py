"""The real process: its wire, its endings, its faults."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import psutil
import pytest

from memra_mlx.engine.protocol import (
    Cancel,
    Drain,
    Ended,
    Fault,
    Frames,
    FromEngine,
    Heartbeat,
    Ready,
    Sampling,
    SetBudget,
    Started,
    Stop,
    Submit,
    ToEngine,
    Tokens,
    encode,
)
from memra_mlx.fixtures import TINY_PATH

pytestmark = pytest.mark.engine


class Process:
    """An engine process and our end of its socket."""

    def __init__(self, model: Path, *arguments: str) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(120)
        argv = [sys.executable, "-m", "memra_mlx.engine", "--fd", str(theirs.fileno()), "--model", str(model)]
        self.child = subprocess.Popen([*argv, *arguments], pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
        theirs.close()
        self._frames = Frames(FromEngine)
        self._waiting: list[FromEngine] = []

    def send(self, message: ToEngine) -> None:
        self.socket.sendall(encode(message))

    def receive(self) -> FromEngine | None:
        while not self._waiting:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._waiting += cast(list[FromEngine], self._frames.push(data))
        return self._waiting.pop(0)

    def until(self, kind: type[FromEngine]) -> FromEngine:
        beats = 0
        while (message := self.receive()) is not None and beats < 120:
            if isinstance(message, kind):
                return message
            beats += isinstance(message, Heartbeat)
        raise AssertionError(f"no {kind.__name__} came")

    def close(self) -> None:
        self.socket.close()
        self.child.kill()
        self.child.wait()


@pytest.fixture(scope="module")
def engine() -> Iterator[Process]:
    process = Process(TINY_PATH)
    assert isinstance(ready := process.until(Ready), Ready)
    assert ready.model_type == "qwen3"
    assert ready.lane_kind == "batch"
    assert ready.vocab_size == 4096
    yield process
    process.close()


PROMPT = [4085, 300, 301, 302, 4086]
TALKS = Sampling(logit_bias={4084: -100.0, 4086: -100.0})


def test_a_request(engine: Process) -> None:
    engine.send(Submit("one", PROMPT, 4, TALKS))
    assert engine.until(Started) == Started("one", 0, "none")
    engine.until(Tokens)
    ended = engine.until(Ended)
    assert isinstance(ended, Ended)
    assert ended.id == "one"
    engine.send(Submit("two", PROMPT, 4))
    assert engine.until(Started) == Started("two", len(PROMPT) - 1, "memory")
    engine.until(Ended)


def test_heartbeats_come_during_a_long_prefill(engine: Process) -> None:
    engine.send(Submit("long", [300 + i % 2000 for i in range(40_000)], 4))
    engine.until(Started)
    beats = [beat for _ in range(4) if isinstance(beat := engine.until(Heartbeat), Heartbeat)]
    assert beats[0].steps < beats[-1].steps
    assert beats[-1].live == 1
    engine.send(Cancel("long"))
    ended = engine.until(Ended)
    assert isinstance(ended, Ended)
    assert ended.reason == "cancelled"
    assert 0 < ended.kv_tokens < 40_000
    beat = engine.until(Heartbeat)
    while isinstance(beat, Heartbeat) and beat.live:
        beat = engine.until(Heartbeat)
    assert isinstance(beat, Heartbeat)
    assert beat.step_age_s == 0
    assert beat.memory_bytes > 10_000_000
    assert beat.kv_bytes > 1_000_000


def test_bad_requests_are_faults(engine: Process) -> None:
    engine.send(Submit("bad", [99_999], 4))
    fault = engine.until(Fault)
    assert isinstance(fault, Fault)
    assert (fault.id, fault.kind) == ("bad", "request")


def test_a_small_budget(engine: Process) -> None:
    engine.send(SetBudget(8 << 20))
    engine.send(Submit("big", [300] * 5000, 4))
    fault = engine.until(Fault)
    assert isinstance(fault, Fault)
    assert fault.kind == "memory"
    engine.send(SetBudget(1 << 30))


def test_the_process_is_small_and_named(engine: Process) -> None:
    process = psutil.Process(engine.child.pid)
    assert process.memory_info().rss < 600 << 20
    if sys.platform == "linux":
        assert process.name() == "memra-engine"


def test_ctrl_c_is_left_to_the_server(engine: Process) -> None:
    engine.child.send_signal(signal.SIGINT)
    engine.send(Submit("after", PROMPT, 2))
    engine.until(Ended)


def test_drain_then_stop() -> None:
    with closing(Process(TINY_PATH)) as process:
        process.until(Ready)
        process.send(Submit("old", PROMPT, 3))
        process.send(Drain())
        process.send(Submit("new", PROMPT, 3))
        seen = [process.until(Ended | Fault) for _ in "ab"]  # type: ignore[arg-type]
        assert {message.id: type(message) for message in seen} == {"old": Ended, "new": Fault}  # type: ignore[union-attr]
        process.send(Stop())
        assert process.child.wait(60) == 0


def test_it_ends_with_the_server() -> None:
    with closing(Process(TINY_PATH)) as process:
        process.until(Ready)
        process.send(Submit("left", PROMPT, 50_000, TALKS))
        process.until(Started)
        process.socket.close()
        assert process.child.wait(60) == 0


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TINY_PATH, tmp_path / "model"))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:10_000])
    with closing(Process(folder)) as process:
        fault = process.until(Fault)
        assert isinstance(fault, Fault)
        assert (fault.id, fault.kind) == ("", "engine")
        assert "model.safetensors is cut" in fault.message
        assert process.child.wait(60) == 1
