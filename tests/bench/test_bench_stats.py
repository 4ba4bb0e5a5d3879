"""Statistics, verdicts and tables."""

import json

import pytest

from memra_mlx.bench import runner
from memra_mlx.bench.inprocess import NAME
from memra_mlx.bench.plan import Sizes
from memra_mlx.bench.report import aligned, document, table, verdicts
from memra_mlx.bench.stats import Goal, Result, Sample, gaps, percentile
from memra_mlx.bench.wire import Reply, aggregate, busy_gaps, decoding, quiet_gaps

GOALS = (
    Goal("single", "rate", 0.97, at_least=True, against=NAME),
    Goal("single", "paid", 1.02, at_least=False),
    Goal("single", "rate", 1, at_least=True, against="peers"),
    Goal("other", "rate", 1, at_least=True),
)


def result() -> Result:
    found = Result("single")
    for value in (9.0, 11.0, 10.0):
        found.add("ours", [Sample("rate", value), Sample("paid", 1.03)])
        found.add("peer", [Sample("rate", value / 2)])
        found.add(NAME, [Sample("rate", value + 0.1)])
    return found


def reply(sent: float, times: tuple[float, ...], tokens: int) -> Reply:
    return Reply(sent, times, times[-1], "", prompt=1, cached=None, completion=tokens)


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.95, 4), (0.0, 1), (1.0, 4)])
def test_percentile(share: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == value


def test_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_gaps() -> None:
    assert gaps([1.0, 3.0, 3.5]) == [2.0, 0.5]
    assert gaps([1.0]) == gaps([]) == []


def test_gaps_before_and_while_something_happens() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 7.0, 8.0, 9.0]
    assert quiet_gaps(times, 3.5) == [1.0, 1.0]
    assert busy_gaps(times, 3.5, 7.5) == [4.0, 1.0]


def test_a_gap_that_spans_the_whole_disturbance_counts() -> None:
    assert busy_gaps([0.0, 1.0, 9.0], 2.0, 3.0) == [8.0]


def test_rates() -> None:
    replies = [reply(0.0, (1.0, 2.0, 3.0), 3), reply(0.5, (1.5, 5.0), 7)]
    assert aggregate(replies) == pytest.approx(10 / 5)
    assert decoding(replies) == pytest.approx((2 + 6) / 4)


def test_medians_and_ratios() -> None:
    assert result().median("ours", "rate") == 10
    assert result().median("peer", "paid") is None
    assert result().ratio("rate", "peer") == 2
    assert result().ratio("paid", "peer") is None


def test_verdicts() -> None:
    found = [(v.against, round(v.value, 2), v.met) for v in verdicts(result(), GOALS)]
    assert found == [(NAME, 0.99, True), ("", 1.03, False), ("peer", 2.0, True)]


def test_table() -> None:
    lines = table(result(), GOALS[:2]).splitlines()
    assert [line.split() for line in lines] == [
        ["single", "ours", "peer", NAME, "/", "peer", "/", NAME, "goal"],
        ["rate", "10", "5", "10.1", "2", "0.99", "≥", "0.97", "met"],
        ["paid", "1.03", "-", "-", "-", "-", "≤", "1.02", "missed"],
    ]


def test_columns() -> None:
    assert aligned([["a", "bb", ""], ["ccc", "1", "met"]]) == "a    bb\nccc   1  met"


def test_document_is_json_with_all_values() -> None:
    made = json.loads(json.dumps(document([result()], GOALS, {"cpus": 2})))
    assert made["cpus"] == 2
    assert made["results"]["single"]["ours"]["rate"] == [9, 11, 10]
    assert [goal["met"] for goal in made["goals"]] == [True, False, True]


def test_every_goal_belongs_to_a_scenario() -> None:
    assert {goal.scenario for goal in runner.GOALS} <= set(runner.SCENARIOS)


def test_sizes() -> None:
    assert Sizes.parse(["prompt=8000", "clients=1,4"]) == Sizes(prompt=8000, clients=(1, 4))


@pytest.mark.parametrize("setting", ["prompt", "prompt=0", "prompt=x", "prompt=1,2", "depth=3"])
def test_sizes_that_are_none(setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        Sizes.parse([setting])
