"""What every store and journal offers, whatever the medium. Synchronous, blocking, usable from any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol, runtime_checkable

from fisk_ai.call_guard import CallGuard
from fisk_ai.folding import RunState
from fisk_ai.records import MetaRecord, Record, SequencedRecord, Waiting

Status = Literal[
    "running",
    "suspended",
    "interrupted",
    "completed",
    "error",
    "budget",
    "max_iterations",
    "unreadable",
]

Clock = Callable[[], datetime]
"""Returns the time, aware, in UTC."""


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Format an aware time as journals have it: RFC 3339, UTC, milliseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line of a listing. What a short look doesn't show is None."""

    run_id: str
    status: Status
    reason: str | None = None
    """Why the run is unreadable."""
    waiting: Waiting | None = None
    provider: str | None = None
    model: str | None = None
    prompt: str | None = None
    interactive: bool | None = None
    created: str | None = None
    updated: str | None = None
    """Time of the last record."""
    records: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that can't be mistaken for a later one with its number."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Orphan:
    """The processes of a call that outlived its runner."""

    tool: str | None
    """None if there is no note of it."""
    process_group: int | None
    """None if the runner died before it could note it."""
    is_same: bool
    """True if the group's leader is still the process that was started for the call."""
    processes: Sequence[Process] = ()
    """Who holds the tools' lock, where the leader is gone or was never noted and the system shows it."""


@runtime_checkable
class Journal(Protocol):
    """One run's record stream, open for append; nobody else can append to it meanwhile."""

    @property
    def run_id(self) -> str:
        """The run."""

    @property
    def last_seq(self) -> int:
        """Seq of the last durable record."""

    def append(self, record: Record) -> int:
        """Make a record durable and return its seq.

        Raises:
            RecordRefused, UnsupportedFormat: before anything is written.
            JournalFailed: the write or sync failed; the journal is poisoned from now on.
            JournalLost: the journal is no longer ours; nothing was written.
            JournalClosed: it was closed.
            TypeError: it is no record; a `SequencedRecord` has one in it.

        Whether the record fits those before it is not looked at: `Folding.check` does.
        """

    def append_payload(self, key: str, payload: bytes) -> int:
        """Make an encoded payload durable as it is, unknown fields included; for who copies a run."""

    def records(self) -> Sequence[SequencedRecord]:
        """Return all records, in order."""

    def repair(self) -> bytes:
        """Make the tail whole and modes right, once; returns what was cut. `append` does it if nobody has."""

    def ensure_held(self) -> None:
        """Raise `JournalLost` if the lock or what it protects is no longer ours."""

    def guard_call(self, tool: str, call_id: str, timeout_s: float | None) -> AbstractContextManager[CallGuard | None]:
        """Hold the lock that processes of a call inherit; None where runs are not stored."""

    def find_orphans(self) -> Sequence[Orphan]:
        """Return the calls of a dead runner that are still alive: one, or those of a parallel group.

        Those that are certain to live; if none is, but something lives, the one that was noted last.
        """

    def close(self) -> None:
        """Give the run up; may be called twice."""

    def __enter__(self) -> Journal: ...

    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Holds journals."""

    @property
    def location(self) -> str:
        """Where runs are kept, for messages."""

    def create(self, run_id: str, meta: MetaRecord) -> Journal:
        """Begin a run: its meta record is durable on return.

        Raises:
            InvalidRunId, RunExists, NotPermitted, JournalFailed.
        """

    def adopt(self, run_id: str, lines: Sequence[bytes]) -> None:
        """Take a run's lines over as they are, with their newlines, durable on return: all of them or none.

        Whether they are a run, and this one, is the caller's to check.

        Raises:
            InvalidRunId, RunExists, NotPermitted, JournalFailed.
        """

    def open(self, run_id: str) -> Journal:
        """Open a run for append, its bytes read and checked under the lock and unchanged.

        Raises:
            InvalidRunId, RunNotFound, NothingRecorded, RunLocked, NotPermitted, JournalCorrupt, NewerVersion.
        """

    def load(self, run_id: str) -> RunState:
        """Fold a run without locking; what another process appends meanwhile may or may not be in it.

        Raises:
            InvalidRunId, RunNotFound, NothingRecorded, NotPermitted, JournalCorrupt, NewerVersion,
            UnsupportedFormat.
        """

    def list(self) -> list[RunInfo]:
        """List all runs, the one with the newest record first; takes no lock and writes nothing."""

    def info(self, run_id: str) -> RunInfo:
        """Describe one run as `list` does; raises `RunNotFound`."""

    def delete(self, run_id: str) -> None:
        """Remove a run and all that belongs to it.

        Raises:
            InvalidRunId, RunNotFound, RunLocked, OrphanRunning, NotPermitted.
        """

    def run_ids(self) -> Sequence[str]:
        """Return the ids of all runs, in no order."""

    def read_bytes(self, run_id: str) -> Iterator[bytes]:
        """Yield the stored bytes of a run in pieces, without locking; raises as `load` does where absent."""
