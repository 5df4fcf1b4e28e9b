"""Forks: what they copy, what they keep in doubt, and what is left of one that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from fisk_ai.errors import ConfigError, JournalCorrupt, JournalFailed, NothingRecorded, RunExists
from fisk_ai.records import Record, resume_mark
from fisk_ai.stores.file import FileStore
from fisk_ai.stores.fork import fork
from fisk_ai.stores.memory import MemoryStore
from tests.agent.disks import WatchedDisk, fail_at
from tests.strategies import ended, lines_of, meta, result, turn

ORIGIN = "orders-report"


def stored(*records: Record, damage: bytes = b"") -> MemoryStore:
    store = MemoryStore()
    store.put_bytes(ORIGIN, b"".join(lines_of([meta(), *records])) + damage)
    return store


def ambiguous(store: MemoryStore, run_id: str) -> list[str]:
    pending = store.load(run_id).pending
    return [] if pending is None else [call.id for call in pending.ambiguous]


@pytest.mark.parametrize("tail", [[], [ended("suspended"), resume_mark()], [ended("error")]])
def test_the_whole_of_a_run_in_doubt_keeps_its_doubt(tail: list[Record]) -> None:
    store = stored(turn("a", "b"), *tail)
    assert fork(store, ORIGIN, "copy").seq == 2 + len(tail)
    assert ambiguous(store, "copy") == ambiguous(store, ORIGIN) == ["a"]
    assert store.info("copy").status == "interrupted"


@pytest.mark.parametrize(("at", "left"), [(2, ["a", "b"]), (3, ["b"])])
def test_a_part_of_a_run_ends_in_suspended_and_nothing_of_it_is_in_doubt(at: int, left: list[str]) -> None:
    store = stored(turn("a", "b"), result("a"), result("b"))
    fork(store, ORIGIN, "copy", at=at)
    state = store.load("copy")
    assert state.pending is not None
    assert [call.id for call in state.pending.unanswered] == left
    assert state.pending.ambiguous == ()
    assert store.info("copy").status == "suspended"
    assert state.forked_from is not None
    assert (state.forked_from.run_id, state.forked_from.seq) == (ORIGIN, at)


def test_nothing_is_forked_from_a_run_that_never_began() -> None:
    store = MemoryStore()
    store.put_bytes(ORIGIN, b'{"seq":1,')
    with pytest.raises(NothingRecorded):
        fork(store, ORIGIN, "copy")
    assert store.run_ids() == [ORIGIN]


def test_damage_behind_the_point_does_not_matter_and_before_it_does() -> None:
    store = stored(turn("a"), result("a"), damage=b"{oops\n{oops again\n")
    fork(store, ORIGIN, "copy", at=3)
    assert store.load("copy").counters.tool_calls == 1
    with pytest.raises(JournalCorrupt):
        fork(store, ORIGIN, "other")
    with pytest.raises(JournalCorrupt):
        fork(store, ORIGIN, "other", at=4)


def test_a_point_that_is_no_record_and_a_name_that_is_taken_are_refused() -> None:
    store = stored(turn("a"))
    with pytest.raises(ConfigError, match="records 1 to 2"):
        fork(store, ORIGIN, "copy", at=3)
    with pytest.raises(RunExists):
        fork(store, ORIGIN, ORIGIN)
    assert store.run_ids() == [ORIGIN]


def test_a_fork_that_can_not_be_finished_leaves_nothing(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = FileStore(str(tmp_path / "runs"), disk=disk)
    with store.create(ORIGIN, meta()) as journal:
        records: list[Record] = [turn("a"), result("a"), turn("b"), result("b")]
        for record in records:
            journal.append(record)
    disk.before = fail_at("write assistant", 2)
    with pytest.raises(JournalFailed):
        fork(store, ORIGIN, "copy")
    left = {each.name for each in (tmp_path / "runs").iterdir()}
    assert left == {"orders-report.json", "orders-report.lock", "copy.lock"}
    disk.before = None
    fork(store, ORIGIN, "copy")
    assert store.load("copy").last_seq == len(records) + 1
