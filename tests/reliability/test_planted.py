"""Each planted bug is caught by the test that is named for it, and each guard of ours has been taken away once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from fisk_ai.stores.file import FileJournal
from tests.reliability.guards import MODULES, changed_lines, guards
from tests.reliability.planted import PLANTED
from tests.reliability.planted.edits import Edit, Planted, WrongEdit, left_out
from tests.reliability.planted.wrong import WRONG
from tests.reliability.planting import TRIALS, Outcome, Planter, table, why_not_caught
from tests.stores.processes import in_child

UNNEEDED: Mapping[str, str] = {
    "stores/file.py read: raise AssertionError('unreachable')": "tells the type checker how the loop ends",
    "stores/memory.py _require_free: raise RunExists(run_id, 'running')": (
        "whoever holds a run has recorded something, and what is recorded is refused with the same words"
    ),
}
"""Guards without which nothing goes wrong, and why."""

APPEND = PLANTED["no sync of the file"]
NOTICED = Outcome("failed", (("AssertionError", "Exception"),), message="AssertionError: 1 == 2", reached=True)


@pytest.fixture(scope="module")
def planter() -> Iterator[Planter]:
    with Planter() as started:
        yield started


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught_by_its_named_test(planter: Planter, name: str) -> None:
    outcome = planter.outcome(name)
    if outcome.ending == "skipped":
        pytest.skip(f"its test is skipped here: {outcome.message}")
    assert why_not_caught(PLANTED[name], outcome) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("harmless", "passes with it"),
        ("breaks", "breaks instead of noticing it: TypeError"),
        ("test of something else", "passes with it"),
        ("no such test", "ends otherwise: broken no such test"),
        ("no such source", "ends otherwise: broken FileJournal._write_durably has 0 times"),
    ],
)
def test_what_is_no_caught_bug_is_told_from_one(planter: Planter, name: str, why: str) -> None:
    assert why in (why_not_caught(WRONG[name], planter.outcome(name)) or "")


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (NOTICED, None),
        (replace(NOTICED, problems=(("Failed", "BaseException"),)), None),
        (replace(NOTICED, problems=(("JournalFailed", "StoreError", "FiskError"),), in_product=True), None),
        (replace(NOTICED, reached=False), "without coming to the changed place"),
        (replace(NOTICED, in_product=True), "breaks instead"),
        (replace(NOTICED, problems=(("KeyError", "Exception"),)), "breaks instead"),
        (replace(NOTICED, ending="hung"), "ends otherwise: hung"),
        (Outcome("passed", reached=True), "passes with it"),
        (Outcome("skipped", message="needs root"), "needs root"),
    ],
)
def test_only_a_test_that_comes_to_the_bug_and_says_so_counts(outcome: Outcome, why: str | None) -> None:
    found = why_not_caught(APPEND, outcome)
    assert found is None if why is None else why in (found or "")


def test_a_bug_that_shows_in_a_hang_needs_one() -> None:
    hanging = replace(APPEND, hangs=True)
    assert why_not_caught(hanging, replace(NOTICED, ending="hung")) is None
    assert why_not_caught(hanging, NOTICED) is not None
    assert why_not_caught(hanging, Outcome("hung", reached=False)) is not None


def added(first: int, second: int) -> int:
    return first + second


def test_a_bug_is_there_while_it_is_planted_and_tells_when_it_is_reached() -> None:
    planted = Planted("wrong sum", "", (Edit(added, "first + second", "planted(first - second)"),), "")
    with planted.plant() as reached:
        assert not reached
        assert added(2, 1) == 1
        assert reached
    assert added(2, 1) == 3


def test_a_bug_that_is_reached_in_a_child_is_reached() -> None:
    planted = Planted("wrong sum", "", (Edit(added, "first + second", "planted(first - second)"),), "")
    with planted.plant() as reached:
        assert in_child(lambda: added(2, 1)) == "1"
        assert reached


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit(added, "third", "planted()"), "has 0 times 'third'"),
        (Edit(added, "first", "planted()"), "has 2 times 'first'"),
        (Edit(added, "first + second", "first - second"), "doesn't say that it was reached"),
        (Edit(added, "first + second", "planted("), "no Python"),
        (Edit(len, "first", "planted()"), "no function of Python's"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: Edit, why: str) -> None:
    with pytest.raises(WrongEdit, match=why), Planted("", "", (edit,), "").plant():
        pass


def test_every_guard_has_been_taken_away_once() -> None:
    changed = changed_lines(edit for planted in PLANTED.values() for edit in planted.edits)
    left = [
        guard
        for module in MODULES
        for guard in guards(module)
        if guard.name not in UNNEEDED and not guard.lines & changed.get(module, set())
    ]
    assert not left, "no planted bug takes these away: " + "; ".join(map(str, left))


def test_guards_that_are_called_unneeded_exist() -> None:
    assert set(UNNEEDED) <= {guard.name for module in MODULES for guard in guards(module)}


def test_a_guard_is_found_wherever_it_stands() -> None:
    names = [guard.name for guard in guards("stores/file.py")]
    assert len(names) > 25
    for part in ("sync(self._descriptor)", "truncate(", "drop_cache(", "raise JournalLost(", "set_aside("):
        assert any(part in name for name in names)
    without = changed_lines([left_out(FileJournal._write_durably, "self._disk.sync(self._descriptor)")])
    [(module, lines)] = without.items()
    assert module == "stores/file.py"
    assert len(lines) == 1


def test_the_table_has_a_line_for_each_bug() -> None:
    lines = list(table())
    assert len(lines) == len(PLANTED) + 2 == TRIALS[0].target + 2
    assert all(line.count("|") == 4 for line in lines)
