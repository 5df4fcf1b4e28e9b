"""Runs in this process's memory: what a run without a checkpoint uses, and the reference for every other store.

The bytes are the same as on disk, through the same codec and the same order of steps, so the two can't drift apart.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from fisk_ai.codec import Chain, Scanner, Tail, encode_payload, payload_key
from fisk_ai.errors import (
    JournalCorrupt,
    JournalLost,
    NewerVersion,
    NothingRecorded,
    RunExists,
    RunLocked,
    RunNotFound,
)
from fisk_ai.folding import RunState, fold
from fisk_ai.ids import check_new_run_id, check_stored_run_id
from fisk_ai.records import MetaRecord, SequencedRecord
from fisk_ai.stores import listing
from fisk_ai.stores.base import Clock, RunInfo, utc_now
from fisk_ai.stores.journal import Contents, JournalBase


@dataclass(slots=True)
class _Run:
    data: bytearray = field(default_factory=bytearray)
    torn: bytearray = field(default_factory=bytearray)
    holder: MemoryJournal | None = None


class MemoryStore:
    """Journals that end with the process."""

    location = "memory"

    def __init__(self, *, clock: Clock = utc_now) -> None:
        self._runs: dict[str, _Run] = {}
        self._mutex = threading.Lock()
        self.clock = clock

    def create(self, run_id: str, meta: MetaRecord) -> MemoryJournal:
        """Begin a run; see `Store.create`."""
        check_new_run_id(run_id)
        if meta.run_id != run_id:
            raise ValueError(f"meta is of run {meta.run_id!r}, not {run_id!r}")
        payload = encode_payload(msgspec.structs.replace(meta, checksums=True))
        with self._mutex:
            run = self._runs.get(run_id, _Run())
            self._require_free(run_id, run)
            run.torn += run.data
            run.data.clear()
            self._runs[run_id] = run
            journal = MemoryJournal(self, run_id, run, Contents([], Chain(), Tail(0)), meta.version)
            journal.append_payload(payload_key(meta), payload)
            return journal

    def adopt(self, run_id: str, lines: Sequence[bytes]) -> None:
        """Take a run's lines over; see `Store.adopt`."""
        check_stored_run_id(run_id)
        with self._mutex:
            run = self._runs.get(run_id, _Run())
            self._require_free(run_id, run)
            run.torn += run.data
            run.data[:] = b"".join(lines)
            self._runs[run_id] = run

    def open(self, run_id: str) -> MemoryJournal:
        """Open a run for append; see `Store.open`."""
        with self._mutex:
            run = self._run(run_id)
            if run.holder is not None:
                raise RunLocked(run_id, os.getpid())
            contents = _scan(run_id, run)
            return MemoryJournal(self, run_id, run, contents, contents.meta(run_id, run_id).version)

    def load(self, run_id: str) -> RunState:
        """Fold a run; see `Store.load`."""
        contents = _scan(run_id, self._run(run_id))
        contents.meta(run_id, run_id)
        return fold(contents.records)

    def list(self) -> list[RunInfo]:
        """List all runs; see `Store.list`."""
        return listing.newest_first(self.info(run_id) for run_id in self.run_ids())

    def info(self, run_id: str) -> RunInfo:
        """Describe one run as `list` does."""
        run = self._run(run_id)
        data = bytes(run.data)
        ends = listing.Ends(data[: listing.HEAD_BYTES], data[-listing.TAIL_BYTES :], len(data) <= listing.HEAD_BYTES)
        return listing.describe_ends(run_id, ends, held=run.holder is not None)

    def delete(self, run_id: str) -> None:
        """Remove a run; see `Store.delete`."""
        with self._mutex:
            if self._run(run_id).holder is not None:
                raise RunLocked(run_id, os.getpid())
            del self._runs[run_id]

    def run_ids(self) -> Sequence[str]:
        """Return the ids of all runs."""
        return [*self._runs]

    def read_bytes(self, run_id: str) -> Iterator[bytes]:
        """Yield the stored bytes of a run."""
        yield bytes(self._run(run_id).data)

    def put_bytes(self, run_id: str, data: bytes) -> None:
        """Store a run's bytes as they are, damaged or not; for tests and copies."""
        self._runs[check_stored_run_id(run_id)] = _Run(bytearray(data))

    def torn_bytes(self, run_id: str) -> bytes:
        """Return what repairs cut from a run, in order."""
        return bytes(self._run(run_id).torn)

    def _run(self, run_id: str) -> _Run:
        try:
            return self._runs[check_stored_run_id(run_id)]
        except KeyError:
            raise RunNotFound(run_id, self.location) from None

    def _require_free(self, run_id: str, run: _Run) -> None:
        if run.holder is not None:
            raise RunExists(run_id, "running")
        try:
            _scan(run_id, run)
        except NothingRecorded:
            return
        except (JournalCorrupt, NewerVersion):
            raise RunExists(run_id, "unreadable") from None
        raise RunExists(run_id, self.info(run_id).status)


class MemoryJournal(JournalBase):
    """One run in memory, open for append."""

    def __init__(self, store: MemoryStore, run_id: str, run: _Run, contents: Contents, version: int) -> None:
        super().__init__(run_id, run_id, contents, version, store.clock)
        self._run = run
        run.holder = self

    def _require_held(self) -> None:
        if self._run.holder is not self:
            raise JournalLost(self.where, "it was taken over")

    def _write_durably(self, line: bytes) -> None:
        self._run.data += line

    def _make_whole(self, tail: Tail) -> None:
        self._run.torn += tail.torn
        del self._run.data[tail.whole_bytes :]
        if tail.missing_newline:
            self._run.data += b"\n"

    def _reread(self) -> Sequence[SequencedRecord]:
        return _scan(self.run_id, self._run).records

    def _release(self) -> None:
        if self._run.holder is self:
            self._run.holder = None


def _scan(run_id: str, run: _Run) -> Contents:
    scanner = Scanner(run_id)
    records = scanner.feed(bytes(run.data))
    more, tail = scanner.finish()
    records += more
    if not records:
        raise NothingRecorded(run_id)
    return Contents(records, scanner.chain, tail)
