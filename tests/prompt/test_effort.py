"""The table of effort levels and its way into templates."""

from __future__ import annotations

import pytest
from prompt_samples import ask, model, rendered

from memra_mlx.errors import ApiError
from memra_mlx.prompt.effort import LEVELS, level, switches, wanted
from memra_mlx.request import Thinking


def test_levels_and_clamps() -> None:
    assert [level(name, "p") for name in LEVELS] == list(LEVELS)
    assert {level(name, "p") for name in ("xhigh", "max", "ultra")} == {"high"}


@pytest.mark.parametrize("value", ["", "HIGH", "very", 3, None, ["low"]])
def test_other_values_are_refused_by_name(value: object) -> None:
    with pytest.raises(ApiError) as caught:
        level(value, "reasoning.effort")
    assert caught.value.param == "reasoning.effort"
    assert "minimal" in caught.value.message


def test_what_is_wanted() -> None:
    assert wanted(Thinking()) is None
    assert [wanted(Thinking(effort=name)) for name in LEVELS] == [False, False, True, True, True]
    assert wanted(Thinking(enabled=False, effort="high")) is False


def test_switches_of_a_template() -> None:
    own = model("chatml").traits
    assert own.switch == "enable_thinking"
    assert switches(Thinking(), own) == {}
    assert switches(Thinking(effort="low"), own) == {"enable_thinking": True}
    assert switches(Thinking(effort="minimal"), own) == {"enable_thinking": False}
    harmony = model("harmony").traits
    assert harmony.efforts == ("low", "medium", "high")
    assert switches(Thinking(effort="high"), harmony) == {"reasoning_effort": "high"}
    assert switches(Thinking(enabled=True), harmony) == {}
    assert switches(Thinking(effort="none"), harmony) == {"reasoning_effort": "low"}


def test_off_closes_reasoning_where_the_template_has_no_switch() -> None:
    off = ask(thinking=Thinking(enabled=False))
    assert rendered(ask(), "think-open").endswith("<|im_start|>assistant\n<think>\n")
    assert rendered(off, "think-open").endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    own = model("think-open")
    on, closed = own.prompt(ask()).think, own.prompt(off).think
    assert on is not None
    assert closed is not None
    assert (on.opened, closed.opened) == (True, False)
    assert (on.start_ids, on.end_ids) == (closed.start_ids, closed.end_ids)


def test_budget_is_handed_on() -> None:
    think = model().prompt(ask(thinking=Thinking(enabled=True, budget=1024))).think
    assert think is not None
    assert think.budget == 1024


def test_a_model_that_always_reasons_says_so() -> None:
    assert model("harmony").prompt(ask(thinking=Thinking(enabled=False))).warnings != ()
    assert model().prompt(ask(thinking=Thinking(enabled=False))).warnings == ()
