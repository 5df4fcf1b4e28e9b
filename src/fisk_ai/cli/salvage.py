"""What is whole of a damaged run, for who looks at it; nothing goes on from there but a fork."""

from __future__ import annotations

from dataclasses import dataclass

from fisk_ai.folding import RunState
from fisk_ai.records import SequencedRecord
from fisk_ai.stores.base import Store
from fisk_ai.stores.prefix import read_prefix
from fisk_ai.text import one_line


@dataclass(frozen=True, slots=True)
class WholePart:
    """The records before the first damage, and what they add up to."""

    records: list[SequencedRecord]
    state: RunState


def whole_part(store: Store, run_id: str) -> WholePart | None:
    """Return what comes before the first damage; None if not even the first record is whole."""
    prefix = read_prefix(store.read_bytes(run_id), run_id)
    return None if prefix.state is None else WholePart(prefix.records, prefix.state)


def misnamed(run_id: str, part: WholePart | None) -> str | None:
    """Say so if nothing is wrong with a journal but the name of its file."""
    if part is None or part.state.run_id == run_id:
        return None
    return f"the file is named {run_id} but holds run {one_line(part.state.run_id, 100)}: rename it"
