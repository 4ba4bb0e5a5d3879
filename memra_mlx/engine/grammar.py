"""Constrained decoding: grammars compiled off the decode path, and the mask that each puts on its request's logits.

`Submit.grammar` is a grammar in llguidance's Lark syntax. Worker threads compile it over the model's tokens; the engine
thread gets a matcher of its own for every sequence, a copy of the compiled one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import cast

import mlx.core as mx
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

log = logging.getLogger("memra.engine.grammar")

LIMITS = LLParserLimits(max_items_in_row=10_000, verbose_errors=False)
_KEPT = 64
_THREADS = 2
_COMPILE_S = 20.0


class GrammarError(Exception):
    """An answer that has left its grammar, or can't go on in it."""


class Compiled:
    """A grammar that is being compiled, or was. Written by a worker thread, before `_done` is set."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._done = threading.Event()
        self._due = time.monotonic() + _COMPILE_S
        self._matcher: LLMatcher | None = None
        self._problem = ""

    def ready(self, wait_s: float = 0.0) -> bool:
        """Whether it is compiled or given up; waits `wait_s` seconds for that."""
        return self._done.wait(wait_s) or time.monotonic() > self._due

    @property
    def problem(self) -> str:
        """Why there is no matcher, once `ready`; empty if there is one."""
        return self._problem if self._done.is_set() else f"it was not compiled within {_COMPILE_S:.0f} seconds"

    def matcher(self) -> LLMatcher:
        """A matcher of its own at the grammar's start, where there is no `problem`."""
        assert self._matcher is not None
        return self._matcher.deep_copy()

    def finish(self, tokens: LLTokenizer) -> None:
        """Compile, and compute the first mask, which fills the caches that all copies share."""
        matcher = LLMatcher(tokens, self.text, log_level=0, limits=LIMITS)
        probe = matcher if matcher.is_error() else matcher.deep_copy()
        if not probe.is_error():
            probe.compute_bitmask()
        if probe.is_error():
            self._problem = first_line(probe.get_error())
        else:
            self._matcher = matcher
        self._done.set()

    def fail(self, problem: str) -> None:
        """There is no matcher."""
        self._problem = problem
        self._done.set()


class Grammars:
    """The compiled grammars of one model, the last `_KEPT` of them kept. `load` makes the model's tokens, once."""

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._tokens: LLTokenizer | None = None
        self._loading = threading.Lock()
        self._known: OrderedDict[str, Compiled] = OrderedDict()
        self._todo: queue.SimpleQueue[Compiled] = queue.SimpleQueue()
        self._threads = 0

    def compile(self, text: str) -> Compiled:
        """Begin to compile, unless it was done before."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = Compiled(text)
            self._todo.put(known)
            if self._threads < _THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="memra-grammar", daemon=True).start()
        self._known.move_to_end(text)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return known

    def _work(self) -> None:
        while True:
            compiled = self._todo.get()
            began = time.monotonic()
            try:
                compiled.finish(self._vocabulary())
            except Exception as fault:
                log.exception("a grammar could not be compiled")
                compiled.fail(first_line(str(fault)))
            log.info("compiled a grammar of %d characters in %.3f s", len(compiled.text), time.monotonic() - began)

    def _vocabulary(self) -> LLTokenizer:
        with self._loading:
            if self._tokens is None:
                self._tokens = self._load()
            return self._tokens


class Constraint:
    """A logits processor: only tokens with which the answer stays within the grammar keep their logits.

    `ends` are the tokens that end an answer; nothing is masked behind one."""

    def __init__(self, matcher: LLMatcher, prompt_length: int, ends: Iterable[int]) -> None:
        self._matcher = matcher
        self._seen = prompt_length
        self._ends = frozenset(ends)
        self._over = False
        self._mask: np.ndarray | None = None

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Masked logits (1, vocabulary); `tokens` are those of prompt and answer. Raises `GrammarError`."""
        # the model computes them while the mask is made, which waits for the last token alone
        mx.async_eval(logits)
        if len(tokens) > self._seen:
            self._follow(cast(list[int], tokens[self._seen :].tolist()))
            self._seen = len(tokens)
        return logits if self._over else self._masked(logits)

    def permits(self, token: int) -> bool:
        """Whether the last mask has the token."""
        return self._over or self._mask is None or bool(self._mask[0, token // 32] >> (token % 32) & 1)

    def _follow(self, tokens: list[int]) -> None:
        for token in tokens:
            self._over = self._over or token in self._ends
            if not self._over and not self._matcher.consume_token(token):
                raise GrammarError(f"token {token} left the grammar: {first_line(self._matcher.get_error())}")

    def _masked(self, logits: mx.array) -> mx.array:
        size = logits.shape[-1]
        if self._mask is None:
            self._mask = allocate_token_bitmask(1, size)
        fill_next_token_bitmask(self._matcher, self._mask)
        if self._matcher.is_error():
            raise GrammarError(f"the grammar is too complex: {first_line(self._matcher.get_error())}")
        return apply(self._mask, logits)


def apply(mask: np.ndarray, logits: mx.array) -> mx.array:
    """Logits (1, n) with -inf where the bit mask (1, n / 32) has no bit."""
    if mx.metal.is_available():
        from llguidance.mlx import apply_token_bitmask

        return apply_token_bitmask(logits, mask)
    bits = np.unpackbits(mask.view(np.uint8), axis=-1, bitorder="little", count=logits.shape[-1])
    return mx.where(mx.array(bits.astype(np.bool_)), logits, -mx.inf)


def first_line(text: str) -> str:
    """The first line of a message, shortened."""
    return next((line for line in text.splitlines() if line.strip()), "unknown")[:300]
