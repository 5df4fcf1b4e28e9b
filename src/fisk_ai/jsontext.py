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

# Possessive: a string of megabytes must not leave a way back for each of its bytes.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_ESCAPED_SURROGATES = re.compile(
    rb"(?<!\\)((?:\\\\)*)"  # an even number of backslashes: the next one starts an escape
    rb"((?:\\u[dD][89a-fA-F][0-9a-fA-F]{2})+)"
)
_PAIR_OR_LONE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


class BadJson(ValueError):
    """The bytes are not strict JSON; the text says why."""


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
    for bracket in _BRACKET.finditer(_STRING.sub(b"", raw)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


class _Pairs(list[tuple[str, Any]]):
    """An object as the pairs that were written."""


def doubled_keys(raw: bytes, levels: int = 2) -> list[str]:
    """Return the keys that stand twice in one object, in the outer `levels` of valid JSON.

    Parsers let the last one win. What is stored verbatim further inside keeps its doubled keys.
    """
    objects = [json.loads(raw, object_pairs_hook=_Pairs)]
    doubled: list[str] = []
    for _ in range(levels):
        objects = [found for found in objects if isinstance(found, _Pairs)]
        for pairs in objects:
            keys = [key for key, _ in pairs]
            doubled += sorted({key for key in keys if keys.count(key) > 1})
        objects = [value for pairs in objects for _, value in pairs]
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
    decode_strict(raw)
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
