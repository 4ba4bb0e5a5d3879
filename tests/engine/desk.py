"""A scheduler in the test's own process, and what it has sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generation_stream
from mlx_lm.models.cache import make_prompt_cache
from tiny_nets import Net

from memra_mlx.cache.kv import KvStore
from memra_mlx.cache.kv_index import Index
from memra_mlx.cache.kv_tier import Tier
from memra_mlx.engine.plan import Pace
from memra_mlx.engine.protocol import Cancel, Ended, Fault, FromEngine, Sampling, Started, Submit, Token, Tokens
from memra_mlx.engine.room import Room
from memra_mlx.engine.scheduler import Scheduler

BIG = 1 << 30


class Desk:
    """Submits requests by short names and runs steps."""

    def __init__(
        self, net: Net, *, budget: int = BIG, chunk: int = 64, span: int = 16, tier: Tier | None = None
    ) -> None:
        self.net = net
        self.sent: list[FromEngine] = []
        self.store = KvStore(lambda: list(make_prompt_cache(net.loaded.net)), Index(budget, span, tier))
        self.scheduler = Scheduler(
            net.loaded.net,
            net.facts.ready,
            self.store,
            Room(net.facts.shape, budget, resting=int(mx.get_active_memory())),
            Pace(chunk, 0.25),
            self.sent.append,
        )

    def submit(self, id: str, prompt: Sequence[int], max_tokens: int = 16, **fields: Any) -> None:
        self.scheduler.submit(Submit(id, list(prompt), max_tokens, **fields))

    def cancel(self, id: str, keep: int = -1) -> None:
        with mx.stream(generation_stream):
            self.scheduler.cancel(Cancel(id, keep))

    def steps(self, count: int) -> None:
        with mx.stream(generation_stream):
            for _ in range(count):
                self.scheduler.step()

    def until(self, condition: Any) -> None:
        for _ in range(20_000):
            if condition():
                return
            self.steps(1)
        raise AssertionError("it never came true")

    def run(self) -> None:
        """Until nothing is left to do."""
        self.until(lambda: not self.scheduler.busy)

    def answer(self, prompt: Sequence[int], max_tokens: int = 16, *, id: str = "", **fields: Any) -> list[int]:
        """The tokens of one request, run to its end."""
        id = id or f"answer-{len(self.sent)}"
        self.submit(id, prompt, max_tokens, **fields)
        self.run()
        assert self.ended(id)
        return self.tokens(id)

    def items(self, id: str) -> list[Token]:
        return [t for message in self.sent if isinstance(message, Tokens) for t in message.items if t.id == id]

    def tokens(self, id: str) -> list[int]:
        return [item.token for item in self.items(id)]

    def started(self, id: str) -> Started:
        return next(message for message in self.sent if isinstance(message, Started) and message.id == id)

    def ended(self, id: str) -> Ended:
        return next(message for message in self.sent if isinstance(message, Ended) and message.id == id)

    def fault(self, id: str) -> Fault:
        return next(message for message in self.sent if isinstance(message, Fault) and message.id == id)


def greedy(temperature: float = 0.0, **fields: Any) -> Sampling:
    return Sampling(temperature=temperature, **fields)
