"""The format page is true: its examples decode, its numbers are right, and a reader made from it agrees with ours."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fisk_ai import codec, records
from fisk_ai.errors import JournalCorrupt
from fisk_ai.folding import fold
from fisk_ai.records import Record
from tests.core.independent import read_journal
from tests.strategies import foreign_lines, journal_bytes, journals, lines_of, sample, scan

PAGE = (Path(__file__).parents[2] / "docs" / "journal-format.md").read_text(encoding="utf-8")
EXAMPLES = [line.encode() + b"\n" for line in PAGE.splitlines() if line.startswith('{"seq":')]


def test_the_examples_are_one_journal_with_every_kind_of_record() -> None:
    found, tail = scan(b"".join(EXAMPLES))
    assert [each.seq for each in found] == list(range(1, 9))
    assert {codec.payload_key(each.record) for each in found} == set(records.PROTOCOLS)
    assert not tail.needs_repair
    assert fold(found).interrupted


def test_the_examples_are_spelled_as_we_write_them() -> None:
    crc = 0
    for line, each in zip(EXAMPLES, scan(b"".join(EXAMPLES))[0], strict=True):
        assert each.time
        encoded, crc = codec.encode_line(each.seq, each.record, each.time, crc)
        assert encoded == line


def test_the_worked_example_of_the_checksum_is_right() -> None:
    first, second = (line[:-1] for line in EXAMPLES[:2])
    lengths = re.findall(r"line \d has (\d+) bytes without its newline; crc32\(its first (\d+) bytes\)", PAGE)
    assert [tuple(map(int, pair)) for pair in lengths] == [
        (len(first), len(first) - 18),
        (len(second), len(second) - 18),
    ]
    sums = re.findall(r"= ([0-9a-f]{8})\b", PAGE)
    start = zlib.crc32(first[:-18])
    wanted = [start, zlib.crc32(second[:-18]), zlib.crc32(second[:-18], start)]
    assert sums == [f"{value:08x}" for value in wanted]
    assert [json.loads(line)["crc"] for line in (first, second)] == [sums[0], sums[2]]


def test_the_worked_example_of_the_key_is_right() -> None:
    text, digest = re.findall(r'sha256\("([^"]+)"\) = ([0-9a-f]+)', PAGE)[0]
    text = text.replace("\\n", "\n")
    assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)
    run_id, created, seq, position = text.split("\n")
    assert records.idempotency_key(run_id, created, int(seq), int(position)) == digest
    state = fold(scan(b"".join(EXAMPLES[:3]))[0])
    assert state.pending is not None
    assert state.key_of(state.pending.unanswered[0]) == digest


def test_the_count_of_flips_that_look_torn_is_right() -> None:
    last = EXAMPLES[-1]
    found = re.search(r"8 \+ (\d+) = (\d+) of (\d+) flips", " ".join(PAGE.split()))
    assert found is not None
    looks_torn = flips = 0
    for position in range(len(last)):
        for bit in range(8):
            flipped = bytearray(last)
            flipped[position] ^= 1 << bit
            flips += 1
            try:
                _, tail = scan(b"".join(EXAMPLES[:-1]) + flipped)
            except JournalCorrupt:
                continue
            assert tail.torn == flipped
            looks_torn += 1
    assert looks_torn == int(found[2]) == 8 + int(found[1])
    assert flips == int(found[3])


def test_the_limits_of_the_page_are_the_codecs() -> None:
    assert f"at most {codec.MAX_LINE_BYTES >> 20} MiB" in " ".join(PAGE.split())
    assert "nested at most 200 levels" in PAGE
    for version in range(1, records.VERSION + 1):
        assert str(version) in PAGE


@settings(max_examples=100, deadline=None)
@given(journals())
def test_a_reader_made_from_the_page_reads_what_we_write(drawn: list[Record]) -> None:
    for lines in (lines_of(drawn), foreign_lines(*drawn)):
        data = b"".join(lines)
        if b'"checksums": true' in data:
            continue
        found, torn = read_journal(data)
        assert torn == b""
        assert found == [json.loads(line) for line in lines]


@settings(max_examples=300, deadline=None)
@given(journals(max_steps=4), st.data())
def test_both_readers_agree_on_damage(drawn: list[Record], data: st.DataObject) -> None:
    raw = bytearray(journal_bytes(drawn))
    cut = data.draw(st.integers(0, len(raw)))
    tail = data.draw(st.sampled_from((b"", b"\0", b"\0\0\n", b"\n", b"{}\n", b"}")))
    damaged = bytearray(raw[:cut] + tail)
    if damaged and data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    agree(bytes(damaged))


def test_both_readers_agree_on_every_prefix_and_on_every_changed_byte() -> None:
    data = journal_bytes(sample()[:4])
    for position in range(len(data)):
        agree(data[:position])
        agree(data[:position] + bytes([data[position] ^ 0x04]) + data[position + 1 :])


def agree(data: bytes) -> None:
    theirs: tuple[int, bytes] | None = None
    with contextlib.suppress(ValueError):
        records_of_theirs, torn = read_journal(data)
        theirs = (len(records_of_theirs), torn)
    try:
        found, tail = scan(data)
    except JournalCorrupt:
        assert theirs is None
        return
    assert theirs == (len(found), tail.torn)


def test_the_independent_reader_is_short_enough_to_be_believed() -> None:
    source = (Path(__file__).parent / "independent.py").read_text(encoding="utf-8")
    assert "fisk_ai" not in source.partition('"""\n')[2]
    assert len(source.splitlines()) < 60


@pytest.mark.parametrize("word", ["must", "should", "torn", "corrupt", "NFS", "unusable", "parallel", "resumed"])
def test_the_page_speaks_of_it(word: str) -> None:
    assert word in PAGE
