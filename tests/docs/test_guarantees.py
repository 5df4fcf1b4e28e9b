"""The page of guarantees names tests that exist, and figures that are those of the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.core.test_damage import LINES, WHOLE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PROMISES = {
    number: set(re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", text))
    for number, text in re.findall(r"^## P(\d+)\. (.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
}


def names_in(path: Path) -> set[str]:
    """Return the tests of a file, methods as `Class::name`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def test_each_promise_has_its_tests() -> None:
    assert [int(number) for number in PROMISES] == list(range(1, 22))
    assert all(PROMISES.values())


def test_each_named_test_exists() -> None:
    named = {tuple(test.split("::", 1)) for tests in PROMISES.values() for test in tests}
    assert len(named) > 60
    missing = [f"{path}::{name}" for path, name in sorted(named) if name not in names_in(ROOT / path)]
    assert missing == []


def test_figures_are_those_of_the_tests() -> None:
    last = LINES[-1]
    looks_torn = 8 + sum(last.count(byte) for byte in (b" ", b"@", b"\x80"))
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert rows["bits flipped, one at a time"] == f"{len(WHOLE) * 8:,}"
    assert f"; {looks_torn} of the last line's {len(last) * 8:,} look" in PAGE
    assert rows["cuts, one at each byte"] == f"{len(WHOLE) + 1:,}"
    assert rows["lines lost"] == str(len(LINES))
    assert rows["pairs of lines swapped"] == str(len(LINES) * (len(LINES) - 1) // 2)
