"""A fork at any moment, by any thread, takes no lock with it, and its child needs none of its parent's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fisk_ai.ids import new_run_id
from fisk_ai.stores import FileStore
from tests.stores.faults import FastDisk
from tests.stores.processes import Child, in_child
from tests.strategies import RUN_ID, ended, meta

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class ForksMeanwhile(FastDisk):
    """Another thread of the program forks while a lock is taken or given up; the child lives on."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self._end, self._let_end = os.pipe()
        self.children: list[Child] = []
        self._threads: list[threading.Thread] = []

    def create_file(self, directory: int, name: str) -> int:
        created = super().create_file(directory, name)
        self._fork_at("create", name)
        return created

    def open_file(self, directory: int, name: str, *, writable: bool = False) -> int:
        opened = super().open_file(directory, name, writable=writable)
        self._fork_at("open", name)
        return opened

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        self._fork_at("before lock")
        got = super().lock(descriptor, shared=shared)
        self._fork_at("lock")
        return got

    def announce(self, descriptor: int) -> bool:
        announced = super().announce(descriptor)
        self._fork_at("announce")
        return announced

    def overwrite(self, descriptor: int, data: bytes) -> None:
        super().overwrite(descriptor, data)
        self._fork_at("overwrite")

    def _fork_at(self, operation: str, name: str = ".lock") -> None:
        if operation == self.operation and name.endswith(".lock"):
            self._threads.append(threading.Thread(target=self._fork))
            self._threads[-1].start()
            self._threads[-1].join(0.2)  # it may have to wait for us

    def _fork(self) -> None:
        self.children.append(Child(self._live))

    def _live(self) -> str:
        os.close(self._let_end)
        os.read(self._end, 1)
        return "lived"

    def has_forked(self) -> bool:
        """Tell whether there are children, once all that were to be are there."""
        while self._threads:
            self._threads.pop().join()
        return bool(self.children)

    def finish(self) -> None:
        os.close(self._let_end)
        while self.children:
            assert self.children.pop().result() == "lived"
        os.close(self._end)


@pytest.fixture(params=["create", "open", "before lock", "lock", "announce", "overwrite"])
def disk(request: pytest.FixtureRequest) -> Iterator[ForksMeanwhile]:
    disk = ForksMeanwhile(request.param)
    yield disk
    disk.finish()


def test_a_child_forked_while_a_lock_is_taken_or_given_up_does_not_keep_it(
    directory: Path, disk: ForksMeanwhile
) -> None:
    FileStore(str(directory), disk=FastDisk()).create(RUN_ID, meta()).close()
    (directory / f"{RUN_ID}.lock").unlink()
    for _ in range(2):  # the lock file is made, and then found
        journal = FileStore(str(directory), disk=disk).open(RUN_ID)
        assert disk.has_forked() or disk.operation == "open"
        journal.close()
        with FileStore(str(directory), disk=FastDisk()).open(RUN_ID) as again:
            again.append(ended())
    assert disk.has_forked()


def test_many_forks_beside_many_opens_leave_every_run_free(directory: Path) -> None:
    store = FileStore(str(directory), disk=FastDisk())
    names = [f"run-{number}" for number in range(4)]
    end, let_end = os.pipe()
    begun = threading.Barrier(len(names) + 1)

    def work(name: str) -> None:
        begun.wait(10)
        for _ in range(15):
            store.open(name).close()

    def live() -> str:
        os.close(let_end)
        os.read(end, 1)
        return "lived"

    for name in names:
        store.create(name, meta(name)).close()
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    begun.wait(10)
    children = [Child(live) for _ in range(15)]
    for thread in threads:
        thread.join(30)
    for name in names:
        store.open(name).close()  # though all children live
    os.close(let_end)
    assert [child.result() for child in children] == ["lived"] * len(children)
    os.close(end)


class SlowToBeShared(FastDisk):
    """Takes its time to share a lock."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        if shared:
            self.begun.set()
            time.sleep(0.2)
        return super().lock(descriptor, shared=shared)


def test_a_child_forked_while_a_tools_lock_is_taken_can_take_one_itself(directory: Path) -> None:
    slow = SlowToBeShared()
    store = FileStore(str(directory), disk=slow)

    def call(name: str) -> str:
        with store.create(name, meta(name)) as journal, journal.guard_call("du", "toolu_1", 1.0):
            return "ran"

    thread = threading.Thread(target=call, args=("parent",))
    thread.start()
    slow.begun.wait(10)
    child = Child(lambda: call("child"))
    thread.join()
    assert child.result() == "ran"


def test_forked_children_make_ids_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fisk_ai.ids.time.time_ns", lambda: 1_764_559_260_123_000_000)
    made = [new_run_id(), *(in_child(new_run_id) for _ in range(3)), new_run_id()]
    assert len(set(made)) == len(made)
