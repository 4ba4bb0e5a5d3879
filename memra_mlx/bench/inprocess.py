"""The yardstick: mlx-lm's own `stream_generate` on the same model folder, in a child process without any server."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from memra_mlx.bench.wire import BenchError

NAME = "in-process"


@dataclass(frozen=True, slots=True)
class Decoded:
    """Generation without a server: seconds to the first token, and tokens a second after it."""

    ttft_s: float
    rate: float


class InProcess:
    """Talks to `memra_mlx.bench.local`. Closing it ends the child."""

    def __init__(self, model: Path):
        command = [sys.executable, "-m", "memra_mlx.bench.local", str(model)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()

    def decode(self, prompt: str, max_tokens: int) -> Decoded:
        """Generate greedily after `prompt`."""
        answer = self._call({"prompt": prompt, "max_tokens": max_tokens})
        return Decoded(answer["ttft_s"], answer["rate"])

    def first_token(self, cached: int, new: int) -> float:
        """Seconds to prefill `new` tokens behind `cached` ones, up to the first token."""
        return self._call({"cached": cached, "new": new})["ttft_s"]

    def _call(self, order: dict[str, object]) -> dict[str, float]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{NAME}: mlx-lm ended; see above") from None
        line = self._child.stdout.readline()
        if not line:
            raise BenchError(f"{NAME}: mlx-lm ended; see above")
        answer: dict[str, float] = json.loads(line)
        return answer
