"""A parallel group after a resume: nothing of it starts before the end was taken back, durably."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fisk_ai.agent import events
from fisk_ai.agent.control import Control
from fisk_ai.errors import JournalFailed
from fisk_ai.stores.file import FileStore
from tests.agent.bench import ANSWER, RUN, Bench, Effects, bench, calling, effect_tools, end_of
from tests.agent.disks import WatchedDisk, fail_at

pytestmark = pytest.mark.anyio


class SlowDisk(WatchedDisk):
    """Takes its time for a sync, so that whoever doesn't wait for it is seen."""

    pause = threading.Event()

    def sync(self, descriptor: int) -> None:
        self.pause.wait(0.01)
        super().sync(descriptor)


async def suspended_group(tmp_path: Path, effects: Effects, disk: WatchedDisk) -> Bench:
    """A run that was suspended before any call of its group of five."""
    stage = bench(effects, calling(*"abcde"), ANSWER, store=FileStore(str(tmp_path / "runs"), disk=disk))
    control = Control()
    stage.hook = lambda event: control.suspend() if isinstance(event, events.TurnRecorded) else None
    await stage.run(stage.agent(effect_tools(effects, "abcde", parallel=True)), control=control)
    stage.hook = None
    assert (end_of(stage.state), effects.names) == ("suspended", [])
    return stage


async def test_a_suspended_group_runs_once_however_slow_the_disk_is(tmp_path: Path, effects: Effects) -> None:
    stage = await suspended_group(tmp_path, effects, SlowDisk())
    result = await stage.resume(stage.agent(effect_tools(effects, "abcde", parallel=True)))
    assert result.reason == "completed"
    assert sorted(effects.names) == [*"abcde"]


async def test_no_call_of_a_group_starts_if_the_mark_can_not_be_stored(tmp_path: Path, effects: Effects) -> None:
    disk = SlowDisk()
    stage = await suspended_group(tmp_path, effects, disk)
    disk.before = fail_at("write terminal", 1)
    with pytest.raises(JournalFailed):
        await stage.resume(stage.agent(effect_tools(effects, "abcde", parallel=True)))
    assert effects.names == []


async def test_a_journal_that_is_asked_during_an_append_is_not_taken_for_poisoned(tmp_path: Path) -> None:
    stage = await suspended_group(tmp_path, Effects(tmp_path / "effects"), WatchedDisk())
    with stage.store.open(RUN) as journal:
        asking = threading.Event()
        problems: list[Exception] = []

        def ask() -> None:
            while not asking.is_set():
                try:
                    journal.ensure_held()
                except JournalFailed as problem:
                    problems.append(problem)

        thread = threading.Thread(target=ask)
        thread.start()
        for record in [stage.state.terminal] * 50:
            assert record is not None
            journal.append(record)
        asking.set()
        thread.join()
    assert problems == []
