"""A reader of journals that was written from `docs/journal-format.md` alone; it shares no code with fisk_ai."""

from __future__ import annotations

import json
import zlib
from typing import Any


def read_journal(data: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Return the records of a journal and its torn tail; raises ValueError for anything else."""
    records: list[dict[str, Any]] = []
    lines = data.split(b"\n")
    last = lines.pop()
    value, start, checked, before = 0, 0, False, None
    for number, line in enumerate([*lines, last] if last else lines):
        is_last, has_newline = number == len(lines) - (not last), number < len(lines)
        if line != before:
            try:
                record, crc = read_line(line, len(records) + 1, value if checked else zlib.crc32(data[:start]))
                if crc is None and (checked or record.get("meta", {}).get("checksums")):
                    raise ValueError("no checksum")
            except ValueError:
                if is_last and (not has_newline or b"\0" in line):
                    return records, data[start:]
                raise
            value, checked, before = crc or 0, crc is not None, line
            records.append(record)
        start += len(line) + 1
    return records, b""


def read_line(line: bytes, seq: int, previous: int) -> tuple[dict[str, Any], int | None]:
    """Return a whole record and its checksum; raises ValueError if it isn't whole."""
    record = json.loads(line.decode("utf-8"))
    if record.get("seq") != seq or "crc" not in record:
        return (record, None) if record.get("seq") == seq else fail("not the next seq")
    crc = zlib.crc32(line[:-18], previous)
    return (record, crc) if line[-18:] == b',"crc":"%08x"}' % crc else fail("wrong checksum")


def fail(why: str) -> Any:
    raise ValueError(why)
