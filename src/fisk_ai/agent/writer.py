"""One thread that writes one journal, so that a sync never stops the event loop and appends never overlap.

An append is never abandoned: a cancelled caller waits until the record is durable or has failed, and only then sees
its cancellation. Otherwise a record could appear in the journal that the run's state has never heard of.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

from fisk_ai.records import Record
from fisk_ai.stores.base import Journal

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], token: EventLoopToken) -> None:
        self._work = work
        self._token = token
        self._done = anyio.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as problem:  # noqa: BLE001 - handed to the caller, whatever it is
            self._error = problem
        try:
            from_thread.run_sync(self._done.set, token=self._token)
        except RuntimeError:
            return  # the loop is gone: nobody is left to be told

    async def result(self) -> T:
        cancelled: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not self._done.is_set():
                try:
                    await self._done.wait()
                except anyio.get_cancelled_exc_class() as problem:
                    # asyncio's own cancellation (a Ctrl-C under asyncio.run, a timeout) heeds no shield.
                    cancelled = problem
        if cancelled is not None:
            raise cancelled
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set, since there was no error


async def never_abandoned(work: Callable[[], T]) -> T:
    """Run something that blocks in a thread, and see a cancellation only when it has ended."""
    job = _Job(work, current_token())
    threading.Thread(target=job.run, name="opens a journal", daemon=True).start()
    return await job.result()


class JournalWriter:
    """Drives one journal from an event loop."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        # A daemon: after an abort the process must be able to end while a disk hangs.
        self._thread = threading.Thread(target=self._work, name=f"journal {journal.run_id}", daemon=True)
        self._thread.start()

    async def append(self, record: Record) -> int:
        """Make a record durable and return its seq; raises as `Journal.append` does."""
        return await self.call(lambda: self.journal.append(record))

    async def call(self, work: Callable[[], T]) -> T:
        """Run something that blocks on the journal in its thread."""
        job = _Job(work, current_token())
        self._jobs.put(job)  # type: ignore[arg-type]  # the queue doesn't care what a job returns
        return await job.result()

    def stop(self) -> None:
        """Let the thread end after what it has; doesn't wait."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
