"""The table of outcomes and debits."""

from __future__ import annotations

from typing import get_args

import pytest

from memra_mlx.admission.keyring import Prices
from memra_mlx.admission.outcomes import BILLABLE, Debit, Outcome, Receipt, Settlement, debit, reservation

PRICES = Prices(prompt=1_000_000, cached=100_000, completion=2_000_000)
RECEIPT = Receipt("r", "q", "/v1/messages", "acme", "k", "m", "interactive", True, 100, 0.0, PRICES, 10_000)


@pytest.mark.parametrize("outcome", get_args(Outcome))
@pytest.mark.parametrize("first_token", [None, 1.0])
def test_each_outcome(outcome, first_token):
    due = debit(RECEIPT, Settlement(outcome, 40, 10 if first_token else 0, first_token, 2.0))
    free = ("rejected", "deadline_exceeded", "shed_deadline", "shed_queue", "drain_killed", "crashed")
    if outcome in free or (outcome == "abandoned" and first_token is None):
        assert due == Debit()
    else:
        completion = 10 if first_token else 0
        assert due == Debit(100, completion, 60 + 4 + 2 * completion)


def test_the_billable_ones():
    assert {"completed", "abandoned", "deadline_partial"} == BILLABLE


def test_a_reservation_covers_any_end():
    most = reservation(PRICES, 100, 50)
    assert most == 100 + 100
    for cached in (0, 7, 100):
        assert PRICES.cost(100, cached, 50) <= most
    assert Prices(1, 9, 1).cost(1000, 1000, 0) <= reservation(Prices(1, 9, 1), 1000, 0)
