"""One record, one line of bytes, and back."""

from __future__ import annotations

import json
import threading
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fisk_ai import codec
from fisk_ai.errors import JournalCorrupt, RecordRefused, UnsupportedFormat
from fisk_ai.records import AssistantRecord, MetaRecord, Record, SequencedRecord, ToolResultRecord, UserRecord
from tests.strategies import (
    ODD_TEXTS,
    TIME,
    answer,
    dumps,
    ended,
    follow_up,
    foreign_lines,
    journal_bytes,
    journals,
    lines_of,
    meta,
    result,
    sample,
    scan,
    sequenced,
    texts,
    turn,
)


@settings(max_examples=150, deadline=None)
@given(journals())
def test_what_is_encoded_is_decoded_again(records: list[Record]) -> None:
    found, tail = scan(journal_bytes(records))
    assert found == sequenced(records)
    assert not tail.needs_repair


@settings(max_examples=100, deadline=None)
@given(journals(), st.data())
def test_pieces_of_any_size_read_as_the_whole(records: list[Record], data: st.DataObject) -> None:
    raw = journal_bytes(records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    scanner = codec.Scanner()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += scanner.feed(raw[start:end])
    more, tail = scanner.finish()
    assert (found + more, tail) == scan(raw)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_a_record_is_one_physical_line_whatever_it_says(text: str) -> None:
    records: list[Record] = [meta(prompt=text), turn("a", text=text), result("a", text), answer(text), follow_up(text)]
    raw = journal_bytes(records)
    assert raw.count(b"\n") == len(records)
    found, _ = scan(raw)
    first = found[0].record
    assert isinstance(first, MetaRecord)
    assert first.prompt == text
    shown = found[2].record
    assert isinstance(shown, ToolResultRecord)
    assert json.loads(bytes(shown.result))["content"][0]["text"] == text


def test_line_separators_that_another_program_wrote_raw_are_read() -> None:
    text = "a\u2028b\u2029c\u0085d\x7f\x80"
    lines = foreign_lines(meta(prompt=text, checksums=False), turn("a", text=text), result("a", text))
    assert "\u2028".encode() in b"".join(lines)
    found, tail = scan(b"".join(lines))
    assert len(found) == 3
    assert not tail.needs_repair


def test_the_bytes_of_a_turn_are_kept_as_they_were_spelled() -> None:
    spelled = b'{ "role":"assistant","content" : [{"type":"text","text":"\\u00e9\\/\xc3\xa9","n":1.50e+1,"n":2}] }'
    record = AssistantRecord(iteration=0, message=msgspec.Raw(spelled))
    line, _ = codec.encode_line(1, record, TIME, 0)
    assert spelled in line
    key, payload = codec.payload_bytes(line)
    assert key == "assistant"
    assert spelled in payload


def test_the_checksum_is_of_the_bytes_as_they_were_spelled() -> None:
    spelled = AssistantRecord(iteration=0, message=msgspec.Raw(b'{ "role":"assistant","n":1.50e+1,"t":"\\u00e9" }'))
    line, crc = codec.encode_line(1, meta(), TIME, 0)
    whole = line + codec.encode_line(2, spelled, TIME, crc)[0]
    assert len(scan(whole)[0]) == 2
    for old, new in ((b"1.50e+1", b"1.50E+1"), (b"\\u00e9", b"\\u00E9"), (b'{ "role"', b'{"role" ')):
        assert whole.count(old) == 1
        with pytest.raises(JournalCorrupt, match="checksum"):
            scan(whole.replace(old, new))


def test_a_checked_line_that_is_not_utf8_is_damage() -> None:
    line, crc = codec.encode_line(1, meta(), TIME, 0)
    payload = codec.encode_payload(answer("odd")).replace(b"odd", b"\xff\xfe")
    with pytest.raises(JournalCorrupt, match="UTF-8"):
        scan(line + codec.frame(2, "assistant", payload, TIME, crc)[0])


def test_unknown_fields_are_ignored_and_kept_by_who_copies() -> None:
    key, payload = codec.payload_bytes(foreign_lines(meta(checksums=False))[0])
    richer = payload[:-1] + b',"later":{"a":[1]}}'
    line, _ = codec.frame(1, key, richer, None, 0)
    line = line.replace(b'"protocol"', b'"shard":7,"protocol"')
    line = line[:-19] + b"}\n"  # without its checksum, which counts the bytes before
    found, _ = scan(line)
    assert found[0].record == meta(checksums=False)
    assert codec.payload_bytes(line) == ("meta", richer)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_repeated_line_counts_once(checksums: bool) -> None:
    records: list[Record] = [meta(checksums=checksums), turn("a"), result("a"), answer()]
    lines = lines_of(records) if checksums else foreign_lines(*records)
    for position in range(len(lines)):
        doubled = [*lines[: position + 1], lines[position], *lines[position + 1 :]]
        found, tail = scan(b"".join(doubled))
        assert [each.record for each in found] == [each.record for each in scan(b"".join(lines))[0]]
        assert tail.whole_bytes == len(b"".join(doubled))


def test_a_second_record_under_one_number_is_damage() -> None:
    lines = foreign_lines(meta(checksums=False), turn("a"), result("a", "one"), result("a", "two"))
    lines[3] = lines[3].replace(b'"seq": 4', b'"seq": 3')
    with pytest.raises(JournalCorrupt, match="seq is 3, expected 4"):
        scan(b"".join(lines))


def test_a_missing_record_is_damage_that_names_the_gap() -> None:
    records: list[Record] = [meta(checksums=False), turn("a", "b"), result("a"), result("b"), turn("c"), result("c")]
    lines = foreign_lines(*records)
    del lines[3]
    with pytest.raises(JournalCorrupt, match="seq is 5, expected 4") as caught:
        scan(b"".join(lines))
    assert (caught.value.line, caught.value.offset) == (4, len(b"".join(lines[:3])))


def test_a_continued_foreign_journal_is_checked_from_the_first_checksum_on() -> None:
    foreign = b"".join(foreign_lines(meta(checksums=False), turn("a"), result("a")))
    ours, crc = codec.encode_line(4, answer(), TIME, zlib.crc32(foreign))
    more, _ = codec.encode_line(5, ended(), TIME, crc)
    assert len(scan(foreign + ours + more)[0]) == 5
    with pytest.raises(JournalCorrupt, match="checksum"):
        scan(foreign.replace(b"ORDERS", b"BORDER", 1) + ours + more)
    bare = dumps(json.loads(more) | {"crc": None}) + b"\n"
    with pytest.raises(JournalCorrupt, match="no checksum"):
        scan(foreign + ours + bare)


def test_a_checksum_elsewhere_than_at_the_end_is_damage() -> None:
    line = lines_of([meta()])[0]
    moved = json.loads(line)
    crc = moved.pop("crc")
    with pytest.raises(JournalCorrupt, match="isn't at the end"):
        scan(dumps({"crc": crc, **moved}) + b"\n")


def nested(levels: int, inner: bytes = b"1") -> bytes:
    return b'{"a":' * levels + inner + b"}" * levels


def test_what_is_nested_too_deeply_is_refused_before_it_is_written() -> None:
    def with_depth(levels: int) -> AssistantRecord:
        return AssistantRecord(iteration=0, message=msgspec.Raw(nested(levels)))

    codec.encode_line(1, with_depth(198), TIME, 0)
    for levels in (199, 200, 201, 900, 980, 5_000):
        with pytest.raises(RecordRefused, match="nested"):
            codec.encode_line(1, with_depth(levels), TIME, 0)


def test_the_deepest_record_that_can_be_written_can_be_read_from_a_deep_stack() -> None:
    deepest = AssistantRecord(iteration=0, message=msgspec.Raw(nested(198)))
    lines = [lines_of([meta(), deepest]), foreign_lines(meta(checksums=False), deepest)]
    found: list[Any] = []

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            found.extend(len(scan(b"".join(each))[0]) for each in lines)

    thread = threading.Thread(target=descend, args=(600,))  # a stack of its own, whatever the test runner's is
    thread.start()
    thread.join()
    assert found == [2, 2]


def test_a_stack_that_is_nearly_full_does_not_pass_for_damage() -> None:
    raw = b"".join(foreign_lines(meta(checksums=False), AssistantRecord(iteration=0, message=msgspec.Raw(nested(198)))))
    caught: list[BaseException] = []

    def descend() -> None:
        try:
            descend()
        except RecursionError:
            # The frames in between unwind one by one: each tries with a little more room.
            if not caught:
                try:
                    scan(raw)
                except JournalCorrupt as problem:
                    caught.append(problem)
                except RecursionError:
                    raise
                else:
                    caught.append(Exception("read"))
            raise

    def fill() -> None:
        with pytest.raises(RecursionError):
            descend()

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    assert [str(each) for each in caught] == ["read"]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{",
        b"{}{}",
        b"NaN",
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'"\\ud83d"',
        b'"\xff"',
        b'"\x00"',
        b"{}\n",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_strict_json_is_refused_before_it_is_written(message: bytes) -> None:
    with pytest.raises(RecordRefused):
        codec.encode_line(1, AssistantRecord(iteration=0, message=msgspec.Raw(message)), TIME, 0)


@pytest.mark.parametrize("text", ["x\ud83dy", "\udc80", "\udfff\ud800"])
def test_text_that_utf8_cannot_carry_is_refused_by_type(text: str) -> None:
    with pytest.raises(RecordRefused):
        codec.encode_payload(meta(prompt=text))


def test_a_record_over_the_limit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_LINE_BYTES", 1000)
    size = len(codec.encode_line(1, answer(""), TIME, 0)[0])
    codec.encode_line(1, answer("x" * (1000 - size - len('{"type": "text", "text": ""}'))), TIME, 0)
    with pytest.raises(RecordRefused, match=r"1001 bytes .* 1000"):
        codec.encode_line(1, answer("x" * (1001 - size - len('{"type": "text", "text": ""}'))), TIME, 0)


@pytest.mark.slow
def test_the_limit_is_64_mib_and_what_is_below_it_is_read() -> None:
    big = result("a", "[{" * (31 * 1024 * 1024))
    lines = lines_of([meta(), big])
    assert 60 * 1024 * 1024 < len(lines[1]) < codec.MAX_LINE_BYTES == 64 * 1024 * 1024
    assert scan(b"".join(lines))[0][1].record == big
    with pytest.raises(RecordRefused, match="too large"):
        codec.encode_line(1, result("a", "x" * codec.MAX_LINE_BYTES), TIME, 0)


@pytest.mark.parametrize(
    "record",
    [follow_up(), AssistantRecord(iteration=0, format="openai", message=msgspec.Raw(b"{}"))],
    ids=["a follow-up", "another format"],
)
def test_version_1_holds_less_and_says_how_to_go_on(record: Record) -> None:
    codec.require_version(2, record)
    with pytest.raises(UnsupportedFormat, match="session fork"):
        codec.require_version(1, record)


@given(texts)
def test_a_line_that_is_read_alone_says_the_same(text: str) -> None:
    line = lines_of([meta(), result("a", text)])[1]
    assert codec.read_unchecked(line) == SequencedRecord(2, result("a", text), TIME)


@given(st.binary(max_size=60))
def test_rubbish_that_is_read_alone_is_no_record(junk: bytes) -> None:
    assert codec.read_unchecked(junk) is None
    assert codec.chain_after(junk) is None
    assert codec.Scanner.after(junk) is None


@pytest.mark.parametrize("key", ["seq", "crc", "time", "__class__", "nope", ""])
def test_a_protocol_that_names_no_payload_is_no_record(key: str) -> None:
    line = dumps({"seq": 1, "protocol": f"io.choria.fisk-ai.v1.session.{key}"})
    assert codec.read_unchecked(line) is None


def test_a_scanner_can_go_on_after_a_line_it_believes() -> None:
    lines = lines_of(sample())
    scanner = codec.Scanner.after(lines[9].removesuffix(b"\n"))
    assert scanner is not None
    assert [each.seq for each in scanner.feed(lines[9] + b"".join(lines[10:]))] == list(range(11, 21))
    assert scanner.chain.crc == int(json.loads(lines[-1])["crc"], 16)


def test_after_a_line_without_checksum_the_next_one_is_believed() -> None:
    foreign = foreign_lines(meta(checksums=False), turn("a"), result("a"))
    ours, crc = codec.encode_line(4, answer(), TIME, zlib.crc32(b"".join(foreign)))
    last, _ = codec.encode_line(5, ended(), TIME, crc)
    scanner = codec.Scanner.after(foreign[-1].removesuffix(b"\n"))
    assert scanner is not None
    assert len(scanner.feed(ours + last)) == 2
    scanner = codec.Scanner.after(foreign[-1].removesuffix(b"\n"))
    assert scanner is not None
    scanner.feed(ours + last.replace(b"suspended", b"completed"))
    with pytest.raises(JournalCorrupt, match="checksum"):
        scanner.finish()


def test_user_records_are_neutral() -> None:
    line = lines_of([meta(), follow_up("hm")])[1]
    found = codec.read_unchecked(line)
    assert found is not None
    assert isinstance(found.record, UserRecord)
    assert json.loads(bytes(found.record.message)) == {"role": "user", "content": [{"type": "text", "text": "hm"}]}
