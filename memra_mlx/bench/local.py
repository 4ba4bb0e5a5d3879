"""The child of `inprocess`: one JSON order a line in, one answer a line out."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load

_CHUNK = 2048  # mlx-lm's own prefill step


class Yardstick:
    """A loaded model, and one conversation that only grows."""

    def __init__(self, model: Any, tokenizer: TokenizerWrapper):
        self._model = model
        self._tokenizer = tokenizer
        self._cache: list[Any] = make_prompt_cache(model)
        self._length = 0

    def answer(self, order: dict[str, Any]) -> dict[str, float]:
        """Carry out one order of `InProcess`."""
        if "prompt" in order:
            return self._decode(order["prompt"], order["max_tokens"])
        return self._first(order["cached"], order["new"])

    def _decode(self, prompt: str, max_tokens: int) -> dict[str, float]:
        ids = self._tokenizer.encode(prompt)
        began = time.perf_counter()
        times = [time.perf_counter() for _ in stream_generate(self._model, self._tokenizer, ids, max_tokens=max_tokens)]
        spent = max(times[-1] - times[0], 1e-9)
        return {"ttft_s": times[0] - began, "rate": (len(times) - 1) / spent}

    def _first(self, cached: int, new: int) -> dict[str, float]:
        if self._length > cached:
            self._cache, self._length = make_prompt_cache(self._model), 0
        self._fill(cached - self._length)
        began = time.perf_counter()
        stream = stream_generate(self._model, self._tokenizer, _ids(new), max_tokens=1, prompt_cache=self._cache)
        next(stream)
        spent = time.perf_counter() - began
        stream.close()
        self._length = cached + new + 1  # mlx-lm has begun the step after the first token
        return {"ttft_s": spent}

    def _fill(self, count: int) -> None:
        for at in range(0, count, _CHUNK):
            self._model(mx.array(_ids(min(_CHUNK, count - at)))[None], cache=self._cache)
            mx.eval([cache.state for cache in self._cache])


def _ids(count: int) -> list[int]:
    """Any tokens: the time depends on their number alone."""
    return [5 + i % 50 for i in range(count)]


def main() -> None:
    """Load the model named by the first argument and serve orders until the input ends."""
    with contextlib.redirect_stdout(sys.stderr):
        model, tokenizer = load(Path(sys.argv[1]).as_posix())[:2]
        yardstick = Yardstick(model, tokenizer)
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            answer = yardstick.answer(json.loads(line))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
