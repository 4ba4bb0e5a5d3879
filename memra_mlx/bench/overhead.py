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
    samples = []
    for one in spent:
        samples.append(Sample(WARM if one.known else COLD, one.wall_s * 1000))
        samples.append(Sample(f"of that CPU ms, {'warm' if one.known else 'cold'}", one.cpu_s * 1000))
    return samples
