"""A process killed at any instant costs at most what was not yet written, and never gives a wrong hit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kill_probe
import pytest
from desk import Desk
from tiny_nets import random_net

from memra_mlx.cache.kv_disk import DiskTier
from memra_mlx.cache.survey import Limits, Survey

PROBE = Path(kill_probe.__file__)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[int]]]:
    """The answers of runs that were never interrupted."""
    return {kind: [answer for _, answer in kill_probe.talk(Desk(random_net(kind)), kind)] for kind in kill_probe.KINDS}


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that forks probes over `tmp_path`."""
    argv = [sys.executable, str(PROBE), str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def lines_until_killed(launcher: subprocess.Popen[str], source: random.Random) -> list[Any]:
    """Start a probe, kill it after some of its lines and a moment more; the lines it got out."""
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write("\n")
    launcher.stdin.flush()
    pid = int(launcher.stdout.readline())
    out = [launcher.stdout.readline() for _ in range(source.randrange(1, kill_probe.TURNS * len(kill_probe.KINDS)))]
    threading.Event().wait(source.random() * 0.05)
    os.kill(pid, signal.SIGKILL)
    while (line := launcher.stdout.readline()) != "over\n":
        out.append(line)
    return [json.loads(line) for line in out if line.endswith("]\n")]


@pytest.mark.skipif(sys.platform != "linux", reason="the launcher forks, which is safe with MLX on Linux alone")
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_killed_at_random_points(
    tmp_path: Path, launcher: subprocess.Popen[str], expected: dict[str, list[list[int]]], kills: int
) -> None:
    source = random.Random(kills)
    resumed = 0
    for _ in range(kills):
        lines = lines_until_killed(launcher, source)
        assert lines
        for kind, turn, cached, answer in lines:
            assert answer == expected[kind][turn]
            resumed += cached
    assert resumed > 0
    survey = Survey(tmp_path, Limits(0, 64 << 20))
    assert [fault for item in survey.items() if (fault := survey.fault(item))] == []
    for kind in kill_probe.KINDS:
        tier = DiskTier(tmp_path, 64 << 20, kind)
        told = kill_probe.talk(Desk(random_net(kind), tier=tier), kind)
        tier.close(30)
        assert [answer for _, answer in told] == expected[kind]
    assert told[0][0] > 0
