"""Damage of every kind to files of runs: bytes cut, bits flipped, lines moved, lines that say something wrong."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from fisk_ai.errors import JournalCorrupt, NothingRecorded, StoreError
from fisk_ai.folding import fold
from fisk_ai.records import MetaRecord, Record, TerminalRecord, resume_mark
from fisk_ai.stores import listing
from fisk_ai.stores.file import FileJournal
from tests.core.test_damage import ACCEPTED, BROKEN, TORN_WHEN_LAST, Break, broken_at
from tests.fuzz.limits import alarms
from tests.reliability import stranger_trials
from tests.reliability.damaged import Damage, Shelf
from tests.reliability.trials import Form, Tally, Trial, require
from tests.stores.test_state_machine import WAYS, run_machines
from tests.strategies import (
    answer,
    ended,
    follow_up,
    foreign_lines,
    lines_of,
    meta,
    result,
    sample,
    scan,
    turn,
)

PADDINGS = (1, 2, 3, 7, 8, 63, 511, 512, 513, 2048, 4095, 4096)


def _openai() -> list[Record]:
    call = {"id": "call_0", "type": "function", "function": {"name": "lookup", "arguments": '{"stream": "é"}'}}
    message = msgspec.json.encode({"role": "assistant", "content": None, "tool_calls": [call]})
    asks = msgspec.structs.replace(turn("call_0"), format="openai", message=msgspec.Raw(message))
    return [meta(), asks, result("call_0"), ended("suspended"), resume_mark(), ended("error", "no answer @ all")]


def _chat() -> list[Record]:
    records: list[Record] = [meta(interactive=True, prompt="ORDERS @ \u2028?")]
    for number in range(6):
        records += [answer(f"Answer {number} of @."), follow_up(f"Question {number}"), turn("a", "b", iteration=number)]
        records += [result("b", "two"), result("a", "one \u0080")]
    return [*records, TerminalRecord(reason="budget")]


def _unchecked(records: Sequence[Record]) -> list[bytes]:
    first, *rest = records
    assert isinstance(first, MetaRecord)
    return foreign_lines(msgspec.structs.replace(first, checksums=False), *rest)


CHECKED = {"sample": lines_of(sample()), "openai": lines_of(_openai()), "chat": lines_of(_chat())}
UNCHECKED = {"sample": _unchecked(sample()), "openai": _unchecked(_openai()), "chat": _unchecked(_chat())}


@contextmanager
def _shelf() -> Iterator[Shelf]:
    with tempfile.TemporaryDirectory() as directory:
        yield Shelf(directory)


def _starts(lines: Sequence[bytes]) -> list[int]:
    return [0, *itertools.accumulate(map(len, lines))]


def _cut(lines: Sequence[bytes], size: int, padding: bytes = b"") -> Damage:
    """Return a file that ends early, maybe in NULs; a record that lacks only its newline counts."""
    starts = _starts(lines)
    whole = sum(end <= size for end in starts[1:])
    lacks_newline = not padding and size + 1 in starts[1:]
    data = b"".join(lines)[:size] + padding
    offset = size if lacks_newline else starts[whole]
    return Damage(data, whole + lacks_newline, offset, is_corrupt=False)


def cuts(tally: Tally, form: Form) -> None:
    """Cut at every byte, and put NULs there."""
    every = 1 if form == "long" else 199
    with _shelf() as shelf:
        for name, lines in CHECKED.items():
            size = sum(map(len, lines))
            for at in range(0, size + 1, every):
                with tally.case(f"{name} cut to {at} bytes"):
                    shelf.check(_cut(lines, at))
                tally.reached["cut"] += 1
    for name, lines in CHECKED.items():
        _pad_cuts(tally, name, lines, form)
    require(tally.reached["cut"] and tally.reached["padded"], "nothing was cut", kind="undetected")


def _pad_cuts(tally: Tally, name: str, lines: Sequence[bytes], form: Form) -> None:
    """Read each cut that ends in NULs; those around the borders of lines with every number of NULs up to 4,096."""
    whole, _ = scan(b"".join(lines))
    starts = _starts(lines)
    borders = sorted({border + step for border in starts for step in (-40, -1, 0)} & set(range(starts[-1] + 1)))
    some = [(at, padding) for at in range(0, starts[-1], 1 if form == "long" else 401) for padding in PADDINGS]
    every = [(at, padding) for at in borders[:: 1 if form == "long" else 7] for padding in range(1, 4097)]
    every = every if form == "long" else every[::97]
    for at, padding in itertools.chain(some, every):
        for newline in (b"", b"\n"):
            expected = _cut(lines, at, bytes(padding) + newline)
            with tally.case(f"{name} cut to {at} bytes, {padding} NULs, {newline!r}"):
                found, tail = scan(expected.data)
                require(found == whole[: expected.records], len(found), "records instead of", expected.records)
                require(tail.torn == expected.data[expected.offset :], "NULs aren't torn")
            tally.reached["padded"] += 1


def flips(tally: Tally, form: Form) -> None:
    """Flip every bit; in the last line what becomes a NUL or takes the newline is torn, all else is damage."""
    step = 1 if form == "long" else 61  # of bits: each of the eight in turn
    for name, lines in CHECKED.items():
        _flip_checked(tally, name, lines, step)
    for name, lines in UNCHECKED.items():
        _flip_unchecked(tally, name, lines, step)
    require(tally.reached["damage"] > 1000, "hardly a flip was damage", kind="undetected")


def _flipped(data: bytes, step: int) -> Iterator[tuple[int, int, bytes]]:
    for number in range(0, len(data) * 8, step):
        at, bit = divmod(number, 8)
        yield at, bit, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def _flip_checked(tally: Tally, name: str, lines: Sequence[bytes], step: int) -> None:
    starts = _starts(lines)
    last = starts[-2]
    for at, bit, data in _flipped(b"".join(lines), step):
        with tally.case(f"{name}, byte {at}, bit {bit}"):
            line = sum(start <= at for start in starts[:-1])
            try:
                _, tail = scan(data)
            except JournalCorrupt as problem:
                tally.reached["damage"] += 1
                named = (problem.line, problem.offset)
                require(named == (line, starts[line - 1]), "named at", named, "instead of line", line)
                continue
            looks_torn = at >= last and (data[at] == 0 or at == len(data) - 1)
            require(looks_torn, "nobody noticed", kind="undetected")
            require(tail.whole_bytes == last and tail.torn == data[last:], "more than the last record was taken away")
            tally.reached["torn by format (NUL or newline of the last line)"] += 1


def _flip_unchecked(tally: Tally, name: str, lines: Sequence[bytes], step: int) -> None:
    """Without checksums a flip may pass; it is counted, and nothing but our errors may come of it."""
    whole, _ = scan(b"".join(lines))
    for at, bit, data in _flipped(b"".join(lines), step):
        with tally.case(f"{name} without checksums, byte {at}, bit {bit}"):
            try:
                found, tail = scan(data)
                fold(found)
            except StoreError:
                tally.reached["without checksums: damage"] += 1
                continue
            if tail.needs_repair:
                tally.reached["without checksums: torn"] += 1
            elif found == whole:
                tally.reached["without checksums: means the same"] += 1
            else:
                tally.reached["without checksums: passes unseen"] += 1


def moved_lines(tally: Tally, form: Form) -> None:
    """Drop, double, swap and splice lines, all pairs in the long form."""
    step = 1 if form == "long" else 17
    with _shelf() as shelf:
        for name, lines in CHECKED.items():
            for how, damage in itertools.islice(_moved(lines), 0, None, step):
                with tally.case(f"{name}: {how}"):
                    shelf.check(damage)
                tally.reached[how.split()[0]] += 1
    require(set(tally.reached) == {"drop", "double", "swap", "repeat", "splice", "insert"}, "missed:", tally.reached)


def _moved(lines: Sequence[bytes]) -> Iterator[tuple[str, Damage]]:
    starts, size = _starts(lines), len(lines)
    other = lines_of([meta("other-run"), *[answer(f"{number}") for number in range(size - 1)]])

    def damaged(new: Sequence[bytes], at: int) -> Damage:
        return Damage(b"".join(new), at, starts[at], is_corrupt=True)

    for first in range(size):
        rest = [*lines[:first], *lines[first + 1 :]]
        is_last = first == size - 1
        gone = Damage(b"".join(rest), first, starts[first], is_corrupt=not is_last)
        yield f"drop line {first + 1}", gone
        doubled = b"".join([*lines[: first + 1], *lines[first:]])
        yield f"double line {first + 1}", Damage(doubled, size, len(doubled), is_corrupt=False)
        for second in range(size):
            if second > first:
                swapped = [*lines]
                swapped[first], swapped[second] = lines[second], lines[first]
                yield f"swap lines {first + 1} and {second + 1}", damaged(swapped, first)
            if second not in (first, first - 1):
                repeated = [*lines[:first], lines[second], *lines[first:]]
                yield f"repeat line {second + 1} before {first + 1}", damaged(repeated, first)
            if first or second:
                yield (
                    f"splice line {second + 1} of another run at {first + 1}",
                    damaged([*lines[:first], other[second], *lines[first + 1 :]], first),
                )
                yield (
                    f"insert line {second + 1} of another run at {first + 1}",
                    damaged([*lines[:first], other[second], *lines[first:]], first),
                )


BAD = {**BROKEN, **TORN_WHEN_LAST}
FOREIGN = foreign_lines(meta(checksums=False), turn("a"), result("a"), answer(), ended("error"))
SHORT = lines_of([meta(), turn("a"), result("a"), answer(), ended("error")])


def bad_lines(tally: Tally, form: Form) -> None:
    """Put each class of bad line at each place, with and without its newline, beside checked lines and others."""
    places = range(len(FOREIGN)) if form == "long" else (0, 3, 4)
    with _shelf() as shelf:
        for number, ((name, how), at) in enumerate(itertools.product({**BAD, **ACCEPTED}.items(), places)):
            if (form == "short" and (number + at) % 3) or how(FOREIGN[at][:-1]) == FOREIGN[at][:-1]:
                continue  # the tests of the reader have them all; some classes mean nothing to some records
            tally.reached[name] += 1
            if name in ACCEPTED:
                with tally.case(f"{name} as line {at + 1}, accepted"):
                    shelf.check(_accepted(at, how))
                continue
            with tally.case(f"{name} as line {at + 1}, without checksums"):
                shelf.check(_bad(FOREIGN, at, name, how))
            with tally.case(f"{name} as line {at + 1}, with checksums"):
                shelf.check(_bad(SHORT, at, name, how, spaced=FOREIGN[at]))
    require(set(tally.reached) == {*BAD, *ACCEPTED}, "never tried:", {*BAD, *ACCEPTED} - set(tally.reached))


def _accepted(at: int, how: Break) -> Damage:
    data = broken_at(at, how, FOREIGN)
    return Damage(data, 5, len(data), is_corrupt=False, is_named_by_listing=len(data) < listing.HEAD_BYTES)


def _bad(lines: list[bytes], at: int, name: str, how: Break, spaced: bytes | None = None) -> Damage:
    """Return a file with one bad line; where every line is checked, it is one without a checksum."""
    base = lines if spaced is None else [*lines[:at], spaced, *lines[at + 1 :]]
    data = broken_at(at, how, base)
    starts = _starts(lines)
    is_torn = name in TORN_WHEN_LAST and at == len(lines) - 1
    return Damage(data, at, starts[at], is_corrupt=not is_torn)


def garbage(tally: Tally, form: Form) -> None:
    """Read files of random bytes: nothing was recorded, or damage, and never anything else."""
    count = 20_000 if form == "long" else 300
    with _shelf() as shelf, alarms() as alarm:
        for seed in range(count):
            rng = random.Random(seed)
            data = rng.randbytes(rng.choice((1, 7, 64, 700, 5000)))
            if seed % 3 == 0:
                data = SHORT[0] + data
            alarm.set()
            with tally.case(f"random bytes of seed {seed}"):
                _check_garbage(tally, shelf, data)
    require(len(tally.reached) >= 3, "random bytes had few outcomes:", tally.reached, kind="undetected")


def _check_garbage(tally: Tally, shelf: Shelf, data: bytes) -> None:
    begun = data.startswith(SHORT[0])
    shelf.put(data)
    for action in (shelf.store.load, shelf.store.open):
        try:
            made = action(shelf.path.stem)
        except (JournalCorrupt, NothingRecorded) as problem:
            require(not (begun and isinstance(problem, NothingRecorded)), "a record is gone")
            tally.reached[type(problem).__name__] += 1
            continue
        require(begun and made.last_seq == 1, "random bytes were taken for records", kind="undetected")
        tally.reached["torn behind a record"] += 1
        if isinstance(made, FileJournal):
            made.close()
    require(shelf.store.list()[0].status in ("unreadable", "interrupted"), "listed as a run")
    require(shelf.path.read_bytes() == data, "the file was changed by looking")
    require(set(os.listdir(shelf.directory)) <= {"orders-report.json", "orders-report.lock"}, "left over")


def machines(tally: Tally, form: Form) -> None:
    """Run state machines, each a random order of use, crashes and damage beside a model of lists."""
    count, steps = (5000, 50) if form == "long" else (40, 30)
    with tally.case(f"tests/stores/test_state_machine.py, {count} machines of {steps} steps", times=count):
        tally.reached.update(run_machines(count, steps))
    require(
        tally.broken or set(tally.reached) >= (WAYS if form == "long" else {"torn"}),
        "never happened",
        kind="undetected",
    )


_METHOD = (
    "After each, load, list, verify, open and fork are asked: damage is named with line, offset and cause by all of "
    "them, the file keeps its bytes, a fork of what is whole goes on, and a torn tail is kept and continued."
)
CUTS = Trial(
    "cut bytes",
    "cuts",
    "Journals are cut at every byte, also with up to 4,096 NULs in the place of what is missing. " + _METHOD,
    "P11 P12",
    cuts,
    1_000_000,
)
FLIPS = Trial(
    "flipped bits",
    "flips",
    "Every bit of three journals is flipped, with checksums and without. With them each flip is found and named, but "
    "for those of the last line that make it look torn; without them what passes is counted.",
    "P11",
    flips,
    200_000,
)
MOVED = Trial(
    "moved lines", "files", "Lines are dropped, doubled, swapped, spliced. " + _METHOD, "P11", moved_lines, 5_000
)
BAD_LINES = Trial("bad lines", "files", "Each class of bad line in each place. " + _METHOD, "P3 P11", bad_lines, 400)
GARBAGE = Trial(
    "random bytes",
    "files",
    "Files of random bytes, alone and behind a record: never a record more, never another error than ours.",
    "P11 P19",
    garbage,
    20_000,
)
MACHINES = Trial(
    "state machines",
    "machines",
    "Runs are created, appended to, crashed in the middle of a write or a sync, cut, flipped, forked, continued and "
    "removed in any order, 50 steps each; after each step they are what a model in lists says.",
    "P4 P11 P12 P13",
    machines,
    5_000,
)
TRIALS: tuple[Trial, ...] = (CUTS, FLIPS, MOVED, BAD_LINES, GARBAGE, MACHINES, *stranger_trials.TRIALS)
