"""The page of what was tried: its table is that of the results kept beside it, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_guarantees import names_in
from tests.reliability import planting, report
from tests.reliability.catalogue import find, load
from tests.reliability.trials import BrokenPromise, Tally, Trial, tried

ROOT = Path(__file__).resolve().parents[2]
PAGE = report.PAGE.read_text(encoding="utf-8")
TRACK_RECORD = PAGE.partition("## Track record")[2]


def test_names_of_trials_are_unique_and_each_can_be_found() -> None:
    names = [trial.name for trial in load()]
    assert len(names) == len(set(names)) > 10
    assert [find(name).name for name in names] == names


def test_the_table_is_that_of_the_results_beside_it() -> None:
    assert report.page(PAGE, report.table(load(), report.kept())) == PAGE


def test_the_page_of_planted_bugs_has_all_of_them() -> None:
    page = report.PLANTED_PAGE.read_text(encoding="utf-8")
    assert report.page(page, planting.table()) == page, "run: python -m tests.reliability --pages"


def test_every_trial_was_run_and_broke_nothing() -> None:
    results = report.kept()
    assert results.keys() == {trial.name for trial in load()}
    for trial in load():
        result = results[trial.name]
        assert result.problems == []
        assert sum(result.broken.values()) == 0
        assert result.cases >= (trial.target if result.form == "long" else 1)


def test_every_fault_of_the_track_record_has_a_test_that_exists() -> None:
    rows = [row for row in TRACK_RECORD.splitlines() if row.startswith("| ") and not row.startswith("| fault")]
    assert len(rows) >= 10
    for row in rows:
        found = re.search(r"`(tests/[\w/]+\.py)::([\w:]+)` \|$", row)
        assert found is not None, row
        assert found[2] in names_in(ROOT / found[1]), row


def fail(problem: Exception) -> None:
    raise problem


def breaking(tally: Tally, _form: str) -> None:
    """Try three cases, of which two break."""
    with tally.case("the first"):
        pass
    with tally.case("the second"):
        fail(BrokenPromise("it is gone", "lost"))
    with tally.case("the third"):
        fail(ZeroDivisionError("oops"))


BREAKING = Trial("breaking", "cases", "Tries.", "P1", breaking, target=4)


def test_a_trial_goes_on_after_a_failure_and_tells_how_to_repeat_it() -> None:
    tally = tried(BREAKING, "long")
    assert tally.cases == 3
    assert tally.broken == {"lost": 1, "traceback": 1}
    with pytest.raises(BrokenPromise, match="the second: BrokenPromise: it is gone"):
        tally.check()


def test_a_trial_that_tried_nothing_has_shown_nothing() -> None:
    with pytest.raises(BrokenPromise, match="nothing was tried"):
        Tally().check()


def test_a_result_that_broke_or_fell_short_fails_the_report_and_is_shown() -> None:
    result = report.result_of(BREAKING, tried(BREAKING, "long"), "long", report.now())
    assert result.problems[-1] == "only 3 of 4 cases"
    assert report.decoded(report.encoded(result).encode()) == result
    (_, _, row) = report.table([BREAKING], {"breaking": result})
    assert "| 3 cases | 1 | 0 | 0 | 0 | 1 |" in row
    (_, _, row) = report.table([BREAKING], {})
    assert "| not run |" in row
