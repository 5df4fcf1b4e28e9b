"""Killed with SIGKILL at every point, one after another, until a run passes undisturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.crashing import CrashingRun, Driver, check_run
from tests.crash.driver import WORKLOADS
from tests.reliability.kill_trials import sweep_of
from tests.reliability.trials import Tally

STEPS = {"chat": 3, "errors": 3, "side-by-side": 4, "suspends": 6}
"""Of workloads that have much in common with others, not every point: `make reliability` has them all."""


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_killed_at_every_point_a_run_ends_as_its_undisturbed_twin(driver: Driver, workload: str) -> None:
    tally = Tally()
    with sweep_of(driver, workload) as sweep:
        sweep.every_point(tally, STEPS.get(workload, 1))
    tally.check()
    assert tally.cases > 25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "first", "step"),
    [("batches", 30, 5), ("batches", 52, 5), ("batches", 83, 5), ("chat", 70, 7), ("suspends", 75, 12)],
)
def test_killed_again_while_it_recovers_a_run_ends_as_its_undisturbed_twin(
    driver: Driver, workload: str, first: int, step: int
) -> None:
    tally = Tally()
    with sweep_of(driver, workload) as sweep:
        sweep.again(tally, first, step=step)
    tally.check()
    assert tally.cases > 10


@pytest.mark.slow
def test_killed_at_every_step_of_the_way_a_run_still_ends(driver: Driver, tmp_path: Path) -> None:
    """Each process dies a little later than the one before it; together they get there."""
    with sweep_of(driver, "batches") as sweep:
        run = CrashingRun(driver, tmp_path, "batches")
        point = 20
        while run.killed_at(point):
            point += 1
        run.finish()
        check_run(run, sweep.twin)
    assert run.kills > 5
