"""Signals and stubborn tools, each way of attack in its short form."""

from __future__ import annotations

import pytest

from tests.reliability.signal_trials import TRIALS
from tests.reliability.trials import Trial, tried

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_signals_and_stubborn_tools_break_no_promise(trial: Trial) -> None:
    tried(trial, "short").check()
