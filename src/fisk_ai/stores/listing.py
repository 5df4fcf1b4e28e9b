"""One line about a run from a look at both ends of its file, whatever its length.

At most 64 KiB of the head and of the tail are read; what they don't show is None. Nothing is locked or written, and
one bad file never hides the others.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from fisk_ai.codec import Scanner, read_unchecked
from fisk_ai.errors import JournalCorrupt, NewerVersion, NotPermitted
from fisk_ai.ids import is_stored_run_id
from fisk_ai.records import MetaRecord, SequencedRecord, TerminalRecord
from fisk_ai.stores.base import RunInfo, Status
from fisk_ai.stores.disk import Disk
from fisk_ai.stores.lock import require_plain_file

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a journal file; for a short one the tail is all of it."""

    head: bytes
    tail: bytes
    whole_file: bool


def newest_first(infos: Iterable[RunInfo]) -> list[RunInfo]:
    """Order by the time of the last record, newest first, ties by id; runs without a time come last."""
    by_id = sorted(infos, key=lambda info: info.run_id)
    return sorted(by_id, key=lambda info: info.updated or info.created or "", reverse=True)


def why_not_opened(problem: OSError) -> str:
    """Say in words why a file of a store was not opened."""
    if problem.errno in (errno.ELOOP, errno.EMLINK):
        return "it is a symbolic link"
    return problem.strerror or str(problem)


def describe(disk: Disk, directory: int, run_id: str, suffix: str, *, held: bool) -> RunInfo | None:
    """Describe one run; None if its file is gone."""
    try:
        ends = _read_ends(disk, directory, run_id + suffix)
    except FileNotFoundError:
        return None
    except (OSError, NotPermitted) as problem:
        why = problem.why if isinstance(problem, NotPermitted) else why_not_opened(problem)
        return RunInfo(run_id, "unreadable", reason=why)
    return describe_ends(run_id, ends, held=held)


def _read_ends(disk: Disk, directory: int, name: str) -> Ends:
    descriptor = disk.open_file(directory, name)
    try:
        require_plain_file(disk, descriptor, name)
        size = disk.facts(descriptor).size_bytes
        head = disk.read(descriptor, HEAD_BYTES, 0)
        if size <= HEAD_BYTES:
            return Ends(head, head, whole_file=True)
        return Ends(head, disk.read(descriptor, TAIL_BYTES, size - TAIL_BYTES), whole_file=False)
    finally:
        disk.close(descriptor)


def describe_ends(run_id: str, ends: Ends, *, held: bool) -> RunInfo:
    """Describe a run from the two ends of its bytes."""
    try:
        first, last = _whole(ends.head) if ends.whole_file else (_first(ends.head), _last(ends.tail))
    except JournalCorrupt as problem:
        return RunInfo(run_id, "unreadable", reason=f"damaged: {problem.cause}")
    except NewerVersion as problem:
        return RunInfo(run_id, "unreadable", reason=f"newer: version {problem.found}")
    if first is None and ends.whole_file:
        status: Status = "running" if held else "unreadable"
        return RunInfo(run_id, status, reason=None if held else "empty: nothing was recorded")
    if first is not None and not isinstance(first.record, MetaRecord):
        return RunInfo(run_id, "unreadable", reason="damaged: the first record is not meta")
    return _info(run_id, first, last, held=held)


def _info(run_id: str, first: SequencedRecord | None, last: SequencedRecord | None, *, held: bool) -> RunInfo:
    meta = first.record if first is not None and isinstance(first.record, MetaRecord) else None
    if meta is not None and meta.run_id != run_id:
        named = meta.run_id if is_stored_run_id(meta.run_id) else "another run"
        return RunInfo(run_id, "unreadable", reason=f"damaged: meta names {named}")
    end = last.record if last is not None and isinstance(last.record, TerminalRecord) else None
    changed = end.fingerprint if end is not None else None
    fingerprint = changed or (meta.fingerprint if meta else None)
    return RunInfo(
        run_id,
        "running" if held else _status(end),
        waiting=end.waiting if end and not held else None,
        provider=fingerprint.provider if fingerprint else None,
        model=fingerprint.model if fingerprint else None,
        prompt=meta.prompt if meta else None,
        interactive=meta.interactive if meta else None,
        created=meta.created if meta else None,
        updated=last.time if last is not None else None,
        records=last.seq if last is not None else None,
    )


def _status(end: TerminalRecord | None) -> Status:
    if end is None or end.resumed:
        return "interrupted"
    return end.reason


def _whole(data: bytes) -> tuple[SequencedRecord | None, SequencedRecord | None]:
    scanner = Scanner()
    found = scanner.feed(data)
    more, _ = scanner.finish()
    found += more
    return (found[0], found[-1]) if found else (None, None)


def _first(head: bytes) -> SequencedRecord | None:
    line, newline, _ = head.partition(b"\n")
    if not newline:
        return None  # longer than what is looked at
    scanner = Scanner()
    found = scanner.feed(line + newline)
    scanner.feed(b"{")  # more follows, so this line isn't the last and can't be torn
    scanner.finish()
    return found[0] if found else None


def _last(tail: bytes) -> SequencedRecord | None:
    """Return the last whole record within the tail, checked against the one before it where that is seen."""
    *lines, rest = tail.split(b"\n")[1:] or [b""]  # the first piece may have begun before the tail
    if not lines:
        return read_unchecked(rest)
    before, *after = lines[-2:]
    scanner = Scanner.after(before)
    if scanner is None:
        if not after and not rest and b"\0" in before:
            return None  # torn, and what stands before it is longer than the tail
        raise JournalCorrupt("a line near the end is no record")
    found = [record for line in after for record in scanner.feed(line + b"\n")]
    found += scanner.feed(rest)
    more, _ = scanner.finish()
    found += more
    return found[-1] if found else read_unchecked(before)
