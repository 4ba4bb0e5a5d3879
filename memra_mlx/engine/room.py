"""What fits into the memory budget, predicted from lengths before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterable

from memra_mlx.engine.memory import KvShape
from memra_mlx.engine.plan import Shape

_GROWTH = 512  # tokens of answer for which room is kept when a request is let in
_COPIES = 2  # joining a batch copies the state


class Room:
    """The budget in bytes for live KV state (what the prefix cache holds gives way). `resting`: what MLX holds beside
    it while nothing runs, the weights above all."""

    def __init__(self, kv: KvShape, budget: int, resting: int = 0) -> None:
        self._kv = kv
        self._resting = resting
        self.budget = budget

    def excess(self, used: int) -> int:
        """How far `used` bytes in all are over the budget."""
        return used - self._resting - self.budget

    def live(self, batches: Iterable[Shape], lengths: Iterable[int]) -> int:
        """Bytes of padded batches and of single sequences."""
        return sum(map(self.batch, batches)) + sum(map(self._kv.bytes, lengths))

    def batch(self, shape: Shape) -> int:
        """Bytes of a batch, padded to its longest member."""
        return shape.members * self._kv.bytes(shape.longest)

    def admits(self, length: int, left: int, live: int) -> bool:
        """Whether a sequence can be prefilled and then decode on its own."""
        return live + _COPIES * self._kv.bytes(length + min(left, _GROWTH)) <= self.budget

    def joins(self, batch: Shape, length: int, live: int) -> bool:
        """Whether a prefilled sequence, counted in `live`, can join `batch`, counted too."""
        return live + self.batch(batch.joined(length)) - self.batch(batch) <= self.budget

    def refusal(self, length: int) -> str | None:
        """Why a prompt of `length` tokens can never run here, if so."""
        need = _COPIES * self._kv.bytes(length + 1)
        if need <= self.budget:
            return None
        return (
            f"a prompt of {length} tokens needs {_mib(need)} of memory for its KV state, and this model's share is "
            f"{_mib(self.budget)}; shorten the prompt or give the server a larger memory budget"
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
