"""One record, one line of bytes, and back. Pure: bytes in, bytes or records out.

The format is `docs/journal-format.md`. Three things decide whether a line counts: it is strict JSON, it has the next
seq, and its checksum (rolling over the bytes as written) is right. What a bad last line means is decided in one
place, `Scanner.finish`: torn (an append that a crash cut off, never acknowledged) or corrupt (whole once).
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import msgspec

from fisk_ai.errors import JournalCorrupt, NewerVersion, RecordRefused, UnsupportedFormat
from fisk_ai.jsontext import BadJson, check_nesting, check_strict, doubled_keys
from fisk_ai.records import (
    PROTOCOL_PREFIX,
    PROTOCOLS,
    VERSION,
    AssistantRecord,
    MetaRecord,
    Record,
    SequencedRecord,
    TerminalRecord,
    ToolResultRecord,
    UserRecord,
)

MAX_LINE_BYTES = 64 * 1024 * 1024

_CRC_TAIL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
_CRC_TAIL_BYTES = 18
_LONGEST_NUMBER_BYTES = 100
_KEYS = {kind: key for key, kind in PROTOCOLS.items()}
_KEY_OF_PROTOCOL = {PROTOCOL_PREFIX + key: key for key in PROTOCOLS}
_PAYLOAD_DECODERS = {key: msgspec.json.Decoder(kind) for key, kind in PROTOCOLS.items()}

_encoder = msgspec.json.Encoder()


class _Envelope(msgspec.Struct):
    seq: int
    protocol: str
    time: str | None = None
    meta: MetaRecord | None = None
    assistant: AssistantRecord | None = None
    tool_result: ToolResultRecord | None = None
    user: UserRecord | None = None
    terminal: TerminalRecord | None = None
    crc: str | None = None


_envelope_decoder = msgspec.json.Decoder(_Envelope)


class _LooseMeta(msgspec.Struct):
    version: msgspec.Raw = msgspec.Raw()


class _Loose(msgspec.Struct):
    """What decides about a line that is no record, whatever types its fields have."""

    seq: msgspec.Raw = msgspec.Raw()
    crc: msgspec.Raw = msgspec.Raw()
    meta: msgspec.Raw = msgspec.Raw()

    @property
    def version(self) -> object:
        """What `meta` says, if it is an object."""
        is_object = bytes(self.meta).startswith(b"{")
        return _small(msgspec.json.decode(self.meta, type=_LooseMeta).version) if is_object else None


_loose_decoder = msgspec.json.Decoder(_Loose)


def _small(raw: msgspec.Raw) -> object:
    """Decode what may be a number; a missing field is None, and so is what is too long to be one."""
    return msgspec.json.decode(raw) if 0 < len(bytes(raw)) <= _LONGEST_NUMBER_BYTES else None


def payload_key(record: Record) -> str:
    """Return the key under which a record's payload stands in the envelope."""
    return _KEYS[type(record)]


def encode_payload(record: Record) -> bytes:
    """Encode a record's payload, checked as strictly as it will be read.

    Raises:
        RecordRefused: if it is no valid record, too large or nested too deeply. Nothing was written.
    """
    try:
        payload = _encoder.encode(record)
        check_strict(payload)
        _PAYLOAD_DECODERS[_KEYS[type(record)]].decode(payload)
    except (BadJson, msgspec.MsgspecError, UnicodeEncodeError) as problem:
        raise RecordRefused(f"a {_KEYS[type(record)]} record can't be journaled: {problem}") from None
    return payload


def encode_line(seq: int, record: Record, time: str, crc: int) -> tuple[bytes, int]:
    """Encode a record as a journal line with its newline; returns the line and the checksum after it.

    `crc` is the value of the chain before this line. Raises `RecordRefused` as `encode_payload` does.
    """
    return frame(seq, _KEYS[type(record)], encode_payload(record), time, crc)


def frame(seq: int, key: str, payload: bytes, time: str | None, crc: int) -> tuple[bytes, int]:
    """Put the envelope around an encoded payload; returns the line with its newline and the checksum after it."""
    stamp = b'"time":"%b",' % time.encode() if time is not None else b""
    body = b'{"seq":%d,"protocol":"%b%b",%b"%b":%b' % (
        seq,
        PROTOCOL_PREFIX.encode(),
        key.encode(),
        stamp,
        key.encode(),
        payload,
    )
    try:
        check_nesting(body + b"}")
    except BadJson as problem:
        raise RecordRefused(f"a {key} record can't be journaled: {problem}") from None
    if b"\n" in body:
        raise RecordRefused(f"a {key} record can't be journaled: a line break stands between its tokens")
    crc = zlib.crc32(body, crc)
    line = body + b',"crc":"%08x"}\n' % crc
    if len(line) > MAX_LINE_BYTES:
        raise RecordRefused(
            f"a {key} record of {len(line)} bytes is too large to be journaled; the limit is {MAX_LINE_BYTES}"
        )
    return line, crc


def require_version(version: int, record: Record) -> None:
    """Raise `UnsupportedFormat` if a journal of this version can't hold `record`."""
    if version >= VERSION:
        return
    needs = None
    if isinstance(record, UserRecord):
        needs = "follow-ups"
    elif isinstance(record, AssistantRecord) and record.format != "anthropic":
        needs = f"model turns in the format {record.format!r}"
    if needs:
        raise UnsupportedFormat(
            f"a journal of version {version} can't hold {needs}: `fisk-ai session fork` makes a copy of "
            f"version {VERSION} that can"
        )


class _NotWhole(Exception):
    """The line isn't a whole record: not strict JSON, not the next seq, or a wrong checksum."""


@dataclass(slots=True)
class Chain:
    """What must be known of the lines before the next one."""

    seq: int = 0
    """Of the last record; 0 before the first."""
    crc: int = 0
    """What the next line's checksum starts from."""
    checked: bool = False
    """True once a record carried a checksum (or meta promised them): from there on all must."""
    known: bool = True
    """False if the lines before were not read and left no value: the next checksum is believed."""


@dataclass(frozen=True, slots=True)
class Tail:
    """How a journal ends, and what a repair has to do."""

    whole_bytes: int
    """Length of the whole records, in bytes of the file."""
    torn: bytes = b""
    """Bytes after them: an append that never became whole."""
    missing_newline: bool = False
    """True if only the newline of the last record is missing."""

    @property
    def needs_repair(self) -> bool:
        """True if an append would land on torn bytes."""
        return bool(self.torn) or self.missing_newline


class Scanner:
    """Reads a journal's bytes from first to last: `feed` chunks, then `finish` once.

    `feed` returns the records that have become certain. A line that can't be read is held back until it is known
    whether it is the last one.
    """

    def __init__(self, where: str = "journal") -> None:
        self.chain = Chain()
        self._where = where
        self._parts: list[bytes] = []
        self._previous: bytes | None = None
        self._line_number = 0
        self._offset = 0
        self._failed: tuple[bytes, str] | None = None

    @classmethod
    def after(cls, line: bytes) -> Scanner | None:
        """Return a scanner for what follows `line`, whose own words are believed; None if it is no record."""
        chain = chain_after(line)
        if chain is None:
            return None
        scanner = cls()
        scanner.chain = chain
        scanner._previous = line
        return scanner

    def feed(self, chunk: bytes) -> list[SequencedRecord]:
        """Take the next bytes of the file.

        Raises:
            JournalCorrupt: for anything wrong before the last line.
            NewerVersion: if meta says so.
        """
        if not chunk:
            return []
        head, newline, rest = chunk.partition(b"\n")
        self._parts.append(head)
        if not newline:
            return []
        lines = [b"".join(self._parts)]
        lines += rest.split(b"\n")
        self._parts = [lines.pop()]
        return [record for line in lines if (record := self._take(line, newline=1)) is not None]

    def finish(self) -> tuple[list[SequencedRecord], Tail]:
        """Say how the file ends: the record in a last line without newline, if it is whole, and the tail.

        Raises:
            JournalCorrupt: if the last line was whole once and isn't now.
        """
        rest = b"".join(self._parts)
        self._parts = []
        if self._failed is not None:
            line, cause = self._failed
            if rest or b"\0" not in line:
                raise self._corrupt(cause)
            return [], Tail(self._offset, torn=line + b"\n")
        if not rest:
            return [], Tail(self._offset)
        if b"\0" in rest:
            return [], Tail(self._offset, torn=rest)
        whole_bytes = self._offset
        record = self._take(rest, newline=0)
        if self._offset == whole_bytes:  # it was held back: not a whole record
            return [], Tail(whole_bytes, torn=rest)
        return [] if record is None else [record], Tail(self._offset, missing_newline=True)

    def _take(self, line: bytes, newline: int) -> SequencedRecord | None:
        if self._failed is not None:
            raise self._corrupt(self._failed[1])
        self._line_number += 1
        if line == self._previous:
            self._advance(line, newline)
            return None
        try:
            record = self._read(line)
        except _NotWhole as problem:
            self._failed = line, str(problem)
            return None
        self._previous = line
        self._advance(line, newline)
        return record

    def _advance(self, line: bytes, newline: int) -> None:
        self._offset += len(line) + newline
        if not self.chain.checked:
            # A missing newline is supplied before anything follows, so it counts as there.
            self.chain.crc = zlib.crc32(b"\n", zlib.crc32(line, self.chain.crc))

    def _read(self, line: bytes) -> SequencedRecord:
        crc = self._check_crc(line)
        try:
            envelope = _decode_envelope(line, checked=crc is not None)
        except (BadJson, msgspec.MsgspecError, UnicodeDecodeError) as problem:
            self._refuse_newer(self._require_whole(line))
            raise self._corrupt(str(problem)) from None
        if envelope.seq != self.chain.seq + 1:
            raise _NotWhole(f"seq is {envelope.seq}, expected {self.chain.seq + 1}")
        record = self._payload(envelope)
        if crc is None and self.chain.checked:
            raise _NotWhole("the record has no checksum")
        if crc is None and envelope.crc is not None:
            raise _NotWhole("the checksum isn't at the end of the line")
        if isinstance(record, MetaRecord):
            self._check_meta(record, crc)
        self.chain.seq = envelope.seq
        if crc is not None:
            self.chain.crc, self.chain.checked, self.chain.known = crc, True, True
        return SequencedRecord(envelope.seq, record, envelope.time)

    def _check_crc(self, line: bytes) -> int | None:
        tail = line[-_CRC_TAIL_BYTES:]
        found = _CRC_TAIL.match(tail)
        if found is None:
            return None
        if not self.chain.known:
            return int(found[1], 16)
        crc = zlib.crc32(memoryview(line)[:-_CRC_TAIL_BYTES], self.chain.crc)
        if int(found[1], 16) != crc:
            raise _NotWhole(f"checksum is {found[1].decode()}, expected {crc:08x}")
        return crc

    def _require_whole(self, line: bytes) -> _Loose:
        """Return the parsed line if it is a whole record of whatever kind, else raise `_NotWhole`."""
        try:
            check_strict(line)
            loose = _loose_decoder.decode(line)
        except BadJson as problem:
            raise _NotWhole(str(problem)) from None
        except msgspec.ValidationError:
            raise _NotWhole("not a JSON object") from None
        seq = _small(loose.seq)
        if type(seq) is not int or seq != self.chain.seq + 1:
            raise _NotWhole(f"seq is {seq!r:.40}, expected {self.chain.seq + 1}")
        if self.chain.checked and not bytes(loose.crc):
            raise _NotWhole("the record has no checksum")
        return loose

    def _refuse_newer(self, loose: _Loose) -> None:
        if self.chain.seq == 0 and type(version := loose.version) is int and version > VERSION:
            raise NewerVersion(version, VERSION)

    def _payload(self, envelope: _Envelope) -> Record:
        key = _KEY_OF_PROTOCOL.get(envelope.protocol)
        if key is None:
            raise self._corrupt(f"unknown protocol {envelope.protocol!r:.100}", envelope.seq)
        record: Record | None = getattr(envelope, key)
        payloads = (envelope.meta, envelope.assistant, envelope.tool_result, envelope.user, envelope.terminal)
        if record is None or payloads.count(None) != len(payloads) - 1:
            found = ", ".join(sorted(name for name in PROTOCOLS if getattr(envelope, name) is not None)) or "none"
            raise self._corrupt(f"protocol {key} needs exactly that payload, found {found}", envelope.seq)
        return record

    def _check_meta(self, meta: MetaRecord, crc: int | None) -> None:
        if self.chain.seq == 0 and meta.version > VERSION:
            raise NewerVersion(meta.version, VERSION)
        if not 1 <= meta.version <= VERSION:
            raise self._corrupt(f"meta says version {meta.version}", seq=1)
        if meta.checksums and crc is None:
            raise _NotWhole("meta promises checksums and has none")

    def _corrupt(self, cause: str, seq: int | None = None) -> JournalCorrupt:
        return JournalCorrupt(cause, where=self._where, line=max(self._line_number, 1), offset=self._offset, seq=seq)


def _decode_envelope(line: bytes, *, checked: bool) -> _Envelope:
    try:
        if checked:
            # The checksum vouches for what was validated when it was written; UTF-8 is looked at all the same,
            # because msgspec skips over invalid bytes inside a verbatim part.
            line.decode()
        else:
            check_strict(line)
            if doubled := doubled_keys(line):
                raise BadJson(f"key {doubled[0]!r:.40} stands twice")
        return _envelope_decoder.decode(line)
    except RecursionError:
        check_nesting(line)  # a caller's stack that is nearly full must not pass for damage
        raise


def payload_bytes(line: bytes) -> tuple[str, bytes]:
    """Return a line's payload key and the payload exactly as written, unknown fields included."""
    fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    key = msgspec.json.decode(fields["protocol"], type=str).removeprefix(PROTOCOL_PREFIX)
    return key, bytes(fields[key])


def read_unchecked(line: bytes) -> SequencedRecord | None:
    """Read one line without what came before it, so without its checksum; None if it is no record."""
    try:
        envelope = _envelope_decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None
    record = getattr(envelope, envelope.protocol.removeprefix(PROTOCOL_PREFIX), None)
    return SequencedRecord(envelope.seq, record, envelope.time) if isinstance(record, Record) else None


def chain_after(line: bytes) -> Chain | None:
    """Return what the line after `line` is checked against, taken from its own words; None if it is no record.

    Without a checksum in `line` there is no value to go on from, so the next one is believed.
    """
    record = read_unchecked(line)
    if record is None:
        return None
    found = _CRC_TAIL.search(line)
    has_one = found is not None
    return Chain(record.seq, int(found[1], 16) if found else 0, checked=has_one, known=has_one)
