"""Text from outside: valid before it is journaled, harmless before it is shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fisk_ai.text import one_line, printable, shorten, wellformed

anything = st.text(st.characters(exclude_categories=()), max_size=40)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain é \U0001f600", "plain é \U0001f600"),
        ("x\ud83dy", "x\ufffdy"),
        ("low x\ude00y", "low x\ufffdy"),
        ("\udc80", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        ("nul \0 stays", "nul \0 stays"),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text: str, wanted: str) -> None:
    assert wellformed(text) == wanted


@given(anything)
def test_wellformed_text_can_be_encoded_and_stays_as_it_is(text: str) -> None:
    once = wellformed(text)
    once.encode()
    assert wellformed(once) == once


FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f466"


@pytest.mark.parametrize("offset", range(-4, 5))
@pytest.mark.parametrize("piece", ["\U0001f600", FAMILY, "é", "€"])
def test_a_cut_is_on_a_border_of_code_points_and_is_said(offset: int, piece: str) -> None:
    text = "a" * 20 + piece + "b" * 20
    limit = 20 + len(piece.encode()) + offset
    short = shorten(text, limit)
    kept, _, note = short.partition("\n[shortened: ")
    assert text.startswith(kept)
    assert limit - 4 < len(kept.encode()) <= limit
    assert note == f"{len(kept.encode())} of {len(text.encode())} bytes shown]"


def test_what_fits_is_not_cut() -> None:
    assert shorten("é" * 5, 10) == "é" * 5


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\x1b[2Jgone", "gone"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]52;c;c2VjcmV0\x07x", "x"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x90payload\x9cx", "x"),
        ("good\rbad", "goodbad"),
        ("abc\b\b\bxyz", "abcxyz"),
        ("a\x7fb", "ab"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("\u2066a\u2069", "a"),
        ("a\u200bb", "ab"),
        ("a\u2028b", "ab"),
        ("\ufeffa", "a"),
        ("a\U000e0041b", "ab"),
        ("a\ud800b", "ab"),
        ("a\x1b", "a"),
        ("\x1b(0lqk", "lqk"),
        ("tab\tand\nline stay", "tab\tand\nline stay"),
    ],
)
def test_nothing_shown_can_drive_a_terminal(text: str, wanted: str) -> None:
    assert printable(text) == wanted


@given(anything)
def test_no_control_or_hidden_character_is_left(text: str) -> None:
    shown = printable(text)
    assert all(c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} for c in shown)
    assert printable(shown) == shown


@given(anything, st.integers(1, 30))
def test_one_line_is_one_line(text: str, width: int) -> None:
    line = one_line(text, width)
    assert len(line) <= width
    assert line.splitlines() in ([], [line])
