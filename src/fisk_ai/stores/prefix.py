"""The records of a run up to its end or its first damage, with the lines that they were read from.

What forks, exports and looks at damaged runs go by. Whoever only wants a sound run uses `Store.load`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fisk_ai.codec import Scanner, Tail
from fisk_ai.errors import JournalCorrupt, NewerVersion, UnsupportedFormat
from fisk_ai.folding import Folding, RunState
from fisk_ai.records import SequencedRecord

Damage = JournalCorrupt | NewerVersion | UnsupportedFormat


@dataclass(slots=True)
class Prefix:
    """What is whole."""

    records: list[SequencedRecord] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    """The line of each record, without its newline."""
    state: RunState | None = None
    """What the records add up to; None if not even the first one is whole."""
    tail: Tail | None = None
    """How the bytes end; None if they are damaged before their end."""
    damage: Damage | None = None


def read_prefix(chunks: Iterable[bytes], where: str) -> Prefix:
    """Read and fold records until the bytes end or something is wrong with them; `where` names them in `damage`."""
    scanner, folding, prefix = Scanner(where), Folding(), Prefix()
    try:
        for line, newline in _lines(chunks):
            _take(prefix, folding, scanner.feed(line + newline), line)
        more, prefix.tail = scanner.finish()
        _take(prefix, folding, more, line)
    except (JournalCorrupt, NewerVersion, UnsupportedFormat) as problem:
        # Without its traceback, which would keep whoever yields the chunks, and so the open file, alive.
        prefix.tail, prefix.damage = None, problem.with_traceback(None)
    prefix.state = folding.state() if folding.meta is not None else None
    return prefix


def _take(prefix: Prefix, folding: Folding, records: list[SequencedRecord], line: bytes) -> None:
    for record in records:
        folding.apply(record)
        prefix.records.append(record)
        prefix.lines.append(line)


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line and its newline; the last one has none, and may be empty."""
    parts: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            yield b"".join(parts), b"\n"
            parts = [other]
    yield b"".join(parts), b""
