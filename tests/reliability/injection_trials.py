"""System calls that fail, kill or are interrupted, one after another until a run passes undisturbed."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.crash.driver import WORKLOADS
from tests.reliability import command_trials
from tests.reliability.injection import Injection
from tests.reliability.struck_run import INVISIBLE, Stage, StruckRun, require_reached
from tests.reliability.trials import Form, Tally, Trial, require
from tests.reliability.victims import Victims

KILLED_AT = ("openat", "mkdirat", "flock", "fcntl", "write", "fsync", "ftruncate", "fchmod", "pread64", "close")
SECOND_KILLS = (("flock", 1), ("openat", 3), ("fsync", 2), ("write", 2), ("fsync", 4))
OTHERS = ("mkdirat", "ftruncate", "pread64", "fchmod")
INTERRUPTED = ("write", "fsync", "openat", "flock", "ftruncate")
FULL = ("ENOSPC", "EDQUOT", "EIO", "EROFS")


@contextmanager
def staged(workload: str) -> Iterator[Stage]:
    """Set the stage for one workload."""
    with tempfile.TemporaryDirectory() as directory, Victims() as victims:
        yield Stage(victims, Path(directory), workload)


def scenes(stage: Stage, form: Form) -> Mapping[str, StruckRun]:
    """Return runs in the states from which a process may start."""
    found = {"the start": stage.fresh()}
    if form == "long" or stage.workload == "batches":
        found["a torn record"] = stage.cut(stage.twin.whole[-2] - 30)
    if stage.workload in ("chat", "suspends"):
        found["a suspend"] = stage.suspended()
    if form == "long" and stage.workload in ("batches", "chat"):
        found["a torn first record"] = stage.cut(700)
        found["a missing newline"] = stage.cut(stage.twin.whole[1] - 1)
        found["a kill in the middle"] = stage.interrupted(6)
    return found


def _workloads(form: Form) -> Sequence[str]:
    return list(WORKLOADS) if form == "long" else ["batches"]


def kill_points(tally: Tally, form: Form) -> None:
    """Kill before the N-th call of each kind, and again during the resume."""
    for workload in _workloads(form):
        with staged(workload) as stage:
            for name, scene in scenes(stage, form).items():
                for call in KILLED_AT:
                    _kill_at_each(tally, stage, (name, scene), call, again_at=3 if form == "long" else 8)
            _kill_while_deleting(tally, stage)
    require_reached(tally, [f"{call} r7.json" for call in ("openat", "write", "fsync", "ftruncate", "close")])
    require_reached(tally, ["flock r7.lock", "fsync directory", "unlinkat r7.json", "unlinkat r7.lock", "again"])


def _kill_at_each(tally: Tally, stage: Stage, start: tuple[str, StruckRun], call: str, *, again_at: int) -> None:
    name, scene = start
    for number in itertools.count(1):
        run = scene.copy(stage.place())
        how = f"{stage.workload} from {name}, SIGKILL at {call} {number}"
        reached = run.inject(Injection(call, number))
        with tally.case(how, times=int(reached)):
            if not reached:
                run.went_through()
                run.ends_as(stage.twin)
                return
            tally.reached[run.targets[-1]] += 1
            run.was_killed()
            if number == again_at and not run.is_done():
                _kill_again(tally, stage, run, how)
            run.ends_as(stage.twin)


def _kill_again(tally: Tally, stage: Stage, killed: StruckRun, how: str) -> None:
    for call, number in SECOND_KILLS:
        run = killed.copy(stage.place())
        reached = run.inject(Injection(call, number))
        with tally.case(f"{how}, then at {call} {number} of the resume", times=int(reached)):
            if reached:
                tally.reached["again"] += 1
                run.was_killed()
            else:
                run.went_through()
            run.ends_as(stage.twin)


def _kill_while_deleting(tally: Tally, stage: Stage) -> None:
    """A run that was being deleted is whole, or gone."""
    torn = stage.cut(stage.twin.whole[-2] - 30)
    torn.ends_as(stage.twin)  # now there is a `.torn` to delete as well
    for call in ("unlinkat", "fsync", "close"):
        for number in itertools.count(1):
            run = torn.copy(stage.place())
            reached = run.inject(Injection(call, number), job="delete")
            with tally.case(f"{stage.workload}, SIGKILL at {call} {number} of its deletion", times=int(reached)):
                if not reached:
                    require(not list((run.directory / "state" / "runs").iterdir()), "something is left")
                    break
                tally.reached[run.targets[-1]] += 1
                _require_whole_or_gone(run, stage.twin)


def _require_whole_or_gone(run: StruckRun, twin: StruckRun) -> None:
    if "r7" in run.store.run_ids():
        require(run.store.load("r7").messages == twin.store.load("r7").messages, "it is not whole")
        run.store.delete("r7")
    require("r7" not in run.store.run_ids(), "it can't be deleted")


def failed_syncs(tally: Tally, form: Form) -> None:
    """Let each sync fail, once and from then on."""
    for workload in _workloads(form):
        with staged(workload) as stage:
            for start in scenes(stage, form).items():
                _fail_each(tally, stage, start, "fsync", ["EIO"])
                if form == "long" or start[0] == "a torn record":
                    _fail_each(tally, stage, start, "fsync", ["EIO"], then_every=1)
    require_reached(tally, ["fsync r7.json", "fsync directory", "fsync r7.torn"])


def failed_calls(tally: Tally, form: Form) -> None:
    """Let each call fail in the ways it can."""
    for workload in _workloads(form):
        with staged(workload) as stage:
            for start in scenes(stage, form).items():
                _fill_up(tally, stage, start, form)
                for call in (*OTHERS, "newfstatat") if (form, workload) == ("long", "batches") else OTHERS:
                    _fail_each(tally, stage, start, call, ["EIO"])
                for error in ("ENOLCK", "EOPNOTSUPP"):
                    _fail_each(tally, stage, start, "flock", [error], then_every=1)
                _disturb(tally, stage, start, form)
    require_reached(tally, [f"{call} r7.json" for call in ("openat", "write", "ftruncate", "close", "fsync")])
    require_reached(tally, ["flock r7.lock", "write r7.torn", "openat r7.torn"])


def _fill_up(tally: Tally, stage: Stage, start: tuple[str, StruckRun], form: Form) -> None:
    for call in ("write", "openat"):
        for errors in [[error] for error in FULL] if form == "long" else [FULL]:
            _fail_each(tally, stage, start, call, errors)
        if form == "long":
            _fail_each(tally, stage, start, call, FULL, then_every=1)


def _disturb(tally: Tally, stage: Stage, start: tuple[str, StruckRun], form: Form) -> None:
    """Interrupt calls, which Python then does again, and let closes report something: nobody may see it."""
    for call in INTERRUPTED:
        _fail(tally, stage, start, Injection(call, 1, "EINTR", then_every=2))
    _fail(tally, stage, start, Injection("close", 1, "EIO", then_every=1))
    if form == "long":
        for call in INTERRUPTED:
            _fail_each(tally, stage, start, call, ["EINTR"])
        _fail_each(tally, stage, start, "close", ["EIO"])


def _fail_each(
    tally: Tally, stage: Stage, start: tuple[str, StruckRun], call: str, errors: Sequence[str], *, then_every: int = 0
) -> None:
    for number in itertools.count(1):
        if not _fail(tally, stage, start, Injection(call, number, errors[number % len(errors)], then_every)):
            return


def _fail(tally: Tally, stage: Stage, start: tuple[str, StruckRun], injection: Injection) -> bool:
    name, scene = start
    run = scene.copy(stage.place())
    reached = run.inject(injection)
    with tally.case(f"{stage.workload} from {name}, {injection}", times=int(reached)):
        tally.reached.update(run.targets)
        if _is_invisible(injection, run.targets):
            run.went_through()
        else:
            run.failed(stage.twin, before_an_effect=injection.call == "newfstatat")
        run.ends_as(stage.twin)
    return reached


def _is_invisible(injection: Injection, targets: Sequence[str]) -> bool:
    """Tell whether nothing of a fault may be seen: it struck nothing, or nothing that a run depends on."""
    return injection.error == "EINTR" or injection.call == "close" or set(targets) <= INVISIBLE


KILL_POINTS = Trial(
    name="kill points of system calls",
    unit="kills",
    method="SIGKILL at the N-th system call of each kind that touches a run's files, for every N, from several states "
    "and again during the resume; then a resume must end like a run that was never killed",
    promises="P5 P7 P8 P10 P12",
    run=kill_points,
    target=900,
)
FAILED_SYNCS = Trial(
    name="failed syncs",
    unit="faults",
    method="EIO at the N-th fsync of file or directory, once and from then on; nothing may happen after it, the error "
    "says how to go on, and a resume must end like an undisturbed run",
    promises="P10 P13",
    run=failed_syncs,
    target=400,
)
FAILED_CALLS = Trial(
    name="failed system calls",
    unit="faults",
    method="ENOSPC, EDQUOT, EIO, EROFS at each write and open, no locks, EINTR, EIO at the others; nothing may happen "
    "after it, or nothing be seen of it where nothing depends on the call; a resume must end like an undisturbed run",
    promises="P13 P16 P19",
    run=failed_calls,
    target=2500,
)
TRIALS: tuple[Trial, ...] = (KILL_POINTS, FAILED_SYNCS, FAILED_CALLS, *command_trials.TRIALS)
