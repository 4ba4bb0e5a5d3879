"""Scenario about what the server itself costs: from the last byte of a Claude Code request to the engine's `Submit`."""

from __future__ import annotations

import asyncio

from memra_mlx.bench.stats import Sample

COLD = "submit ms, cold"
WARM = "submit ms, warm"
SIZE = 100_000  # bytes


def overhead(rounds: int, salt: str, size: int = SIZE) -> list[Sample]:
    """Each round is a conversation that nobody has seen (cold), and turns that add to it (warm)."""
    from memra_mlx.bench.submits import conversations  # the whole server side: --help should not pay for it

    spent = asyncio.run(conversations(rounds, salt, size))
    return [Sample(WARM if warm else COLD, seconds * 1000) for warm, seconds in spent]
