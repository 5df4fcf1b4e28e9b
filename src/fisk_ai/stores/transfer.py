"""Runs that travel: all lines of a run, byte for byte, out of one store and into another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fisk_ai.errors import JournalCorrupt, NothingRecorded, RunLocked
from fisk_ai.folding import RunState
from fisk_ai.ids import check_stored_run_id
from fisk_ai.stores.base import Store
from fisk_ai.stores.prefix import read_prefix


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run that was read and checked from its first byte to its last."""

    state: RunState
    data: bytes
    """Its lines as they are stored, each with its newline."""
    records: int
    left_out: int
    """Bytes of a torn tail, which is part of no record and doesn't travel."""

    @property
    def run_id(self) -> str:
        """The run."""
        return self.state.run_id


def read_run(store: Store, run_id: str) -> WholeRun:
    """Read a run to take it elsewhere. It must rest: what a living process adds would be missing from the copy.

    Raises:
        RunLocked: if somebody works on it.
        NothingRecorded, JournalCorrupt, NewerVersion, UnsupportedFormat: if it isn't whole, or can't be checked.
        And what `Store.load` raises.
    """
    if store.info(run_id).status == "running":
        raise RunLocked(run_id)
    run = _read(store.read_bytes(run_id), run_id)
    if run is None:
        raise NothingRecorded(run_id)
    if run.run_id != run_id:
        raise JournalCorrupt(f"it is stored as {run_id!r} but holds run {run.run_id!r:.110}", where=run_id, seq=1)
    return run


def read_export(chunks: Iterable[bytes], where: str) -> WholeRun:
    """Read and check what was exported, from wherever it was kept; nothing of it is believed.

    Raises:
        JournalCorrupt: if it is damaged, cut short within a record, or no run at all.
        NewerVersion, UnsupportedFormat: if this program is too old for it.
        InvalidRunId: if it names a run as none may be named.
    """
    try:
        run = _read(chunks, where)
        if run is None:
            raise JournalCorrupt("there is no record in it", where=where, line=1, offset=0)
        if run.left_out:
            line = run.data.count(b"\n") + 1
            raise JournalCorrupt("it ends within a record", where=where, line=line, offset=len(run.data))
    except JournalCorrupt as problem:
        raise problem.located(where, advice="Export the run again from where it is") from None
    check_stored_run_id(run.run_id)
    return run


def _read(chunks: Iterable[bytes], where: str) -> WholeRun | None:
    data = b"".join(chunks)
    prefix = read_prefix([data], where)
    if prefix.damage is not None:
        raise prefix.damage
    if prefix.state is None or prefix.tail is None:
        return None
    tail = prefix.tail
    whole = data[: tail.whole_bytes] + (b"\n" if tail.missing_newline else b"")
    return WholeRun(prefix.state, whole, len(prefix.records), len(tail.torn))
