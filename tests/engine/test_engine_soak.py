from __future__ import annotations

import random

import psutil
import pytest
from desk import Desk
from tiny_nets import VOCABULARY, random_net

from memra_mlx.engine.protocol import Ended, Sampling


@pytest.mark.nightly
def test_10_000_tiny_requests_leave_no_trace() -> None:
    desk = Desk(random_net("full"), budget=16 << 20)
    source, process, sizes = random.Random(3), psutil.Process(), []
    for round in range(100):
        for i in range(100):
            prompt = [source.randrange(VOCABULARY) for _ in range(source.randrange(1, 30))]
            sampling = Sampling(temperature=source.choice([0.0, 1.0]), seed=i, presence_penalty=0.1 * (i % 2))
            desk.submit(f"{round}-{i}", prompt, source.randrange(1, 4), sampling=sampling)
        desk.run()
        assert sum(isinstance(message, Ended) for message in desk.sent) == 100
        desk.sent.clear()
        sizes.append(process.memory_info().rss >> 20)
    print("RSS in MiB, every 1,000 requests:", sizes[9::10])
    assert sizes[-1] - sizes[29] < 32
