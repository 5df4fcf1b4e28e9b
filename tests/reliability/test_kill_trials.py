"""The short form of random kills; that of the kill points is `tests/crash/test_every_point.py`."""

from __future__ import annotations

import pytest

from tests.reliability.random_kills import RANDOM_KILLS
from tests.reliability.trials import tried

pytestmark = pytest.mark.slow


def test_runs_that_are_killed_at_random_moments_end_like_undisturbed_ones() -> None:
    tried(RANDOM_KILLS, "short").check()
