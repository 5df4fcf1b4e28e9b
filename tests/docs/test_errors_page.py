"""The page of errors lists what the program can raise, with the codes that it uses."""

from __future__ import annotations

import re
from pathlib import Path

from fisk_ai import errors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def kinds() -> list[type[errors.FiskError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FiskError)]


def test_page_lists_every_error_with_its_code_and_exit_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted((kind.__name__, kind.code, str(kind.exit_code)) for kind in kinds())


def test_codes_of_errors_are_unique() -> None:
    codes = [kind.code for kind in kinds()]
    assert len(set(codes)) == len(codes)


def test_page_shows_the_tree_that_the_module_shows() -> None:
    drawn = re.findall(r"[├└]── (\w+)", PAGE.read_text())
    assert drawn == re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert set(drawn) == {kind.__name__ for kind in kinds()} - {"FiskError"}
