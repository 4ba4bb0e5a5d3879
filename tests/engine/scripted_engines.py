"""Engines for tests: real processes that answer from a script, with short limits."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from memra_mlx.engine.channel import Channel, Message
from memra_mlx.engine.client import Engine, EngineCommand, Limits
from memra_mlx.engine.protocol import Ended, Fault, Submit, Token
from memra_mlx.engine.scripted import command

BASE = 1000
PATIENCE_S = 20.0
QUICK = Limits(backoff_s=0.01)
_numbers = itertools.count()


def scripted(folder: Path, needs: dict[str, Any]) -> EngineCommand:
    """The command of an engine that speaks the script `needs`."""
    file = folder / f"script-{next(_numbers)}.json"
    file.write_text(json.dumps(needs))
    return command(file, BASE, beat_s=0.05)


@asynccontextmanager
async def running(command: EngineCommand, limits: Limits = QUICK, **more: Any) -> AsyncIterator[Engine]:
    """An engine that is ready; closed at the end."""
    engine = Engine(command, limits, **more)
    await engine.start()
    try:
        await asyncio.wait_for(engine.ready(), PATIENCE_S)
        yield engine
    finally:
        await engine.close(0)


def request(prompt: int = 8, **more: Any) -> Submit:
    """A request with a fresh id and a prompt of so many tokens."""
    return Submit(f"r{next(_numbers)}", list(range(prompt)), more.pop("max_tokens", 10_000), **more)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no message tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def first(channel: Channel, kind: type) -> Any:
    """Read on up to the first message of `kind`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for message in await channel.receive():
                if isinstance(message, kind):
                    return message


async def rest(channel: Channel) -> list[Message]:
    """All messages that are still to come."""
    messages: list[Message] = []
    async with asyncio.timeout(PATIENCE_S):
        while not messages or not isinstance(messages[-1], Ended | Fault):
            messages += await channel.receive()
    return messages


def words(messages: list[Message]) -> list[int]:
    """The numbers of the script's words among the messages."""
    return [message.token - BASE for message in messages if isinstance(message, Token)]
