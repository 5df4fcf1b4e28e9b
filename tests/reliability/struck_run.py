"""A run whose processes are struck by faults, and what has to hold after each of them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fisk_ai.folding import RunState
from tests.crash.crashing import CrashingRun, check_run
from tests.crash.driver import RUN
from tests.reliability.injection import Injection, struck
from tests.reliability.trials import BrokenPromise, Tally, require
from tests.reliability.victims import Victim, Victims

INVISIBLE = {"write r7.lock", "ftruncate r7.lock"}
"""Faults that must not be seen: what the lock file says is for messages only."""
_STORED = "acked call p"
_END = "acked end"
_ADVICE = ("Put it right", "Put the cause right", "keep runs on a file system", "The run stopped")


_numbers = itertools.count()


@dataclass(slots=True)
class StruckRun(CrashingRun):
    """One run over several processes, some of them struck."""

    status: int = 0
    """Wait status of the last process."""
    targets: list[str] = field(default_factory=list)
    """What the last injection struck."""
    _before: RunState | None = None
    _asked: int = 0

    def strike(self, **victim: Any) -> None:
        """Start or resume the run in a process with these faults (see `Victim`)."""
        self._before, self._asked = self.state(), len(self.lines("requests"))
        (self.directory / "outcome").unlink(missing_ok=True)
        self.status = self.driver.child(Victim(str(self.directory), self.workload, **victim))

    def inject(self, injection: Injection, **victim: Any) -> bool:
        """Strike by a system call that fails or kills; tell whether there was such a call."""
        log = self.directory / "log"
        self.strike(strace=injection.arguments(log), **victim)
        self.targets = struck(log)
        return bool(self.targets)

    def was_killed(self) -> None:
        """Judge a process that was to be killed."""
        with promised():
            self._require_no_hang()
            require(os.WIFSIGNALED(self.status), "the process outlived its SIGKILL", kind="undetected")
            self._require_nothing_paid_again(self._before, self._asked)
            self._count_kill()

    def went_through(self) -> None:
        """Judge a process that no fault should have disturbed."""
        self._require_orderly_end()
        outcome = self.outcome
        require("reason" in outcome and not outcome["storage_error"], "it was stopped:", outcome, kind="undetected")
        with promised():
            self._require_good_end(self.status)
            self._require_nothing_paid_again(self._before, self._asked)
            self._note()

    def failed(self, twin: StruckRun, *, before_an_effect: bool = False) -> None:
        """Judge a process that a fault had to stop: it said what failed and how to go on, and did nothing more.

        It stopped at a record that could not be stored or, where that is possible, before an effect.
        """
        self._require_orderly_end()
        outcome = self.outcome
        said: str = outcome.get("text") or outcome.get("storage_error") or ""
        require(said, "nothing was said of the fault:", outcome, kind="undetected")
        require(any(advice in said for advice in _ADVICE), "no way on is told:", said, kind="undetected")
        require("sheep" not in said, "the prompt is shown:", said, kind="undetected")
        with promised():
            self._require_nothing_paid_again(self._before, self._asked)
            self._count_kill()
        self._require_stopped_in_time(twin, before_an_effect=before_an_effect)

    def ends_as(self, twin: StruckRun) -> None:
        """Resume undisturbed to the end, which has to be that of the twin."""
        with promised():
            self.finish()
            check_run(self, twin)

    def copy(self, directory: Path) -> Self:
        """Return the same run in another place, to go on there in another way."""
        shutil.copytree(self.directory, directory)
        return dataclasses.replace(self, directory=directory, named=[*self.named], wholes=[*self.wholes])

    @property
    def whole(self) -> Sequence[int]:
        """The offsets in the journal at which a record is whole."""
        data = b"".join(self.store.read_bytes(RUN))
        return [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]

    def _require_no_hang(self) -> None:
        ended_by = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        require(ended_by != signal.SIGALRM, "the process didn't end", kind="hang")

    def _require_orderly_end(self) -> None:
        self._require_no_hang()
        errors = "\n".join(self.lines("stderr"))
        require(self.status == 0 and not errors, f"status {self.status}:", errors, kind="traceback")
        require("escaped" not in self.outcome, "an error that isn't ours:", self.outcome, kind="traceback")

    def _require_stopped_in_time(self, twin: StruckRun, *, before_an_effect: bool) -> None:
        """Nothing happened after the record that could not be stored: the next step of the twin is to be told of it."""
        done, steps = _steps(self.lines("story")), _steps(twin.lines("stories"))
        told = [step for step in steps if step != _END]
        # A process may go on where one of the twin's ended, so ends are no steps, but places to stop at.
        ends = {at - number for number, at in enumerate(at for at, step in enumerate(steps) if step == _END)}
        stops = ends | {at for at, step in enumerate(told) if step.startswith("acked")} | {len(told)}
        met = [at + len(done) for at in range(len(told)) if told[at : at + len(done)] == done]
        require(met, "it did something else than its twin:", done)
        stopped = before_an_effect or not done or stops & {*met}
        require(stopped, "something happened after the fault:", done[-3:], kind="undetected")


def _steps(story: Sequence[str]) -> list[str]:
    """Return what happened one after the other, without the keys, which each run has of its own.

    What parallel calls do comes in any order; their results are stored one after the other, and are all alike here.
    """
    steps = (" ".join(line.split()[:2]) if line.startswith("effects") else line for line in story)
    alike = (_STORED if step.startswith(_STORED) else step for step in steps)
    return [step for step in alike if not step.startswith("effects p")]


def require_reached(tally: Tally, wanted: Iterable[str]) -> None:
    """Raise if a fault or an ending was never met; what broke on the way is told before that."""
    missed = [each for each in wanted if not tally.reached[each]]
    require(tally.broken or not missed, "never met:", missed, kind="undetected")


@contextlib.contextmanager
def promised() -> Iterator[None]:
    """Tell of a failed assertion as of a broken promise, with its place: most have no text."""
    try:
        yield
    except BrokenPromise:
        raise
    except AssertionError as problem:
        place = traceback.extract_tb(problem.__traceback__)[-1]
        raise BrokenPromise(f"{problem} ({place.name}, line {place.lineno}: {place.line})") from problem


@dataclass(slots=True)
class Stage:
    """Runs of one workload, each in its own directory."""

    victims: Victims
    directory: Path
    workload: str
    prompt: str | None = None
    twin: StruckRun = field(init=False)

    def __post_init__(self) -> None:
        self.twin = self.fresh()
        self.twin.finish()

    def place(self) -> Path:
        return self.directory / f"{self.workload}-{next(_numbers)}"

    def fresh(self) -> StruckRun:
        """Return a run that hasn't begun."""
        directory = self.place()
        directory.mkdir()
        if self.prompt is not None:
            (directory / "prompt").write_text(self.prompt)
        return StruckRun(self.victims, directory, self.workload)

    def interrupted(self, write: int) -> StruckRun:
        """Return a run that was killed before its N-th write (the first one is the lock's)."""
        run = self.fresh()
        run.inject(Injection("write", write))
        run.was_killed()
        return run

    def cut(self, size: int) -> StruckRun:
        """Return a run that was stopped because its journal could not become larger than this many bytes."""
        run = self.fresh()
        run.strike(limits={"RLIMIT_FSIZE": size})
        while run.outcome.get("reason") == "suspended" and not run.outcome["storage_error"]:
            run.went_through()
            run.strike(limits={"RLIMIT_FSIZE": size})
        run.failed(self.twin)
        return run

    def suspended(self) -> StruckRun:
        """Return a run whose first process has suspended it."""
        run = self.fresh()
        run.strike()
        run.went_through()
        return run
