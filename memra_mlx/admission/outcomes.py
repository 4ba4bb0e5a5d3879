"""How a request can end, and what that costs: the one table of outcomes and debits. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memra_mlx.admission.keyring import FREE, Prices

Outcome = Literal[
    "completed",
    "abandoned",
    "deadline_partial",
    "rejected",
    "deadline_exceeded",
    "shed_deadline",
    "shed_queue",
    "drain_killed",
    "crashed",
]
BILLABLE: frozenset[Outcome] = frozenset({"completed", "abandoned", "deadline_partial"})


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is known of a request before any work. `opened` is unix seconds, `reserved` micro-units."""

    id: str
    request_id: str
    route: str
    tenant: str
    key_id: str
    model: str
    lane: str
    stream: bool
    prompt_tokens: int
    opened: float
    prices: Prices = FREE
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Settlement:
    """How it ended: its outcome, tokens, and times in unix seconds (`first_token` None: none was generated)."""

    outcome: Outcome
    cached_tokens: int
    completion_tokens: int
    first_token: float | None
    closed: float


@dataclass(frozen=True, slots=True)
class Debit:
    """What is charged: tokens, and their cost in micro-units."""

    prompt: int = 0
    completion: int = 0
    cost: int = 0


def debit(receipt: Receipt, end: Settlement) -> Debit:
    """The debit of a request. What we failed or refused costs nothing; nor what was left before its first token."""
    if end.outcome not in BILLABLE or (end.outcome == "abandoned" and end.first_token is None):
        return Debit()
    cost = receipt.prices.cost(receipt.prompt_tokens, end.cached_tokens, end.completion_tokens)
    return Debit(receipt.prompt_tokens, end.completion_tokens, cost)


def reservation(prices: Prices, prompt: int, most_completion: int) -> int:
    """The most that a request can cost, in micro-units."""
    dearest = Prices(max(prices.prompt, prices.cached), 0, prices.completion)
    return dearest.cost(prompt, 0, most_completion)
