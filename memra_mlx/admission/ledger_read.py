"""Reading the ledger: lists, sums, exports. Opens the file read-only, beside a running server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memra_mlx.admission.book import FILE

COLUMNS = (
    "id", "request_id", "route", "tenant", "key_id", "model", "lane", "stream", "outcome", "prompt_tokens",
    "cached_tokens", "completion_tokens", "debit_prompt", "debit_completion", "price_prompt", "price_cached",
    "price_completion", "reserved", "cost", "opened", "first_token", "closed",
)  # fmt: skip
GROUPS = {name: name for name in ("tenant", "model", "route", "lane", "outcome")} | {"day": "date(opened, 'unixepoch')"}
_SUMS = (
    "count(*) AS requests",
    *(f"sum({name}) AS {name}" for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "cost")),
)


class NoLedgerError(Exception):
    """There is no ledger that can be read."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows: None is any. `since` and `until` are unix seconds of their opening, the latter exclusive."""

    tenant: str | None = None
    outcome: str | None = None
    since: float | None = None
    until: float | None = None

    def where(self) -> tuple[str, list[Any]]:
        """As an SQL condition; an open row has the outcome `open`."""
        tests = (
            ("tenant = ?", self.tenant),
            ("ifnull(outcome, 'open') = ?", self.outcome),
            ("opened >= ?", self.since),
            ("opened < ?", self.until),
        )
        used = [(text, value) for text, value in tests if value is not None]
        return " AND ".join(["1", *(text for text, _ in used)]), [value for _, value in used]


def rows(folder: Path, chosen: Filter, limit: int = -1, *, newest_first: bool = False) -> Iterator[dict[str, Any]]:
    """Receipts as dicts of `COLUMNS`. Raises `NoLedgerError`."""
    where, values = chosen.where()
    order = "DESC" if newest_first else "ASC"
    query = f"SELECT {', '.join(COLUMNS)} FROM receipts WHERE {where} ORDER BY opened {order}, id LIMIT ?"
    yield from _query(folder, query, [*values, limit])


def sums(folder: Path, chosen: Filter, groups: Sequence[str]) -> list[dict[str, Any]]:
    """Requests, tokens and cost for each value of `groups` (names of `GROUPS`). Raises `NoLedgerError`."""
    where, values = chosen.where()
    keys = [f"{GROUPS[name]} AS {name}" for name in groups]
    numbers = ", ".join(str(i + 1) for i in range(len(groups)))
    query = f"SELECT {', '.join([*keys, *_SUMS])} FROM receipts WHERE {where}"
    return list(_query(folder, f"{query} GROUP BY {numbers} ORDER BY {numbers}" if groups else query, values))


def _query(folder: Path, query: str, values: list[Any]) -> Iterator[dict[str, Any]]:
    file = folder / FILE
    if not file.exists():
        raise NoLedgerError(f"there is no ledger in {folder}")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            db.row_factory = sqlite3.Row
            for found in db.execute(query, values):
                yield dict(found)
    except sqlite3.Error as fault:
        raise NoLedgerError(f"{file} cannot be read: {fault}") from fault
