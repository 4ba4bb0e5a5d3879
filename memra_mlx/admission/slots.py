"""Requests that are being served, and the gate that a drain closes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from memra_mlx.errors import ApiError


class Slots:
    """Counts live requests. After `drain` no request enters; `idle` is set while none is inside."""

    def __init__(self, drain_s: float):
        self.live = 0
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._drain_s = drain_s

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a slot. Raises a 503 while draining."""
        self.refuse_if_draining()
        self.live += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.live -= 1
            if not self.live:
                self.idle.set()

    def refuse_if_draining(self) -> None:
        """Raise the 503 of a draining server."""
        if self.draining:
            wait = max(1, min(60, round(self._drain_s)))
            raise ApiError("draining", "the server is shutting down; retry on its successor", retry_after_s=wait)

    def drain(self) -> None:
        """Close the gate."""
        self.draining = True
