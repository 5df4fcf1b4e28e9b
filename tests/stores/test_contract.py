"""Every store keeps the contract, and agrees with a list of records whatever happens to it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fisk_ai.codec import encode_line
from fisk_ai.errors import NothingRecorded, RunExists, RunLocked, RunNotFound
from fisk_ai.records import Record
from fisk_ai.stores import Journal
from tests.stores.benches import Bench, FileBench, MemoryBench, read
from tests.stores.contract import StoreContract
from tests.strategies import (
    TIME,
    answer,
    ended,
    follow_up,
    journal_bytes,
    meta,
    sequenced,
    texts,
)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return MemoryBench()


class TestFileStore(StoreContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        yield FileBench(tmp_path / "runs")
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)


RUNS = ("a", "b")
records = st.one_of(texts.map(answer), texts.map(follow_up), st.just(ended()), st.just(ended("error")))


class StoreMachine(RuleBasedStateMachine):
    """A store beside a model: the list of records of each run, and who holds it."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, list[Record]] = {}
        self.cut: dict[str, bytes] = {}
        self.tail: dict[str, bytes] = {}
        self.held: dict[str, Journal] = {}

    @rule(run_id=st.sampled_from(RUNS), interactive=st.booleans())
    def create(self, run_id: str, interactive: bool) -> None:
        first = meta(run_id, interactive=interactive)
        if self.model.get(run_id):
            with pytest.raises(RunExists):
                self.bench.store.create(run_id, first)
            return
        self.held[run_id] = self.bench.store.create(run_id, first)
        self.model[run_id] = [first]
        self.cut[run_id] = self.cut.get(run_id, b"") + self.tail.pop(run_id, b"")

    @rule(run_id=st.sampled_from(RUNS))
    def open(self, run_id: str) -> None:
        if run_id in self.held:
            with pytest.raises(RunLocked):
                self.bench.store.open(run_id)
        elif run_id not in self.model:
            with pytest.raises(RunNotFound):
                self.bench.store.open(run_id)
        elif not self.model[run_id]:
            with pytest.raises(NothingRecorded):
                self.bench.store.open(run_id)
        else:
            self.held[run_id] = self.bench.store.open(run_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), record=records)
    def append(self, data: st.DataObject, record: Record) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.held)))
        self.cut[run_id] += self.tail.pop(run_id, b"")
        self.model[run_id].append(record)
        assert self.held[run_id].append(record) == len(self.model[run_id])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def repair(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.held)))
        torn = self.tail.pop(run_id, b"")
        assert self.held[run_id].repair() == torn
        self.cut[run_id] += torn

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.sampled_from(sorted(self.held)))).close()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), record=records, nuls=st.integers(0, 20))
    def crash_in_an_append(self, data: st.DataObject, record: Record, nuls: int) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.held)))
        journal = self.held.pop(run_id)
        journal.repair()
        self.cut[run_id] += self.tail.pop(run_id, b"")
        self.bench.crash(journal)
        whole = journal_bytes([*self.model[run_id], record])
        line = whole[len(journal_bytes(self.model[run_id])) :]
        written = line[: data.draw(st.integers(0, len(line)))] + bytes(nuls)
        self.bench.add(run_id, written)
        if written == line[:-1] or written.startswith(line):
            self.model[run_id].append(record)  # it was not acknowledged, but it is whole
            written = written[len(line) :]
        self.tail[run_id] = written

    @rule(run_id=st.sampled_from(RUNS), data=st.data())
    def crash_in_a_create(self, run_id: str, data: st.DataObject) -> None:
        if self.model.get(run_id) or run_id in self.model:
            return
        line, _ = encode_line(1, meta(run_id), TIME, 0)
        self.tail[run_id] = line[: data.draw(st.integers(0, len(line) - 2))]
        self.bench.put(run_id, self.tail[run_id])
        self.model[run_id] = []
        self.cut[run_id] = b""

    @rule(run_id=st.sampled_from(RUNS))
    def delete(self, run_id: str) -> None:
        if run_id in self.held:
            with pytest.raises(RunLocked):
                self.bench.store.delete(run_id)
        elif run_id not in self.model:
            with pytest.raises(RunNotFound):
                self.bench.store.delete(run_id)
        else:
            self.bench.store.delete(run_id)
            del self.model[run_id]
            self.cut.pop(run_id, None)
            self.tail.pop(run_id, None)

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        assert set(self.bench.store.run_ids()) == set(self.model)
        listed = {info.run_id: info for info in self.bench.store.list()}
        assert set(listed) == set(self.model)
        for run_id, wanted in self.model.items():
            if not wanted:
                with pytest.raises(NothingRecorded):
                    self.bench.store.load(run_id)
                continue
            assert self.bench.store.load(run_id).last_seq == len(wanted) == listed[run_id].records
            assert (listed[run_id].status == "running") == (run_id in self.held)
            assert self.bench.torn(run_id) == self.cut[run_id]
            data = read(self.bench.store, run_id)
            encoded = journal_bytes(wanted)
            assert data.removesuffix(b"\n") == (encoded + self.tail.get(run_id, b"")).removesuffix(b"\n")

    @invariant()
    def held_journals_say_what_the_model_says(self) -> None:
        for run_id, journal in self.held.items():
            assert journal.last_seq == len(self.model[run_id])
            assert journal.records() == sequenced(self.model[run_id])

    def teardown(self) -> None:
        for journal in self.held.values():
            journal.close()


class MemoryMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = MemoryBench()


class FileMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.bench = FileBench(Path(self.directory) / "runs")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


BOUNDS = settings(max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MemoryMachine.TestCase.settings = BOUNDS
FileMachine.TestCase.settings = BOUNDS
TestMemoryAgainstAList = MemoryMachine.TestCase
TestFilesAgainstAList = FileMachine.TestCase
