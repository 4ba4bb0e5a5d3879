"""The answers to one request, handed from the engine's reader to the one who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from memra_mlx.engine.protocol import Cancel, Ended, Fault, Progress, Started, Submit, Token

Message = Started | Progress | Token | Ended | Fault


class Channel:
    """One request's messages, in order. If the consumer lags they collect, and of several `Progress` the last stays."""

    def __init__(self, submit: Submit, on_cancel: Callable[[Channel, Cancel], None]):
        self.submit = submit
        self.started = False
        self.over = False
        self.cancelled = False
        self.sends = 0  # engines that have been given the request
        self._on_cancel = on_cancel
        self._pending: list[Message] = []
        self._filled = asyncio.Event()

    async def receive(self) -> list[Message]:
        """All messages that have come, at least one. Nothing comes after `Ended` or `Fault`: raises EOFError."""
        if self.over and not self._pending:
            raise EOFError(f"the stream of {self.submit.id} is over")
        await self._filled.wait()
        messages, self._pending = self._pending, []
        self._filled.clear()
        return messages

    def cancel(self, keep: int = -1) -> None:
        """Stop generating; `keep` as in `protocol.Cancel`. Answered by `Ended`, unless the stream is over."""
        if not self.over and not self.cancelled:
            self.cancelled = True
            self._on_cancel(self, Cancel(self.submit.id, keep))

    def put(self, message: Message) -> None:
        """Hand over a message (the engine's reader does)."""
        match message:
            case Started():
                self.started = True
            case Progress():
                if self._pending and isinstance(self._pending[-1], Progress):
                    self._pending.pop()
            case Ended() | Fault():
                self.over = True
            case Token():
                pass
        self._pending.append(message)
        self._filled.set()
