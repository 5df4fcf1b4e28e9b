"""Kills of an agent's process: at each point of each workload, again while it recovers, and at random moments."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash.crashing import CrashingRun, Driver, check_run
from tests.crash.driver import WORKLOADS
from tests.reliability.random_kills import RANDOM_KILLS
from tests.reliability.trials import BrokenPromise, Form, Tally, Trial, require

ALWAYS = frozenset(
    {
        *("before create", "after create", "after lock", "after announce"),
        *("before write", "in write", "before newline", "after write"),
        *("before sync", "after sync", "before directory sync", "after directory sync"),
        *("before model call", "in model call", "after model call", "told TurnRecorded"),
    }
)
"""Points that every workload passes."""
IN_TOOLS = frozenset({"at tool start", "after effect", "told ToolFinished"})

FIRSTS = 6
"""First kills of a workload, after each of which its recovery is swept."""

_MORE_THAN_ANY = 2000
"""Points that no run passes."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Kills of one workload, each of a new run, compared with an undisturbed twin."""

    driver: Driver
    directory: Path
    workload: str
    twin: CrashingRun

    def points(self) -> int:
        """Return how many points the undisturbed run passed, in all its processes."""
        return sum(map(int, self.twin.lines("passed")))

    def every_point(self, tally: Tally, step: int = 1) -> None:
        """Kill at each point, or at each few, until a run passes undisturbed."""
        met = Counter(self._until_undisturbed(tally, (), 1, step))
        tally.reached.update(met)
        expected = ALWAYS if self.workload == "one-turn" else ALWAYS | IN_TOOLS
        missed = expected - met.keys() if step == 1 else frozenset[str]()
        require(not missed, f"{self.workload}: no run was killed", sorted(missed), kind="undetected")
        require(met.total() >= self.points() // step, f"{self.workload}: points were left out", kind="undetected")

    def again(self, tally: Tally, first: int, start: int = 1, step: int = 1) -> None:
        """Kill at a point, and then at each few points of what recovers from that."""
        kills = sum(1 for _ in self._until_undisturbed(tally, (first,), start, step))
        require(kills > 0, f"{self.workload}: nothing was killed after {first}", kind="undetected")
        tally.reached["killed again"] += kills

    def _until_undisturbed(self, tally: Tally, firsts: Sequence[int], start: int, step: int) -> Iterator[str]:
        """Yield where each run died last; a run that doesn't keep its promises is counted and passed over."""
        for point in range(start, _MORE_THAN_ANY, step):
            where = [*firsts, point]
            points = ["broke a promise"] * len(where)
            with tally.case(f"{self.workload} killed at {' and then '.join(map(str, where))}"):
                points = self._killed(where)
            if len(points) < len(where):
                tally.cases -= 1  # the last run was not disturbed
                return
            yield points[-1]
        raise BrokenPromise(f"{self.workload}: no run passed undisturbed", "hang")

    def _killed(self, where: Sequence[int]) -> list[str]:
        """Return the points at which a run died; the last one may not have been reached."""
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            run = CrashingRun(self.driver, Path(directory), self.workload)
            reached = [run.killed_at(point) for point in where]
            require(all(reached[:-1]), f"the run passed only {self.points()} points", kind="undetected")
            run.finish()
            check_run(run, self.twin)
            return run.lines("killed")


@contextmanager
def sweep_of(driver: Driver, workload: str) -> Iterator[Sweep]:
    """A twin that ran undisturbed, and room for what is killed."""
    with tempfile.TemporaryDirectory() as directory:
        twin = CrashingRun(driver, Path(directory) / "twin", workload)
        twin.directory.mkdir()
        twin.finish()
        yield Sweep(driver, Path(directory), workload, twin)


def _spread(points: int, number: int) -> list[int]:
    return [1 + points * at // number for at in range(number)]


def kill_points(tally: Tally, form: Form) -> None:
    """Kill each workload at each point, and again."""
    step, firsts, again = (1, FIRSTS, 2) if form == "long" else (3, 1, 12)
    with Driver() as driver:
        for workload in WORKLOADS:
            with sweep_of(driver, workload) as sweep:
                sweep.every_point(tally, step)
                for at, first in enumerate(_spread(sweep.points(), firsts)):
                    sweep.again(tally, first, 1 + at % again, again)


TRIALS: tuple[Trial, ...] = (
    Trial(
        name="kill points",
        unit="kills",
        method=(
            "A process is killed with SIGKILL before, within and after each operation on the disk and at the edges of "
            "each model and tool call, in seven workloads; then again while it recovers. Answer, transcript, counters "
            "and the bytes of every request must be those of a run that nobody disturbed"
        ),
        promises="P5 P6 P7 P8 P9 P12 P20",
        run=kill_points,
        target=900,
    ),
    RANDOM_KILLS,
)
