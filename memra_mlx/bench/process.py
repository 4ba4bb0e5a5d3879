"""A server that the benchmark starts and stops itself."""

from __future__ import annotations

import http.client
import shlex
import subprocess
import time
from types import TracebackType
from typing import Self

from memra_mlx.bench.wire import BenchError, connect

_START_S = 300.0
_STOP_S = 60.0
_POLL_S = 0.1


class Serving:
    """Runs `command` and waits until the server at `base` is ready; SIGTERM on the way out."""

    def __init__(self, command: str, base: str):
        """Raises `BenchError` where there is no such command."""
        self._base = base
        try:
            self._child = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL)
        except (OSError, ValueError) as fault:
            raise BenchError(f"--serve: {fault}") from fault

    def __enter__(self) -> Self:
        until = time.monotonic() + _START_S
        while not self._ready():
            if self._child.poll() is not None or time.monotonic() > until:
                self._stop()
                raise BenchError(f"--serve: no server at {self._base}")
            time.sleep(_POLL_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _ready(self) -> bool:
        connection = connect(self._base)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status in (200, 404)  # not all servers have it
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
