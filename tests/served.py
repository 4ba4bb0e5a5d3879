"""A real server process for tests: `memra-mlx serve` on a free port, with state and caches of its own."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import forked

COMMAND = (str(Path(sys.executable).parent / "memra-mlx"),)
READY_S = 120.0
_READY = "ready on "


@dataclass(frozen=True)
class Settings:
    """How to start: extra arguments, `MEMRA_*` variables, what to wait for (ready line, port, nothing).

    Without a command the process is forked from one that has imported the server already, where that is possible.
    """

    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    wait_ready: bool = True
    wait_port: bool = True
    command: Sequence[str] = () if forked.SUPPORTED else COMMAND


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _popen(argv: Sequence[str], env: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(argv, cwd=folder, env=env, **streams)


class Served:
    """A running server. `base` is its URL, `lines` what it has printed so far."""

    def __init__(self, folder: Path, settings: Settings):
        folder.mkdir(parents=True, exist_ok=True)
        self.base = f"http://127.0.0.1:{free_port()}"
        self.key = (settings.env or {}).get("MEMRA_API_KEY", "local")
        self.lines: list[str] = []
        self._up = threading.Event()
        env = {k: v for k, v in os.environ.items() if not k.startswith("MEMRA_")}
        env |= {"MEMRA_STATE_DIR": str(folder / "state"), "MEMRA_CACHE_DIR": str(folder / "cache")}
        env |= {"XDG_CONFIG_HOME": str(folder / "config"), "PYTHONUNBUFFERED": "1", **(settings.env or {})}
        argv = [*settings.command, "serve", "--port", str(urlsplit(self.base).port), *settings.args]
        self.process = _popen(argv, env, folder) if settings.command else forked.start(argv, env, folder)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if settings.wait_ready:
            self.wait_ready()
        elif settings.wait_port:
            self.wait_port()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(_READY):
                self.base = line.removeprefix(_READY).split()[0].rstrip("/")
                self._up.set()
        self._up.set()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_ready(self) -> None:
        """Wait for the ready line. Raises RuntimeError with the output if the server ends or takes too long."""
        if not self._up.wait(READY_S):
            self.signal(signal.SIGUSR1)  # a forked server prints where its threads are
        if _READY not in self.output:
            self.close()
            raise RuntimeError(f"the server did not become ready:\n{self.output}")

    def wait_port(self) -> None:
        """Wait until the port answers, ready or not."""
        address = ("127.0.0.1", urlsplit(self.base).port)
        pause = threading.Event()
        for _ in range(int(READY_S / 0.05)):
            with socket.socket() as probe:
                if probe.connect_ex(address) == 0:
                    return
            if self.process.poll() is not None:
                break
            pause.wait(0.05)
        self.close()
        raise RuntimeError(f"the port did not open:\n{self.output}")

    def get(self, path: str) -> Any:
        """The JSON body of a GET."""
        connection = http.client.HTTPConnection(urlsplit(self.base).netloc, timeout=30)
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {self.key}"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    @cached_property
    def model(self) -> str:
        """The id of the first model."""
        return str(self.get("/v1/models")["data"][0]["id"])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit status. Raises TimeoutExpired."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def close(self) -> int:
        """Stop it: SIGTERM, and SIGKILL if that takes more than 20 s."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            code = self.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code
