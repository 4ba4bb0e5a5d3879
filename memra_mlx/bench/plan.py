"""What a run measures: sizes, participants, and what they share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from memra_mlx.bench.inprocess import InProcess
from memra_mlx.bench.text import words
from memra_mlx.bench.wire import Ask, Endpoint, fetch

_PROBE_WORDS = 200


@dataclass(frozen=True, slots=True)
class Sizes:
    """In tokens: `prompt` is how a session begins, `turn` what a session grows by, `answer` what is generated.

    `turns` is the length of a session, `clients` how many ask at once, `stall` the prompt that disturbs a stream.
    """

    prompt: int = 2000
    turn: int = 200
    answer: int = 96
    turns: int = 10
    clients: tuple[int, ...] = (1, 4, 8)
    stall: int = 4000

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Sizes:
        """From settings like `prompt=8000` and `clients=1,4`. Raises ValueError for what is not one."""
        values: dict[str, Any] = {}
        for setting in settings:
            name, _, number = setting.partition("=")
            if name not in cls.names() or not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", number):
                raise ValueError(f"{setting!r} is not NAME=N; names: {', '.join(cls.names())}")
            numbers = tuple(int(part) for part in number.split(","))
            if name != "clients" and len(numbers) > 1:
                raise ValueError(f"{setting!r}: {name} is one number")
            values[name] = numbers if name == "clients" else numbers[0]
        return cls(**values)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What can be set."""
        return tuple(field.name for field in fields(cls))


@dataclass(frozen=True, slots=True)
class Plan:
    """A run on one model. `words_per_token` turns sizes into text; `serve` starts the server for `restart`."""

    sizes: Sizes
    words_per_token: float
    salt: str
    local: InProcess | None = None
    serve: str = ""

    def words(self, tokens: int) -> int:
        """How many words make about `tokens` tokens."""
        return max(int(tokens * self.words_per_token), 1)

    def seed(self, *parts: object) -> str:
        """A seed that no earlier run has used, so that nothing is cached."""
        return "-".join((self.salt, *map(str, parts)))


def words_per_token(endpoint: Endpoint, salt: str) -> float:
    """Measured by the usage of one request; it warms the server up too."""
    reply = fetch(endpoint, Ask.text(words(_PROBE_WORDS, f"{salt}-probe"), 2))
    return _PROBE_WORDS / reply.prompt
