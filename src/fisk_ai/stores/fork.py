"""Forks: a new run from the records of another, up to a point.

Payloads are spliced as bytes, so what this program doesn't know of them is kept; seq, time and checksum are new, and
so are the idempotency keys of calls that have not been answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fisk_ai.codec import encode_payload, frame, payload_bytes, payload_key
from fisk_ai.errors import ConfigError, NothingRecorded
from fisk_ai.folding import RunState, fold
from fisk_ai.ids import check_new_run_id
from fisk_ai.records import (
    VERSION,
    ForkedFrom,
    MetaRecord,
    Record,
    SequencedRecord,
    TerminalRecord,
)
from fisk_ai.stores.base import Store, timestamp, utc_now
from fisk_ai.stores.prefix import read_prefix


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
    that ended in an error with a call in doubt, is copied without an end, so that the doubt is kept. A fork is made
    as a whole or not at all.

    Raises:
        ConfigError: if `at` is no record of the run.
        JournalCorrupt: if the records up to `at` are damaged.
        And what `Store.load` and `Store.adopt` raise.
    """
    records, lines, complete = _read(store, origin, at)
    state = fold(records)
    while len(records) > 1 and isinstance(records[-1].record, TerminalRecord):
        records.pop()
    in_doubt = state.pending is not None and bool(state.pending.ambiguous)
    keep_doubt = complete and (state.interrupted or in_doubt)
    meta = MetaRecord(
        version=VERSION,
        run_id=check_new_run_id(run_id),
        created=timestamp(utc_now()),
        fingerprint=state.fingerprint,
        prompt=state.prompt,
        checksums=True,
        interactive=state.interactive if interactive is None else interactive,
        forked_from=ForkedFrom(run_id=origin, seq=state.last_seq),
    )
    payloads = [_encoded(meta), *(payload_bytes(line) for line in lines[1 : len(records)])]
    if not keep_doubt:
        payloads.append(_encoded(TerminalRecord(reason="suspended")))
    store.adopt(run_id, list(_framed(payloads, meta.created)))
    return Fork(run_id, state.last_seq, state)


def _encoded(record: Record) -> tuple[str, bytes]:
    return payload_key(record), encode_payload(record)


def _framed(payloads: Iterable[tuple[str, bytes]], time: str) -> Iterator[bytes]:
    crc = 0
    for seq, (key, payload) in enumerate(payloads, start=1):
        line, crc = frame(seq, key, payload, time, crc)
        yield line


def _read(store: Store, origin: str, at: int | None) -> tuple[list[SequencedRecord], list[bytes], bool]:
    """Return the records up to `at`, their lines, and whether they are all there are."""
    prefix = read_prefix(store.read_bytes(origin), origin)
    found = len(prefix.records)
    if prefix.damage is not None and (at is None or found < at):
        raise prefix.damage
    if not found:
        raise NothingRecorded(origin)
    if at is not None and not 1 <= at <= found:
        raise ConfigError(f"--at {at}: run {origin!r} has the records 1 to {found}")
    complete = prefix.damage is None and at in (None, found)
    return prefix.records[:at], prefix.lines[:at], complete
