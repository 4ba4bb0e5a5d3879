"""Prompts that differ from their first word on where their seeds differ, and are alike in size."""

from __future__ import annotations

from random import Random

from memra_mlx.bench.wire import Message

_TEXT = """
the file shows a list of names and each line has one value so we read it again and then write the result to disk
before the next test runs because an error in this part would stop the whole build while other tasks wait for a
lock that no one holds when the server starts new work from its queue of open requests
"""
_WORDS = _TEXT.split()


def words(count: int, seed: str) -> str:
    """`count` English words, the same for the same seed."""
    random = Random(seed)
    return " ".join([f"{random.randrange(10_000)}", *random.choices(_WORDS, k=max(count - 1, 0))])


def opening(count: int, seed: str) -> list[Message]:
    """System prompt of `count` words and a first question."""
    system = f"{words(count, seed)}.\nAnswer briefly."
    return [{"role": "system", "content": system}, {"role": "user", "content": "What does the text say?"}]


def question(count: int, seed: str) -> Message:
    """A later user message: what an agent's tool brings back."""
    return {"role": "user", "content": f"{words(count, seed)}.\nWhat now?"}
