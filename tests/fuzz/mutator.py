"""Inputs that come far: bytes of the corpus, changed as what they are, with numbers and checksums made right again.

Plain random bytes end at the first check. So a journal is changed by lines and by JSON values, and mostly sealed anew,
which takes the changes past seq and checksum to the code behind them. Each input follows from its number alone.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from tests.fuzz.targets import Shape

MAX_BYTES = 6000
"""Inputs stay small: what large ones do is tried by a trial of its own."""

LARGE_BYTES = 120_000

Item = TypeVar("Item")
Change = Callable[["Mutator", bytes], bytes]

_BYTES = (
    b"\0",
    b"\n",
    b"\r",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"{",
    b"[",
    b'"',
    b"\\",
    b"\\u",
    b",",
)
_RAW_PIECES = (
    b"NaN", b"-Infinity", b"1e999", b"-1e-999", b"9" * 400, b"9" * 4400, b"18446744073709551616", b"1.0", b"-0",
    b'"\\ud83d"', b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\x01"', b'"\xff"', b'"\xed\xa0\x80"', b"[" * 150 + b"]" * 150,
    b"[" * 250 + b"]" * 250, b'{"a":1,"a":2}', b'"\\u001b[2J"', b"1 2", b"",
)  # fmt: skip
_RAW = {f"@{number}@": raw for number, raw in enumerate(_RAW_PIECES)}
"""What stands in for JSON that no encoder writes, until the rest is written."""
_RAW_TOKEN = re.compile(rb'"(@\d+@)"')
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, 2**63, 2**64, 0.5, "", "x", "a", "b", "call_0", "text", "tool_use",
    "tool_result", "image", "base64", "user", "assistant", "completed", "suspended", "error", "end_turn",
    "pause_turn", "refusal", "max_tokens", "anthropic", "openai", " \n", "\u200b", "\x1b[2J\u202e", "é\u2028", [], {},
    [{}], [[]], {"type": "text"}, {"type": "text", "text": ""},
    {"type": "tool_use", "id": "b", "name": "n", "input": {}}, [0], [0, 1], [-1], *_RAW,
)  # fmt: skip
_KEYS = (
    "seq", "crc", "time", "protocol", "meta", "assistant", "tool_result", "user", "terminal", "version", "run_id",
    "checksums", "message", "content", "result", "tool_use_id", "reason", "resumed", "fingerprint", "format",
    "parallel", "unusable", "stop_reason", "in_tokens", "type", "text", "id", "name", "input", "tool_calls",
    "function", "arguments", "refusal", "is_error", "source", "role", "waiting", "message", "forked_from", "", "zz",
)  # fmt: skip
_UNITS = (
    b"[]", b"{}", b'{"":0}', b'{"a":1,"b":2}', b"[[]]", b'[{"":[]}]', b'""', b'"a"', b"1.5", b"999", b"null",
    b'"\\u00e9"', '"\U0001f600"'.encode(), b"\x1b[31m", b"&a x", b"- ", b'{"type":"text","text":""}',
    b'{"type":"tool_use","id":"a","name":"n","input":{}}', b"\n", b"\0",
)  # fmt: skip
_SEQ = re.compile(rb'"seq": ?[^,}\s]+')
_CRC = re.compile(rb',"crc":"[0-9a-f]{8}"\}\Z')
_YAML_WORDS = (
    "llm:", "tools:", "commands:", "python:", "sessions:", "store:", "identity:", "system_prompt:", "provider:",
    "model:", "budget:", "thinking:", "parameters:", "argv:", "name:", "type:", "default:", "enum:", "required:",
    "properties:", "$ref:", "pattern:", "items:", "- ", "? ", ": ", "&a ", "*a", "!!str ", "!x ", "|", ">", "'", '"',
    "{", "}", "[", "]", "#", "%YAML 1.1\n", "---\n", "...\n", "\t", "\0", "\x85", "\u2028", "\\x", '"\\ud83d"',
    '"\\U00110000"', "1e999", ".inf", ".nan", "0x", "0o7", "9" * 30, "1_000", "yes", "null", "true", "1h", "-1s",
    "openai", "scripted", "http://[", "<<: *a", "\u202e", "\ufeff", "{{", "{x}", "*", "[" * 45 + "]" * 45,
)  # fmt: skip
_TEXT_PIECES = (
    "\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b\\", "\x07", "\x9b", "\x9d", "\x90", "\x9c", "31m", "2J", "0;t",
    "52;c;eA==", "?", " ", "~", "\r", "\b", "\x7f", "\n", "\t", "\0", "\u202e", "\u2066", "\u2069", "\u200b",
    "\u200d", "\u2028", "\x85", "\ufeff", "\U000e0041", "\ue000", "\ud83d", "\ude00", "\U0001f600", "é", "e\u0301",
    "x", "word", "[shortened: 1 of 2", "\u3000", "\xa0", "\xad", "\U0010ffff",
)  # fmt: skip


class Mutator:
    """Makes the inputs of a target, each from its number."""

    def __init__(self, shape: Shape, corpus: Sequence[bytes]) -> None:
        self.corpus = [each[:MAX_BYTES] for each in corpus]
        self._changes = _CHANGES[shape]
        self._seal = shape == "journal"
        self.random = Random(0)

    def make(self, number: int) -> bytes:
        """Return the input of this number."""
        self.random.seed(number)
        data = self.pick(self.corpus)
        for _ in range(self.pick((1, 1, 2, 4))):
            data = self.pick(self._changes)(self, data)
        return self.finish(data)[:MAX_BYTES]

    def make_large(self, number: int) -> bytes:
        """Return a larger input, much of it one small piece over and over."""
        data = self.make(number)
        unit = self.pick(_UNITS)
        piece = b"[" + b",".join([unit] * (LARGE_BYTES // (len(unit) + 1))) + b"]"
        if self._seal:
            lines = data.split(b"\n")
            at = self.below(len(lines))
            lines[at] = lines[at].replace(b"{", b'{"extra":' + piece + b",", 1)
            return sealed(b"\n".join(lines))
        at = data.find(b"{") + 1
        return data[:at] + b'"extra":' + piece + b"," + data[at:] if at and self.below(2) else piece

    def change(self, data: bytes, number: int) -> bytes:
        """Change given bytes, for a fuzzer that chooses its inputs itself."""
        self.random.seed(number)
        return self.finish(self.pick(self._changes)(self, data))

    def finish(self, data: bytes) -> bytes:
        """Seal most journals anew, and damage a few of those once more."""
        if self._seal and self.below(4):
            data = sealed(data)
            if not self.below(8):
                data = change_bytes(self, data)
        return data

    def below(self, end: int) -> int:
        """Return a number from 0; a tenth of the price of `randrange`."""
        return int(self.random.random() * end)

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return items[int(self.random.random() * len(items))]

    def span(self, size: int) -> tuple[int, int]:
        """Return a short range within `size`."""
        start = self.below(size + 1)
        return start, min(size, start + 1 + self.below(self.pick((1, 4, 16, 200))))


def sealed(data: bytes) -> bytes:
    """Number the lines of a journal from 1 and make each checksum that it has right."""
    crc, checked, lines = 0, False, data.split(b"\n")
    for at, line in enumerate(lines):
        line = _SEQ.sub(b'"seq":%d' % (at + 1), line, count=1)
        if found := _CRC.search(line):
            body = line[: found.start()]
            crc, checked = zlib.crc32(body, crc), True
            line = body + b',"crc":"%08x"}' % crc
        elif not checked:
            crc = zlib.crc32(line + b"\n", crc)
        lines[at] = line
    return b"\n".join(lines)


def change_bytes(m: Mutator, data: bytes) -> bytes:
    """Flip, set, insert, cut, repeat or pad bytes."""
    start, end = m.span(len(data))
    match m.below(7):
        case 0 if data:
            at = min(start, len(data) - 1)
            return data[:at] + bytes([data[at] ^ 1 << m.below(8)]) + data[at + 1 :]
        case 1:
            return data[:start] + bytes([m.below(256)]) + data[start + 1 :]
        case 2:
            return data[:start] + m.pick(_BYTES) + data[start:]
        case 3:
            return data[:start] + data[end:]
        case 4:
            return data[:end] + data[start:]
        case 5:
            return data[:start]
        case _:
            return data[:start] + bytes(m.below(20)) + m.pick((b"", b"\n"))


def change_lines(m: Mutator, data: bytes) -> bytes:
    """Drop, double, swap, splice or glue lines."""
    lines = data.split(b"\n")
    first, second = m.below(len(lines)), m.below(len(lines))
    other = m.pick(m.corpus).split(b"\n")
    match m.below(7):
        case 0:
            del lines[first]
        case 1:
            lines.insert(second, lines[first])
        case 2:
            lines[first], lines[second] = lines[second], lines[first]
        case 3:
            lines[first] = m.pick(other)
        case 4:
            lines[first:first] = other[m.below(len(other)) :]
        case 5:
            lines[first : first + 2] = [b"".join(lines[first : first + 2])]
        case _:
            lines.insert(first, m.pick((b"", b" ", b"\r", b"{}", b"null", b"\0\0")))
    return b"\n".join(lines)


def change_line(m: Mutator, data: bytes) -> bytes:
    """Change a JSON value in one line of a journal."""
    lines = data.split(b"\n")
    at = m.below(len(lines))
    lines[at] = change_json(m, lines[at])
    return b"\n".join(lines)


def change_json(m: Mutator, data: bytes) -> bytes:
    """Replace, remove, add or move a value somewhere in JSON; what isn't JSON is changed as bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(m, data)
    holder = _somewhere(m, value)
    if holder is None:
        value = m.pick(_VALUES)
    elif isinstance(holder, dict):
        _change_object(m, holder)
    else:
        _change_array(m, holder)
    return _written(m, value, compact=b'": ' not in data)


def _somewhere(m: Mutator, value: Any) -> dict[str, Any] | list[Any] | None:
    """Walk down to an object or array; None if there is none."""
    holder: dict[str, Any] | list[Any] | None = None
    while isinstance(value, (dict, list)):
        holder = value
        if not value or not m.below(6):
            break
        value = m.pick(list(value.values()) if isinstance(value, dict) else value)
    return holder


def _change_object(m: Mutator, holder: dict[str, Any]) -> None:
    key = m.pick(list(holder)) if holder else m.pick(_KEYS)
    match m.below(4):
        case 0:
            holder.pop(key, None)
        case 1:
            holder[m.pick(_KEYS)] = m.pick(_VALUES)
        case 2 if isinstance(holder.get(key), str):
            holder[key] += m.pick(_TEXT_PIECES)
        case _:
            holder[key] = m.pick(_VALUES)


def _change_array(m: Mutator, holder: list[Any]) -> None:
    at = m.below(len(holder)) if holder else 0
    match m.below(4):
        case 0:
            del holder[at : at + 1]
        case 1:
            holder.insert(at, m.pick(_VALUES))
        case 2:
            holder[at:at] = holder[m.below(len(holder)) :] if holder else []
        case _:
            holder[at : at + 1] = [m.pick(_VALUES)]


def _written(m: Mutator, value: Any, *, compact: bool) -> bytes:
    """Write as before, so that a checksum is found again; then put raw pieces in."""
    text = json.dumps(value, separators=(",", ":") if compact else (", ", ": "), ensure_ascii=not m.below(3))
    raw = text.encode("utf-8", "surrogatepass")
    return _RAW_TOKEN.sub(lambda token: _RAW.get(token[1].decode(), b""), raw) if b'"@' in raw else raw


def change_yaml(m: Mutator, data: bytes) -> bytes:
    """Put words of YAML and of agent.yaml in, or move one value to another key."""
    lines = data.split(b"\n")
    at = m.below(len(lines))
    word = m.pick(_YAML_WORDS).encode("utf-8", "surrogatepass")
    match m.below(4):
        case 0:
            lines[at] = b"  " * m.below(4) + word + b" " + lines[at].strip()
        case 1:
            lines[at] = lines[at].partition(b":")[0] + b": " + word
        case 2:
            lines[at] = b" " * m.below(3) + lines[at]
        case _:
            start = m.below(len(lines[at]) + 1)
            lines[at] = lines[at][:start] + word + lines[at][start:]
    return b"\n".join(lines)


def change_text(m: Mutator, data: bytes) -> bytes:
    """Put pieces of escape sequences, invisible characters and halves of pairs in."""
    start, end = m.span(min(len(data), 120))
    pieces = "".join(m.pick(_TEXT_PIECES) for _ in range(1 + m.below(4)))
    return data[:start] + pieces.encode("utf-8", "surrogatepass") + data[end:120]


_CHANGES: Mapping[Shape, Sequence[Change]] = {
    "journal": (change_bytes, change_lines, *[change_line] * 6),
    "json": (change_bytes, change_json, change_json, change_json),
    "yaml": (change_bytes, change_lines, change_yaml, change_yaml, change_yaml),
    "text": (change_bytes, change_text, change_text, change_text),
}
