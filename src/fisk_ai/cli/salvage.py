"""What is whole of a damaged run, for who looks at it; nothing goes on from there but a fork."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fisk_ai.codec import Scanner
from fisk_ai.errors import JournalCorrupt, NewerVersion, UnsupportedFormat
from fisk_ai.folding import Folding, RunState
from fisk_ai.records import SequencedRecord
from fisk_ai.stores.base import Store
from fisk_ai.text import one_line


@dataclass(frozen=True, slots=True)
class WholePart:
    """The records before the first damage, and what they add up to."""

    records: list[SequencedRecord]
    state: RunState


def whole_part(store: Store, run_id: str) -> WholePart | None:
    """Return what comes before the first damage; None if not even the first record is whole."""
    scanner = Scanner()
    folding = Folding()
    records: list[SequencedRecord] = []
    try:
        for line in _lines(store, run_id):
            for record in scanner.feed(line):
                folding.apply(record)
                records.append(record)
    except (JournalCorrupt, NewerVersion, UnsupportedFormat):
        pass  # here the whole part ends; what is wrong was said by whoever asks
    return WholePart(records, folding.state()) if folding.meta is not None else None


def misnamed(run_id: str, part: WholePart | None) -> str | None:
    """Say so if nothing is wrong with a journal but the name of its file."""
    if part is None or part.state.run_id == run_id:
        return None
    return f"the file is named {run_id} but holds run {one_line(part.state.run_id, 100)}: rename it"


def _lines(store: Store, run_id: str) -> Iterator[bytes]:
    rest = b""
    for chunk in store.read_bytes(run_id):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
