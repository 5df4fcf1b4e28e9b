"""Bugs in how lines are written, split, checked and told apart."""

from __future__ import annotations

from fisk_ai import codec, jsontext
from fisk_ai.codec import Scanner
from fisk_ai.stores import listing
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_CODEC = "tests/core/test_codec.py"
_DAMAGE = "tests/core/test_damage.py"
_VERSIONS = "tests/core/test_versions.py"
_BAD_LINES = f"{_DAMAGE}::test_bad_lines_are_told_apart_by_every_reader"
_LINES = """\
lines += [
        line.encode("utf-8", "surrogateescape")
        for part in planted(rest).split(b"\\n")
        for line in part.decode("utf-8", "surrogateescape").splitlines() or [""]
    ]"""
_BELIEVED = """\
line, cause = self._failed
        if planted(not rest and cause.startswith("checksum")):
            record = read_unchecked(line)
            return [] if record is None else [record], Tail(self._offset + len(line) + 1)"""
_PARSED = """\
crc = zlib.crc32(
        planted(_encoder.encode({k: v for k, v in msgspec.json.decode(line).items() if k != "crc"})[:-1]),
        self.chain.crc,
    )"""

BUGS = (
    Planted(
        "splitlines()",
        "Lines are split at every separator that Unicode knows, also inside of a text.",
        (Edit(Scanner.feed, 'lines += rest.split(b"\\n")', _LINES),),
        caught_by=f"{_CODEC}::test_line_separators_that_another_program_wrote_raw_are_read",
    ),
    Planted(
        "checksums not chained",
        "Each line is checked for itself, so a line of another run fits.",
        (
            Edit(codec.frame, "zlib.crc32(body, crc)", "zlib.crc32(body, planted(0))"),
            Edit(Scanner._check_crc, "[:-_CRC_TAIL_BYTES], self.chain.crc)", "[:-_CRC_TAIL_BYTES], planted(0))"),
        ),
        caught_by=f"{_DAMAGE}::test_a_line_from_another_run_is_detected",
    ),
    Planted(
        "checksum not checked",
        "A changed line is believed if it still parses.",
        (never(Scanner._check_crc, "int(found[1], 16) != crc"),),
        caught_by=f"{_DAMAGE}::test_every_flipped_bit_is_detected",
    ),
    Planted(
        "checksum not checked at the last line",
        "A changed last line is believed if it still parses.",
        (Edit(Scanner.finish, "line, cause = self._failed", _BELIEVED),),
        caught_by=f"{_DAMAGE}::test_every_flipped_bit_is_detected",
    ),
    Planted(
        "checksum over the parsed line",
        "A line counts as what a parser makes of it, so a change of its spelling passes and its own spelling may not.",
        (
            Edit(
                Scanner._check_crc,
                "crc = zlib.crc32(memoryview(line)[:-_CRC_TAIL_BYTES], self.chain.crc)",
                _PARSED,
            ),
        ),
        caught_by=f"{_CODEC}::test_the_checksum_is_of_the_bytes_as_they_were_spelled",
    ),
    Planted(
        "foreign lines not in the chain",
        "The first checksum after lines without one says nothing about them.",
        (never(Scanner._advance, "not self.chain.checked"),),
        caught_by=f"{_CODEC}::test_a_continued_foreign_journal_is_checked_from_the_first_checksum_on",
    ),
    Planted(
        "checksum may be missing",
        "After a record with a checksum one without is believed.",
        (never(Scanner._read, "crc is None and self.chain.checked"),),
        caught_by=f"{_CODEC}::test_a_continued_foreign_journal_is_checked_from_the_first_checksum_on",
    ),
    Planted(
        "promised checksum may be missing",
        "A first record is believed that lost the checksum which it promises.",
        (never(Scanner._check_meta, "meta.checksums and crc is None"),),
        caught_by=f"{_DAMAGE}::test_a_first_record_without_the_checksum_that_it_promises_is_damage",
    ),
    Planted(
        "checksum anywhere in the line",
        "A checksum that isn't at the end is there, and is not checked.",
        (never(Scanner._read, "crc is None and envelope.crc is not None"),),
        caught_by=f"{_CODEC}::test_a_checksum_elsewhere_than_at_the_end_is_damage",
    ),
    Planted(
        "seq not checked",
        "A lost record leaves a gap that nobody sees.",
        (never(Scanner._read, "envelope.seq != self.chain.seq + 1"),),
        caught_by=f"{_CODEC}::test_a_missing_record_is_damage_that_names_the_gap",
    ),
    Planted(
        "seq of a strange line not checked",
        "A line that isn't a record of ours is called damage although it may be torn.",
        (never(Scanner._require_whole, "type(seq) is not int or seq != self.chain.seq + 1"),),
        caught_by=f"{_DAMAGE}::test_a_bad_last_line_without_its_newline_is_torn_unless_it_is_whole",
    ),
    Planted(
        "checksum of a strange line may be missing",
        "A last line that lost its checksum is called damage although it is torn.",
        (never(Scanner._require_whole, "self.chain.checked and not bytes(loose.crc)"),),
        caught_by=f"{_DAMAGE}::test_a_last_line_without_its_newline_and_its_checksum_is_torn_whatever_it_says",
    ),
    Planted(
        "repeated line counted",
        "A retried write makes two records of one, or damage.",
        (never(Scanner._take, "line == self._previous"),),
        caught_by=f"{_DAMAGE}::test_a_doubled_line_counts_once",
    ),
    Planted(
        "doubled key allowed",
        "Of two values under one key the last one wins, whoever wrote it.",
        (never(codec._decode_envelope, "doubled := doubled_keys(line)"),),
        caught_by=f"{_BAD_LINES}[a doubled key of the payload-middle]",
    ),
    Planted(
        "not strict about foreign lines",
        "NaN and the like pass where a parser skips over them.",
        (left_out(codec._decode_envelope, "check_strict(line)"),),
        caught_by=f"{_BAD_LINES}[nesting of 201-middle]",
    ),
    Planted(
        "invalid UTF-8 in a checked line",
        "A record is read whose text no request can carry.",
        (left_out(codec._decode_envelope, "line.decode()"),),
        caught_by=f"{_CODEC}::test_a_checked_line_that_is_not_utf8_is_damage",
    ),
    Planted(
        "nesting not limited",
        "A journal holds what some reader dies of.",
        (never(jsontext.check_nesting, 'raw.count(b"[") + raw.count(b"{") > limit and nesting(raw) > limit'),),
        caught_by=f"{_CODEC}::test_what_is_nested_too_deeply_is_refused_before_it_is_written",
    ),
    Planted(
        "unknown protocol called torn",
        "A last record of a kind that nobody knows is cut.",
        (
            Edit(
                Scanner._payload,
                'raise self._corrupt(f"unknown protocol {envelope.protocol!r:.100}", envelope.seq)',
                'raise _NotWhole(planted("unknown protocol"))',
            ),
        ),
        caught_by=f"{_VERSIONS}::test_a_record_of_an_unknown_kind_is_damage_that_names_the_line",
    ),
    Planted(
        "payload of another protocol",
        "A record is taken for what its payload is, whatever its protocol says.",
        (never(Scanner._payload, "record is None or payloads.count(None) != len(payloads) - 1"),),
        caught_by=f"{_BAD_LINES}[two payloads-middle]",
    ),
    Planted(
        "newer version read",
        "A run of a newer program is continued by an older one.",
        (never(Scanner._check_meta, "self.chain.seq == 0 and meta.version > VERSION"),),
        caught_by=f"{_VERSIONS}::test_a_newer_version_is_refused_naming_both[3]",
    ),
    Planted(
        "newer version called damage",
        "A run of a newer program whose fields are strange is called damaged.",
        (
            never(
                Scanner._refuse_newer,
                "self.chain.seq == 0 and type(version := loose.version) is int and version > VERSION",
            ),
        ),
        caught_by=f"{_VERSIONS}::test_a_newer_version_is_refused_even_if_its_fields_mean_something_else",
    ),
    Planted(
        "version 0 read",
        "A version that never was is read.",
        (never(Scanner._check_meta, "not 1 <= meta.version <= VERSION"),),
        caught_by=f"{_VERSIONS}::test_a_version_that_is_no_version_is_damage",
    ),
    Planted(
        "version 1 given what it can't hold",
        "An old journal is continued with records that its own readers refuse.",
        (never(codec.require_version, "needs"),),
        caught_by=f"{_CODEC}::test_version_1_holds_less_and_says_how_to_go_on",
    ),
    Planted(
        "line break in a record",
        "A record becomes two lines.",
        (never(codec.frame, 'b"\\n" in body'),),
        caught_by=f"{_CODEC}::test_what_is_not_strict_json_is_refused_before_it_is_written",
    ),
    Planted(
        "record of any size",
        "A record is written that nobody reads again.",
        (never(codec.frame, "len(line) > MAX_LINE_BYTES"),),
        caught_by=f"{_CODEC}::test_a_record_over_the_limit_is_refused_with_both_sizes",
    ),
    Planted(
        "payload not read back before it is written",
        "A record is written that its own reader refuses.",
        (left_out(codec.encode_payload, "check_strict(payload)"),),
        caught_by=f"{_CODEC}::test_what_is_not_strict_json_is_refused_before_it_is_written",
    ),
    Planted(
        "damage near the end not listed",
        "A listing shows a damaged run as a sound one.",
        (Edit(listing._last, 'raise JournalCorrupt("a line near the end is no record")', "return planted(None)"),),
        caught_by="tests/stores/test_listing.py::test_bad_files_are_shown_with_a_reason_and_hide_nobody",
    ),
)
