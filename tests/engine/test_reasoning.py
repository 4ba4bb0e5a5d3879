from __future__ import annotations

import pytest

from memra_mlx.engine.protocol import Think
from memra_mlx.engine.reasoning import ThinkBudget


def drive(think: Think, wanted: list[int]) -> list[int]:
    """An answer whose model wants `wanted`, where the budget does not force something else; checked when due."""
    budget, out, due, seen = ThinkBudget(think), [], 0, 0
    source = iter(wanted)
    while True:
        forced = None
        if len(out) >= due:
            budget.feed(out[seen:])
            seen, forced = len(out), budget.forced()
            due = seen + budget.slack()
        token = forced if forced is not None else next(source, None)
        if token is None:
            return out
        out.append(token)


def think(budget: int, *, opened: bool = True, end: tuple[int, ...] = (91,), start: tuple[int, ...] = (90,)) -> Think:
    return Think(list(start), list(end), opened, budget)


@pytest.mark.parametrize("budget", [0, 1, 2, 5])
def test_the_segment_is_closed_at_the_budget(budget: int) -> None:
    assert drive(think(budget), list(range(1, 9))) == [*range(1, budget + 1), 91, *range(budget + 1, 9)]


def test_a_segment_that_ends_in_time_is_left_alone() -> None:
    answer = [1, 2, 91, *range(3, 40)]
    assert drive(think(5), answer) == answer


def test_a_later_segment_has_a_budget_of_its_own() -> None:
    assert drive(think(3, opened=False), [1, 2, 90, 3, 4, 5, 6]) == [1, 2, 90, 3, 4, 5, 91, 6]
    assert drive(think(2), [1, 91, 5, 90, 1, 2, 3]) == [1, 91, 5, 90, 1, 2, 91, 3]


def test_markers_of_several_tokens() -> None:
    assert drive(think(3, end=(7, 8, 9)), [1, 2, 3, 4]) == [1, 2, 3, 7, 8, 9, 4]
    assert drive(think(3, end=(7, 8, 9)), [1, 2, 7, 4]) == [1, 2, 7, 8, 9, 4]
    assert drive(think(9, end=(7, 8, 9)), [1, 7, 8, 9, 4]) == [1, 7, 8, 9, 4]
    assert drive(think(1, opened=False, start=(5, 6), end=(7, 8)), [5, 6, 1, 2]) == [5, 6, 1, 7, 8, 2]
