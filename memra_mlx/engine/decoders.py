"""All that decode, and which of them a prefilled job joins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mlx.nn.layers.base import Module

from memra_mlx.engine.decode import Batch, Decoder, Solo
from memra_mlx.engine.job import Job
from memra_mlx.engine.plan import choose_batch
from memra_mlx.engine.protocol import Ready
from memra_mlx.engine.room import Room


class Decoders:
    """The batches and single sequences of one model."""

    def __init__(self, net: Module, ready: Ready, room: Room) -> None:
        self._net = net
        self._ready = ready
        self._room = room
        self._all: list[Batch | Solo] = []

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Batch | Solo]:
        return iter(tuple(self._all))

    @property
    def jobs(self) -> list[Job]:
        """Everyone in them."""
        return [job for decoder in self._all for job in decoder.jobs]

    def join(self, job: Job, live: int) -> None:
        """Put a prefilled job where it fits best; `live` are the bytes of all live state, its own included."""
        self._choose(job, live).join(job)

    def release(self, job: Job) -> tuple[list[Any], int] | None:
        """Take a job out: its cache and how many of its tokens that holds. None if it is not here."""
        for decoder in self._all:
            if job in decoder.jobs:
                return decoder.remove(job)
        return None

    def close_empty(self) -> None:
        """Give up what nobody uses."""
        for decoder in self:
            if not decoder.jobs:
                decoder.close()
                self._all.remove(decoder)

    def live_bytes(self, beside: Iterable[int]) -> int:
        """Bytes of live state, with that of sequences of the lengths `beside`."""
        batches = [decoder.shape for decoder in self._all if isinstance(decoder, Batch)]
        single = [job.length for decoder in self._all if isinstance(decoder, Solo) for job in decoder.jobs]
        return self._room.live(batches, [*single, *beside])

    def _choose(self, job: Job, live: int) -> Decoder:
        eos_ids = self._ready.eos_ids
        if self._ready.lane_kind == "sequential":
            self._all.append(Solo(self._net, eos_ids))
            return self._all[-1]
        batches = [decoder for decoder in self._all if isinstance(decoder, Batch)]
        shapes = [batch.shape for batch in batches]
        index = choose_batch(shapes, job.length, lambda i: self._room.joins(shapes[i], job.length, live))
        if index is not None:
            return batches[index]
        self._all.append(Batch(self._net, eos_ids))
        return self._all[-1]
