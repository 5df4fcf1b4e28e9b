"""Any order of what may happen to a run's file, beside a plain model of it: a list of records and what was torn."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from fisk_ai.errors import (
    InvalidRunId,
    JournalCorrupt,
    JournalFailed,
    NothingRecorded,
    RunExists,
    RunNotFound,
    StoreError,
)
from fisk_ai.folding import fold
from fisk_ai.records import Record, TerminalRecord, resume_mark
from fisk_ai.stores import FileStore, Journal
from fisk_ai.stores.file import FileJournal
from fisk_ai.stores.fork import fork
from tests.stores.faults import Fault, FaultyDisk
from tests.strategies import MOMENT, answer, ended, follow_up, meta, sequenced

NAMES = ("a", "b", "c", "d")
RECORDS: tuple[Record, ...] = (
    answer("x"),
    follow_up("y"),
    ended(),
    ended("error"),
    resume_mark(),
    answer("z @ \u2028"),
)


def among(first: int, last: int) -> st.SearchStrategy[int]:
    """Draw an integer; `st.integers` draws other ones for each set of modules that happen to be loaded."""
    return st.sampled_from(range(first, last + 1))


@dataclass
class Model:
    """What a run is, without bytes."""

    records: list[Record]
    torn: bytes = b""
    """Bytes behind the records that never were one."""
    lacks_newline: bool = False
    hurt_line: int | None = None
    """The line that is damaged, counted from 1; a run that is damaged stays so."""
    aside: bytes = b""
    """What has been cut so far."""
    maybe: list[Record] = field(default_factory=list)
    """A record whose append failed after it was written: it may be there or not, until somebody reads."""


class Runs(RuleBasedStateMachine):
    """A state directory, and what should be in it."""

    runs = Bundle("runs")
    reached: ClassVar[Counter[str]] = Counter()
    """How often each thing really happened, over all machines."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.disk = FaultyDisk()
        self.store = FileStore(str(self.directory), disk=self.disk, clock=lambda: MOMENT)
        self.models: dict[str, Model] = {}

    def teardown(self) -> None:
        assert not self.disk.open, "descriptors were left open"
        shutil.rmtree(self.directory)

    def path(self, name: str, suffix: str = ".json") -> Path:
        return self.directory / (name + suffix)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Journal]:
        """Open a run that can be opened, which settles what was in doubt."""
        self.settle(name)
        with self.store.open(name) as journal:
            assert [each.record for each in journal.records()] == self.models[name].records
            yield journal

    def settle(self, name: str) -> None:
        """Look which way a failed append went."""
        model = self.models[name]
        if model.maybe:
            found = [each.record for each in self.store.read(name).records]
            assert found in (model.records, model.records + model.maybe)
            self.reached["in doubt"] += 1
            model.records, model.maybe = found, []

    def usable(self, name: str) -> bool:
        model = self.models.get(name)
        return model is not None and model.hurt_line is None and bool(model.records)

    def repaired(self, name: str) -> None:
        model = self.models[name]
        model.aside += model.torn
        self.reached["repaired"] += bool(model.torn or model.lacks_newline)
        model.torn, model.lacks_newline = b"", False

    @rule(target=runs, name=st.sampled_from(NAMES), records=st.lists(st.sampled_from(RECORDS), max_size=4))
    def create(self, name: str, records: list[Record]) -> str:
        model = self.models.get(name)
        if model is None or (not model.records and model.hurt_line is None):
            with self.store.create(name, meta(name, interactive=True)) as journal:
                for record in records:
                    journal.append(record)
            kept = (model.aside + model.torn) if model else b""
            self.models[name] = Model([meta(name, interactive=True), *records], aside=kept)
            self.reached["created, with bytes of a run that never began" if kept else "created"] += 1
        else:
            with pytest.raises(RunExists):
                self.store.create(name, meta(name))
        return name

    @rule(name=runs, records=st.lists(st.sampled_from(RECORDS), min_size=1, max_size=3))
    def append(self, name: str, records: list[Record]) -> None:
        if not self.usable(name):
            return
        with self.opened(name) as journal:
            for record in records:
                assert journal.append(record) == len(self.models[name].records) + 1
                self.repaired(name)
                self.models[name].records.append(record)
                self.reached["appended"] += 1

    @rule(name=runs, kept=among(0, 60), afterwards=st.booleans())
    def crash_in_mid_write(self, name: str, kept: int, afterwards: bool) -> None:
        """Fail a write after some of its bytes, or the sync after it; nothing is appended through that opening."""
        if not self.usable(name):
            return
        with self.opened(name) as journal:
            journal.repair()
            self.repaired(name)
            operation = "sync" if afterwards else "write"
            fault = Fault(operation, problem=errno.ENOSPC, target=f"{name}.json", kept_bytes=kept)
            self.disk.faults.append(fault)
            for _ in range(2):
                with pytest.raises(JournalFailed):
                    journal.append(answer("never acknowledged"))
            assert fault.reached == 1
            self.reached["crashed in the sync" if afterwards else "crashed in the write"] += 1
            self.disk.faults.clear()
        if afterwards:
            self.models[name].maybe = [answer("never acknowledged")]
        else:
            self.models[name].torn = self.path(name).read_bytes()[-kept:] if kept else b""

    @rule(name=runs, size=among(1, 900), nuls=among(0, 40), exact=st.sampled_from(("", "newline", "record")))
    def cut(self, name: str, size: int, nuls: int, exact: str) -> None:
        """Lose bytes from the end, and find NULs where some were; or lose just a newline, or a whole record."""
        if not self.usable(name) or self.models[name].torn or self.models[name].lacks_newline:
            return
        self.settle(name)
        model, path = self.models[name], self.path(name)
        data = path.read_bytes()
        if exact:
            data, nuls = data[:-1], 0
            data = data[: data.rfind(b"\n") + 1] if exact == "record" else data
        else:
            data = data[: max(len(data) - size, 0)]
        path.write_bytes(data + bytes(nuls))
        ends = data.count(b"\n")
        rest = data.rpartition(b"\n")[2]
        if rest.endswith(b'"}') and not nuls and _is_whole(rest):
            ends, rest, model.lacks_newline = ends + 1, b"", True
        model.records, model.torn = model.records[:ends], rest + bytes(nuls)
        how = "lost its newline" if model.lacks_newline else "torn" if model.torn else "cut between records"
        self.reached[how] += 1

    @rule(name=runs, at=st.just(-1) | among(-2000, 2000), bit=among(0, 7))
    def flip(self, name: str, at: int, bit: int) -> None:
        if not self.usable(name) or self.models[name].torn or self.models[name].lacks_newline:
            return
        self.settle(name)
        model, path = self.models[name], self.path(name)
        data = bytearray(path.read_bytes())
        at %= len(data)
        data[at] ^= 1 << bit
        last = data[: len(data) - 1].rfind(b"\n") + 1
        path.write_bytes(data)
        if at >= last and (data[at] == 0 or at == len(data) - 1):
            self.reached["flipped and torn"] += 1
            model.torn = bytes(data[last:])  # it looks like an append that never became whole
            model.records = model.records[:-1]
        else:
            self.reached["flipped"] += 1
            model.hurt_line = data[:at].count(b"\n") + 1
            model.records = model.records[: model.hurt_line - 1]
        self.load(name)

    @rule(target=runs, name=runs, other=st.sampled_from(NAMES), at=among(1, 6))
    def fork(self, name: str, other: str, at: int) -> str:
        model = self.models.get(name)
        if model is None or not model.records:
            return name
        self.settle(name)
        at = min(at, len(model.records))
        before = self.path(name).read_bytes()
        target = self.models.get(other)
        if target is not None and (target.records or target.hurt_line):
            with pytest.raises(RunExists):
                fork(self.store, name, other, at=at)
        else:
            made = fork(self.store, name, other, at=at)
            assert made.seq == at
            self.reached["forked before damage" if model.hurt_line else "forked"] += 1
            self.forked(name, other, at)
        assert self.path(name).read_bytes() == before
        return other

    def forked(self, name: str, other: str, at: int) -> None:
        records = self.models[name].records[:at]
        while len(records) > 1 and isinstance(records[-1], TerminalRecord):
            records.pop()
        old, found = self.models.get(other), [each.record for each in self.store.read(other).records]
        assert found[1 : len(records)] == records[1:]
        assert found[len(records) :] in ([], [ended("suspended")])
        self.models[other] = Model(found, aside=(old.aside + old.torn) if old else b"")

    @rule(name=consumes(runs))
    def delete(self, name: str) -> None:
        if name in self.models:
            self.store.delete(name)
            del self.models[name]
            self.reached["deleted"] += 1
            assert not [each for each in os.listdir(self.directory) if each.startswith(f"{name}.")]
        for action in (self.store.load, self.store.open, self.store.delete, self.store.info):
            with pytest.raises(RunNotFound):
                action(name)

    @rule(name=st.sampled_from(("", "../a", "A/b", "a\n")))
    def use_no_name(self, name: str) -> None:
        for action in (self.store.load, self.store.open, self.store.delete):
            with pytest.raises(InvalidRunId):
                action(name)

    @rule(name=runs)
    def load(self, name: str) -> None:
        model = self.models.get(name)
        if model is None:
            return
        before = self.path(name).read_bytes()
        if model.hurt_line is not None:
            for action in (self.store.load, self.store.open):
                with pytest.raises(JournalCorrupt) as caught:
                    action(name)
                assert caught.value.line == model.hurt_line
            self.reached["damage named"] += 1
        elif not model.records:
            for action in (self.store.load, self.store.open):
                with pytest.raises(NothingRecorded):
                    action(name)
        else:
            self.settle(name)
            state = self.store.load(name)
            wanted = fold(sequenced(model.records))
            assert replace(state, created="", forked_from=None) == replace(wanted, created="", forked_from=None)
        assert self.path(name).read_bytes() == before

    @invariant()
    def listed(self) -> None:
        rows = {info.run_id: info for info in self.store.list()}
        assert set(rows) == set(self.models)
        for name, model in self.models.items():
            is_readable = bool(model.records) and model.hurt_line is None
            assert (rows[name].status != "unreadable") == is_readable, rows[name]
            if is_readable:
                assert rows[name].records in (len(model.records), len(model.records) + len(model.maybe))

    @invariant()
    def kept(self) -> None:
        for name, model in self.models.items():
            aside = self.path(name, ".torn")
            assert (aside.read_bytes() if aside.exists() else b"") == model.aside


def _is_whole(line: bytes) -> bool:
    """Tell whether only the newline was lost: a record ends in its checksum, and holds each of its brackets."""
    return line.count(b"{") == line.count(b"}")


WAYS = {
    "created", "created, with bytes of a run that never began", "appended", "crashed in the sync",
    "crashed in the write", "lost its newline", "torn", "cut between records", "flipped", "flipped and torn",
    "forked", "forked before damage", "deleted", "in doubt", "damage named", "repaired",
}  # fmt: skip


RARE = {
    "created, with bytes of a run that never began", "forked before damage", "cut between records", "lost its newline",
}  # fmt: skip
"""What takes more machines than a short run has; how often depends on what hypothesis knows of loaded modules."""


def run_machines(machines: int, steps: int) -> Counter[str]:
    """Run so many machines, the same in every process; return how often each thing happened."""
    Runs.reached.clear()
    run_state_machine_as_test(
        Runs,
        settings=settings(
            max_examples=machines,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),  # to shrink thirty steps takes minutes
        ),
    )
    return Counter(Runs.reached)


@pytest.mark.slow
def test_any_order_of_crashes_damage_and_use_is_as_the_model_says() -> None:
    reached = run_machines(80, 30)
    missed = WAYS - RARE - set(reached)
    assert not missed, f"never happened: {missed}"


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileJournal, "_make_whole", lambda _self, _tail: None)
    with pytest.raises((AssertionError, StoreError)):
        run_machines(200, 30)
