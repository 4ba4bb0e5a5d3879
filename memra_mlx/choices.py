"""Several answers to one prompt (`n`) as one stream of events, each with the number of its answer.

The others begin once the first has a token: the engine then resumes them from its prompt, which is computed once. One
answer that fails ends them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import msgspec

from memra_mlx.deadline import Deadline
from memra_mlx.errors import ApiError
from memra_mlx.events import Event, Fail
from memra_mlx.generation import Generation, batches

Chosen = tuple[int, Event]
Stream = AsyncIterator[list[Event]]

_SEED_MASK = (1 << 63) - 1
_NEVER = Deadline(float("inf"))


async def chosen(lead: Generation, begin_at: Deadline, tick_s: float) -> AsyncGenerator[list[Chosen], None]:
    """The events of `lead` and of the answers beside it, in lists as `generation.batches` makes them."""
    race = _Race(lead, begin_at, tick_s)
    try:
        while race.running:
            yield await race.next()
    finally:
        await race.stop()


def beside(lead: Generation, index: int) -> Generation:
    """Begin the answer number `index`: another seed, the same prompt. Raises `ApiError` where the engine can't.

    A stream that has begun to answer was on time, so only blocking answers keep the deadline.
    """
    first = lead.channel.submit
    sampling = msgspec.structs.replace(first.sampling, seed=(first.sampling.seed + index) & _SEED_MASK)
    submit = msgspec.structs.replace(first, id=f"{first.id}.{index}", sampling=sampling)
    thread = lead.prompt.thread
    run = lead.again(submit, replace(lead.prompt, thread=thread.another() if thread else None))
    return replace(run, id=lead.id, warnings=(), deadline=_NEVER if lead.request.stream else lead.deadline)


class _Race:
    """Follows all answers at once."""

    def __init__(self, lead: Generation, begin_at: Deadline, tick_s: float) -> None:
        self._lead = lead
        self._begin_at = begin_at
        self._tick_s = tick_s
        self._streams: dict[int, Stream] = {}  # those that nobody waits for
        self._waits: dict[asyncio.Task[list[Event] | None], tuple[int, Stream]] = {}
        self._follow(0, lead)

    @property
    def running(self) -> bool:
        return bool(self._streams or self._waits)

    async def next(self) -> list[Chosen]:
        """What has come by now, from at least one answer."""
        while self._streams:
            index, stream = self._streams.popitem()
            self._waits[asyncio.create_task(_next(stream))] = index, stream
        done, _ = await asyncio.wait(self._waits, return_when=asyncio.FIRST_COMPLETED)
        out: list[Chosen] = []
        for task in done:
            index, stream = self._waits.pop(task)
            if (batch := task.result()) is not None:
                out += [(index, event) for event in batch]
                self._streams[index] = stream
        if not any(isinstance(event, Fail) for _, event in out):
            out += self._begin_others()
        failed = next((n for n, (_, event) in enumerate(out) if isinstance(event, Fail)), None)
        if failed is None:
            return out
        await self.stop()
        return out[: failed + 1]

    async def stop(self) -> None:
        """End what still runs."""
        self._lead.cancel()
        waits = list(self._waits)
        self._waits.clear()
        self._streams.clear()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def _begin_others(self) -> list[Chosen]:
        """Begin them if it is time for it; where that fails, the whole fails."""
        lead = self._lead
        waits = lead.meter.first_token is None and lead.meter.outcome == "abandoned"
        if lead.others or lead.request.n == 1 or waits:
            return []
        try:
            for index in range(1, lead.request.n):
                lead.others.append(beside(lead, index))
                self._follow(index, lead.others[-1])
        except ApiError as fault:
            lead.meter.outcome = "rejected"
            return [(0, Fail(fault))]
        return []

    def _follow(self, index: int, run: Generation) -> None:
        self._streams[index] = batches(run, self._begin_at, self._tick_s)


async def _next(stream: Stream) -> list[Event] | None:
    return await anext(stream, None)
