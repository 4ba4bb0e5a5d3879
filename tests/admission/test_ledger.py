"""The ledger: one row a request, budgets that hold under concurrency, rows of the dead, reading it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
from typing import get_args

import pytest
from click.testing import CliRunner

from memra_mlx.admission import ledger_read
from memra_mlx.admission.book import FILE, Book, SettledError
from memra_mlx.admission.keyring import Prices
from memra_mlx.admission.ledger import Ledger, uninterrupted
from memra_mlx.admission.ledger_read import Filter, NoLedgerError
from memra_mlx.admission.outcomes import BILLABLE, Outcome, Receipt, Settlement
from memra_mlx.cli.ledger import ledger as command
from memra_mlx.errors import ApiError

PRICES = Prices(prompt=1_000_000, completion=1_000_000)


def receipt(name: str, *, tenant: str = "acme", reserved: int = 0, prompt: int = 10) -> Receipt:
    return Receipt(name, "q", "/v1/messages", tenant, "k", "m", "interactive", True, prompt, 100.0, PRICES, reserved)


def end(outcome: Outcome, completion: int = 5) -> Settlement:
    return Settlement(outcome, 0, completion, 101.0, 102.0)


@pytest.fixture
async def ledger(tmp_path):
    book = Ledger(tmp_path)
    await book.start()
    yield book
    await book.close()


def all_rows(folder):
    return {row["id"]: row for row in ledger_read.rows(folder, Filter())}


async def test_a_row_is_on_disk_before_work_and_closed_once(ledger, tmp_path):
    await ledger.open(receipt("a"), None)
    assert all_rows(tmp_path)["a"]["outcome"] is None
    due = await ledger.settle(receipt("a"), end("completed"))
    row = all_rows(tmp_path)["a"]
    assert (row["outcome"], row["debit_prompt"], row["debit_completion"], row["cost"]) == ("completed", 10, 5, due.cost)
    with pytest.raises(SettledError):
        await ledger.settle(receipt("a"), end("rejected"))
    assert all_rows(tmp_path)["a"]["outcome"] == "completed"


@pytest.mark.parametrize("outcome", get_args(Outcome))
async def test_only_billable_rows_have_a_debit(ledger, tmp_path, outcome):
    await ledger.open(receipt("a", reserved=15), 100)
    await ledger.settle(receipt("a", reserved=15), end(outcome))
    row = all_rows(tmp_path)["a"]
    assert (row["cost"] > 0) == (outcome in BILLABLE)
    assert await ledger.account("acme") == (row["cost"], 0)


def test_the_file_itself_refuses_a_debit_that_may_not_be(tmp_path):
    book = Book(tmp_path)
    book.open(receipt("a"), None)
    with pytest.raises(sqlite3.IntegrityError):
        book.db.execute("UPDATE receipts SET outcome = 'drain_killed', cost = 1")
    book.close()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


async def test_a_budget_is_never_overspent_by_a_hundred_at_once(ledger):
    budget = 40 * 15
    low = budget

    async def one(i: int) -> str:
        nonlocal low
        own = receipt(str(i), reserved=15)
        try:
            await ledger.open(own, budget)
        except ApiError as error:
            return str(error.code)
        low = min(low, budget - sum(await ledger.account("acme")))
        await ledger.settle(own, end("completed" if i % 2 else "rejected"))
        return "done"

    outcomes = await asyncio.gather(*(one(i) for i in range(100)))
    spent, reserved = await ledger.account("acme")
    assert reserved == 0
    assert low >= 0
    assert 0 < spent <= budget
    assert outcomes.count("done") >= 40
    assert set(outcomes) == {"done", "insufficient_quota"}
    assert spent == 15 * sum(1 for i, o in enumerate(outcomes) if o == "done" and i % 2)


async def test_a_refused_request_leaves_no_row(ledger, tmp_path):
    with pytest.raises(ApiError):
        await ledger.open(receipt("a", reserved=15), 14)
    assert all_rows(tmp_path) == {}


async def test_rows_of_a_dead_process_are_closed_and_those_of_a_living_one_not(tmp_path):
    dead, alive = Book(tmp_path), Book(tmp_path)
    dead.open(receipt("dead", reserved=15), None)
    alive.open(receipt("alive", reserved=20), None)
    dead._lock.close()  # what the end of its process would do
    successor = Ledger(tmp_path)
    await successor.start()
    rows = all_rows(tmp_path)
    assert (rows["dead"]["outcome"], rows["dead"]["cost"], rows["alive"]["outcome"]) == ("crashed", 0, None)
    assert await successor.account("acme") == (0, 20)
    await successor.close()
    for book in (dead, alive):
        book.close()
    assert not list(tmp_path.glob("*.lock"))


async def test_a_file_that_is_no_ledger_is_told_at_the_start(tmp_path):
    (tmp_path / FILE).write_text("not a database, and long enough that SQLite reads a header" * 20)
    with pytest.raises(OSError, match="ledger"):
        await Ledger(tmp_path).start()


async def test_after_the_end_nothing_waits_for_ever(tmp_path):
    ledger = Ledger(tmp_path)
    await ledger.start()
    await ledger.close()
    with pytest.raises(ApiError) as caught:
        await ledger.open(receipt("a"), None)
    assert caught.value.rule.status == 503


async def test_a_write_is_waited_for_through_a_cancellation():
    future = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(uninterrupted(future))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    future.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_lists_sums_and_exports(ledger, tmp_path):
    for name, tenant, outcome in (("a", "acme", "completed"), ("b", "beta", "rejected"), ("c", "acme", "abandoned")):
        await ledger.open(receipt(name, tenant=tenant), None)
        await ledger.settle(receipt(name, tenant=tenant), end(outcome))
    sums = ledger_read.sums(tmp_path, Filter(), ["tenant"])
    assert [(s["tenant"], s["requests"], s["cost"]) for s in sums] == [("acme", 2, 30), ("beta", 1, 0)]
    assert ledger_read.sums(tmp_path, Filter(until=100.0), [])[0]["requests"] == 0

    def run(*arguments):
        return CliRunner().invoke(command, [*arguments, "--state-dir", str(tmp_path)])

    assert run("ls", "--tenant", "beta").output.split()[1:5] == ["b", "/v1/messages", "beta", "rejected"]
    assert json.loads(run("sum", "--by", "outcome", "--json").output)[0]["outcome"] == "abandoned"
    assert "cost=0.000030" in run("sum").output
    assert len(run("export").output.splitlines()) == 4
    lines = run("export", "--format", "jsonl", "--since", "2000-01-01").output
    assert lines == ""
    assert run("sum", "--by", "day").output.startswith("day=1970-01-01")


def test_no_ledger_is_one_line(tmp_path):
    with pytest.raises(NoLedgerError):
        list(ledger_read.rows(tmp_path, Filter()))
    result = CliRunner().invoke(command, ["ls", "--state-dir", str(tmp_path)])
    assert (result.exit_code, result.output.startswith("Error: there is no ledger")) == (1, True)
