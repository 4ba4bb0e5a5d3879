"""The reasoning budget: after so many tokens of a segment, the tokens that close it are forced. No MLX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memra_mlx.engine.protocol import Think


class ThinkBudget:
    """Follows the answer's tokens and says which token must come next, if any."""

    def __init__(self, think: Think) -> None:
        self._think = think
        self._open = think.opened
        self._tail: list[int] = []
        self._used = 0

    def feed(self, tokens: Iterable[int]) -> None:
        """The answer goes on with `tokens`."""
        for token in tokens:
            self._tail.append(token)
            self._used += self._open
            marker = self._think.end_ids if self._open else self._think.start_ids
            if marker and self._tail[-len(marker) :] == marker:
                self._open = not self._open
                self._tail, self._used = [], 0
            del self._tail[: -max(len(self._think.end_ids), len(self._think.start_ids), 1)]

    def forced(self) -> int | None:
        """The token that must come next."""
        if not self._open or self._used < self._think.budget:
            return None
        return self._think.end_ids[_begun(self._tail, self._think.end_ids)]

    def slack(self) -> int:
        """How many tokens may pass, at least one, before `forced` can have an answer."""
        left = self._think.budget - self._used if self._open else self._think.budget + 1
        return max(1, left)


def _begun(tail: Sequence[int], marker: Sequence[int]) -> int:
    """How many tokens of the marker stand at the end already."""
    for length in range(min(len(marker) - 1, len(tail)), 0, -1):
        if list(tail[-length:]) == list(marker[:length]):
            return length
    return 0
