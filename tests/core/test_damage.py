"""What damage does to a journal: torn tails are cut off, everything else is named and refused."""

from __future__ import annotations

import contextlib
import re
import tracemalloc
from collections.abc import Callable
from itertools import combinations

import pytest

from fisk_ai import codec
from fisk_ai.errors import JournalCorrupt, NothingRecorded, StoreError
from fisk_ai.stores import MemoryStore
from tests.strategies import (
    RUN_ID,
    answer,
    ended,
    foreign_lines,
    journal_bytes,
    lines_of,
    meta,
    result,
    sample,
    scan,
    sequenced,
    turn,
)

SAMPLE = sample()
LINES = lines_of(SAMPLE)
WHOLE = b"".join(LINES)
RECORDS = sequenced(SAMPLE)
AGAIN = ended("error", "again")


def whole_records(size: int) -> int:
    """Count the records in the first `size` bytes; one that lacks only its newline counts."""
    ends = [len(b"".join(LINES[: count + 1])) - 1 for count in range(len(LINES))]
    return sum(end <= size for end in ends)


def test_every_prefix_loads_its_whole_records() -> None:
    for size in range(len(WHOLE) + 1):
        found, tail = scan(WHOLE[:size])
        count = whole_records(size)
        assert found == RECORDS[:count]
        assert tail.torn == WHOLE[len(b"".join(LINES[:count])) : size]
        assert tail.missing_newline == (size + 1 == len(b"".join(LINES[:count])))


def test_every_prefix_can_be_continued_and_nothing_is_lost_or_invented() -> None:
    for size in range(len(WHOLE)):
        store = MemoryStore()
        store.put_bytes(RUN_ID, WHOLE[:size])
        count = whole_records(size)
        if count == 0:
            with pytest.raises(NothingRecorded):
                store.open(RUN_ID)
            continue
        with store.open(RUN_ID) as journal:
            assert journal.append(AGAIN) == count + 1
        torn = store.torn_bytes(RUN_ID)
        assert torn == WHOLE[len(b"".join(LINES[:count])) : size]
        for _ in range(2):  # several real bugs show only the second time
            with store.open(RUN_ID) as journal:
                assert [each.record for each in journal.records()] == [*SAMPLE[:count], AGAIN]
                assert journal.repair() == b""
        assert store.torn_bytes(RUN_ID) == torn


@pytest.mark.parametrize("padding", [1, 511, 2000, 4096])
@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_nuls_at_the_end_are_a_torn_tail(padding: int, newline: bytes) -> None:
    for size in range(0, len(WHOLE), 13):
        data = WHOLE[:size] + bytes(padding) + newline
        count = WHOLE[:size].count(b"\n")
        found, tail = scan(data)
        assert found == RECORDS[:count]
        assert tail.torn == data[len(b"".join(LINES[:count])) :]


def test_every_flipped_bit_is_detected() -> None:
    torn = []
    for index, line in enumerate(LINES):
        for position in range(len(line)):
            for bit in range(8):
                damaged = bytearray(line)
                damaged[position] ^= 1 << bit
                scanner = codec.Scanner() if index == 0 else codec.Scanner.after(LINES[index - 1][:-1])
                assert scanner is not None
                try:
                    found = scanner.feed(bytes(damaged) + b"".join(LINES[index + 1 : index + 3]))
                    more, tail = scanner.finish()
                except JournalCorrupt:
                    continue
                assert index == len(LINES) - 1, f"line {index + 1}, byte {position}, bit {bit} passed"
                assert (found + more, tail.torn) == ([], bytes(damaged))
                torn.append((position, bit))
    last = LINES[-1]
    becomes_nul = [
        (position, byte.bit_length() - 1) for position, byte in enumerate(last[:-1]) if byte.bit_count() == 1
    ]
    lost_newline = [(len(last) - 1, bit) for bit in range(8)]
    # Format page, "torn or corrupt": these and no others look like an append that never became whole.
    assert torn == becomes_nul + lost_newline
    assert len(torn) == 8 + sum(last.count(byte) for byte in (b" ", b"@", b"\x80"))


def test_every_flipped_bit_of_a_lone_first_record_is_detected() -> None:
    line = LINES[0]
    for position in range(len(line) - 1):
        for bit in range(8):
            damaged = bytearray(line)
            damaged[position] ^= 1 << bit
            try:
                found, tail = scan(bytes(damaged))
            except JournalCorrupt:
                continue
            assert (found, tail.torn, damaged[position]) == ([], bytes(damaged), 0)


def test_a_first_record_without_the_checksum_that_it_promises_is_damage() -> None:
    with pytest.raises(JournalCorrupt, match="promises checksums"):
        scan(foreign_lines(meta(checksums=True))[0])


def test_a_lost_line_is_detected_unless_it_was_the_last() -> None:
    for index in range(len(LINES) - 1):
        with pytest.raises(JournalCorrupt) as caught:
            scan(b"".join(LINES[:index] + LINES[index + 1 :]))
        assert caught.value.line == index + 1
    assert scan(b"".join(LINES[:-1]))[0] == RECORDS[:-1]


def test_a_doubled_line_counts_once() -> None:
    for index in range(len(LINES)):
        assert scan(b"".join([*LINES[: index + 1], *LINES[index:]]))[0] == RECORDS


def test_swapped_lines_are_detected() -> None:
    for first, second in combinations(range(len(LINES)), 2):
        lines = LINES.copy()
        lines[first], lines[second] = lines[second], lines[first]
        with pytest.raises(JournalCorrupt) as caught:
            scan(b"".join(lines))
        assert caught.value.line == first + 1


def test_a_line_from_another_run_is_detected() -> None:
    other = lines_of([meta("other-run", interactive=True), *sample()[1:]])
    for index in range(1, len(LINES)):
        with pytest.raises(JournalCorrupt) as caught:
            scan(b"".join([*LINES[:index], other[index], *LINES[index + 1 :]]))
        assert caught.value.line == index + 1
    with pytest.raises(JournalCorrupt):
        scan(b"".join([other[0], *LINES[1:]]))


@pytest.mark.parametrize(
    "broken", [LINES[3][:40] + b"\n", bytes(300) + b"\n", b"{oops\n", b"[]\n", b"null\n", b"7\n", b"\n"]
)
def test_a_broken_line_in_the_middle_is_named_and_nothing_after_it_is_used(broken: bytes) -> None:
    data = b"".join([*LINES[:3], broken + b"\n", *LINES[4:9]])
    store = MemoryStore()
    store.put_bytes(RUN_ID, data)
    for action in (store.load, store.open):
        with pytest.raises(JournalCorrupt) as caught:
            action(RUN_ID)
        assert (caught.value.line, caught.value.offset) == (4, len(b"".join(LINES[:3])))
        assert f"line 4, byte {caught.value.offset}" in str(caught.value)
    assert b"".join(store.read_bytes(RUN_ID)) == data
    assert store.info(RUN_ID).status == "unreadable"
    store.delete(RUN_ID)


Break = Callable[[bytes], bytes]


def seq_as(text: bytes) -> Break:
    return lambda line: re.sub(rb'"seq": ?\d+', b'"seq": ' + text, line)


def saying(value: bytes) -> Break:
    """Put raw JSON in a place that is stored verbatim."""
    return lambda line: line[:-1] + b', "extra": [' + value + b"]}"


BROKEN: dict[str, Break] = {
    "empty line": lambda _: b"",
    "spaces": lambda _: b"   ",
    "an array": lambda _: b"[]",
    "null": lambda _: b"null",
    "a number": lambda _: b"3",
    "a text": lambda _: b'"x"',
    "half a line": lambda line: line[: len(line) // 2],
    "rubbish": lambda _: b"{oops",
    "NaN": saying(b"NaN"),
    "Infinity": saying(b"-Infinity"),
    "1e999": saying(b"1e999"),
    "a doubled key of the envelope": lambda line: line[:-1] + b', "seq": 3}',
    "a doubled key of the payload": lambda line: line[:-2] + b', "x": 1, "x": 1}}',
    "5,000 digits": saying(b"9" * 5000),
    "nesting of 201": saying(b"[" * 199 + b"]" * 199),
    "nesting of 10,000": saying(b"[" * 10_000 + b"]" * 10_000),
    "a lone high surrogate": saying(b'"\\ud83d"'),
    "a lone low surrogate": saying(b'"\\udc80"'),
    "invalid UTF-8": saying(b'"\xff\xfe"'),
    "an encoded surrogate": saying(b'"\xed\xa0\xbd"'),
    "a BOM": lambda line: b"\xef\xbb\xbf" + line,
    "a raw control character": saying(b'"\x01"'),
    "a raw tab": saying(b'"\t"'),
    "CR for LF": lambda line: line + b"\r" + line,
    "two records in one line": lambda line: line + line,
    "seq missing": lambda line: re.sub(rb'"seq": ?\d+, ?', b"", line),
    "seq null": seq_as(b"null"),
    "seq true": seq_as(b"true"),
    "seq 1.0": lambda line: re.sub(rb'"seq": ?(\d+)', rb'"seq": \1.0', line),
    "seq as text": lambda line: re.sub(rb'"seq": ?(\d+)', rb'"seq": "\1"', line),
    "seq 0": seq_as(b"0"),
    "seq negative": seq_as(b"-1"),
    "seq 2^64": seq_as(b"18446744073709551616"),
    "protocol missing": lambda line: line.replace(b'"protocol"', b'"protocoll"'),
    "protocol unknown": lambda line: re.sub(rb"session\.[a-z_]+", b"session.dream", line),
    "protocol of somebody else": lambda line: line.replace(b"io.choria.", b"org.example."),
    "a payload of another protocol": lambda line: re.sub(rb"session\.[a-z_]+", b"session.user", line),
    "two payloads": lambda line: line[:-1] + b', "user": {"message": {"role": "user", "content": []}}}',
    "payload missing": lambda line: re.sub(rb'(session\.[a-z_]+"), ?.*', rb"\1}", line),
    "payload null": lambda line: re.sub(rb'("(?:meta|assistant|terminal)"): ?.*', rb"\1: null}", line),
    "a payload that is no object": lambda line: re.sub(rb'("(?:meta|assistant|terminal)"): ?.*', rb"\1: 7}", line),
    "a field of the wrong type": lambda line: re.sub(rb'"(version|iteration|reason)": ?[^,}]+', rb'"\1": []', line),
}
TORN_WHEN_LAST: dict[str, Break] = {
    "all NUL": lambda line: bytes(len(line)),
    "NULs after the object": lambda line: line + bytes(3),
    "NULs in a text": saying(b'"\0"'),
    "UTF-16": lambda line: line.decode().encode("utf-16"),
}
ACCEPTED: dict[str, Break] = {
    "CR before LF": lambda line: line + b"\r",
    "line separators in a text": saying('"\u2028\u2029\u0085\x7f"'.encode()),
    "escaped controls": saying(b'"\\u0000\\u000b\\u2028\\ud83d\\ude00"'),
    "nesting of 200": saying(b"[" * 198 + b"]" * 198),
    "unknown optional fields": lambda line: line[:-2] + b', "later": [{}]}, "shard": null}',
    "a key that is doubled further inside": saying(b'{"a": 1, "a": 2}'),
    "two megabytes": saying(b'"' + b"x" * 2_000_000 + b'"'),
}
FOREIGN = foreign_lines(meta(checksums=False), turn("a"), result("a"), answer(), ended("error"))


def broken_at(index: int, how: Break, lines: list[bytes]) -> bytes:
    return b"".join([*lines[:index], how(lines[index][:-1]) + b"\n", *lines[index + 1 :]])


@pytest.mark.parametrize("index", [0, 3, 4], ids=["first", "middle", "last"])
@pytest.mark.parametrize("name", [*BROKEN, *TORN_WHEN_LAST, *ACCEPTED])
def test_bad_lines_are_told_apart_by_every_reader(name: str, index: int) -> None:
    how = {**BROKEN, **TORN_WHEN_LAST, **ACCEPTED}[name]
    data = broken_at(index, how, FOREIGN)
    assert data != b"".join(FOREIGN)
    store = MemoryStore()
    store.put_bytes(RUN_ID, data)
    if name in ACCEPTED:
        assert store.load(RUN_ID).last_seq == 5
        too_long_for_a_listing = name == "two megabytes" and index == 4
        assert store.info(RUN_ID).status == ("interrupted" if too_long_for_a_listing else "error")
    elif name in TORN_WHEN_LAST and index == 4:
        assert store.load(RUN_ID).last_seq == 4
        assert (store.info(RUN_ID).status, store.info(RUN_ID).records) == ("interrupted", 4)
        with store.open(RUN_ID) as journal:
            assert journal.repair() == data[len(b"".join(FOREIGN[:4])) :]
    else:
        for action in (store.load, store.open):
            with pytest.raises(JournalCorrupt) as caught:
                action(RUN_ID)
            assert (caught.value.line, caught.value.offset) == (index + 1, len(b"".join(FOREIGN[:index])))
        info = store.info(RUN_ID)
        assert info.status == "unreadable"
        assert info.reason
        assert info.reason.startswith("damaged")


@pytest.mark.parametrize("index", [0, 7, 19], ids=["first", "middle", "last"])
@pytest.mark.parametrize("name", [*BROKEN, *TORN_WHEN_LAST, *ACCEPTED])
def test_a_checked_line_that_was_changed_is_never_believed(name: str, index: int) -> None:
    how = {**BROKEN, **TORN_WHEN_LAST, **ACCEPTED}[name]
    data = broken_at(index, how, LINES)
    assert data != WHOLE
    try:
        found, tail = scan(data)
    except JournalCorrupt:
        return
    assert index == 19
    assert b"\0" in tail.torn
    assert found == RECORDS[:19]


@pytest.mark.parametrize("name", [*BROKEN, *TORN_WHEN_LAST])
def test_a_bad_last_line_without_its_newline_is_torn_unless_it_is_whole(name: str) -> None:
    data = broken_at(4, {**BROKEN, **TORN_WHEN_LAST}[name], FOREIGN)[:-1]
    whole_but_wrong = {
        "a doubled key of the payload",
        "protocol missing",
        "protocol unknown",
        "protocol of somebody else",
        "a payload of another protocol",
        "two payloads",
        "payload missing",
        "payload null",
        "a payload that is no object",
        "a field of the wrong type",
    }
    if name in whole_but_wrong:
        with pytest.raises(JournalCorrupt):
            scan(data)
    else:
        found, tail = scan(data)
        assert len(found) == 4
        assert tail.torn == data[len(b"".join(FOREIGN[:4])) :]


def test_a_last_line_without_its_newline_and_its_checksum_is_torn_whatever_it_says() -> None:
    said = b'{"seq":21,"protocol":"io.choria.fisk-ai.v1.session.terminal","terminal":7}'
    found, tail = scan(WHOLE + said)
    assert (found, tail.torn) == (RECORDS, said)


def test_a_run_that_does_not_begin_with_meta_is_damaged() -> None:
    store = MemoryStore()
    store.put_bytes(RUN_ID, journal_bytes([answer()]))
    for action in (store.load, store.open):
        with pytest.raises(JournalCorrupt, match="first record is not meta"):
            action(RUN_ID)


@pytest.mark.parametrize("data", [b"", LINES[0][:-2], bytes(100), LINES[0][:50] + bytes(4000) + b"\n"])
def test_without_a_whole_first_record_nothing_was_recorded(data: bytes) -> None:
    store = MemoryStore()
    store.put_bytes(RUN_ID, data)
    for action in (store.load, store.open):
        with pytest.raises(NothingRecorded):
            action(RUN_ID)
    assert store.info(RUN_ID).reason == "empty: nothing was recorded"
    with store.create(RUN_ID, meta()) as journal:
        assert journal.last_seq == 1
    assert store.torn_bytes(RUN_ID) == data


def test_a_first_record_that_lacks_its_newline_counts() -> None:
    store = MemoryStore()
    store.put_bytes(RUN_ID, LINES[0][:-1])
    with store.open(RUN_ID) as journal:
        assert journal.append(ended()) == 2
    assert b"".join(store.read_bytes(RUN_ID)).startswith(LINES[0])
    assert store.load(RUN_ID).last_seq == 2


def test_a_record_of_another_run_is_not_this_one() -> None:
    store = MemoryStore()
    store.put_bytes("mine", journal_bytes([meta("yours")]))
    for action in (store.load, store.open):
        with pytest.raises(JournalCorrupt, match="meta names the run 'yours'"):
            action("mine")
    assert store.info("mine").reason == "damaged: meta names yours"


@pytest.mark.parametrize("piece", [b"[]", b"{}", b'{"":0}', b'{"a":1,"b":2}', b"[[1e99]]", b'"x"'])
@pytest.mark.parametrize("name", ["a record", "no record"])
def test_many_small_pieces_take_little_memory(name: str, piece: bytes) -> None:
    line = FOREIGN[0] if name == "a record" else FOREIGN[0].replace(b'"meta":', b'"mate":')
    pieces = b",".join([piece] * (200_000 // len(piece)))
    data = line.replace(b"{", b'{"extra": [' + pieces + b"], ", 1)
    tracemalloc.start()
    try:
        with contextlib.suppress(JournalCorrupt):
            assert len(scan(data)[0]) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(data)


def test_every_outcome_is_a_typed_error() -> None:
    assert issubclass(JournalCorrupt, StoreError)
    assert issubclass(NothingRecorded, StoreError)
