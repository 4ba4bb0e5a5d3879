"""A whole server on a scripted engine inside the test's own loop, so that tests see its tables too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sanic import Sanic

from memra_mlx import config
from memra_mlx.admission import ledger_read
from memra_mlx.admission.ledger_read import Filter
from memra_mlx.app import Server
from memra_mlx.fixtures import TINY_ID

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hi"}]
PATIENCE_S = 60.0
Sanic.test_mode = True  # lets one process start several apps in turn


@dataclass
class Inside:
    """A running server, a client of it, and its state folder."""

    server: Server
    client: httpx.AsyncClient
    folder: Path
    task: asyncio.Task[int]

    @property
    def services(self):
        return self.server.services

    def chat(self, **more: Any):
        """POST of a small chat request."""
        headers = more.pop("headers", {})
        return self.client.post(CHAT, json={"model": TINY_ID, "messages": ASK, **more}, headers=headers)

    def stream(self, **more: Any):
        """The same as a stream."""
        headers = more.pop("headers", {})
        body = {"model": TINY_ID, "messages": ASK, "stream": True, **more}
        return self.client.stream("POST", CHAT, json=body, headers=headers)

    def rows(self) -> list[dict[str, Any]]:
        """The ledger, oldest first."""
        return list(ledger_read.rows(self.folder / "state", Filter()))

    async def row(self) -> dict[str, Any]:
        """The only row, once it is closed."""
        await until(lambda: all(row["outcome"] for row in self.rows()))
        [row] = self.rows()
        return row


async def until(condition: Any) -> None:
    """Wait for what no answer tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def inside(folder: Path, script: dict[str, Any], **options: Any) -> AsyncIterator[Inside]:
    """Start, wait until it is ready, drain in the end."""
    for name in ("script.json", "config.toml"):
        (folder / name).write_text(json.dumps(script) if name == "script.json" else "")
    folders = {"state_dir": str(folder / "state"), "cache_dir": str(folder / "cache")}
    flags = {"engine": f"scripted:{folder / 'script.json'}", "port": "0", **folders, **options}
    server = Server(config.load(flags, folder / "config.toml", {}))
    ready = asyncio.Event()
    task = asyncio.create_task(server.run(lambda line: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set(), task.result()
    here = Inside(server, new_client(f"http://127.0.0.1:{server.port}"), folder, task)
    try:
        yield here
    finally:
        await here.client.aclose()
        server.stop(0)
        await task


def new_client(base: str) -> httpx.AsyncClient:
    """A client with as many connections as it needs."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, limits=limits)
