from __future__ import annotations

from dataclasses import dataclass

import pytest

from memra_mlx.engine.memory import KvShape
from memra_mlx.engine.plan import Pace, Shape, choose_batch, prefill_order, snapshot_stops
from memra_mlx.engine.room import Room


@dataclass
class Waiting:
    name: str
    lane: int = 0
    remaining: int = 100
    passed: int = 0
    arrival: int = 0


def order(*waiting: Waiting) -> str:
    return "".join(job.name for job in sorted(waiting, key=prefill_order))


def test_lanes_come_first_then_the_shortest_then_the_first() -> None:
    assert order(Waiting("h", 2, 1), Waiting("j", 1, 1), Waiting("i", 0, 9999)) == "ijh"
    assert order(Waiting("l", remaining=5000), Waiting("s", remaining=50, arrival=1)) == "sl"
    assert order(Waiting("b", arrival=2), Waiting("a", arrival=1)) == "ab"


def test_a_long_prefill_is_not_passed_for_ever() -> None:
    assert order(Waiting("s", remaining=1, arrival=9), Waiting("l", remaining=5000, passed=16)) == "ls"
    assert order(Waiting("j", lane=1, passed=99), Waiting("i")) == "ij"


def test_alone_a_prefill_takes_full_chunks() -> None:
    pace = Pace(2048, 0.25)
    assert pace.chunk(alone=True) == 2048
    pace.prefilled(2048, 10.0)
    pace.decoded(0.1)
    assert pace.chunk(alone=True) == 2048


def settled(decode_s: float, token_s: float) -> int:
    pace = Pace(2048, 0.25)
    assert pace.chunk(alone=False) == 64
    for _ in range(40):
        pace.decoded(decode_s)
        size = pace.chunk(alone=False)
        pace.prefilled(size, size * token_s)
    return size


def test_beside_decoding_it_stays_within_the_stall() -> None:
    assert settled(decode_s=0.1, token_s=0.001) == pytest.approx(150, abs=1)
    assert settled(decode_s=0.2, token_s=0.001) == pytest.approx(50, abs=1)
    assert settled(decode_s=0.1, token_s=0.00001) == 2048
    assert settled(decode_s=0.4, token_s=0.001) == 32, "a little progress, whatever the speed"


def test_chunks_grow_by_doubling() -> None:
    pace = Pace(2048, 0.25)
    pace.decoded(0.1)
    pace.prefilled(64, 0.0001)
    assert pace.chunk(alone=False) == 128
    pace.prefilled(128, 0.0002)
    assert pace.chunk(alone=False) == 256


def test_one_slow_step_does_not_open_the_gate() -> None:
    pace = Pace(2048, 10.0)
    for seconds in (0.1, 0.1, 0.1, 1.0):
        pace.decoded(seconds)
    for _ in range(9):
        pace.prefilled(2048, 2.048)
    assert pace.chunk(alone=False) < 600


def test_batches_of_alike_length() -> None:
    shapes = [Shape(1, 20_000, 20_000), Shape(2, 300, 900), Shape(1, 40, 40)]
    assert choose_batch(shapes, 20, lambda i: True) == 1
    assert choose_batch(shapes, 15_000, lambda i: True) == 0
    assert choose_batch(shapes, 3_000, lambda i: True) is None
    assert choose_batch(shapes, 20, lambda i: i != 1) == 2
    assert choose_batch([], 20, lambda i: True) is None


def test_snapshot_stops() -> None:
    assert snapshot_stops(0, 5000, [900, 1000, 1100, 2500, 5000]) == [900, 2500, 5000]
    assert snapshot_stops(900, 5000, [900, 1000]) == [1000, 5000]
    assert snapshot_stops(0, 10, []) == [10]
    assert snapshot_stops(10, 10, [5]) == []


def test_state_bytes() -> None:
    shape = KvShape(growing=10, windows=((512, 4),), fixed=7)
    assert shape.bytes(1) == 512 * 14 + 7
    assert shape.bytes(10_000) == 10_496 * 10 + 512 * 4 + 7
    assert shape.per_token == 14


def test_room() -> None:
    room = Room(KvShape(growing=1), budget=100_000)
    assert room.admits(20_000, 512, 0)
    assert not room.admits(60_000, 512, 0)
    assert not room.admits(20_000, 512, 80_000)
    session, title = Shape(1, 20_000, 20_000), Shape(3, 20, 40)
    assert not room.joins(session, 20, room.live([session], []) + 70_000)
    assert room.joins(title, 20, room.live([title, session], []) + 70_000)


def test_what_never_fits_is_refused_with_numbers() -> None:
    room = Room(KvShape(growing=1024), budget=8 << 20)
    assert room.refusal(3500) is None
    assert "a prompt of 6000 tokens needs 12 MiB" in str(room.refusal(6000))
    assert "share is 8 MiB" in str(room.refusal(6000))
