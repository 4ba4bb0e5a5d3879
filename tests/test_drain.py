"""The end of a server, and starts that must fail: signals, promises kept, one clear line."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path

import httpx
import pytest
from served import Served, Settings

from memra_mlx.admission import ledger_read
from memra_mlx.admission.ledger_read import Filter

ASK = [{"role": "user", "content": "hi"}]
SHORT = {"script": [{"repeat": ["t ", 60], "delay_ms": 50}]}
ENDLESS = {"script": [{"repeat": ["t ", 20_000], "delay_ms": 20}]}


def serve(folder: Path, script: dict, **env: str) -> Served:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.json").write_text(json.dumps(script))
    return Served(folder, Settings(("--engine", f"scripted:{folder / 'script.json'}"), env))


def outcomes(folder: Path) -> list[str | None]:
    return [row["outcome"] for row in ledger_read.rows(folder / "state", Filter())]


def ended(server: Served) -> int:
    """The exit status of a server that ends by itself."""
    code = server.wait(30)
    server.close()
    return code


class Client(threading.Thread):
    """One request in the background. `started` is set by the first content of a stream."""

    def __init__(self, server: Served, *, stream: bool):
        super().__init__()
        self.body = {"model": "memra-tiny", "messages": ASK, "stream": stream}
        self.url = server.base + "/v1/chat/completions"
        self.started = threading.Event()
        self.status = 0
        self.text = ""

    def run(self):
        try:
            with httpx.stream("POST", self.url, json=self.body, timeout=60) as answer:
                self.status = answer.status_code
                for piece in answer.iter_text():
                    self.text += piece
                    self.started.set()
        except httpx.HTTPError as fault:
            self.text += repr(fault)
        self.started.set()


def test_a_drain_keeps_what_was_promised(tmp_path):
    server = serve(tmp_path, SHORT, MEMRA_DRAIN_S="45")
    clients = [Client(server, stream=True), Client(server, stream=False), Client(server, stream=True)]
    for client in clients:
        client.start()
    assert clients[0].started.wait(30)
    assert clients[2].started.wait(30)
    server.signal(signal.SIGTERM)
    pause = threading.Event()
    while httpx.get(server.base + "/readyz").status_code == 200:
        pause.wait(0.01)
    assert httpx.get(server.base + "/readyz").json()["status"] == "draining"
    assert httpx.get(server.base + "/livez").status_code == 200
    refused = httpx.post(server.base + "/v1/messages", json={"model": "memra-tiny", "max_tokens": 5, "messages": ASK})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "45")
    assert ended(server) == 0
    for client in clients:
        client.join(10)
        assert client.status == 200
    assert all(client.text.rstrip().endswith("[DONE]") for client in (clients[0], clients[2]))
    assert json.loads(clients[1].text)["usage"]["completion_tokens"] == 60
    assert outcomes(tmp_path) == ["completed"] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(tmp_path, number):
    server = serve(tmp_path, ENDLESS, MEMRA_DRAIN_S="600")
    client = Client(server, stream=True)
    client.start()
    assert client.started.wait(30)
    server.signal(number)
    pause = threading.Event()
    while httpx.get(server.base + "/readyz").status_code == 200:
        pause.wait(0.01)
    server.signal(number)
    assert ended(server) == 0
    client.join(10)
    assert '"code":"draining"' in client.text
    assert outcomes(tmp_path) == ["drain_killed"]


def test_what_a_killed_server_left_open_is_closed_by_its_successor(tmp_path):
    server = serve(tmp_path, ENDLESS)
    client = Client(server, stream=True)
    client.start()
    assert client.started.wait(30)
    server.signal(signal.SIGKILL)
    ended(server)
    client.join(10)
    assert outcomes(tmp_path) == [None]
    second = serve(tmp_path, ENDLESS)
    assert outcomes(tmp_path) == ["crashed"]
    assert second.close() == 0
    [row] = ledger_read.rows(tmp_path / "state", Filter())
    assert (row["debit_prompt"], row["debit_completion"], row["cost"]) == (0, 0, 0)


def failed_start(folder: Path, *args: str, **env: str) -> str:
    """The output of a server that must not start; it has to end with 1."""
    with pytest.raises(RuntimeError) as caught:
        Served(folder, Settings(args, env))
    return str(caught.value)


def the_error(output: str) -> str:
    [line] = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert "Traceback" not in output
    return line


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}" in the_error(failed_start(tmp_path, "--port", port))


def test_an_open_address(tmp_path):
    assert "keys gen" in the_error(failed_start(tmp_path, "--host", "0.0.0.0"))


def test_a_broken_keyring(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "keys.toml").write_text("[[keys]]\ntenant = 'a'")
    assert "keys[0].sha256" in the_error(failed_start(tmp_path))


def test_a_ledger_that_is_none(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "ledger.sqlite3").write_text("no database at all " * 50)
    assert "ledger" in the_error(failed_start(tmp_path))


def test_a_model_that_is_none(tmp_path):
    output = failed_start(tmp_path, str(tmp_path))
    assert "Traceback" not in output
    assert str(tmp_path) in output
