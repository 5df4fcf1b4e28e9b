"""One holder at a time, whoever dies, forks, deletes or looks on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fisk_ai.errors import JournalClosed, JournalLost, NotPermitted, RunExists, RunLocked, RunNotFound, StoreError
from fisk_ai.stores import FileStore, Journal
from tests.stores.conftest import Spawn
from tests.stores.faults import FastDisk, Fault, FaultyDisk
from tests.stores.processes import Child, in_child
from tests.strategies import RUN_ID, ended, meta, scan, turn

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def run(store: FileStore) -> str:
    """A run that nobody holds."""
    store.create(RUN_ID, meta()).close()
    return RUN_ID


def first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_another_process_is_refused_and_told_who_holds_the_run(
    store: FileStore, directory: Path, run: str, spawn: Spawn
) -> None:
    holder = spawn("hold", str(directory), run)
    assert first_line(holder) == "holding 1"
    for action in (store.open, store.delete):
        with pytest.raises(RunLocked) as caught:
            action(run)
        assert (caught.value.pid, caught.value.host) == (holder.pid, socket.gethostname())
        assert str(holder.pid) in str(caught.value)
    with pytest.raises(RunExists) as taken:
        store.create(run, meta())
    assert taken.value.status == "running"
    assert store.info(run).status == "running"
    assert store.load(run).last_seq == 1
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait()
    assert store.info(run).status == "interrupted"
    store.open(run).close()


def test_a_killed_holder_leaves_a_free_run_at_once(store: FileStore, directory: Path, run: str, spawn: Spawn) -> None:
    holder = spawn("hold", str(directory), run)
    first_line(holder)
    holder.kill()
    holder.wait()
    assert str(holder.pid) in (directory / f"{run}.lock").read_text()
    assert store.info(run).status == "interrupted"
    with store.open(run) as journal:
        assert journal.append(ended()) == 2


def test_a_stopped_holder_still_holds(store: FileStore, directory: Path, run: str, spawn: Spawn) -> None:
    holder = spawn("hold", str(directory), run)
    first_line(holder)
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(RunLocked):
        store.open(run)


@pytest.mark.parametrize("command", ["fork", "multiprocessing", "tool"])
def test_what_a_holder_started_does_not_keep_its_lock(
    store: FileStore, directory: Path, run: str, spawn: Spawn, command: str
) -> None:
    holder = spawn(command, str(directory), run)
    child = int(first_line(holder).removeprefix("started "))
    with pytest.raises(RunLocked) as caught:
        store.open(run)
    assert caught.value.pid == holder.pid
    holder.kill()
    holder.wait()
    os.kill(child, 0)  # it lives, and still the run is free
    assert store.info(run).status == "interrupted"
    with store.open(run) as journal:
        journal.append(ended())
    os.kill(child, signal.SIGKILL)


def test_no_descriptor_of_a_run_is_inherited(store: FileStore, disk: FaultyDisk) -> None:
    actions: list[Callable[[], Journal]] = [lambda: store.create(RUN_ID, meta()), lambda: store.open(RUN_ID)]
    for action in actions:
        with action():
            assert len(disk.open) == 3
            assert not any(map(os.get_inheritable, disk.open))


def test_a_forked_child_cannot_append_and_takes_nothing_away(store: FileStore, directory: Path) -> None:
    journal = store.create(RUN_ID, meta())

    def misbehave() -> str:
        for action in (lambda: journal.append(ended()), journal.ensure_held):
            with pytest.raises(JournalClosed):
                action()
        journal.close()
        with pytest.raises(RunLocked):
            store.open(RUN_ID)
        return "refused"

    assert in_child(misbehave) == "refused"
    assert store.info(RUN_ID).status == "running"
    assert journal.append(ended()) == 2
    journal.close()
    assert store.load(RUN_ID).last_seq == 2


def test_a_fork_in_the_middle_of_an_append_does_not_hang(store: FileStore) -> None:
    journal = store.create(RUN_ID, meta())
    entered, go_on = threading.Event(), threading.Event()

    def append_slowly() -> None:
        with journal._mutex:
            entered.set()
            go_on.wait()
            journal.append(ended())

    thread = threading.Thread(target=append_slowly)
    thread.start()
    entered.wait()

    def misbehave() -> str:
        with pytest.raises(JournalClosed):
            journal.append(ended())
        journal.close()
        return "refused"

    try:
        assert in_child(misbehave) == "refused"
    finally:
        go_on.set()
        thread.join()
    assert journal.last_seq == 2
    journal.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish",
        b'{"pid": 1, "host": "%b"}' % socket.gethostname().encode(),
        b'{"pid": 4194304, "host": "%b"}' % socket.gethostname().encode(),
        b'{"pid": 99999999999999999999, "host": "%b"}' % socket.gethostname().encode(),
        b'{"pid": -1, "host": "elsewhere"}',
        b'{"pid": "x"}',
        b"[" * 5000,
        b"\xff\xfe",
        b"x" * 100_000,
    ],
    ids=["empty", "rubbish", "foreign pid", "dead pid", "huge pid", "negative", "text", "nested", "binary", "long"],
)
def test_what_a_lock_file_says_never_keeps_a_run_from_being_opened(
    store: FileStore, directory: Path, run: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fisk_ai.stores.lock.NAMING_S", 0.3)
    path = directory / f"{run}.lock"
    path.write_bytes(content)
    assert store.info(run).status == "interrupted"
    with store.open(run):
        assert json.loads(path.read_bytes()) == {"pid": os.getpid(), "host": socket.gethostname()}
        path.write_bytes(content)  # and what it says wrongly while it is held only makes the message vague
        with pytest.raises(RunLocked):
            store.open(run)
        assert store.info(run).status == "running"
    assert path.read_bytes() == b""


def test_a_removed_lock_file_is_made_again(store: FileStore, directory: Path, run: str) -> None:
    (directory / f"{run}.lock").unlink()
    assert store.info(run).status == "interrupted"
    store.open(run).close()


def test_a_lock_file_removed_by_hand_lets_a_second_one_in_and_stops_the_first(
    store: FileStore, directory: Path, run: str
) -> None:
    first = store.open(run)
    (directory / f"{run}.lock").unlink()
    with store.open(run) as second:
        with pytest.raises(JournalLost, match="lock file"):
            first.append(turn("a"))
        second.append(ended())
    first.close()
    assert store.load(run).last_seq == 2


def test_a_lock_file_that_was_removed_meanwhile_is_not_the_lock(directory: Path, run: str) -> None:
    """Whoever waited for it gets the one that stands at its name now, or nobody else could tell."""

    class RemovedMeanwhile(FastDisk):
        removed = 0

        def lock(self, descriptor: int, *, shared: bool = False) -> bool:
            if not self.removed:
                self.removed = 1
                (directory / f"{run}.lock").unlink()
            return super().lock(descriptor, shared=shared)

    with FileStore(str(directory), disk=RemovedMeanwhile()).open(run) as journal:
        journal.ensure_held()
        with pytest.raises(RunLocked):
            FileStore(str(directory), disk=FastDisk()).open(run)


def test_a_lock_that_is_held_for_an_instant_is_waited_for(directory: Path, run: str) -> None:
    class Busy(FastDisk):
        asked = 0

        def lock(self, descriptor: int, *, shared: bool = False) -> bool:
            self.asked += 1
            return self.asked > 2 and super().lock(descriptor, shared=shared)

    FileStore(str(directory), disk=Busy()).open(run).close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a lock can only be taken, not asked for")
def test_looking_asks_for_the_lock_and_does_not_take_it(store: FileStore, disk: FaultyDisk, run: str) -> None:
    disk.log.clear()
    assert [info.status for info in store.list()] == [store.info(run).status] == ["interrupted"]
    assert disk.operations("lock") == []


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EIO, errno.EPERM])
@pytest.mark.parametrize("operation", ["lock", "announce"])
def test_only_a_held_lock_means_in_use(
    store: FileStore, disk: FaultyDisk, directory: Path, run: str, operation: str, problem: int
) -> None:
    for action in (store.open, store.delete, lambda _: store.create("new", meta("new"))):
        disk.faults = [Fault(operation, 1, problem)]
        with pytest.raises(StoreError) as caught:
            action(run)
        assert not isinstance(caught.value, RunLocked)
        assert os.strerror(problem) in str(caught.value)
        assert str(directory) in str(caught.value)
        assert disk.open == {}
    assert list(store.run_ids()) == [run]
    assert store.load(run).last_seq == 1


def test_a_file_system_without_locks_can_be_listed(store: FileStore, disk: FaultyDisk, run: str) -> None:
    disk.faults = [Fault("is_announced", 1, errno.ENOLCK, from_then_on=True)]
    assert [info.status for info in store.list()] == ["interrupted"]


def test_a_lock_file_that_we_may_not_open_is_not_in_use(store: FileStore, disk: FaultyDisk, run: str) -> None:
    disk.faults = [Fault("open_file", 1, errno.EACCES, ".lock")]
    with pytest.raises(NotPermitted, match="Permission denied"):
        store.open(run)


def test_opening_what_is_deleted_meanwhile_finds_no_run_and_leaves_none(
    store: FileStore, directory: Path, run: str
) -> None:
    class DeletesFirst(FastDisk):
        def create_file(self, directory: int, name: str) -> int:
            if name.endswith(".lock"):
                with contextlib.suppress(RunNotFound):
                    store.delete(run)
            return super().create_file(directory, name)

    late = FileStore(str(directory), disk=DeletesFirst())
    for action in (late.open, late.delete):
        with contextlib.suppress(RunExists):
            store.create(run, meta()).close()
        with pytest.raises(RunNotFound):
            action(run)
        assert list(directory.iterdir()) == []


def test_nobody_holds_a_run_twice_while_it_is_created_opened_and_deleted(directory: Path) -> None:
    token = directory.parent / "token"
    directory.mkdir(parents=True)

    def work() -> int:
        store = FileStore(str(directory), disk=FastDisk())
        held = 0
        actions: list[Callable[[], Journal]] = [lambda: store.create(RUN_ID, meta()), lambda: store.open(RUN_ID)]
        for number in range(120):
            try:
                if number % 7 == 6:
                    store.delete(RUN_ID)
                    continue
                journal = actions[number % 2]()
            except (RunExists, RunLocked, RunNotFound):
                continue
            os.close(os.open(token, os.O_CREAT | os.O_EXCL))  # fails if somebody else is in here
            assert journal.append(ended()) == journal.last_seq
            held += 1
            os.unlink(token)
            journal.close()
        return held

    children = [Child(work) for _ in range(4)]
    assert sum(int(child.result()) for child in children) > 20
    path = directory / f"{RUN_ID}.json"
    if path.exists():
        scan(path.read_bytes())


class WithoutQuestions(FastDisk):
    """A system where a lock can't be asked for, only taken."""

    def announce(self, descriptor: int) -> bool:
        return False

    def is_announced(self, descriptor: int) -> bool | None:
        return None


@pytest.mark.parametrize("disk_kind", [FastDisk, WithoutQuestions])
def test_looking_on_never_makes_an_honest_open_fail(directory: Path, disk_kind: type[FastDisk]) -> None:
    FileStore(str(directory), disk=disk_kind()).create(RUN_ID, meta()).close()
    stop, stopped = os.pipe()

    def look() -> int:
        os.close(stopped)
        store = FileStore(str(directory), disk=disk_kind())
        os.set_blocking(stop, False)
        looks = 0
        while True:
            assert store.info(RUN_ID).status in ("running", "interrupted")
            store.list()
            looks += 1
            with contextlib.suppress(BlockingIOError):
                os.read(stop, 1)
                return looks

    children = [Child(look) for _ in range(2)]
    store = FileStore(str(directory), disk=disk_kind())
    for _ in range(150):
        store.open(RUN_ID).close()  # raises RunLocked if a look is taken for a holder
    os.close(stopped)
    os.close(stop)
    assert all(int(child.result()) > 5 for child in children)


def test_where_locks_cannot_be_asked_for_a_holder_is_seen_all_the_same(directory: Path) -> None:
    store = FileStore(str(directory), disk=WithoutQuestions())
    with store.create(RUN_ID, meta()):
        started = time.monotonic()
        with pytest.raises(RunLocked):
            store.open(RUN_ID)
        assert time.monotonic() - started < 2
        assert store.info(RUN_ID).status == "running"
    assert store.info(RUN_ID).status == "interrupted"


@pytest.mark.slow
def test_of_200_processes_at_once_exactly_one_opens_the_run(directory: Path) -> None:
    FileStore(str(directory), disk=FastDisk()).create(RUN_ID, meta()).close()
    gate, opened_gate = os.pipe()
    end, all_ended = os.pipe()
    answers, answer = os.pipe()

    def compete() -> str:
        os.close(opened_gate)
        os.close(all_ended)
        os.read(gate, 1)
        try:
            journal = FileStore(str(directory), disk=FastDisk()).open(RUN_ID)
        except RunLocked as problem:
            os.write(answer, b"%d lost to %d\n" % (os.getpid(), problem.pid or 0))
            return "lost"
        os.write(answer, b"%d won\n" % os.getpid())
        os.read(end, 1)  # hold it until everybody else is gone
        journal.append(ended())
        journal.close()
        return "won"

    children = [Child(compete) for _ in range(200)]
    os.close(opened_gate)
    os.close(answer)
    said = b""
    while said.count(b"\n") < 200:
        said += os.read(answers, 65536)
    os.close(all_ended)
    assert sorted(child.result() for child in children) == ["lost"] * 199 + ["won"]
    winner = re.findall(r"(\d+) won", said.decode())[0]
    assert re.findall(r"lost to (\d+)", said.decode()) == [winner] * 199
    for descriptor in (gate, end, answers):
        os.close(descriptor)
    assert FileStore(str(directory)).load(RUN_ID).last_seq == 2


def test_a_listing_beside_a_running_append_shows_no_damage(directory: Path) -> None:
    store = FileStore(str(directory), disk=FastDisk())
    with store.create(RUN_ID, meta()) as journal:
        stop = threading.Event()

        def append() -> None:
            while not stop.is_set():
                journal.append(ended("error", "x" * 3000))

        thread = threading.Thread(target=append)
        thread.start()
        try:
            seen = [store.info(RUN_ID) for _ in range(60)]
            loaded = [store.load(RUN_ID).last_seq for _ in range(10)]
        finally:
            stop.set()
            thread.join()
    assert {info.status for info in seen} == {"running"}
    assert [info.records or 0 for info in seen] == sorted(info.records or 0 for info in seen)
    assert loaded == sorted(loaded)
