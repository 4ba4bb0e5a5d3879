"""The ledger's tables: one row a request in SQLite (WAL), and what each tenant has spent and reserved.

A row is opened before any work and closed once. Closing applies the table of `outcomes`; the database refuses a debit
on a row that cannot have one. Belongs to one thread; the caller makes the transactions.
"""

from __future__ import annotations

import fcntl
import secrets
import sqlite3
import time
from pathlib import Path

from memra_mlx.admission.outcomes import BILLABLE, Debit, Receipt, Settlement, debit

FILE = "ledger.sqlite3"
_BILLABLE = ", ".join(f"'{name}'" for name in sorted(BILLABLE))
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS receipts (
  id TEXT PRIMARY KEY, request_id TEXT NOT NULL, process TEXT NOT NULL,
  route TEXT NOT NULL, tenant TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL, lane TEXT NOT NULL,
  stream INTEGER NOT NULL, opened REAL NOT NULL, first_token REAL, closed REAL, outcome TEXT,
  prompt_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
  price_prompt INTEGER NOT NULL, price_cached INTEGER NOT NULL, price_completion INTEGER NOT NULL,
  reserved INTEGER NOT NULL,
  debit_prompt INTEGER NOT NULL DEFAULT 0, debit_completion INTEGER NOT NULL DEFAULT 0, cost INTEGER NOT NULL DEFAULT 0,
  CHECK (outcome IN ({_BILLABLE}) OR (debit_prompt = 0 AND debit_completion = 0 AND cost = 0))
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS receipts_opened ON receipts (opened);
CREATE INDEX IF NOT EXISTS receipts_open ON receipts (process) WHERE outcome IS NULL;
CREATE TABLE IF NOT EXISTS accounts (
  tenant TEXT PRIMARY KEY, spent INTEGER NOT NULL DEFAULT 0, reserved INTEGER NOT NULL DEFAULT 0,
  CHECK (reserved >= 0)
) WITHOUT ROWID;
"""
_CLOSE = """
UPDATE receipts SET outcome = ?, cached_tokens = ?, completion_tokens = ?, first_token = ?, closed = ?,
  debit_prompt = ?, debit_completion = ?, cost = ? WHERE id = ? AND outcome IS NULL
"""


class BudgetSpentError(Exception):
    """The tenant's budget does not cover what the request may cost."""


class SettledError(Exception):
    """The row has its outcome already, or there is no such row."""


class Book:
    """One process's connection. Its lock file tells others that it lives, and with it its open rows."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self.process = secrets.token_hex(8)
        self._lock = (folder / self._lock_name(self.process)).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self.db = _connect(folder / FILE)
        except BaseException:
            self._unlock()
            raise

    def open(self, receipt: Receipt, budget: int | None) -> None:
        """Add the row and reserve its money. Raises `BudgetSpentError`, and then nothing was written."""
        self.db.execute("INSERT OR IGNORE INTO accounts (tenant) VALUES (?)", (receipt.tenant,))
        spent, reserved = self.account(receipt.tenant)
        if budget is not None and spent + reserved + receipt.reserved > budget:
            raise BudgetSpentError
        self.db.execute(
            "UPDATE accounts SET reserved = reserved + ? WHERE tenant = ?", (receipt.reserved, receipt.tenant)
        )
        row = {
            "id": receipt.id,
            "request_id": receipt.request_id,
            "process": self.process,
            "route": receipt.route,
            "tenant": receipt.tenant,
            "key_id": receipt.key_id,
            "model": receipt.model,
            "lane": receipt.lane,
            "stream": int(receipt.stream),
            "opened": receipt.opened,
            "prompt_tokens": receipt.prompt_tokens,
            "price_prompt": receipt.prices.prompt,
            "price_cached": receipt.prices.cached,
            "price_completion": receipt.prices.completion,
            "reserved": receipt.reserved,
        }
        marks = ", ".join("?" * len(row))
        self.db.execute(f"INSERT INTO receipts ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def settle(self, receipt: Receipt, end: Settlement) -> Debit:
        """Close the row, charge its debit and give back what was reserved. Raises `SettledError`."""
        due = debit(receipt, end)
        tokens = (end.cached_tokens, end.completion_tokens, end.first_token, end.closed)
        values = (end.outcome, *tokens, due.prompt, due.completion, due.cost, receipt.id)
        if self.db.execute(_CLOSE, values).rowcount != 1:
            raise SettledError(receipt.id)
        self._move(receipt.tenant, receipt.reserved, due.cost)
        return due

    def account(self, tenant: str) -> tuple[int, int]:
        """Spent and reserved micro-units."""
        row = self.db.execute("SELECT spent, reserved FROM accounts WHERE tenant = ?", (tenant,)).fetchone()
        return (row[0], row[1]) if row else (0, 0)

    def close_dead(self) -> int:
        """Close as crashed what processes left open that are gone; how many rows."""
        rows = self.db.execute("SELECT DISTINCT process FROM receipts WHERE outcome IS NULL").fetchall()
        return sum(self._bury(process) for (process,) in rows if process != self.process and self._is_dead(process))

    def _bury(self, process: str) -> int:
        query = "SELECT id, tenant, reserved FROM receipts WHERE outcome IS NULL AND process = ?"
        rows = self.db.execute(query, (process,)).fetchall()
        for id, tenant, reserved in rows:
            self.db.execute(_CLOSE, ("crashed", 0, 0, None, time.time(), 0, 0, 0, id))
            self._move(tenant, reserved, 0)
        (self._folder / self._lock_name(process)).unlink(missing_ok=True)
        return len(rows)

    def _move(self, tenant: str, reserved: int, cost: int) -> None:
        update = "UPDATE accounts SET reserved = reserved - ?, spent = spent + ? WHERE tenant = ?"
        self.db.execute(update, (reserved, cost, tenant))

    def _is_dead(self, process: str) -> bool:
        try:
            with (self._folder / self._lock_name(process)).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    @staticmethod
    def _lock_name(process: str) -> str:
        return f"ledger-{process}.lock"

    def close(self) -> None:
        """Close the connection and give up the lock."""
        self.db.close()
        self._unlock()

    def _unlock(self) -> None:
        (self._folder / self._lock_name(self.process)).unlink(missing_ok=True)
        self._lock.close()


def _connect(file: Path) -> sqlite3.Connection:
    file.touch(mode=0o600)
    db = sqlite3.connect(file, timeout=10, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db
