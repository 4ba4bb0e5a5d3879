"""Requests that are being served: the server's and each tenant's gauge, and the gate that a drain closes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from memra_mlx.errors import ApiError


@dataclass(frozen=True, slots=True)
class Rate:
    """What the `X-RateLimit-*` headers say: requests at once, how many more, and seconds until one more is likely."""

    limit: int
    remaining: int
    reset_s: int

    def headers(self) -> dict[str, str]:
        """As response headers."""
        values = {"limit": self.limit, "remaining": self.remaining, "reset": self.reset_s}
        return {f"x-ratelimit-{name}": str(value) for name, value in values.items()}


class Slots:
    """Counts live requests. After `drain` no request enters; `idle` is set while none is inside.

    All on the loop's thread and without an await: counting and entering are one step.
    """

    def __init__(self, limit: int, drain_s: float):
        self.live = 0
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._limit = limit
        self._drain_s = drain_s
        self._tenants: Counter[str] = Counter()
        self._service_s = 1.0  # how long a request stays, smoothed

    @contextmanager
    def enter(self, tenant: str, narrowed: int | None = None) -> Iterator[Rate]:
        """Hold a slot of `tenant`; its rate includes this request. Raises a 429 when full, a 503 while draining."""
        self.refuse_if_draining()
        rate = self.rate(tenant, narrowed)
        if not rate.remaining:
            raise self._full(rate)
        self.live += 1
        self._tenants[tenant] += 1
        self.idle.clear()
        try:
            yield self.rate(tenant, narrowed)
        finally:
            self._leave(tenant)

    def rate(self, tenant: str, narrowed: int | None = None) -> Rate:
        """Where `tenant` stands now."""
        limit = min(self._limit, narrowed or self._limit)
        remaining = max(0, min(limit - self._tenants[tenant], self._limit - self.live))
        return Rate(limit, remaining, 0 if remaining else self._wait_s())

    def of(self, tenant: str) -> int:
        """Live requests of `tenant`."""
        return self._tenants[tenant]

    def served(self, seconds: float) -> None:
        """A request has taken that long."""
        self._service_s += 0.2 * (seconds - self._service_s)

    def _leave(self, tenant: str) -> None:
        self.live -= 1
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        if not self.live:
            self.idle.set()

    def _wait_s(self) -> int:
        return max(1, min(60, round(self._service_s / max(1, self.live))))

    def _full(self, rate: Rate) -> ApiError:
        message = f"all {rate.limit} places for requests at the same time are taken; wait for one to end"
        return ApiError("rate", message, retry_after_s=rate.reset_s, headers=rate.headers())

    def refuse_if_draining(self) -> None:
        """Raise the 503 of a draining server."""
        if self.draining:
            raise ApiError(
                "draining", "the server is shutting down; retry on its successor", retry_after_s=round(self._drain_s)
            )

    def drain(self) -> None:
        """Close the gate."""
        self.draining = True
