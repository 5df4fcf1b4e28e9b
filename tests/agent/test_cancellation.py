"""Cancelling the task that awaits a run never abandons an append, and gives the run up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from fisk_ai.agent.writer import JournalWriter, never_abandoned
from fisk_ai.errors import JournalFailed
from fisk_ai.records import TerminalRecord
from fisk_ai.stores.file import FileStore
from tests.agent.bench import ANSWER, RUN, Bench, Effects, assert_same_as, bench, calling, records_of, twin_of
from tests.agent.disks import WatchedDisk

pytestmark = pytest.mark.anyio


class Gate:
    """Holds the disk at one operation until it is opened."""

    def __init__(self, what: str, number: int = 1) -> None:
        self._what = what
        self._left = number
        self.reached = threading.Event()
        self.opened = threading.Event()

    def before(self, happening: str) -> None:
        if happening == self._what:
            self._left -= 1
            if self._left == 0:
                self.reached.set()
                assert self.opened.wait(10)


async def cancelled_at(gate: Gate, work: Callable[[], Any], *, natively: bool) -> None:
    """Start work, cancel it while the disk is held, and let the disk go on only after that."""

    async def until_reached() -> None:
        assert await to_thread.run_sync(gate.reached.wait, 10)

    if natively:
        task = asyncio.ensure_future(work())
        await until_reached()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        was_done = task.done()
        gate.opened.set()
        assert not was_done
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until_reached()
            group.cancel_scope.cancel()
            threading.Timer(0.02, gate.opened.set).start()


NATIVELY = pytest.mark.parametrize("natively", [False, True], ids=["anyio", "asyncio"])


@NATIVELY
@pytest.mark.parametrize("what", ["write tool_result", "write assistant", "sync file"])
async def test_a_record_that_is_being_written_becomes_durable(
    tmp_path: Path, effects: Effects, what: str, natively: bool
) -> None:
    gate = Gate(what, 2)
    disk = WatchedDisk(before=gate.before)
    stage = bench(effects, calling("a", "b"), ANSWER, store=FileStore(str(tmp_path / "runs"), disk=disk))
    await cancelled_at(gate, stage.run, natively=natively)
    disk.before = None
    expected = {"write tool_result": 4, "write assistant": 5, "sync file": 2}[what]
    assert len(records_of(stage)) == expected  # and the run can be opened: its lock was given up
    if expected < 5:
        await stage.resume()
        assert effects.names == ["a", "b"]
        assert_same_as(stage, await twin_of(stage, tmp_path))


@NATIVELY
async def test_journal_object_and_file_stay_in_step(tmp_path: Path, natively: bool) -> None:
    gate = Gate("sync file")
    disk = WatchedDisk()
    stage = bench(Effects(tmp_path / "effects"), ANSWER, store=FileStore(str(tmp_path / "runs"), disk=disk))
    await stage.run(interactive=True)
    with stage.journal() as journal:
        writer = JournalWriter(journal)
        disk.before = gate.before
        seq = journal.last_seq

        async def append() -> None:
            await writer.append(TerminalRecord(reason="suspended"))

        await cancelled_at(gate, append, natively=natively)
        assert journal.last_seq == seq + 1
        assert await writer.append(TerminalRecord(reason="error")) == seq + 2
        assert len(journal.records()) == seq + 2
        writer.stop()


@NATIVELY
async def test_a_run_that_is_cancelled_while_it_is_opened_gives_its_lock_up(tmp_path: Path, natively: bool) -> None:
    disk = WatchedDisk()
    stage = bench(Effects(tmp_path / "effects"), ANSWER, store=FileStore(str(tmp_path / "runs"), disk=disk))
    await stage.run(interactive=True)
    gate = Gate("sync directory")
    disk.before = gate.before
    await cancelled_at(gate, stage.resume, natively=natively)
    disk.before = None
    await stage.resume()


@NATIVELY
async def test_a_run_that_is_cancelled_while_it_is_created_gives_its_lock_up(tmp_path: Path, natively: bool) -> None:
    gate = Gate("write meta")
    disk = WatchedDisk(before=gate.before)
    stage = bench(Effects(tmp_path / "effects"), ANSWER, store=FileStore(str(tmp_path / "runs"), disk=disk))
    await cancelled_at(gate, stage.run, natively=natively)
    assert stage.store.info(RUN).status == "interrupted"
    assert (await stage.resume()).reason == "completed"


async def test_a_run_under_a_timeout_of_asyncios_own_can_go_on(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, {**calling("a"), "delay": 0}, {**ANSWER, "delay": 30})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await stage.run()
    stage.turns = [calling("a"), ANSWER]
    assert (await stage.resume()).reason == "completed"
    assert effects.names == ["a"]


async def test_what_fails_in_the_thread_is_raised_where_it_is_awaited(tmp_path: Path) -> None:
    def fail() -> None:
        raise JournalFailed("here", "an append failed")

    with pytest.raises(JournalFailed):
        await never_abandoned(fail)


async def test_many_runs_go_side_by_side_in_one_process(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "runs"))
    stages: list[Bench] = []
    for number in range(20):
        stages.append(bench(Effects(tmp_path / f"effects-{number}"), calling("a", "b"), ANSWER, store=store))
    agent_of_all = stages[0].agent()

    async def go(number: int) -> None:
        agent = stages[number].agent() if number % 2 else agent_of_all
        await agent.run("go", checkpoint=True, name=f"run-{number}")

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(go, number)
    infos = store.list()
    assert [info.status for info in infos] == ["completed"] * 20
    assert all(len(set(stage.effects.names)) == 2 for stage in stages[1::2])
    assert threading.active_count() < 20
