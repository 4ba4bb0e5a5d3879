"""Every scenario against a scripted server: that it runs and counts; no time is looked at."""

import json
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from served import COMMAND, Served, Settings, free_port

from memra_mlx.bench import overhead, rates, runner, sessions
from memra_mlx.bench.inprocess import NAME, InProcess
from memra_mlx.bench.plan import Plan, Sizes, words_per_token
from memra_mlx.bench.stats import Sample
from memra_mlx.bench.wire import Ask, BenchError, Endpoint, Stream, fetch, model_of, together
from memra_mlx.cli.main import main
from memra_mlx.fixtures import TINY_ID, TINY_PATH

SIZES = Sizes(prompt=60, turn=20, answer=8, turns=3, clients=(1, 2), stall=80)
SETTINGS = ["prompt=60", "turn=20", "answer=8", "turns=3", "clients=1,2", "stall=80"]
SCRIPT = {"script": [{"repeat": ["word ", 60]}], "ctx": 100_000}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("script") / "script.json"
    file.write_text(json.dumps(SCRIPT))
    return file


@pytest.fixture(scope="module")
def endpoint(script: Path) -> Iterator[Endpoint]:
    server = Served(script.parent / "server", Settings(args=("--engine", f"scripted:{script}")))
    yield Endpoint("ours", server.base, TINY_ID)
    assert server.close() == 0, server.output


@pytest.fixture
def plan(endpoint: Endpoint, request: pytest.FixtureRequest) -> Plan:
    """Its own seeds for each test."""
    salt = request.node.name
    return Plan(SIZES, words_per_token(endpoint, salt), salt)


def values(samples: list[Sample]) -> dict[str, float]:
    return {sample.metric: sample.value for sample in samples}


def test_a_reply(endpoint: Endpoint) -> None:
    first = fetch(endpoint, Ask.chat([{"role": "user", "content": "a question"}], 5))
    assert (first.text.split(), first.completion) == (["word"] * 5, 5)
    assert first.sent <= first.first <= first.ended
    assert 1 <= len(first.times) <= 5
    assert first.cached is not None
    again = fetch(endpoint, Ask.chat([{"role": "user", "content": "a question"}], 5))
    assert again.cached is not None
    assert 0 < again.cached < again.prompt


def test_several_at_once(endpoint: Endpoint) -> None:
    replies = together(endpoint, [Ask.text(f"prompt {i}", 4) for i in range(3)])
    assert [reply.completion for reply in replies] == [4, 4, 4]


def test_a_refusal_is_told(endpoint: Endpoint) -> None:
    with pytest.raises(BenchError, match=r"(?s)ours: .*status 400.*model_not_found"):
        fetch(replace(endpoint, model="other"), Ask.text("x", 1))


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BenchError, match=r"none: /v1/completions: .*refused"):
            fetch(Endpoint("none", base, "m"), Ask.text("x", 1))
        with pytest.raises(BenchError, match=r"/v1/models: .*refused.*--model"):
            model_of(base, "key")


ERROR = b'data: {"error": {"message": "broken"}}\n\n'
HALF = b'data: {"choices": [{"text": "word"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(("events", "told"), [(ERROR, "broken"), (HALF, "without usage")])
def test_a_stream_that_breaks_is_told(events: bytes, told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=_answer_once, args=(listening, events))
        answering.start()
        endpoint = Endpoint("peer", f"http://127.0.0.1:{listening.getsockname()[1]}", "m")
        with pytest.raises(BenchError, match=f"peer: .*{told}"):
            fetch(endpoint, Ask.text("x", 1))
        answering.join()


def _answer_once(listening: socket.socket, events: bytes) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as sent:
        size = 0
        while (line := sent.readline()) != b"\r\n":
            name, _, value = line.decode().lower().partition(":")
            size = int(value) if name == "content-length" else size
        sent.read(size)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + events)


def test_a_stream_can_be_left(endpoint: Endpoint) -> None:
    with Stream(endpoint, Ask.text("x", 60)) as stream:
        assert next(iter(stream)).startswith("word")
    assert stream.times


def test_session(endpoint: Endpoint, plan: Plan) -> None:
    found = values(sessions.session(endpoint, plan, 0))
    assert found[sessions.PAID] == pytest.approx(1, abs=0.1)
    assert min(found.values()) > 0


def test_what_a_turn_adds(endpoint: Endpoint, plan: Plan) -> None:
    talk = sessions.Talk(endpoint, plan, "seed")
    first, second = talk.turn(), talk.turn()
    assert first.new == first.reply.prompt
    assert second.new == second.reply.prompt - first.reply.prompt - first.reply.completion
    assert 10 < second.new < 60
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "user"]


def test_interleaved(endpoint: Endpoint, plan: Plan) -> None:
    assert values(sessions.interleaved(endpoint, plan, 0))[sessions.PAID] == pytest.approx(1, abs=0.1)


def test_concurrent(endpoint: Endpoint, plan: Plan) -> None:
    found = values(rates.concurrent(endpoint, plan, 0))
    assert list(found) == [rates.throughput(1), rates.throughput(2)]


def test_stall(endpoint: Endpoint, plan: Plan) -> None:
    assert rates.DISTURBED in values(rates.stall(endpoint, plan, 0))


def test_a_stream_too_short_to_disturb(endpoint: Endpoint) -> None:
    with pytest.raises(BenchError, match="before it was disturbed"):
        rates.disturb(endpoint, Ask.text("x", 8), Ask.text("y", 1))


def test_constrained(endpoint: Endpoint, plan: Plan) -> None:
    assert {rates.ALONE, rates.BATCHED} <= set(values(rates.constrained(endpoint, plan, 0)))


def test_rounds_go_from_one_to_the_next(endpoint: Endpoint, plan: Plan) -> None:
    peer = replace(endpoint, name="peer")
    [result] = list(runner.run(["concurrent"], [endpoint, peer], plan, 2))
    assert {who: len(found[rates.throughput(1)]) for who, found in result.values.items()} == {"ours": 2, "peer": 2}


def test_overhead() -> None:
    samples = overhead.overhead(1, "test", size=4000)
    assert [s.metric for s in samples if "CPU" not in s.metric] == [overhead.COLD, *[overhead.WARM] * 5]


def test_the_command(script: Path, tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "home"
    folders = {f"MEMRA_{name}_DIR": str(folder / name.lower()) for name in ("STATE", "CACHE")}
    variables = [f"{name}={value}" for name, value in folders.items()]
    argv = ["env", *variables, *COMMAND, "serve", "--port", str(port), "--engine", f"scripted:{script}"]
    options = [f"--base-url=http://127.0.0.1:{port}/v1", f"--serve={shlex.join(argv)}", "--rounds=1"]
    options += [f"--json={tmp_path / 'out.json'}", *(f"--size={setting}" for setting in SETTINGS)]
    done = CliRunner().invoke(main, ["bench", *options, "--scenario=single", "--scenario=restart"])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines() if "goal" in line] == ["single", "restart"]
    assert set(json.loads((tmp_path / "out.json").read_text())["results"]) == {"single", "restart"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--scenario", "restart"], "needs --serve"),
        (["--peer", "x"], "NAME=URL"),
        (["--size", "depth=1"], "depth"),
        (["--base-url", "http://127.0.0.1:1", "--scenario", "single"], "/v1/models"),
        (["--serve", f"{sys.executable} -c 0", "--base-url", "http://127.0.0.1:1"], "no server at"),
        (["--serve", "no-such-command"], "no-such-command"),
    ],
)
def test_wrong_use(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code != 0
    assert told in done.output
    assert "Traceback" not in done.output


@pytest.mark.engine
def test_in_process(endpoint: Endpoint, plan: Plan) -> None:
    with InProcess(TINY_PATH) as local:
        found = rates.single(local, plan, 0)
        assert min(sample.value for sample in found) > 0
        assert all(local.first_token(cached, new) > 0 for cached, new in ((0, 5), (6, 3), (20, 4), (2, 2)))
        with_local = replace(plan, local=local)
        assert sessions.OVER_LOCAL in values(sessions.session(endpoint, with_local, 0))
        assert [runner.name(who) for who in runner.participants("single", [endpoint], with_local)] == ["ours", NAME]


def test_a_yardstick_that_does_not_load(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with InProcess(tmp_path) as local, pytest.raises(BenchError, match="mlx-lm ended"):
        local.first_token(0, 1)
