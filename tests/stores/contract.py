"""What every store promises. A subclass gives the bench; see `test_contract`."""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.codec import encode_line, encode_payload
from fisk_ai.errors import (
    InvalidRunId,
    JournalClosed,
    JournalCorrupt,
    JournalFailed,
    JournalLost,
    NewerVersion,
    NothingRecorded,
    RecordRefused,
    RunExists,
    RunLocked,
    RunNotFound,
    StoreError,
    UnsupportedFormat,
)
from fisk_ai.folding import fold
from fisk_ai.records import AssistantRecord, SequencedRecord, resume_mark
from fisk_ai.stores import Journal, Store
from tests.stores.benches import Bench, read, unchanged
from tests.strategies import (
    MOMENT,
    RUN_ID,
    TIME,
    answer,
    ended,
    follow_up,
    foreign_lines,
    journal_bytes,
    lines_of,
    meta,
    result,
    sample,
    sequenced,
    turn,
)

REFUSED_IDS = (
    "../x", "a/b", "..", ".", "", "a\0b", "x\n", "x\r", "%2e%2e", "-rf", "~", ".hidden", "x" * 300, "x" * 101,
    "é", "\uff11", "*", ">", "a b", "\t", "\u202e", "/etc/x", "a\\b", "_x", "x\u2028", "\ud800",
)  # fmt: skip
ODD_IDS = ("con", "x.json", "x.lock", "x.torn", "a.", "0", "x" * 100, "a..b", "a-_.z")


class StoreContract:
    """Tests that hold for every store."""

    @pytest.fixture
    @abstractmethod
    def bench(self, tmp_path: Path) -> Bench:
        """Return a fresh store on its bench."""

    @pytest.fixture
    def store(self, bench: Bench) -> Store:
        return bench.store

    def test_it_is_a_store_and_gives_journals(self, store: Store) -> None:
        assert isinstance(store, Store)
        with store.create(RUN_ID, meta()) as journal:
            assert isinstance(journal, Journal)
            assert journal.run_id == RUN_ID

    def test_the_first_record_is_there_when_create_returns(self, store: Store) -> None:
        with store.create(RUN_ID, meta(checksums=False)) as journal:
            assert journal.last_seq == 1
            assert read(store, RUN_ID) == lines_of([meta()])[0]
        assert store.load(RUN_ID) == fold(sequenced([meta()]))

    def test_bytes_are_the_same_in_every_store(self, store: Store) -> None:
        with store.create(RUN_ID, meta(interactive=True)) as journal:
            for record in sample()[1:]:
                journal.append(record)
        assert read(store, RUN_ID) == journal_bytes(sample())

    def test_an_append_returns_the_seq(self, store: Store) -> None:
        with store.create(RUN_ID, meta()) as journal:
            assert [journal.append(record) for record in (turn("a"), result("a"), answer())] == [2, 3, 4]
            assert journal.last_seq == 4
            assert [each.seq for each in journal.records()] == [1, 2, 3, 4]
            assert journal.records() == journal.records() == sequenced([meta(), turn("a"), result("a"), answer()])

    def test_a_run_goes_on_where_it_ended(self, store: Store) -> None:
        with store.create(RUN_ID, meta()) as journal:
            journal.append(ended())
        for seq in (3, 5):
            with store.open(RUN_ID) as journal:
                assert journal.last_seq == seq - 1
                assert journal.repair() == b""
                assert journal.append(resume_mark()) == seq
                assert journal.append(ended()) == seq + 1
        assert store.load(RUN_ID).last_seq == 6

    def test_a_name_is_taken_once(self, store: Store) -> None:
        store.create(RUN_ID, meta()).close()
        with unchanged(store, RUN_ID), pytest.raises(RunExists) as caught:
            store.create(RUN_ID, meta())
        assert caught.value.status == "interrupted"
        with store.open(RUN_ID) as journal:
            journal.append(ended("completed"))
            with pytest.raises(RunExists) as caught:
                store.create(RUN_ID, meta())
        assert caught.value.status == "running"
        with pytest.raises(RunExists) as caught:
            store.create(RUN_ID, meta())
        assert caught.value.status == "completed"

    @pytest.mark.parametrize("tail", [b"{oops\n", b"\n", b'{"seq":9}\n'])
    def test_a_damaged_run_keeps_its_name_and_its_bytes(self, bench: Bench, store: Store, tail: bytes) -> None:
        bench.put(RUN_ID, journal_bytes([meta()]) + tail)
        with unchanged(store, RUN_ID):
            with pytest.raises(RunExists) as caught:
                store.create(RUN_ID, meta())
            assert caught.value.status == "unreadable"
            with pytest.raises(JournalCorrupt):
                store.open(RUN_ID)
            with pytest.raises(JournalCorrupt):
                store.load(RUN_ID)
        store.delete(RUN_ID)
        store.create(RUN_ID, meta()).close()

    def test_a_newer_run_is_named_and_left_alone(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, foreign_lines(meta(version=3, checksums=False))[0] + b'{"seq": 2, "later": 1}\n')
        with unchanged(store, RUN_ID):
            for action in (store.open, store.load):
                with pytest.raises(NewerVersion) as caught:
                    action(RUN_ID)
                assert (caught.value.found, caught.value.supported) == (3, 2)
            with pytest.raises(RunExists):
                store.create(RUN_ID, meta())
            info = store.info(RUN_ID)
        assert (info.status, info.reason) == ("unreadable", "newer: version 3")
        assert [each.run_id for each in store.list()] == [RUN_ID]

    @pytest.mark.parametrize("data", [b"", b'{"seq":1,', bytes(2000), journal_bytes([meta()])[:-2]])
    def test_a_name_under_which_nothing_was_recorded_is_free(self, bench: Bench, store: Store, data: bytes) -> None:
        bench.put(RUN_ID, data)
        with unchanged(store, RUN_ID):
            for action in (store.open, store.load):
                with pytest.raises(NothingRecorded):
                    action(RUN_ID)
        assert store.info(RUN_ID).status == "unreadable"
        with store.create(RUN_ID, meta()) as journal:
            journal.append(ended())
        assert bench.torn(RUN_ID) == data
        assert store.load(RUN_ID).last_seq == 2

    def test_what_was_never_recorded_can_be_deleted(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, b"")
        store.delete(RUN_ID)
        assert store.list() == []

    def test_absent_runs_are_absent_everywhere(self, store: Store) -> None:
        actions: list[Callable[[str], object]] = [
            store.open, store.load, store.info, store.delete, lambda run_id: read(store, run_id),
        ]  # fmt: skip
        for action in actions:
            with pytest.raises(RunNotFound) as caught:
                action("absent")
            assert caught.value.where == store.location
        assert store.list() == []
        assert list(store.run_ids()) == []

    def test_an_absent_run_is_absent_beside_others(self, store: Store) -> None:
        store.create(RUN_ID, meta()).close()
        for action in (store.open, store.load, store.info, store.delete):
            with pytest.raises(RunNotFound):
                action("absent")
        assert list(store.run_ids()) == [RUN_ID]

    @pytest.mark.parametrize("run_id", REFUSED_IDS)
    def test_ids_that_could_lead_elsewhere_are_refused_everywhere(self, store: Store, run_id: str) -> None:
        actions: list[Callable[[str], object]] = [
            store.open, store.load, store.info, store.delete, lambda text: read(store, text),
            lambda text: store.create(text, meta(text)),
        ]  # fmt: skip
        for action in actions:
            with pytest.raises(InvalidRunId):
                action(run_id)
        assert store.list() == []

    @pytest.mark.parametrize("run_id", ["A", "Orders-Report", "x" * 99 + "Z"])
    def test_upper_case_is_for_runs_of_other_origin_only(self, bench: Bench, store: Store, run_id: str) -> None:
        with pytest.raises(InvalidRunId) as caught:
            store.create(run_id, meta(run_id))
        assert caught.value.suggestion == run_id.lower()
        bench.put(run_id, b"".join(foreign_lines(meta(run_id, checksums=False))))
        store.create(run_id.lower(), meta(run_id.lower())).close()
        with store.open(run_id) as journal:
            journal.append(ended())
        assert {info.run_id: info.status for info in store.list()} == {
            run_id: "suspended",
            run_id.lower(): "interrupted",
        }
        store.delete(run_id)
        assert list(store.run_ids()) == [run_id.lower()]

    def test_legal_oddities_collide_with_nothing(self, store: Store) -> None:
        for run_id in ("x", *ODD_IDS):
            with store.create(run_id, meta(run_id)) as journal:
                journal.append(ended("error", run_id))
        assert sorted(store.run_ids()) == sorted(["x", *ODD_IDS])
        for run_id in ("x", *ODD_IDS):
            assert store.load(run_id).terminal == ended("error", run_id)
        store.delete("x")
        assert sorted(store.run_ids()) == sorted(ODD_IDS)

    def test_the_id_in_meta_must_be_the_runs(self, bench: Bench, store: Store) -> None:
        with pytest.raises(ValueError, match="yours"):
            store.create("mine", meta("yours"))
        bench.put("mine", journal_bytes([meta("yours")]))
        for action in (store.open, store.load):
            with pytest.raises(JournalCorrupt, match="yours"):
                action("mine")

    def test_one_holder_at_a_time(self, store: Store) -> None:
        with store.create(RUN_ID, meta()) as journal:
            with pytest.raises(RunLocked) as caught:
                store.open(RUN_ID)
            assert caught.value.pid
            with pytest.raises(RunLocked):
                store.delete(RUN_ID)
            assert store.info(RUN_ID).status == "running"
            assert journal.append(ended()) == 2
        assert store.info(RUN_ID).status == "suspended"
        store.open(RUN_ID).close()

    def test_a_refused_open_leaves_the_run_free(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, journal_bytes([meta(), answer()]) + b"{oops\n")
        for _ in range(3):
            with pytest.raises(JournalCorrupt):
                store.open(RUN_ID)
        assert store.info(RUN_ID).status == "unreadable"
        store.delete(RUN_ID)

    def test_a_dead_holder_leaves_the_run_free_and_what_was_recorded(self, bench: Bench, store: Store) -> None:
        journal = store.create(RUN_ID, meta())
        journal.append(turn("a"))
        bench.crash(journal)
        assert store.info(RUN_ID).status == "interrupted"
        with store.open(RUN_ID) as again:
            assert again.records() == sequenced([meta(), turn("a")])

    def test_a_torn_tail_is_cut_before_the_next_append(self, bench: Bench, store: Store) -> None:
        lines = lines_of([meta(), turn("a", "b"), result("a"), result("b"), answer(), ended("completed")])
        bench.put(RUN_ID, b"".join(lines[:3]) + lines[3][:40])
        with unchanged(store, RUN_ID):
            assert store.load(RUN_ID).last_seq == 3
            assert store.info(RUN_ID).records == 3
            with store.open(RUN_ID) as journal:
                assert [each.seq for each in journal.records()] == [1, 2, 3]
        with store.open(RUN_ID) as journal:
            journal.append(result("b"))
            journal.append(answer())
            journal.append(ended("completed"))
        assert bench.torn(RUN_ID) == lines[3][:40]
        assert read(store, RUN_ID) == b"".join(lines)
        for _ in range(2):
            assert store.load(RUN_ID).terminal == ended("completed")

    def test_repair_says_what_it_cut_and_does_it_once(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, journal_bytes([meta(), turn("a")]) + bytes(2000))
        with store.open(RUN_ID) as journal:
            assert journal.repair() == bytes(2000)
            assert journal.repair() == b""
            assert read(store, RUN_ID) == journal_bytes([meta(), turn("a")])
        with store.open(RUN_ID) as journal:
            assert journal.repair() == b""
        assert bench.torn(RUN_ID) == bytes(2000)

    def test_torn_tails_are_kept_one_behind_the_other(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, journal_bytes([meta()]) + b"{one")
        with store.open(RUN_ID) as journal:
            assert journal.repair() == b"{one"
        bench.add(RUN_ID, b"{two")
        with store.open(RUN_ID) as journal:
            journal.append(ended())
        assert bench.torn(RUN_ID) == b"{one{two"

    def test_a_missing_newline_is_supplied_and_the_record_counts(self, bench: Bench, store: Store) -> None:
        lines = lines_of([meta(), turn("a"), result("a"), answer()])
        bench.put(RUN_ID, b"".join(lines[:3])[:-1])
        with unchanged(store, RUN_ID):
            assert store.load(RUN_ID).counters.tool_calls == 1
            assert store.info(RUN_ID).records == 3
        with store.open(RUN_ID) as journal:
            assert journal.repair() == b""
            assert journal.append(answer()) == 4
        assert read(store, RUN_ID) == b"".join(lines)
        assert bench.torn(RUN_ID) == b""

    def test_a_continued_run_of_other_origin_is_checked_from_there_on(self, bench: Bench, store: Store) -> None:
        foreign = b"".join(foreign_lines(meta(checksums=False), turn("a"), result("a")))
        for tail in (b"", b'{"seq": 4'):
            bench.put(RUN_ID, foreign + tail)
            with store.open(RUN_ID) as journal:
                journal.append(answer())
                journal.append(ended())
            data = read(store, RUN_ID)
            assert data.startswith(foreign)
            assert store.load(RUN_ID).last_seq == 5
            info = store.info(RUN_ID)
            assert (info.status, info.records, info.updated) == ("suspended", 5, TIME)
            damaged = data.replace(b"ORDERS", b"BORDER", 1)
            bench.put(RUN_ID, damaged)
            with pytest.raises(JournalCorrupt, match="checksum"):
                store.load(RUN_ID)

    def test_a_version_1_run_is_continued_in_its_own_version(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, b"".join(foreign_lines(meta(version=1, checksums=False), turn("a"))))
        with store.open(RUN_ID) as journal:
            for refused in (follow_up(), AssistantRecord(iteration=1, format="openai", message=answer().message)):
                with pytest.raises(UnsupportedFormat):
                    journal.append(refused)
            journal.append(result("a"))
            journal.append(answer())
        state = store.load(RUN_ID)
        assert (state.version, state.last_seq) == (1, 4)

    def test_what_may_not_be_written_changes_nothing(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, journal_bytes([meta()]) + b"{torn")
        with store.open(RUN_ID) as journal:
            with unchanged(store, RUN_ID), pytest.raises(RecordRefused):
                journal.append(ended("error", "\ud800"))
            assert journal.append(ended("error", "fine")) == 2

    @pytest.mark.parametrize("value", ["text", None, {"reason": "error"}, SequencedRecord(2, ended())])
    def test_what_is_no_record_is_a_type_error_and_does_no_harm(self, store: Store, value: Any) -> None:
        with store.create(RUN_ID, meta()) as journal:
            with (
                unchanged(store, RUN_ID),
                pytest.raises(TypeError, match=rf"TerminalRecord\), not {type(value).__name__}"),
            ):
                journal.append(value)
            assert journal.append(ended()) == 2

    def test_a_first_record_that_is_refused_leaves_no_run(self, store: Store) -> None:
        with pytest.raises(RecordRefused):
            store.create(RUN_ID, meta(prompt="\ud83d"))
        assert store.list() == []
        store.create(RUN_ID, meta()).close()

    def test_a_closed_journal_takes_nothing(self, store: Store) -> None:
        journal = store.create(RUN_ID, meta())
        journal.close()
        journal.close()
        actions: list[Callable[[], object]] = [
            lambda: journal.append(ended()), journal.repair, journal.records, journal.ensure_held,
        ]  # fmt: skip
        for action in actions:
            with pytest.raises(JournalClosed):
                action()
        assert store.load(RUN_ID).last_seq == 1

    def test_a_run_that_was_taken_away_is_noticed_before_anything_is_written(self, bench: Bench, store: Store) -> None:
        journal = store.create(RUN_ID, meta())
        bench.steal(journal)
        with pytest.raises(JournalLost):
            journal.ensure_held()
        with pytest.raises(JournalLost):
            journal.append(ended())
        assert journal.last_seq == 1
        journal.close()

    def test_a_run_that_was_taken_away_is_not_repaired(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, journal_bytes([meta()]) + b"{torn")
        journal = store.open(RUN_ID)
        bench.steal(journal)
        with pytest.raises(JournalLost):
            journal.repair()
        journal.close()
        assert bench.torn(RUN_ID) == b""

    def test_encoded_payloads_are_appended_as_they_are(self, store: Store) -> None:
        payload = encode_payload(ended("error", "why"))[:-1] + b',"later":[1]}'
        with store.create(RUN_ID, meta()) as journal:
            journal.append_payload("terminal", payload)
        assert payload in read(store, RUN_ID)
        assert store.load(RUN_ID).terminal == ended("error", "why")

    def test_threads_append_whole_lines_without_gap_or_repeat(self, store: Store) -> None:
        big = "x" * 20_000
        with store.create(RUN_ID, meta()) as journal:
            ids = [f"c{number}" for number in range(32)]
            journal.append(turn(*ids))
            seqs: list[int] = []
            threads = [
                threading.Thread(target=lambda call_id=each: seqs.append(journal.append(result(call_id, big))))
                for each in ids
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(seqs) == list(range(3, 35))
        assert store.load(RUN_ID).pending is None

    def test_only_one_of_many_threads_opens_a_run(self, store: Store) -> None:
        store.create(RUN_ID, meta()).close()
        won: list[Journal] = []
        lost: list[Exception] = []
        start = threading.Barrier(8)

        def try_it() -> None:
            start.wait()
            try:
                won.append(store.open(RUN_ID))
            except RunLocked as problem:
                lost.append(problem)

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        won[0].close()

    def test_only_one_of_many_threads_creates_a_run(self, store: Store) -> None:
        won: list[Journal] = []
        lost: list[Exception] = []
        start = threading.Barrier(8)

        def try_it() -> None:
            start.wait()
            try:
                won.append(store.create(RUN_ID, meta()))
            except RunExists as problem:
                lost.append(problem)

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        assert won[0].append(ended()) == 2
        won[0].close()

    def test_the_time_is_when_it_was_appended(self, store: Store) -> None:
        with store.create(RUN_ID, meta()) as journal:
            journal.append(ended())
        assert [json.loads(line)["time"] for line in read(store, RUN_ID).splitlines()] == [TIME, TIME]
        assert TIME.startswith(MOMENT.strftime("%Y-%m-%dT%H:%M:%S"))

    def test_adopted_lines_are_there_byte_for_byte_and_go_on(self, store: Store) -> None:
        lines = lines_of([meta(), turn("a")])
        store.adopt(RUN_ID, lines)
        assert read(store, RUN_ID) == b"".join(lines)
        with store.open(RUN_ID) as journal:
            assert journal.append(result("a")) == 3
        assert store.load(RUN_ID).counters.tool_calls == 1

    def test_a_taken_name_adopts_nothing(self, bench: Bench, store: Store) -> None:
        lines = lines_of([meta(), turn("a")])
        with store.create(RUN_ID, meta()), pytest.raises(RunExists, match="running"):
            store.adopt(RUN_ID, lines)
        with unchanged(store, RUN_ID), pytest.raises(RunExists, match="interrupted"):
            store.adopt(RUN_ID, lines)
        bench.put(RUN_ID, b"{oops\n{oops\n")
        with unchanged(store, RUN_ID), pytest.raises(RunExists, match="unreadable"):
            store.adopt(RUN_ID, lines)

    def test_a_name_under_which_nothing_was_recorded_adopts_and_keeps_its_bytes(
        self, bench: Bench, store: Store
    ) -> None:
        bench.put(RUN_ID, b'{"seq":1,"pro')
        store.adopt(RUN_ID, lines_of([meta()]))
        assert store.load(RUN_ID).last_seq == 1
        assert bench.torn(RUN_ID) == b'{"seq":1,"pro'

    def test_deleting_removes_the_run_and_nothing_else(self, bench: Bench, store: Store) -> None:
        for run_id in ("a", "a.b", "b"):
            store.create(run_id, meta(run_id)).close()
        bench.add("a", b"{torn")
        with store.open("a") as journal:
            journal.repair()
        store.delete("a")
        assert sorted(store.run_ids()) == ["a.b", "b"]
        with pytest.raises(RunNotFound):
            store.delete("a")
        store.create("a", meta("a")).close()
        assert bench.torn("a") == b""

    def test_folding_says_what_reading_cannot(self, bench: Bench, store: Store) -> None:
        bench.put(RUN_ID, journal_bytes([meta(), turn("a"), answer()]))
        store.open(RUN_ID).close()
        with pytest.raises(JournalCorrupt) as caught:
            store.load(RUN_ID)
        assert caught.value.seq == 3

    def test_an_unknown_format_is_listed_and_opened_and_not_folded(self, bench: Bench, store: Store) -> None:
        strange = AssistantRecord(iteration=0, format="hologram", message=answer().message)
        bench.put(RUN_ID, journal_bytes([meta(), strange]))
        with pytest.raises(UnsupportedFormat):
            store.load(RUN_ID)
        assert store.info(RUN_ID).status == "interrupted"

    def test_a_list_shows_the_newest_record_first(self, bench: Bench, store: Store) -> None:
        times = {"a": "2026-12-01T03:00:00.000Z", "b": "2030-01-01T00:00:00.000Z", "c": "2026-12-01T03:00:00.000Z"}
        for run_id, time in times.items():
            line, crc = encode_line(1, meta(run_id), TIME, 0)
            bench.put(run_id, line + encode_line(2, ended(), time, crc)[0])
        bench.put("d", b"")
        assert [info.run_id for info in store.list()] == ["b", "a", "c", "d"]

    def test_every_failure_is_a_typed_error(self) -> None:
        for kind in (JournalClosed, JournalFailed, JournalLost, RunLocked, RunNotFound, RecordRefused):
            assert issubclass(kind, StoreError)
