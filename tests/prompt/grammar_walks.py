"""Answers that a grammar allows, drawn at random from its masks: no model is needed to see what one could write."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer

import memra_mlx.fixtures
from memra_mlx.engine.grammar import LIMITS
from memra_mlx.engine.grammar_tokens import load_tokens

TINY = Path(memra_mlx.fixtures.__file__).parent / "tiny"
EOS = 4086
SIZE = 4096


@cache
def tiny_tokens() -> LLTokenizer:
    return load_tokens(TINY, SIZE, [EOS])


@cache
def piece(tokens: LLTokenizer, token: int) -> bytes:
    return tokens.decode_bytes([token])


class Walk:
    """One answer. Endings are preferred the more, the longer it gets: closing pieces, and tokens of few bytes."""

    def __init__(self, text: str, seed: int, tokens: LLTokenizer | None = None, ends: Sequence[str] = ()):
        self.tokens = tokens or tiny_tokens()
        self.random = random.Random(seed)
        self.eos = EOS
        self.ends = ends
        self.matcher = LLMatcher(self.tokens, text, log_level=0, limits=LIMITS)
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.ids: list[int] = []

    def allowed(self) -> list[int]:
        mask = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        assert not self.matcher.is_error(), self.matcher.get_error()
        return [int(i) for i in np.flatnonzero(np.unpackbits(mask, bitorder="little", count=self.tokens.vocab_size))]

    def run(self, patience: int = 60, limit: int = 3000) -> bytes:
        """The bytes of the answer, which ends by itself. Raises AssertionError if it does not within `limit` tokens."""
        while len(self.ids) < limit:
            allowed = self.allowed()
            late = len(self.ids) > patience
            if self.eos in allowed and (late or len(allowed) == 1 or self.random.random() < 0.3):
                return self.tokens.decode_bytes(self.ids)
            if late and self._end():
                continue
            choice = self._choose([i for i in allowed if i != self.eos], late)
            assert self.matcher.consume_token(choice)
            self.ids.append(choice)
        raise AssertionError(f"no end: {self.tokens.decode_str(self.ids)[-200:]}")

    def _end(self) -> bool:
        """Write one of `ends`, if it can stand here."""
        for end in self.ends:
            ids = self.tokens.tokenize_str(end)
            if self.matcher.validate_tokens(ids) == len(ids):
                self.ids += ids
                return self.matcher.consume_tokens(ids)
        return False

    def _bytes(self, token: int) -> bytes:
        return piece(self.tokens, token)

    def _choose(self, allowed: Sequence[int], late: bool) -> int:
        if late and (forced := self._nearest_end(allowed)) is not None:
            return forced
        short = [i for i in self.random.sample(list(allowed), min(40, len(allowed))) if len(self._bytes(i)) <= 3]
        return self.random.choice(short if short and self.random.random() < 0.8 else list(allowed))

    def _nearest_end(self, allowed: Sequence[int]) -> int | None:
        wanted = self.random.choice(['"', '"', "}", "]", ")", "@", "", ""])
        for begin in (wanted, *'"}])<'):
            closing = [i for i in allowed if self.tokens.is_special_token(i) or self._bytes(i)[:1] == begin.encode()]
            if closing and begin:
                return self.random.choice(closing)
        return None
