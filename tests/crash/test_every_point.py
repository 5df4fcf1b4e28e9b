"""Killed with SIGKILL at every point, one after another, until a run passes undisturbed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.crashing import CrashingRun, Driver, check_run
from tests.crash.driver import WORKLOADS


def twin_of(driver: Driver, tmp_path: Path, workload: str) -> CrashingRun:
    (tmp_path / "twin").mkdir()
    twin = CrashingRun(driver, tmp_path / "twin", workload)
    twin.finish()
    return twin


def fresh(driver: Driver, tmp_path: Path, workload: str, name: object) -> CrashingRun:
    directory = tmp_path / str(name)
    directory.mkdir()
    return CrashingRun(driver, directory, workload)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_killed_at_every_point_a_run_ends_as_its_undisturbed_twin(
    driver: Driver, tmp_path: Path, workload: str
) -> None:
    twin = twin_of(driver, tmp_path, workload)
    points: Counter[str] = Counter()
    for point in range(1, 1000):
        run = fresh(driver, tmp_path, workload, point)
        if not run.killed_at(point):
            break
        points.update(run.lines("killed"))
        run.finish()
        check_run(run, twin)
    expected = {"before write", "in write", "before newline", "after write", "before sync", "after sync"}
    expected |= {"after directory sync", "after lock", "before model call", "in model call", "after model call"}
    if workload != "one-turn":
        expected |= {"at tool start", "after effect"}
    assert expected <= set(points)
    assert points.total() == point - 1 > 25


@pytest.mark.slow
@pytest.mark.parametrize("first", [30, 52, 83])
def test_killed_again_while_it_recovers_a_run_ends_as_its_undisturbed_twin(
    driver: Driver, tmp_path: Path, first: int
) -> None:
    twin = twin_of(driver, tmp_path, "batches")
    for point in range(1, 1000, 4):
        run = fresh(driver, tmp_path, "batches", point)
        assert run.killed_at(first)
        reached = run.killed_at(point)
        run.finish()
        check_run(run, twin)
        if not reached:
            break
    assert point > 20


@pytest.mark.slow
def test_killed_at_every_step_of_the_way_a_run_still_ends(driver: Driver, tmp_path: Path) -> None:
    """Each process dies a little later than the one before it; together they get there."""
    twin = twin_of(driver, tmp_path, "batches")
    run = fresh(driver, tmp_path, "batches", "run")
    point = 20
    while run.killed_at(point):
        point += 1
    run.finish()
    check_run(run, twin)
    assert run.kills > 5
