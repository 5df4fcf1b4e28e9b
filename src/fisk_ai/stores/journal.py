"""The order in which a record becomes durable, the same for every medium.

A subclass knows how to write, to repair and to tell whether it still holds its run. When and in which order that
happens, and what a failure means, is here and only here.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from fisk_ai.call_guard import CallGuard
from fisk_ai.codec import Chain, Tail, encode_payload, frame, payload_key, require_version
from fisk_ai.errors import JournalClosed, JournalCorrupt, JournalFailed
from fisk_ai.records import PROTOCOLS, MetaRecord, Record, SequencedRecord
from fisk_ai.stores.base import Clock, Orphan, timestamp

_KINDS = frozenset(PROTOCOLS.values())
_KIND_NAMES = [kind.__name__ for kind in PROTOCOLS.values()]
_open_journals: weakref.WeakSet[JournalBase] = weakref.WeakSet()


@dataclass(slots=True)
class Contents:
    """What reading a journal found."""

    records: list[SequencedRecord]
    chain: Chain
    tail: Tail

    def meta(self, run_id: str, where: str) -> MetaRecord:
        """Return the first record, which must be the meta record of this run."""
        first = self.records[0].record
        if not isinstance(first, MetaRecord):
            raise JournalCorrupt("the first record is not meta", where=where, line=1, offset=0, seq=1)
        if first.run_id != run_id:
            cause = f"meta names the run {first.run_id!r:.110} but the file is named for {run_id!r}: rename it"
            raise JournalCorrupt(cause, where=where, line=1, offset=0, seq=1)
        return first


class JournalBase(ABC):
    """One run's record stream, open for append."""

    def __init__(self, run_id: str, where: str, contents: Contents, version: int, clock: Clock) -> None:
        self.run_id = run_id
        self.where = where
        self.version = version
        self._clock = clock
        self._chain = contents.chain
        self._tail = contents.tail
        self._read: list[SequencedRecord] | None = contents.records
        self._mutex = threading.RLock()
        self._poison: str | None = None
        self._repaired = False
        self._closed = False
        _open_journals.add(self)

    @property
    def last_seq(self) -> int:
        """Seq of the last durable record."""
        return self._chain.seq

    @property
    def tail(self) -> Tail:
        """How the journal ended when it was opened."""
        return self._tail

    def append(self, record: Record) -> int:
        """Make a record durable; see `Journal.append` for what it raises."""
        if type(record) not in _KINDS:
            raise TypeError(f"append takes a record ({', '.join(_KIND_NAMES)}), not {type(record).__name__}")
        require_version(self.version, record)
        return self.append_payload(payload_key(record), encode_payload(record))

    def append_payload(self, key: str, payload: bytes) -> int:
        """Make an encoded payload durable, unknown fields included; `append` for whoever copies a run."""
        with self._mutex:
            self._require_usable()
            # 1. What can't be written is refused before the journal is touched.
            seq = self._chain.seq + 1
            line, crc = frame(seq, key, payload, timestamp(self._clock()), self._chain.crc)
            # 2. No append ever lands on torn bytes.
            self.repair()
            # 3. Nothing is written to a run that is no longer ours.
            self._require_held()
            # 4. From before the write until this object knows of the record the journal is unusable: whatever
            #    interrupts it (a full disk, a failed sync, a signal, a cancelled thread) leaves it so.
            with self._poisoned("an append"):
                self._write_durably(line)
                # 5. Only now is the record part of the run.
                self._chain.seq, self._chain.crc, self._chain.checked = seq, crc, True
                self._read = None
            return seq

    def repair(self) -> bytes:
        """Make the tail whole, once, before the first append; returns the bytes that were cut."""
        with self._mutex:
            self._require_usable()
            if self._repaired:
                return b""
            self._require_held()
            with self._poisoned("a repair"):
                self._make_whole(self._tail)
                self._repaired = True
            return self._tail.torn

    def ensure_held(self) -> None:
        """Raise `JournalLost` if the run is no longer ours; an append in another thread is waited for."""
        with self._mutex:
            self._require_usable()
            self._require_held()

    def records(self) -> Sequence[SequencedRecord]:
        """Return all records, in order; what `open` decoded is handed over, later calls read anew."""
        with self._mutex:
            self._require_usable()
            if self._read is not None:
                records, self._read = self._read, None
                return records
            return self._reread()

    def close(self) -> None:
        """Give the run up; may be called twice."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._release()

    @contextlib.contextmanager
    def _poisoned(self, what: str) -> Iterator[None]:
        self._poison = f"{what} was interrupted"
        try:
            yield
        except OSError as problem:
            self._poison = f"{what} failed: {problem.strerror or problem}"
            raise JournalFailed(self.where, self._poison) from problem
        self._poison = None

    def _require_usable(self) -> None:
        if self._closed:
            raise JournalClosed(f"the journal of run {self.run_id!r} is closed: open it again")
        if self._poison is not None:
            raise JournalFailed(self.where, f"{self._poison} before")

    def forget_threads(self) -> None:
        """In a forked child: the thread that may hold the mutex does not exist here."""
        self._mutex = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @abstractmethod
    def _write_durably(self, line: bytes) -> None:
        """Append a line and return when it is durable."""

    @abstractmethod
    def _make_whole(self, tail: Tail) -> None:
        """Cut or complete the tail, durably."""

    @abstractmethod
    def _reread(self) -> Sequence[SequencedRecord]:
        """Read all records again."""

    @abstractmethod
    def _release(self) -> None:
        """Give up lock and descriptors."""

    @abstractmethod
    def _require_held(self) -> None:
        """Raise `JournalLost` if the run is no longer ours."""

    def guard_call(self, tool: str, call_id: str, timeout_s: float | None) -> AbstractContextManager[CallGuard | None]:
        """Hold nothing: only runs on disk can leave orphans that matter."""
        return contextlib.nullcontext(None)

    def find_orphans(self) -> Sequence[Orphan]:
        """Find none."""
        return ()


def _forget_threads() -> None:
    for journal in list(_open_journals):
        journal.forget_threads()


os.register_at_fork(after_in_child=_forget_threads)
