"""The ledger on the loop's side: a writer thread that gathers what is waiting into one synced transaction.

Awaiting a call means it is on disk. The loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from memra_mlx.admission.book import Book, BudgetSpentError, SettledError
from memra_mlx.admission.outcomes import Debit, Receipt, Settlement
from memra_mlx.errors import ApiError

log = logging.getLogger("memra.ledger")
_BATCH = 256
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """Work for the thread, and who waits for it."""

    work: Callable[[Book], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def answer(self, result: Any, fault: Exception | None) -> None:
        """Wake who waits, if somebody still does."""
        self.loop.call_soon_threadsafe(self._resolve, result, fault)

    def _resolve(self, result: Any, fault: Exception | None) -> None:
        if self.future.done():
            return
        if fault is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(fault)


class Ledger:
    """Receipts of this process. `start` before the first call, `close` after the last."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._fault: Exception | None = None  # why the thread takes nothing any more

    async def start(self) -> None:
        """Open the file and close what dead processes left. Raises `OSError` where it cannot be used."""
        self._thread.start()
        try:
            crashed = await self._submit(lambda book: book.close_dead())
        except (OSError, sqlite3.Error) as fault:
            raise OSError(f"the ledger in {self._folder} cannot be used: {fault}") from fault
        if crashed:
            log.warning("%d requests of a server that died were closed as crashed; they cost nothing", crashed)

    async def open(self, receipt: Receipt, budget: int | None) -> None:
        """Write a receipt and reserve its money. Raises the quota `ApiError`; a 503 where the disk refuses."""
        try:
            await self._submit(lambda book: book.open(receipt, budget))
        except BudgetSpentError as fault:
            raise ApiError("quota", "the prepaid budget of this tenant does not cover this request") from fault
        except (OSError, sqlite3.Error) as fault:
            log.error("the ledger in %s cannot be written: %s", self._folder, fault)
            raise ApiError("unavailable", "the server's ledger cannot be written; try again later") from fault

    async def settle(self, receipt: Receipt, end: Settlement) -> Debit:
        """Close a receipt. Raises `SettledError` if it is closed already, `OSError` or `sqlite3.Error` for the disk."""
        due: Debit = await self._submit(lambda book: book.settle(receipt, end))
        return due

    async def account(self, tenant: str) -> tuple[int, int]:
        """Spent and reserved micro-units."""
        sums: tuple[int, int] = await self._submit(lambda book: book.account(tenant))
        return sums

    async def close(self) -> None:
        """Write what waits, then close the file."""
        if self._thread.is_alive():
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    async def _submit(self, work: Callable[[Book], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.put(Job(work, loop, future))
        if self._fault:
            self._refuse_waiting(self._fault)
        return await uninterrupted(future)

    def _run(self) -> None:
        ending: Exception = OSError("the ledger is closed")
        try:
            book = Book(self._folder)
            try:
                while batch := self._next():
                    _write(book, batch)
            finally:
                book.close()
        except (OSError, sqlite3.Error) as fault:
            ending = fault
        finally:
            self._fault = ending
            self._refuse_waiting(ending)

    def _next(self) -> list[Job]:
        """The jobs that wait, at least one; none at the end."""
        batch: list[Job] = []
        while len(batch) < _BATCH:
            try:
                job = self._jobs.get(block=not batch)
            except Empty:
                break
            if job is None:
                if batch:
                    self._jobs.put(None)
                break
            batch.append(job)
        return batch

    def _refuse_waiting(self, fault: Exception) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job:
                job.answer(None, fault)


def _write(book: Book, batch: list[Job]) -> None:
    """All of `batch` in one transaction; a job that fails takes back its own part."""
    try:
        book.db.execute("BEGIN IMMEDIATE")
        answers = [_attempt(book, job) for job in batch]
        book.db.execute("COMMIT")
    except sqlite3.Error as fault:
        if book.db.in_transaction:
            book.db.execute("ROLLBACK")
        answers = [(None, fault)] * len(batch)
    for job, (result, failure) in zip(batch, answers, strict=True):
        job.answer(result, failure)


def _attempt(book: Book, job: Job) -> tuple[Any, Exception | None]:
    book.db.execute("SAVEPOINT job")
    try:
        result = job.work(book)
    except (BudgetSpentError, SettledError, sqlite3.Error) as fault:
        book.db.execute("ROLLBACK TO job")
        book.db.execute("RELEASE job")
        return None, fault
    book.db.execute("RELEASE job")
    return result, None


async def uninterrupted(future: asyncio.Future[T]) -> T:
    """Wait for `future` also through a cancellation, which is raised once it is done."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as signal:
            cancelled = signal
    if cancelled is not None:
        raise cancelled
    return future.result()
