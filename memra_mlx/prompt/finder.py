"""Finds any of several literals in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Match(NamedTuple):
    """`text[start:end] == literal`."""

    start: int
    end: int
    literal: str


class Finder:
    """The match that is complete first wins, as if the text had come character by character."""

    def __init__(self, literals: Iterable[str]):
        self._literals = tuple(dict.fromkeys(filter(None, literals)))
        self._heads = frozenset(lit[:n] for lit in self._literals for n in range(1, len(lit)))
        self._longest = max(map(len, self._heads), default=0)

    def find(self, text: str, begin: int = 0) -> Match | None:
        """The first complete match at or after `begin`; of two that end together the longer one."""
        found = [(at + len(lit), at, lit) for lit in self._literals if (at := text.find(lit, begin)) >= 0]
        if not found:
            return None
        end, start, literal = min(found)
        return Match(start, end, literal)

    def held(self, text: str) -> int:
        """How many characters at the end may still become a match."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._heads:
                return size
        return 0
