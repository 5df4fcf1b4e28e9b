"""docs/comparison.md has the tables that the kill test wrote, and our own contestant does what they say."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

import pytest
from benchmarks.cases import damaged_store, kill_and_resume, second_process
from benchmarks.kill_test import CONTESTANTS, HERE, PAGE, RESULTS
from benchmarks.page import written
from benchmarks.scene import PLACES

OURS = CONTESTANTS[0]


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return read


def test_page_has_the_tables_that_the_kill_test_wrote(results: list[dict[str, Any]]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, results) == page


def test_every_contestant_was_killed_at_every_place(results: list[dict[str, Any]]) -> None:
    assert [each["name"] for each in results] == [each.name for each in CONTESTANTS]
    for each in results:
        assert list(each["kills"]) == list(PLACES)
        assert all(runs for runs in each["kills"].values())


def test_page_is_dated_and_names_versions_that_the_requirements_pin(results: list[dict[str, Any]]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([a-z-]+)(?:\[\w+\])?==(\S+)$", (HERE / "requirements.txt").read_text(), re.M))
    for each in results:
        assert dt.date.fromisoformat(each["date"]).isoformat() in page
        for package, version in each["versions"].items():
            assert f"| {package} | {version} |" in page
            assert package == "fisk-ai" or pinned[package] == version


@pytest.mark.slow
@pytest.mark.parametrize("place", ["charge: done", "email: begins", "ship: done", "model 3: answers"])
def test_our_own_contestant_repeats_at_most_the_call_that_it_names(place: str) -> None:
    outcome = kill_and_resume(OURS, place, pace_s=0.0)
    tool, _, moment = place.partition(": ")
    assert outcome.finished, outcome.error
    assert outcome.named == ([] if tool.startswith("model") else [tool])
    assert (outcome.repeated, outcome.recognisable) == ((1, 1) if moment == "done" else (0, 0))
    assert (outcome.lost, outcome.paid_again, outcome.altered) == (0, 0, 0)


@pytest.mark.slow
def test_our_own_contestant_refuses_a_second_process() -> None:
    outcome = second_process(OURS, "charge: begins", pace_s=0.0)
    assert outcome.finished
    assert outcome.note == "refused"
    assert "RunLocked" in outcome.error
    assert outcome.repeated == outcome.paid_again == 0


@pytest.mark.slow
def test_our_own_contestant_refuses_a_damaged_run() -> None:
    outcome = damaged_store(OURS, pace_s=0.0)
    assert not outcome.finished
    assert outcome.note == "refused"
    assert "JournalCorrupt" in outcome.error
    assert outcome.repeated == 0
