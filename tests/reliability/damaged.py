"""A run whose file was damaged, looked at in every way that there is: load, list, verify, open, fork, and go on.

What is expected comes from who made the damage, never from the code that reads it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fisk_ai.cli.places import Place
from fisk_ai.cli.verify import _verify
from fisk_ai.codec import payload_bytes
from fisk_ai.errors import FiskError, JournalCorrupt, NothingRecorded
from fisk_ai.records import resume_mark
from fisk_ai.stores import FileStore
from fisk_ai.stores.fork import fork
from tests.reliability.trials import require
from tests.stores.faults import FastDisk
from tests.strategies import MOMENT, RUN_ID, ended

COPY = "copy"


@dataclass(frozen=True, slots=True)
class Damage:
    """A file, and what has to be said of it."""

    data: bytes
    records: int
    """How many records are whole, before the damage or the torn tail."""
    offset: int
    """Where the damage or the torn tail begins; the size if there is none."""
    is_corrupt: bool
    is_named_by_listing: bool = True
    """False where a short look need not see it."""

    @property
    def line(self) -> int:
        return self.data[: self.offset].count(b"\n") + 1


class Shelf:
    """A state directory for one damaged run at a time."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.store = FileStore(directory, disk=FastDisk(), clock=lambda: MOMENT)
        self.place = Place(directory)
        self.path = self.directory / f"{RUN_ID}.json"

    def put(self, data: bytes) -> None:
        """Put a file in, and nothing else."""
        for each in os.listdir(self.directory):
            os.unlink(self.directory / each)
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(data)

    def check(self, damage: Damage) -> None:
        """Look at the damage in every way, then go on from what is whole; the file is the same until it is continued.

        Raises:
            BrokenPromise: if anything is missed, misnamed, lost or changed.
        """
        self.put(damage.data)
        if damage.is_corrupt:
            self._check_corrupt(damage)
        elif damage.records:
            self._check_torn(damage)
        else:
            self._check_nothing(damage)
        require(self.path.read_bytes() == damage.data, "the file was changed by looking")
        if damage.records:
            self._check_fork(damage)
            require(self.path.read_bytes() == damage.data, "the file was changed by a fork")
        if not damage.is_corrupt and damage.records:
            self._go_on(damage)

    def _check_corrupt(self, damage: Damage) -> None:
        for name, action in (("load", self.store.load), ("open", self.store.open), ("fork", self._fork_all)):
            found = _refusal(name, action)
            require((found.line, found.offset) == (damage.line, damage.offset), name, "names the wrong place:", found)
            require(found.cause and str(damage.offset) in str(found), name, "names no cause")
        finding, code = _verify(self.store, RUN_ID, self.place)
        named = (finding["ok"], finding["code"], finding["line"], finding["offset"], finding["whole_records"])
        wanted = (False, "journal_corrupt", damage.line, damage.offset, damage.records)
        require((named, code) == (wanted, 7), "verify says", named, "instead of", wanted, kind="undetected")
        [listed] = self.store.list()
        if damage.is_named_by_listing:
            require(listed.status == "unreadable", "listed as", listed.status, kind="undetected")
            require((listed.reason or "").startswith("damaged"), "listed for no reason:", listed.reason)

    def _fork_all(self, run_id: str) -> None:
        fork(self.store, run_id, COPY)

    def _check_torn(self, damage: Damage) -> None:
        require(self.store.load(RUN_ID).last_seq == damage.records, "loaded with other records")
        finding, code = _verify(self.store, RUN_ID, self.place)
        torn = len(damage.data) - damage.offset
        said = (finding["ok"], finding.get("records"), finding.get("torn_bytes"))
        require((said, code) == ((True, damage.records, torn), 0), "verify says", finding["text"])
        [listed] = self.store.list()
        if damage.is_named_by_listing:
            require(listed.records == damage.records, "listed with", listed.records, "of", damage.records, "records")
        self.store.open(RUN_ID).close()

    def _check_nothing(self, damage: Damage) -> None:
        for action in (self.store.load, self.store.open, self._fork_all):
            try:
                action(RUN_ID)
            except NothingRecorded:
                continue
            require(False, "a run of", len(damage.data), "torn bytes was taken for one", kind="undetected")
        require(_verify(self.store, RUN_ID, self.place)[0]["code"] == "nothing_recorded", "verify says something else")
        require(self.store.list()[0].status == "unreadable", "a run that never began is listed as one")

    def _check_fork(self, damage: Damage) -> None:
        """Fork the whole part, and go on there (C7)."""
        fork(self.store, RUN_ID, COPY, at=damage.records)
        with self.store.open(COPY) as journal:
            copied = journal.last_seq
            journal.append(resume_mark())
        require(self.store.load(COPY).last_seq == copied + 1, "a fork can't be continued")
        kept = _payloads((self.directory / f"{COPY}.json").read_bytes().split(b"\n")[1 : copied - 1])
        require(kept == _payloads(_lines(damage))[1 : len(kept) + 1], "a fork has other records than its origin")
        self.store.delete(COPY)

    def _go_on(self, damage: Damage) -> None:
        with self.store.open(RUN_ID) as journal:
            before = [each.record for each in journal.records()]
            require(len(before) == damage.records, "opened with other records")
            require(journal.append(ended("error")) == damage.records + 1, "appended in the wrong place")
        data = self.path.read_bytes()
        require(data.startswith(damage.data[: damage.offset]), "an append changed what was whole")
        torn = damage.data[damage.offset :]
        aside = self.directory / f"{RUN_ID}.torn"
        require((aside.read_bytes() if aside.exists() else b"") == torn, "torn bytes weren't kept")
        with self.store.open(RUN_ID) as journal:
            after = [each.record for each in journal.records()]
        require(after == [*before, ended("error")], "after an append other records are there")


def _lines(damage: Damage) -> list[bytes]:
    lines = damage.data[: damage.offset].removesuffix(b"\n").split(b"\n")
    return [line for at, line in enumerate(lines) if not at or line != lines[at - 1]]


def _payloads(lines: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [payload_bytes(line) for line in lines]


def _refusal(name: str, action: object) -> JournalCorrupt:
    assert callable(action)
    try:
        action(RUN_ID)
    except JournalCorrupt as problem:
        return problem
    except FiskError as problem:
        require(False, name, "says", type(problem).__name__, "of damage:", problem)
    require(False, name, "noticed nothing", kind="undetected")
    raise AssertionError("unreachable")
