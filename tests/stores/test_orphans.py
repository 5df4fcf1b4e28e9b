"""A tool that outlived its runner is seen by whoever resumes the run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.errors import NotPermitted, OrphanRunning
from fisk_ai.stores import FileStore
from fisk_ai.stores.base import Orphan, Process
from fisk_ai.stores.file import FileJournal
from fisk_ai.stores.processes import end as end_process
from fisk_ai.stores.processes import holders, start_time
from tests.stores.faults import Fault, FaultyDisk
from tests.stores.test_file_safety import KINDS, objects
from tests.strategies import RUN_ID, meta


@pytest.fixture
def journal(store: FileStore) -> Iterator[FileJournal]:
    with store.create(RUN_ID, meta()) as opened:
        yield opened


def start(journal: FileJournal, name: str = "du", *, noted: bool = True) -> subprocess.Popen[bytes]:
    """Start a tool as a runner would, and forget it as one that dies does."""
    with journal.guard_call(name, "toolu_1", 60.0) as guard:
        assert guard is not None
        tool = subprocess.Popen(["sleep", "60"], pass_fds=[guard.descriptor], process_group=0)
        if noted:
            guard.started(tool.pid)
    return tool


def end(tool: subprocess.Popen[bytes]) -> None:
    if tool.poll() is None:
        os.killpg(tool.pid, signal.SIGKILL)
        tool.wait()


def test_without_a_tool_there_is_no_orphan(journal: FileJournal) -> None:
    assert not journal.find_orphans()
    with journal.guard_call("du", "toolu_1", 60.0):
        pass
    assert not journal.find_orphans()


def test_a_living_tool_is_named_until_it_ends(store: FileStore, journal: FileJournal) -> None:
    tool = start(journal)
    journal.close()
    with store.open(RUN_ID) as again:
        for _ in range(2):
            assert again.find_orphans() == (Orphan("du", tool.pid, is_same=True),)
        end(tool)
        assert not again.find_orphans()


def living(tool: subprocess.Popen[bytes]) -> tuple[Process, ...]:
    """How a living process is named; not at all where the system doesn't show who holds a lock."""
    started = start_time(tool.pid)
    return (Process(tool.pid, started),) if started else ()


def test_a_tool_that_was_not_noted_yet_is_known_by_the_lock_that_it_holds(journal: FileJournal) -> None:
    tool = start(journal, noted=False)
    assert journal.find_orphans() == (Orphan("du", None, is_same=False, processes=living(tool)),)
    end(tool)
    assert not journal.find_orphans()


@pytest.fixture
def left(journal: FileJournal) -> Iterator[subprocess.Popen[bytes]]:
    """What a call left running whose own process has ended."""
    with journal.guard_call("du", "toolu_1", 60.0) as guard:
        assert guard is not None
        left = subprocess.Popen(["sleep", "60"], pass_fds=[guard.descriptor], process_group=0)
        gone = subprocess.Popen(["true"], process_group=0)
        guard.started(gone.pid)
        gone.wait()
    yield left
    end(left)


def test_what_a_tool_left_behind_is_seen_but_is_not_the_tool(
    journal: FileJournal, left: subprocess.Popen[bytes]
) -> None:
    [orphan] = journal.find_orphans()
    assert (orphan.tool, orphan.is_same, orphan.processes) == ("du", False, living(left))


def test_who_merely_reads_the_lock_file_is_no_orphan(
    journal: FileJournal, directory: Path, left: subprocess.Popen[bytes]
) -> None:
    path = directory / f"{RUN_ID}.tools"
    with path.open() as reader, subprocess.Popen(["sleep", "60"], pass_fds=[reader.fileno()]) as bystander:
        [orphan] = journal.find_orphans()
        bystander.kill()
    assert bystander.pid not in [process.pid for process in orphan.processes]


def test_a_lock_file_of_the_same_name_elsewhere_is_another_one(
    journal: FileJournal, tmp_path: Path, left: subprocess.Popen[bytes]
) -> None:
    other = FileStore(str(tmp_path / "other"))
    with other.create(RUN_ID, meta()) as beside:
        tool = start(beside)
        [orphan] = journal.find_orphans()
        assert tool.pid not in [process.pid for process in orphan.processes]
        end(tool)


def test_a_lock_file_that_was_removed_is_still_held_under_its_name(directory: Path, journal: FileJournal) -> None:
    tool = start(journal, noted=False)
    path = directory / f"{RUN_ID}.tools"
    status = path.stat()
    path.unlink()
    assert tuple(holders(path.name, (status.st_dev, status.st_ino))) == living(tool)
    end(tool)


def test_where_processes_are_not_shown_the_lock_counts_all_the_same(
    journal: FileJournal, left: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> str:
        raise PermissionError

    monkeypatch.setattr("fisk_ai.stores.processes.os.readlink", refuse)
    [orphan] = journal.find_orphans()
    assert not orphan.processes


def test_a_tool_that_ends_while_it_is_looked_for_is_no_orphan(
    journal: FileJournal, left: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_first(_name: str, _identity: tuple[int, int]) -> tuple[Process, ...]:
        end(left)
        return ()

    monkeypatch.setattr("fisk_ai.stores.orphans.holders", ends_first)
    assert not journal.find_orphans()


def test_a_process_is_ended_and_a_later_one_with_its_number_is_not() -> None:
    process = subprocess.Popen(["sleep", "60"])
    [known] = living(process)
    end_process(Process(process.pid, f"{known.started}0"))
    end_process(Process(process.pid, "another boot/1"))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    end_process(known)
    assert process.wait(10) == -signal.SIGKILL
    end_process(known)  # gone: no error


def test_a_run_whose_tool_still_runs_is_not_removed(store: FileStore, journal: FileJournal, directory: Path) -> None:
    tool = start(journal)
    journal.close()
    before = sorted(path.name for path in directory.iterdir())
    with pytest.raises(OrphanRunning, match=rf"'du' .*process group {tool.pid}\).*Remove the run when"):
        store.delete(RUN_ID)
    assert sorted(path.name for path in directory.iterdir()) == before
    end(tool)
    store.delete(RUN_ID)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_tools_lock_keeps_no_run_from_being_removed(
    store: FileStore, journal: FileJournal, directory: Path, tmp_path: Path, kind: str
) -> None:
    journal.close()
    target = tmp_path / "target"
    target.write_bytes(b"")
    objects(target)[kind](directory / f"{RUN_ID}.tools")
    if kind == "directory":
        with pytest.raises(NotPermitted):
            store.delete(RUN_ID)
        return
    store.delete(RUN_ID)
    assert list(directory.iterdir()) == []
    assert target.exists()


@pytest.mark.parametrize("content", [b"", b"rubbish", b"[]", b'{"tool": 1}', b'{"pgid": 1}', b"[" * 4000, b"\xff"])
def test_a_note_that_says_nothing_does_not_hide_the_tool(journal: FileJournal, directory: Path, content: bytes) -> None:
    tool = start(journal)
    (directory / f"{RUN_ID}.tools").write_bytes(content)
    [orphan] = journal.find_orphans()
    assert not orphan.is_same
    end(tool)


def test_a_process_is_told_from_a_later_one_by_when_it_started() -> None:
    first = subprocess.Popen(["sleep", "60"])
    started = start_time(first.pid)
    assert started == start_time(first.pid)
    assert started
    assert started != start_time(os.getpid())
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(first.pid) is None  # a zombie runs nothing
    first.wait()
    assert start_time(first.pid) is None


def test_calls_side_by_side_hold_it_together(journal: FileJournal) -> None:
    with journal.guard_call("du", "a", 1.0) as first, journal.guard_call("du", "b", 1.0) as second:
        assert first is not None
        assert second is not None
        assert first.descriptor != second.descriptor
        assert journal.find_orphans()
    assert not journal.find_orphans()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dangling link"])
def test_nothing_else_is_taken_for_a_tools_lock(
    journal: FileJournal, directory: Path, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"")
    objects(target)[kind](directory / f"{RUN_ID}.tools")
    with pytest.raises(NotPermitted):
        journal.find_orphans()
    with pytest.raises(NotPermitted), journal.guard_call("du", "a", 1.0):
        pass
    assert target.read_bytes() == b""


@pytest.mark.parametrize("operation", ["create_file", "lock"])
def test_a_tools_lock_that_cannot_be_had_is_not_permitted(
    journal: FileJournal, disk: FaultyDisk, operation: str
) -> None:
    disk.faults = [Fault(operation, 1, errno.ENOLCK, ".tools")]
    with pytest.raises(NotPermitted, match="No locks available"), journal.guard_call("du", "a", 1.0):
        pass
    journal.close()
    assert disk.open == {}


def test_a_full_disk_leaves_the_lock_without_a_note(journal: FileJournal, disk: FaultyDisk) -> None:
    disk.faults = [Fault("write", 1, errno.ENOSPC, ".tools", from_then_on=True)]
    tool = start(journal)
    assert journal.find_orphans() == (Orphan(None, None, is_same=False, processes=living(tool)),)
    end(tool)


def notes(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / f"{RUN_ID}.tools").read_bytes().splitlines()]


def test_the_notes_say_which_call_it_is(journal: FileJournal, directory: Path) -> None:
    tool = start(journal)
    call = {"tool": "du", "tool_use_id": "toolu_1", "timeout_s": 60.0}
    assert notes(directory) == [call, {**call, "pgid": tool.pid, "started": start_time(tool.pid)}]
    end(tool)


def test_every_call_of_a_parallel_group_is_found_again(store: FileStore, journal: FileJournal) -> None:
    tools = {name: start(journal, name) for name in ("du", "df", "ls")}
    journal.close()
    end(tools["df"])
    with store.open(RUN_ID) as again:
        assert again.find_orphans() == tuple(Orphan(each, tools[each].pid, is_same=True) for each in ("du", "ls"))
        end(tools["ls"])
        assert again.find_orphans() == (Orphan("du", tools["du"].pid, is_same=True),)
        end(tools["du"])
        assert not again.find_orphans()


def test_the_notes_begin_anew_when_nobody_holds_them(journal: FileJournal, directory: Path) -> None:
    end(start(journal, "du"))
    left = start(journal, "df")
    with journal.guard_call("ls", "toolu_1", 60.0):
        assert [note["tool"] for note in notes(directory)] == ["df", "df", "ls"]
    end(left)
    with journal.guard_call("ls", "toolu_2", 60.0):
        assert [note["tool_use_id"] for note in notes(directory)] == ["toolu_2"]


def test_only_the_end_of_long_notes_is_read(journal: FileJournal, directory: Path) -> None:
    with (directory / f"{RUN_ID}.tools").open("wb") as file:
        file.write(b'{"tool":"old"}\n' * 100_000)
    (directory / f"{RUN_ID}.tools").chmod(0o600)
    daemon = start(journal, noted=False)
    with (directory / f"{RUN_ID}.tools").open("ab") as file:
        file.write(b'{"tool":"old"}\n' * 100_000)
    tool = start(journal, "df")
    assert journal.find_orphans() == (Orphan("df", tool.pid, is_same=True),)
    end(tool)
    end(daemon)


def test_calls_that_begin_at_once_in_many_threads_all_hold_it(journal: FileJournal, directory: Path) -> None:
    begun = threading.Barrier(8)

    def call(number: int) -> None:
        begun.wait(10)
        with journal.guard_call("du", str(number), 1.0):
            assert journal.find_orphans()
            begun.wait(10)

    with ThreadPoolExecutor(8) as pool:
        for ended in [pool.submit(call, number) for number in range(8)]:
            ended.result(20)
    assert {note["tool_use_id"] for note in notes(directory)} == {str(number) for number in range(8)}


def test_a_tools_lock_that_somebody_has_for_himself_is_not_permitted(journal: FileJournal, directory: Path) -> None:
    path = directory / f"{RUN_ID}.tools"
    path.write_bytes(b"")
    path.chmod(0o600)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NotPermitted, match="for itself"), journal.guard_call("du", "a", 1.0):
            pass
    with journal.guard_call("du", "a", 1.0) as guard, path.open() as file:
        assert guard is not None
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_note_of_an_earlier_process_with_the_same_number_names_nobody(journal: FileJournal, directory: Path) -> None:
    tool = start(journal, noted=False)
    with (directory / f"{RUN_ID}.tools").open("ab") as file:
        file.write(json.dumps({"tool": "df", "pgid": tool.pid, "started": "another boot/1"}).encode() + b"\n")
    assert [(orphan.tool, orphan.is_same) for orphan in journal.find_orphans()] == [("df", False)]
    end(tool)
