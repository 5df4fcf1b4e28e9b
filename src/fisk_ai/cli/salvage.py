"""What is whole of a damaged run, for who looks at it; nothing goes on from there but a fork."""

from __future__ import annotations

from collections.abc import Iterator

from fisk_ai.codec import Scanner
from fisk_ai.errors import JournalCorrupt, NewerVersion, UnsupportedFormat
from fisk_ai.folding import Folding, RunState
from fisk_ai.stores.base import Store


def whole_part(store: Store, run_id: str) -> RunState | None:
    """Return the state that the records before the first damage add up to; None if not even the first is whole."""
    scanner = Scanner()
    folding = Folding()
    try:
        for line in _lines(store, run_id):
            for record in scanner.feed(line):
                folding.apply(record)
    except (JournalCorrupt, NewerVersion, UnsupportedFormat):
        pass  # here the whole part ends; what is wrong was said by whoever asks
    return folding.state() if folding.meta is not None else None


def _lines(store: Store, run_id: str) -> Iterator[bytes]:
    rest = b""
    for chunk in store.read_bytes(run_id):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
