"""JSON as bytes: strict where it is read, repaired once where it comes in, canonical where it is hashed.

No parser is strict about everything (some take NaN, some pass invalid UTF-8, some die of deep nesting), so what
the journal relies on is stated and checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

MAX_NESTING = 200
"""Levels of arrays and objects that a journal line may have."""

_BUILT_BYTES = 64 * 1024
_START = re.compile(rb"[ \t\r\n]*+[{\[]")
# Possessive: a string of megabytes must not leave a way back for each of its bytes.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# Found one by one: substituting strings away would take thirty times the memory of many short ones.
_BRACKETS = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_KEYS_AND_BRACKETS = re.compile(rb"(" + _STRING + rb")(\s*+:)?|[\[\]{}]", re.DOTALL)
_NUMBERS = re.compile(_STRING + rb"|([-+.eE0-9]*[0-9][-+.eE0-9]*)", re.DOTALL)
# What a double or an integer can't hold needs an exponent of two digits, or hundreds of digits.
_HUGE = re.compile(rb"[0-9][eE]\+?[0-9]{2}|[0-9]{300}")
_ROUGH = bytes.maketrans(b"123456789E", b"000000000e")
_ESCAPED_SURROGATES = re.compile(
    rb"(?<!\\)((?:\\\\)*)"  # an even number of backslashes: the next one starts an escape
    rb"((?:\\u[dD][89a-fA-F][0-9a-fA-F]{2})+)"
)
_PAIR_OR_LONE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


class BadJson(ValueError):
    """The bytes are not strict JSON; the text says why."""


class _Fields(msgspec.Struct):
    """Any object: what is in it is looked at and not kept."""


class _Items(msgspec.Struct, array_like=True):
    """Any array, likewise."""


_check_object = msgspec.json.Decoder(_Fields).decode
_check_array = msgspec.json.Decoder(_Items).decode


def check_strict(raw: bytes) -> None:
    """Raise `BadJson` unless `raw` is strict JSON, as `decode_strict` does; takes little memory for any size.

    Objects and texts of a few bytes take fifty times as much memory as their JSON, so nothing large is built.
    """
    if len(raw) <= _BUILT_BYTES:
        decode_strict(raw)
    else:
        check_unbuilt(raw)


def check_unbuilt(raw: bytes) -> None:
    """Check without building anything, which takes longer; `check_strict` chooses."""
    kind = _START.match(raw)
    if kind is None:
        decode_strict(raw)
        return
    try:
        raw.decode()  # msgspec skips over invalid UTF-8 in places
        if kind[0].endswith(b"{"):
            _check_object(raw)
        else:
            _check_array(raw)
        if _may_hold_huge(raw):
            _check_numbers(raw)  # what is skipped may be beyond any range
    except UnicodeDecodeError as problem:
        raise BadJson(f"not UTF-8 (byte {problem.start})") from None
    except msgspec.DecodeError as problem:
        raise BadJson(str(problem)) from None
    except RecursionError:
        check_nesting(raw)
        raise
    check_nesting(raw)


def _may_hold_huge(raw: bytes) -> bool:
    """Tell whether to look closer; finding two fixed texts is fifty times as fast as trying a pattern at each byte."""
    rough = raw.translate(_ROUGH)
    return (b"0e" in rough or b"0" * 300 in rough) and _HUGE.search(raw) is not None


def _check_numbers(raw: bytes) -> None:
    for found in _NUMBERS.finditer(raw):
        if (number := found[1]) and _HUGE.search(number):
            msgspec.json.decode(number)


def decode_strict(raw: bytes) -> Any:
    """Parse strict JSON: UTF-8 without BOM, no NaN or Infinity, no lone surrogates, bounded nesting.

    Raises:
        BadJson: with the reason.
        RecursionError: if the fault is not the nesting but a stack that is nearly full already.
    """
    try:
        raw.decode()  # msgspec skips over invalid UTF-8 in places
        value = msgspec.json.decode(raw)
    except UnicodeDecodeError as problem:
        raise BadJson(f"not UTF-8 (byte {problem.start})") from None
    except msgspec.DecodeError as problem:
        raise BadJson(str(problem)) from None
    except RecursionError:
        check_nesting(raw)
        raise
    check_nesting(raw)
    return value


def check_nesting(raw: bytes, limit: int = MAX_NESTING) -> None:
    """Raise `BadJson` if valid JSON is nested deeper than `limit` levels."""
    if raw.count(b"[") + raw.count(b"{") > limit and nesting(raw) > limit:
        raise BadJson(f"nested deeper than {limit} levels")


def nesting(raw: bytes) -> int:
    """Count the levels of arrays and objects of valid JSON."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(raw):
        match raw[found.start()]:
            case 0x22:  # a string
                continue
            case 0x5B | 0x7B:
                depth += 1
                deepest = max(deepest, depth)
            case _:
                depth -= 1
    return deepest


def doubled_keys(raw: bytes, levels: int = 2) -> list[str]:
    """Return the keys that stand twice in one object, in the outer `levels` of strict JSON.

    Parsers let the last one win. What is stored verbatim further inside keeps its doubled keys.
    """
    doubled: list[str] = []
    open_brackets: list[set[bytes] | None] = []  # the keys so far, or None where they don't count
    for found in _KEYS_AND_BRACKETS.finditer(raw):
        text = found[1]
        if text is None:
            if found[0] == b"{":
                counts = len(open_brackets) < levels and None not in open_brackets
                open_brackets.append(set() if counts else None)
            elif found[0] == b"[":
                open_brackets.append(None)
            else:
                open_brackets.pop()
        elif found[2] and (keys := open_brackets[-1]) is not None:
            key = msgspec.json.decode(text, type=str).encode() if b"\\" in text else text[1:-1]
            if key in keys:
                doubled.append(key.decode())
            keys.add(key)
    return doubled


def journalable(raw: bytes) -> bytes:
    """Return JSON from outside as it may stand in a journal line, changed only where it must be.

    Allowed changes (format page, "verbatim"): white space between tokens goes where it holds a line break;
    invalid UTF-8 and lone surrogates become U+FFFD. Everything else keeps its spelling.

    Raises:
        BadJson: if it isn't JSON even then.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        raw = raw.decode("utf-8", "replace").encode()
    if b"\\u" in raw:
        raw = _ESCAPED_SURROGATES.sub(_join_surrogates, raw)
    check_strict(raw)
    if b"\n" in raw or b"\r" in raw:
        raw = msgspec.json.format(raw, indent=-1)
    return raw


def _join_surrogates(found: re.Match[bytes]) -> bytes:
    return found[1] + _PAIR_OR_LONE.sub(lambda part: part[1] or b"\\ufffd", found[2])


def canonical(value: Any) -> bytes:
    """Encode for hashing: sorted keys, no white space, UTF-8. Equal values give equal bytes in every process."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def splice_array(items: Sequence[bytes]) -> bytes:
    """Join encoded JSON values to an array without looking inside them."""
    return b"[" + b",".join(items) + b"]"
