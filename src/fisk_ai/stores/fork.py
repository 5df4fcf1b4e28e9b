"""Forks: a new run from the records of another, up to a point.

Payloads are spliced as bytes, so what this program doesn't know of them is kept; seq, time and checksum are new, and
so are the idempotency keys of calls that have not been answered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from fisk_ai.codec import Scanner, payload_bytes
from fisk_ai.errors import ConfigError, JournalCorrupt, NothingRecorded, StoreError
from fisk_ai.folding import Folding, RunState
from fisk_ai.records import (
    VERSION,
    ForkedFrom,
    MetaRecord,
    SequencedRecord,
    TerminalRecord,
)
from fisk_ai.stores.base import Store, timestamp, utc_now


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that was made."""

    run_id: str
    seq: int
    """The last record of the origin that counts for it."""
    state: RunState


def fork(store: Store, origin: str, run_id: str, *, at: int | None = None, interactive: bool | None = None) -> Fork:
    """Make a new run `run_id` from the records of `origin` up to and including seq `at` (None: all of them).

    Damage after `at` doesn't matter. The fork ends in `suspended`; only the whole of a run that was interrupted, or
    that ended in an error with a call in doubt, is copied without an end, so that the doubt is kept. A fork that fails
    half-way is removed; one whose process is killed half-way is left, interrupted.

    Raises:
        ConfigError: if `at` is no record of the run.
        JournalCorrupt: if the records up to `at` are damaged.
        And what `Store.load` and `Store.create` raise.
    """
    records, payloads, complete = _read(store, origin, at)
    folding = Folding()
    for record in records:
        folding.apply(record)
    state = folding.state()
    while len(records) > 1 and isinstance(records[-1].record, TerminalRecord):
        records.pop()
    in_doubt = state.pending is not None and bool(state.pending.ambiguous)
    keep_doubt = complete and (state.interrupted or in_doubt)
    meta = MetaRecord(
        version=VERSION,
        run_id=run_id,
        created=timestamp(utc_now()),
        fingerprint=state.fingerprint,
        prompt=state.prompt,
        checksums=True,
        interactive=state.interactive if interactive is None else interactive,
        forked_from=ForkedFrom(run_id=origin, seq=state.last_seq),
    )
    journal = store.create(run_id, meta)
    try:
        with journal:
            for key, payload in payloads[1 : len(records)]:
                journal.append_payload(key, payload)
            if not keep_doubt:
                journal.append(TerminalRecord(reason="suspended"))
    except BaseException:
        # Half a fork would pass for a whole run that was interrupted.
        with contextlib.suppress(StoreError):
            store.delete(run_id)
        raise
    return Fork(run_id, state.last_seq, state)


def _read(store: Store, origin: str, at: int | None) -> tuple[list[SequencedRecord], list[tuple[str, bytes]], bool]:
    """Return the records up to `at`, their payloads as written, and whether they are all there are."""
    found: list[tuple[SequencedRecord, bytes]] = []
    complete = True
    try:
        for record, line in _scan(store, origin):
            found.append((record, line))
    except JournalCorrupt:
        if at is None or len(found) < at:
            raise
        complete = False  # damage after the point doesn't matter
    if not found:
        raise NothingRecorded(origin)
    if at is not None and not 1 <= at <= len(found):
        raise ConfigError(f"--at {at}: run {origin!r} has the records 1 to {len(found)}")
    kept = found[:at]
    complete = complete and len(kept) == len(found)
    return [record for record, _ in kept], [payload_bytes(line) for _, line in kept], complete


def _scan(store: Store, origin: str) -> Iterator[tuple[SequencedRecord, bytes]]:
    scanner = Scanner(origin)
    *lines, rest = b"".join(store.read_bytes(origin)).split(b"\n")
    for line in lines:
        for record in scanner.feed(line + b"\n"):
            yield record, line
    scanner.feed(rest)
    more, _ = scanner.finish()
    for record in more:
        yield record, rest
