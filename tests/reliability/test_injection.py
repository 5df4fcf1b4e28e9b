"""Faults that strace puts into system calls, and that what judges them sees bugs."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import pytest

from fisk_ai.folding import Folding
from fisk_ai.stores.disk import OsDisk
from fisk_ai.stores.file import FileJournal
from tests.reliability import injection
from tests.reliability.injection import Injection
from tests.reliability.injection_trials import FAILED_CALLS, FAILED_SYNCS, KILL_POINTS, staged
from tests.reliability.struck_run import Stage
from tests.reliability.trials import BrokenPromise, Trial, tried

missing = injection.why_not()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")


@pytest.mark.slow
@pytest.mark.parametrize("trial", [KILL_POINTS, FAILED_SYNCS, FAILED_CALLS], ids=lambda trial: trial.name)
def test_a_run_survives(trial: Trial) -> None:
    tried(trial, "short").check()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged("batches") as stage:
        yield stage


def sync_again() -> None:
    def sync(self: OsDisk, descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError:
            os.fsync(descriptor)

    OsDisk.sync = sync  # type: ignore[method-assign]


def test_a_sync_that_is_tried_again_is_noticed(stage: Stage) -> None:
    run = stage.fresh()
    assert run.inject(Injection("fsync", 8, "EIO"), plant=f"{__name__}:sync_again")
    with pytest.raises(BrokenPromise, match="nothing was said of the fault"):
        run.failed(stage.twin)


def ignore_failures() -> None:
    def write_durably(self: FileJournal, line: bytes) -> None:
        with contextlib.suppress(OSError):
            original(self, line)

    original = FileJournal._write_durably
    FileJournal._write_durably = write_durably  # type: ignore[method-assign]


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_run_that_goes_on_after_a_fault_is_noticed(stage: Stage, call: str) -> None:
    run = stage.fresh()
    assert run.inject(Injection(call, 8, "EIO"), plant=f"{__name__}:ignore_failures")
    with pytest.raises(BrokenPromise):
        run.failed(stage.twin)


def name_nothing() -> None:
    Folding._ambiguous = lambda self, *_: ()  # type: ignore[method-assign]


def test_a_call_that_is_repeated_without_being_named_is_noticed(stage: Stage) -> None:
    run = stage.fresh()
    assert run.inject(Injection("write", 7))
    name = Folding._ambiguous
    try:
        name_nothing()
        run.was_killed()
    finally:
        Folding._ambiguous = name  # type: ignore[method-assign]
    with pytest.raises(BrokenPromise, match="was not named"):
        run.ends_as(stage.twin)


def test_a_fault_that_strikes_nothing_is_told_from_one_that_does(stage: Stage) -> None:
    run = stage.fresh()
    assert run.inject(Injection("write", 3, "ENOSPC"))
    assert run.targets == ["write r7.json"]
    with pytest.raises(BrokenPromise, match="it was stopped"):
        run.went_through()
    run.failed(stage.twin)
    assert not run.inject(Injection("write", 1000))
    with pytest.raises(BrokenPromise, match="outlived"):
        run.was_killed()
    run.went_through()
    run.ends_as(stage.twin)


@pytest.mark.parametrize("injected", [Injection("fsync", 5, "EIO"), Injection("fsync", 5)], ids=str)
def test_what_was_struck_is_read_from_the_trace(stage: Stage, injected: Injection) -> None:
    run = stage.fresh()
    assert run.inject(injected)
    assert run.targets == ["fsync directory"]


def test_a_file_that_can_not_be_looked_at_is_an_error_of_ours(stage: Stage) -> None:
    """Right after it was opened, too: the first dozen calls that ask for the facts of a file."""
    struck = 0
    for call, number in itertools.product(("newfstatat", "fstat"), range(1, 13)):  # which one depends on the C library
        run = stage.fresh()
        if not run.inject(Injection(call, number, "EIO")):
            continue
        struck += 1
        run.failed(stage.twin)
    assert struck >= 12
