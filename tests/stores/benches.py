"""What a contract test needs beside a store: to plant bytes, to look at what was cut, to let a holder die."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fisk_ai.stores import FileStore, Journal, MemoryStore, Store
from fisk_ai.stores.file import FileJournal
from fisk_ai.stores.memory import MemoryJournal
from tests.stores.faults import FastDisk
from tests.strategies import MOMENT


class Bench(Protocol):
    """A store under test, and the things that no user of a store may do."""

    @property
    def store(self) -> Store:
        """The store."""

    def put(self, run_id: str, data: bytes) -> None:
        """Plant a run's bytes."""

    def add(self, run_id: str, data: bytes) -> None:
        """Plant bytes behind those that are there."""

    def torn(self, run_id: str) -> bytes:
        """Return what repairs cut from a run, in order."""

    def crash(self, journal: Journal) -> None:
        """Let the holder of a journal die: nothing is written, the lock is gone."""

    def steal(self, journal: Journal) -> None:
        """Take the run away from under an open journal."""


def read(store: Store, run_id: str) -> bytes:
    """Return a run's bytes."""
    return b"".join(store.read_bytes(run_id))


class MemoryBench:
    """Runs in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore(clock=lambda: MOMENT)

    def put(self, run_id: str, data: bytes) -> None:
        self.store.put_bytes(run_id, data)

    def add(self, run_id: str, data: bytes) -> None:
        self.store._runs[run_id].data += data

    def torn(self, run_id: str) -> bytes:
        return self.store.torn_bytes(run_id)

    def crash(self, journal: Journal) -> None:
        assert isinstance(journal, MemoryJournal)
        journal._run.holder = None

    def steal(self, journal: Journal) -> None:
        self.crash(journal)


class FileBench:
    """Runs in a directory, without waiting for the drive."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = FileStore(str(directory), disk=FastDisk(), clock=lambda: MOMENT)

    def put(self, run_id: str, data: bytes) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        path = self.directory / f"{run_id}.json"
        path.write_bytes(data)
        path.chmod(0o600)

    def add(self, run_id: str, data: bytes) -> None:
        with (self.directory / f"{run_id}.json").open("ab") as file:
            file.write(data)

    def torn(self, run_id: str) -> bytes:
        path = self.directory / f"{run_id}.torn"
        return path.read_bytes() if path.exists() else b""

    def crash(self, journal: Journal) -> None:
        assert isinstance(journal, FileJournal)
        # What the kernel does for a process that dies, and no more.
        os.close(journal._lock.descriptor)
        journal._lock._descriptor = None
        os.close(journal._descriptor)
        os.close(journal._directory)
        journal._closed = True

    def steal(self, journal: Journal) -> None:
        os.rename(self.directory / f"{journal.run_id}.json", self.directory / "away")


@contextmanager
def unchanged(store: Store, run_id: str) -> Iterator[None]:
    """Check that a run's bytes are not changed meanwhile."""
    before = read(store, run_id)
    yield
    assert read(store, run_id) == before
