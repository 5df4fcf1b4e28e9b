"""Which texts can name a run, and what new names are like."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fisk_ai import ids
from fisk_ai.errors import InvalidRunId
from fisk_ai.ids import check_new_run_id, check_stored_run_id, is_stored_run_id, new_run_id


@pytest.mark.parametrize("run_id", ["a", "0", "orders-report", "a.b_c-d", "con", "x.json", "a.", "x" * 100])
def test_plain_names_are_allowed(run_id: str) -> None:
    assert check_new_run_id(run_id) == check_stored_run_id(run_id) == run_id


@pytest.mark.parametrize("run_id", ["A", "Orders-Report", "X.JSON"])
def test_upper_case_is_for_stored_runs_and_a_new_one_gets_advice(run_id: str) -> None:
    assert check_stored_run_id(run_id) == run_id
    with pytest.raises(InvalidRunId) as caught:
        check_new_run_id(run_id)
    assert caught.value.suggestion == run_id.lower()
    assert repr(run_id.lower()) in str(caught.value)


def test_no_advice_is_given_that_would_be_refused_too() -> None:
    with pytest.raises(InvalidRunId) as caught:
        check_new_run_id("A/B")
    assert caught.value.suggestion is None


@given(st.text(max_size=110))
def test_what_is_allowed_is_a_plain_file_name(text: str) -> None:
    if is_stored_run_id(text):
        assert text.isascii()
        assert 1 <= len(text) <= 100
        assert not set(text) & set("/\\\0 \n\t:")
        assert text[0].isalnum()
    else:
        with pytest.raises(InvalidRunId):
            check_stored_run_id(text)
        with pytest.raises(InvalidRunId):
            check_new_run_id(text)


def test_a_long_wrong_name_makes_a_short_message() -> None:
    with pytest.raises(InvalidRunId) as caught:
        check_new_run_id("/" * 100_000)
    assert len(str(caught.value)) < 400


def test_new_names_sort_by_time_and_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [new_run_id() for _ in range(500)]
    clock = iter([10**18, 10**18, 9 * 10**17, 10**18 + 10**6])
    monkeypatch.setattr("time.time_ns", lambda: next(clock))
    monkeypatch.setattr(ids, "_last", 0)
    turned = [new_run_id() for _ in range(4)]  # also within a millisecond, and when the clock goes back
    for names in (made, turned):
        assert names == sorted(set(names))
    assert all(len(check_new_run_id(name)) == 26 for name in made + turned)


def test_new_names_differ_between_threads() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend(new_run_id() for _ in range(200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 800
