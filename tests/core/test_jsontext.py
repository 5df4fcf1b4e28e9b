"""JSON as bytes: strict where it is read, repaired once where it comes in, canonical where it is hashed."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fisk_ai.jsontext import (
    BadJson,
    canonical,
    check_nesting,
    decode_strict,
    doubled_keys,
    journalable,
    nesting,
    splice_array,
)
from fisk_ai.text import wellformed

odd = st.text(st.sampled_from('\\u"dn8/ \ud83d\ude00\ud800\u2028é\0\n'), max_size=12)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"NaN", b"[Infinity]", b"-Infinity", b"1e999",
        b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf1", b'"\x01"', b'"\0"', b"01", b"[1,]", b"{'a':1}", b"1 2", b"9" * 5000, '"x"'.encode("utf-16"),
        b"[" * 201 + b"]" * 201, b"[" * 100_000, b'{"a":' * 201 + b"1" + b"}" * 201,
    ],
)  # fmt: skip
def test_what_is_not_strict_json_is_refused_with_a_reason(raw: bytes) -> None:
    with pytest.raises(BadJson) as caught:
        decode_strict(raw)
    assert str(caught.value)


@pytest.mark.parametrize(
    "raw", [b"1", b' {"a":[1.5e3,null]} ', b'"\\ud83d\\ude00"', '"\u2028\x7f"'.encode(), b"[" * 200 + b"]" * 200]
)
def test_strict_json_is_read(raw: bytes) -> None:
    assert decode_strict(raw) == json.loads(raw)


@pytest.mark.parametrize(
    ("raw", "levels"),
    [(b"1", 0), (b"[]", 1), (b'{"a":[{}]}', 3), (b'"[[[["', 0), (b'["\\"[[", {"]": "[\\\\"}]', 2), (b'{"[":[]}', 2)],
)
def test_levels_are_counted_outside_of_texts(raw: bytes, levels: int) -> None:
    assert nesting(raw) == levels
    check_nesting(raw, levels)


def test_counting_levels_of_a_large_text_costs_no_memory() -> None:
    raw = b'"' + b"[\\n{" * 2_000_000 + b'"'
    tracemalloc.start()
    try:
        assert nesting(raw) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(raw)


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b'{"a":1,"b":2}', []),
        (b'{"a":1,"a":2}', ["a"]),
        (b'{"a":{"x":1,"x":1}}', ["x"]),
        (b'{"a":1,"\\u0061":2}', ["a"]),
        (b'{"a":{"b":{"x":1,"x":1}}}', []),
        (b'{"a":[{"x":1,"x":1}]}', []),
        (b"[1]", []),
    ],
)
def test_doubled_keys_are_found_in_the_outer_levels(raw: bytes, wanted: list[str]) -> None:
    assert doubled_keys(raw) == wanted


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a" : 1.50e+1, "b":[ 2 ],"c":"\\u00e9\\/ \\ud83d\\ude00"}',
        b'{"a":1,"a":2}',
        b'"\\\\ud800"',
        '"\u2028 é"'.encode(),
        b'"\\u0000\\n"',
    ],
)
def test_valid_json_on_one_line_is_journaled_as_it_is_spelled(raw: bytes) -> None:
    assert journalable(raw) == raw


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b'{\n  "a": 1.50e+1,\r\n  "b": "\\u00e9 x"\n}\n', b'{"a":1.50e+1,"b":"\\u00e9 x"}'),
        (b'"a\\ud83db"', b'"a\\ufffdb"'),
        (b'"\\ude00\\ud83d"', b'"\\ufffd\\ufffd"'),
        (b'"\\ud83d\\ud83d\\ude00"', b'"\\ufffd\\ud83d\\ude00"'),
        (b'"\\\\\\ud83d"', b'"\\\\\\ufffd"'),
        (b'"\xff"', '"\ufffd"'.encode()),
        (b'"\xed\xa0\xbd"', '"\ufffd\ufffd\ufffd"'.encode()),
    ],
)
def test_only_what_cannot_be_carried_is_changed(raw: bytes, wanted: bytes) -> None:
    assert journalable(raw) == wanted


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b"1e999", b"[" * 500 + b"]" * 500, b"{}{}"])
def test_what_is_not_json_even_then_is_refused(raw: bytes) -> None:
    with pytest.raises(BadJson):
        journalable(raw)


def repaired(value: Any) -> Any:
    if isinstance(value, str):
        return wellformed(value)
    if isinstance(value, list):
        return [repaired(each) for each in value]
    if isinstance(value, dict):
        return {wellformed(key): repaired(each) for key, each in value.items()}
    return value


@given(values, st.sampled_from([None, 1, "\t"]))
@example("\\\ud800", None)
def test_whatever_json_comes_in_one_strict_line_goes_out(value: Any, indent: Any) -> None:
    line = journalable(json.dumps(value, indent=indent).encode())
    assert b"\n" not in line
    assert decode_strict(line) is not None or value is None
    # Two keys that differ only in what can't be carried become one; the last wins, as in any parser.
    assert json.loads(line) == repaired(value)
    assert journalable(line) == line


@given(values)
def test_canonical_json_does_not_depend_on_order(value: Any) -> None:
    value = repaired(value)
    encoded = canonical(value)
    assert json.loads(encoded) == value
    shuffled = dict(reversed(value.items())) if isinstance(value, dict) else value
    assert canonical(shuffled) == encoded


def test_canonical_json_has_no_white_space_and_is_utf8() -> None:
    assert canonical({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"é"]}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        canonical(float("nan"))


def test_spliced_values_are_not_looked_at() -> None:
    assert splice_array([b"1", b' {"a":1} ']) == b'[1, {"a":1} ]'
    assert splice_array([]) == b"[]"
