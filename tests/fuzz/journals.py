"""The targets that take a journal's bytes: the reader, the fold, and a store with such a file in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from fisk_ai.codec import Scanner, Tail, chain_after, encode_line, encode_payload, frame, payload_bytes, read_unchecked
from fisk_ai.errors import JournalCorrupt, NewerVersion, RecordRefused, StoreError, UnsupportedFormat
from fisk_ai.folding import Folding, RunState, fold
from fisk_ai.records import Record, SequencedRecord, TerminalRecord
from fisk_ai.reports.summary import show_data, summary_lines
from fisk_ai.reports.transcript import entries_of_records, transcript
from fisk_ai.stores import MemoryStore
from fisk_ai.stores.fork import fork
from fisk_ai.stores.listing import HEAD_BYTES, TAIL_BYTES, Ends, describe_ends
from tests.reliability.trials import require
from tests.strategies import MOMENT, RUN_ID, TIME

SUSPENDED = TerminalRecord(reason="suspended")


@dataclass(slots=True)
class Reading:
    """What a reader says about a file: records and a tail, or what is wrong."""

    records: list[SequencedRecord]
    scanner: Scanner
    tail: Tail | None = None
    problem: JournalCorrupt | NewerVersion | None = None

    @property
    def said(self) -> tuple[object, ...]:
        """All that two readings of one file have to agree in."""
        return (self.tail, str(self.problem), [] if self.problem else self.records)


def read(pieces: Iterable[bytes]) -> Reading:
    """Read a journal that comes in pieces."""
    reading = Reading([], Scanner())
    try:
        for piece in pieces:
            reading.records += reading.scanner.feed(piece)
        more, reading.tail = reading.scanner.finish()
        reading.records += more
    except (JournalCorrupt, NewerVersion) as problem:
        reading.problem = problem
    return reading


def reader(data: bytes) -> None:
    """Read a journal; whatever is read can be repaired and continued, whatever is refused is named."""
    found = read([data])
    middle = len(data) * 5 // 8
    require(read([data[:middle], data[middle:]]).said == found.said, "pieces read otherwise than the whole")
    if isinstance(found.problem, JournalCorrupt):
        _check_damage(data, found.problem)
    elif found.tail is not None:
        _check_whole(data, found, found.tail)
    _check_listing(data, found)
    for line in data[-2000:].split(b"\n"):
        record, chain = read_unchecked(line), chain_after(line)
        require((record is None) == (chain is None), "a line is a record and isn't")


def _check_damage(data: bytes, problem: JournalCorrupt) -> None:
    require(problem.cause and problem.line is not None and problem.offset is not None, "damage without a place")
    assert problem.offset is not None
    before = data[: problem.offset]
    require(not before or before.endswith(b"\n"), "damage is named within a line")
    require(before.count(b"\n") + 1 == problem.line, "line and offset don't agree:", problem)
    part = read([before])
    require(part.problem is None, "what comes before the damage is damaged:", part.problem)
    require(part.tail is None or not part.tail.needs_repair, "what comes before the damage is torn")


def _check_whole(data: bytes, found: Reading, tail: Tail) -> None:
    require([each.seq for each in found.records] == list(range(1, len(found.records) + 1)), "numbers with gaps")
    whole = data[: tail.whole_bytes]
    require(whole + tail.torn == data, "bytes are neither whole nor torn")
    require(tail.missing_newline == (bool(whole) and not whole.endswith(b"\n")), "a newline is missed wrongly")
    require(not tail.torn or not whole or whole.endswith(b"\n"), "a torn tail behind half a line")
    repaired = whole + b"\n" * tail.missing_newline
    again = read([repaired])
    require(again.problem is None and again.tail == Tail(len(repaired)), "repaired, it isn't whole")
    require(again.records == found.records, "repaired, it has other records")
    line, _ = encode_line(len(found.records) + 1, SUSPENDED, TIME, again.scanner.chain.crc)
    longer = read([repaired + line])
    require(longer.problem is None, "an append isn't read:", longer.problem)
    require(
        longer.records[:-1] == found.records and longer.records[-1].record == SUSPENDED, "an append changed records"
    )


def _check_listing(data: bytes, found: Reading) -> None:
    is_short = len(data) <= HEAD_BYTES
    info = describe_ends(
        RUN_ID, Ends(data[:HEAD_BYTES], data if is_short else data[-TAIL_BYTES:], is_short), held=False
    )
    if found.problem is not None:
        require(not is_short or info.status == "unreadable", "damage is listed as", info.status, kind="undetected")
        require(not is_short or info.reason, "unreadable for no reason")
    elif is_short and info.status != "unreadable":
        require(info.records == len(found.records), "listed with", info.records, "records")


def folded(data: bytes) -> None:
    """Fold what is whole, record by record: each is foreseen by `check`, and what is refused changes nothing."""
    records, lines = _whole_records(data)
    folding = Folding()
    for at, record in enumerate(records):
        before = folding.state() if folding.meta is not None and at % 3 == 1 else None
        foreseen = _refusal(folding, record.record)
        told = _applied(folding, record)
        require(foreseen == told, "check says", foreseen, "and apply", told)
        if told is not None:
            require(before is None or folding.state() == before, "a refused record changed the state")
            break
        _check_copy(record, lines[at])
    if folding.meta is not None:
        state = folding.state()
        require(fold(records[: folding.last_seq]) == state, "folded at once it is another state")
        _check_state(state, folding)


def _whole_records(data: bytes) -> tuple[list[SequencedRecord], list[bytes]]:
    """Read line by line, so that what comes before damage is there; with the line of each record."""
    scanner = Scanner()
    records: list[SequencedRecord] = []
    lines: list[bytes] = []
    with contextlib.suppress(JournalCorrupt, NewerVersion):
        for line in data.splitlines(keepends=True) if b"\r" not in data else data.split(b"\n"):
            line = line.removesuffix(b"\n") + b"\n"
            for record in scanner.feed(line):
                records.append(record)
                lines.append(line[:-1])
    return records, lines


def _refusal(folding: Folding, record: Record) -> str | None:
    try:
        folding.check(record)
    except (JournalCorrupt, UnsupportedFormat) as problem:
        return str(problem)
    return None


def _applied(folding: Folding, record: SequencedRecord) -> str | None:
    try:
        folding.apply(record)
    except (JournalCorrupt, UnsupportedFormat) as problem:
        return str(problem)
    return None


def _check_copy(record: SequencedRecord, line: bytes) -> None:
    """Copy a record as a fork does, and as one who appends it."""
    key, payload = payload_bytes(line)
    try:
        copy, _ = frame(1, key, payload, TIME, 0)
        own = encode_payload(record.record)
    except RecordRefused:
        return  # a line with a checksum may hold what only a forger writes; it is refused before it is written
    require(b"\n" not in copy[:-1], "a copy of two lines")
    again = read_unchecked(copy[:-1])
    require(again is not None and again.record == record.record, "a copied record reads otherwise")
    again = read_unchecked(frame(1, key, own, TIME, 0)[0][:-1])
    require(again is not None and again.record == record.record, "a record reads otherwise when written again")


def _check_state(state: RunState, folding: Folding) -> None:
    require(state.next_iteration == state.counters.model_calls, "turns are counted in two ways")
    require(all(each >= 0 for each in (state.counters.total_tokens, state.counters.tool_calls)), "negative counters")
    require(folding.copy().state() == state, "a copy is another state")
    if state.pending is not None:
        require(state.pending.unanswered, "a turn is open and all is answered")
        require(set(state.pending.ambiguous) <= set(state.pending.unanswered), "an answered call is in doubt")
        require(not state.answered, "answered, with calls open")
        keys = [state.key_of(call) for call in state.pending.turn.calls]
        require(len(set(keys)) == len(keys), "two calls with one key")
    for message in state.messages:
        message.content.decode()


def store(data: bytes) -> None:
    """Put a file into a store: list, load, show, open, append and fork it; only errors of ours, and no lost byte."""
    memory = MemoryStore(clock=lambda: MOMENT)
    memory.put_bytes(RUN_ID, data)
    info = memory.info(RUN_ID)
    try:
        state = memory.load(RUN_ID)
    except StoreError:
        state = None
    require(b"".join(memory.read_bytes(RUN_ID)) == data, "reading changed bytes")
    if state is not None:
        _check_shown(memory, state)
    _check_open(memory, data)
    _check_fork(memory, data)
    require(state is None or info.status != "unreadable", "loaded and listed as unreadable:", info.reason)


def _check_shown(memory: MemoryStore, state: RunState) -> None:
    with memory.open(RUN_ID) as journal:
        records = journal.records()
    entries = list(entries_of_records(records))
    show_data(memory.info(RUN_ID), state, entries)
    for line in (*summary_lines(memory.info(RUN_ID), state), *transcript(entries, full=True)):
        line.encode()


def _check_open(memory: MemoryStore, data: bytes) -> None:
    try:
        journal = memory.open(RUN_ID)
    except StoreError:
        return
    with journal:
        records = list(journal.records())
        torn = journal.repair()
        require(journal.append(SUSPENDED) == len(records) + 1, "appended at the wrong place")
    stored = b"".join(memory.read_bytes(RUN_ID))
    require(stored.startswith(data.removesuffix(torn) if torn else data), "an append changed what was there")
    with memory.open(RUN_ID) as journal:
        require(list(journal.records())[:-1] == records, "an append changed records")


def _check_fork(memory: MemoryStore, data: bytes) -> None:
    """Fork what is whole and adds up, and go on from there (C7)."""
    memory.put_bytes(RUN_ID, data)
    records, _ = _whole_records(data)
    folding = Folding()
    while folding.last_seq < len(records) and _applied(folding, records[folding.last_seq]) is None:
        pass
    if not folding.last_seq:
        return
    try:
        made = fork(memory, RUN_ID, "copy", at=folding.last_seq)
    except RecordRefused:
        return  # see _check_copy
    require(made.seq == folding.last_seq, "forked at", made.seq, "instead of", folding.last_seq)
    require(b"".join(memory.read_bytes(RUN_ID)) == data, "a fork changed its origin")
    with memory.open("copy") as journal:
        journal.append(TerminalRecord(reason="error", resumed=True))
    state = memory.load("copy")
    require(
        [each.content for each in state.messages] == [each.content for each in folding.conversation()], "fork differs"
    )
