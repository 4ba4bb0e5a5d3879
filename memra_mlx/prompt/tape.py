"""Which token carried which text: positions in the stream of generated characters."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from memra_mlx.events import TokenLogprob


class Tape:
    """Grows with the tokens. Offsets are characters since the start of the generation."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._unclaimed: deque[tuple[int, int, TokenLogprob]] = deque()

    @property
    def end(self) -> int:
        """Characters so far."""
        return self._ends[-1] if self._ends else 0

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return len(self._ends)

    def add(self, text: str, logprob: TokenLogprob | None) -> None:
        """The next token, and the text that became whole with it."""
        start = self.end
        self._starts.append(start)
        self._ends.append(start + len(text))
        if logprob is not None:
            # A token of a part of a character belongs to that character, which comes later.
            self._unclaimed.append((start, max(start + len(text), start + 1), logprob))

    def stretch(self, text: str) -> None:
        """Text that was held back at the end; it belongs to the last token."""
        if text and self._ends:
            self._ends[-1] += len(text)

    def claim(self, start: int, end: int) -> tuple[TokenLogprob, ...]:
        """The logprobs of the tokens that carry any of this range, each once; those before it are given up."""
        claimed = []
        while self._unclaimed and self._unclaimed[0][0] < end:
            _, token_end, logprob = self._unclaimed.popleft()
            if token_end > start:
                claimed.append(logprob)
        return tuple(claimed)

    def tokens_to(self, offset: int) -> int:
        """How many tokens it took to reach `offset` characters, the one that holds the last of them included."""
        return min(bisect_left(self._ends, offset) + 1, self.tokens) if offset else 0

    def tokens_within(self, offset: int) -> int:
        """How many tokens lie wholly before `offset`."""
        count = bisect_left(self._starts, offset)
        return count - 1 if count and self._ends[count - 1] > offset else count

    def tokens_from(self, start: int, end: int) -> int:
        """How many tokens begin in this range."""
        return bisect_left(self._starts, end) - bisect_left(self._starts, start)
