"""Processes that answer a growing conversation from memory and disk until they are killed: `kill_probe.py FOLDER`.

For each line that it reads, the launcher forks one, so that imports cost once; it has evaluated nothing itself. A child
prints its id, then a line a turn: what was resumed, and the answer.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from desk import Desk
from tiny_nets import VOCABULARY, random_net

from memra_mlx.cache.kv_disk import DiskTier

TURNS = 6
KINDS = ("full", "sliding")


def asked(kind: str, turn: int) -> list[int]:
    """What the user says in a turn."""
    source = random.Random(f"{kind} {turn}")
    return [source.randrange(VOCABULARY) for _ in range(60)]


def talk(desk: Desk, kind: str) -> list[tuple[int, list[int]]]:
    """All turns: tokens resumed, and the answer."""
    told: list[int] = []
    out = []
    for turn in range(TURNS):
        told += asked(kind, turn)
        answer = desk.answer(told, 12, id=f"{kind}{turn}", segment_ends=[len(told)])
        told += answer
        out.append((desk.started(f"{kind}{turn}").cached, answer))
        if __name__ == "__main__":
            print(json.dumps([kind, turn, *out[-1]]), flush=True)
    return out


def main(folder: Path) -> None:
    """Talk with a model of each kind."""
    for kind in KINDS:
        talk(Desk(random_net(kind), tier=DiskTier(folder, 64 << 20, kind)), kind)


def launch(folder: Path) -> None:
    """Fork a child for each line of the standard input, one after the other."""
    for _ in sys.stdin:
        if pid := os.fork():
            os.waitpid(pid, 0)
            print("over", flush=True)
            continue
        print(os.getpid(), flush=True)
        main(folder)
        os._exit(0)


if __name__ == "__main__":
    launch(Path(sys.argv[1]))
