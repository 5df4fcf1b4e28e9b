"""Each published failure of a system like ours that we were given is a test named after its id."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_guarantees import names_in

CASES = (
    *("01", "04", "05", "06", "08", "09", "10", "12", "14", "16", "17", "18", "20", "21", "22", "23", "24", "25", "27"),
    *("28", "30", "32", "33", "34", "36", "37", "38", "39", "41", "43", "44", "46", "47", "48", "51", "53", "54", "55"),
    *("58", "60", "61", "63", "64", "65", "68", "71", "72", "73", "74", "75", "78", "79", "80", "81", "83", "85", "86"),
    *("87", "89"),
)
TESTS = [name for path in Path(__file__).parent.glob("test_*.py") for name in names_in(path)]


def test_each_case_is_a_test() -> None:
    assert {found[1] for name in TESTS if (found := re.match(r"test_b(\d\d)_", name))} == set(CASES)
