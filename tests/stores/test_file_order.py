"""In which order a file store writes, syncs, cuts and acknowledges, and what it does when one of these fails."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fisk_ai.errors import FiskError, JournalFailed, JournalLost, NotPermitted, RunExists, StoreError
from fisk_ai.stores import FileStore
from fisk_ai.stores import disk as system
from fisk_ai.stores.disk import OsDisk
from tests.stores.faults import FastDisk, Fault, FaultyDisk
from tests.strategies import MOMENT, RUN_ID, answer, ended, journal_bytes, lines_of, meta, result, sequenced, turn

DURABLE = ("write", "sync", "truncate", "create_file", "make_directory", "remove", "set_mode")
LINES = lines_of([meta(), turn("a"), result("a"), answer(), ended("completed")])


def plant(directory: Path, data: bytes, run_id: str = RUN_ID) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    path = directory / f"{run_id}.json"
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def bytes_of(directory: Path, suffix: str = ".json") -> bytes:
    path = directory / f"{RUN_ID}{suffix}"
    return path.read_bytes() if path.exists() else b""


def test_a_new_run_is_durable_with_all_its_directories(store: FileStore, disk: FaultyDisk, tmp_path: Path) -> None:
    store.create(RUN_ID, meta()).close()
    parent = str(tmp_path)
    assert disk.operations(*DURABLE) == [
        ("sync", f"{tmp_path.parent}/"),
        ("make_directory", "state"),
        ("sync", f"{parent}/"),
        ("make_directory", "runs"),
        ("sync", "state/"),
        ("create_file", f"{RUN_ID}.lock"),
        ("create_file", f"{RUN_ID}.json"),
        ("write", f"{RUN_ID}.json"),
        ("sync", f"{RUN_ID}.json"),
        ("sync", "runs/"),
    ]
    assert disk.open == {}


def test_an_append_is_one_write_and_one_sync(store: FileStore, disk: FaultyDisk) -> None:
    with store.create(RUN_ID, meta()) as journal:
        for record in (turn("a"), result("a")):
            disk.log.clear()
            journal.append(record)
            assert disk.operations(*DURABLE) == [("write", f"{RUN_ID}.json"), ("sync", f"{RUN_ID}.json")]


def test_an_append_costs_the_same_however_long_the_run_is(store: FileStore, disk: FaultyDisk) -> None:
    with store.create(RUN_ID, meta()) as journal:
        counts = []
        for _ in range(30):
            disk.log.clear()
            journal.append(ended())
            counts.append(len(disk.log))
        assert len(set(counts)) == 1
        assert "read" not in {each.name for each in disk.log}


def test_open_locks_syncs_forgets_the_cache_and_only_then_reads(
    store: FileStore, disk: FaultyDisk, directory: Path
) -> None:
    plant(directory, b"".join(LINES[:2]) + LINES[2][:20])
    journal = store.open(RUN_ID)
    order = disk.operations("lock", "sync", "drop_cache", "read", "write", "truncate", "set_mode", "remove")
    order = [each for each in order if each != ("read", f"{RUN_ID}.lock")]
    assert order[:5] == [
        ("lock", f"{RUN_ID}.lock"),
        ("sync", f"{RUN_ID}.json"),
        ("sync", f"{directory}/"),
        ("drop_cache", f"{RUN_ID}.json"),
        ("read", f"{RUN_ID}.json"),
    ]
    assert {name for name, _ in order[5:]} == {"read"}
    journal.close()


def test_what_is_cut_is_kept_durably_before_the_cut(store: FileStore, disk: FaultyDisk, directory: Path) -> None:
    plant(directory, b"".join(LINES[:2]) + LINES[2][:20])
    with store.open(RUN_ID) as journal:
        disk.log.clear()
        journal.append(result("a"))
        assert disk.operations(*DURABLE) == [
            ("create_file", f"{RUN_ID}.torn"),
            ("write", f"{RUN_ID}.torn"),
            ("sync", f"{RUN_ID}.torn"),
            ("sync", f"{directory}/"),
            ("truncate", f"{RUN_ID}.json"),
            ("sync", f"{RUN_ID}.json"),
            ("write", f"{RUN_ID}.json"),
            ("sync", f"{RUN_ID}.json"),
            ("sync", f"{directory}/"),
        ]


def test_a_missing_newline_is_durable_before_the_next_record(
    store: FileStore, disk: FaultyDisk, directory: Path
) -> None:
    plant(directory, b"".join(LINES[:2])[:-1])
    with store.open(RUN_ID) as journal:
        disk.log.clear()
        journal.append(result("a"))
        name = f"{RUN_ID}.json"
        assert disk.operations("write", "sync")[:4] == [
            ("write", name),
            ("sync", name),
            ("write", name),
            ("sync", name),
        ]
    assert bytes_of(directory) == b"".join(LINES[:3])


def test_a_name_is_emptied_durably_before_it_is_used_again(store: FileStore, disk: FaultyDisk, directory: Path) -> None:
    plant(directory, LINES[0][:20])
    disk.log.clear()
    store.create(RUN_ID, meta()).close()
    assert disk.operations("write", "sync", "truncate")[1:] == [
        ("write", f"{RUN_ID}.torn"),
        ("sync", f"{RUN_ID}.torn"),
        ("sync", f"{directory}/"),
        ("truncate", f"{RUN_ID}.json"),
        ("sync", f"{RUN_ID}.json"),
        ("write", f"{RUN_ID}.json"),
        ("sync", f"{RUN_ID}.json"),
        ("sync", f"{directory}/"),
    ]


def test_a_copy_is_synced_before_it_has_its_name_and_with_its_name(
    store: FileStore, disk: FaultyDisk, directory: Path
) -> None:
    directory.mkdir(parents=True, mode=0o700)
    store.adopt(RUN_ID, LINES[:2])
    order = disk.operations("create_file", "write", "sync", "rename")
    assert order[order.index(("create_file", f"{RUN_ID}.part")) :] == [
        ("create_file", f"{RUN_ID}.part"),
        *[("write", f"{RUN_ID}.part")] * 2,
        ("sync", f"{RUN_ID}.part"),
        ("rename", f"{RUN_ID}.json"),
        ("sync", f"{directory}/"),
    ]


def test_a_copy_that_somebody_died_in_is_begun_anew(store: FileStore, directory: Path) -> None:
    plant(directory, LINES[0]).rename(directory / f"{RUN_ID}.part")
    store.adopt(RUN_ID, LINES[:2])
    assert bytes_of(directory) == b"".join(LINES[:2])
    assert bytes_of(directory, ".part") == b""


def test_the_disk_asks_the_system_for_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: asked.append("fsync"))
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: asked.append(f"fadvise {arguments[1:]}"), raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    monkeypatch.setattr(system, "_F_FULLFSYNC", None)
    with (tmp_path / "file").open("wb") as file:
        OsDisk().sync(file.fileno())
        OsDisk().drop_cache(file.fileno())
    assert asked == ["fsync", "fadvise (0, 0, 4)"]


def test_a_sync_goes_through_the_drives_cache_where_the_system_knows_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(system, "_F_FULLFSYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", lambda _descriptor, operation: asked.append(operation))
    with (tmp_path / "file").open("wb") as file:
        OsDisk().sync(file.fileno())
    assert asked == [51]


def test_what_the_system_takes_in_parts_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:7]))
    with (tmp_path / "file").open("wb") as file:
        OsDisk().write(file.fileno(), LINES[0])
    assert (tmp_path / "file").read_bytes() == LINES[0]


def test_a_refused_open_changes_no_byte(store: FileStore, disk: FaultyDisk, directory: Path) -> None:
    path = plant(directory, b"".join(LINES[:2]) + b"{oops\n")
    path.chmod(0o644)
    directory.chmod(0o755)
    before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode, directory.stat().st_mode)
    for action in (store.open, store.load, lambda run_id: store.create(run_id, meta())):
        with pytest.raises((StoreError, RunExists)):
            action(RUN_ID)
    store.list()
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode, directory.stat().st_mode) == before
    changing = set(DURABLE) - {"sync", "create_file"}
    assert not changing & {each.name for each in disk.log}
    assert sorted(each.name for each in directory.iterdir()) == [f"{RUN_ID}.json", f"{RUN_ID}.lock"]


@pytest.mark.parametrize("problem", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG])
@pytest.mark.parametrize(("operation", "kept"), [("write", 0), ("write", 1), ("write", 60), ("sync", None)], ids=str)
def test_a_failed_append_poisons_the_journal(
    store: FileStore, disk: FaultyDisk, directory: Path, operation: str, kept: int | None, problem: int
) -> None:
    journal = store.create(RUN_ID, meta())
    disk.faults = [Fault(operation, 1, problem, ".json", kept_bytes=kept)]
    with pytest.raises(JournalFailed) as caught:
        journal.append(turn("a"))
    assert f"{RUN_ID}.json" in str(caught.value)
    assert "resume" in str(caught.value)
    assert journal.last_seq == 1
    disk.log.clear()
    actions: list[Callable[[], object]] = [
        lambda: journal.append(ended()), journal.repair, journal.ensure_held, journal.records,
    ]  # fmt: skip
    for action in actions:
        with pytest.raises(JournalFailed, match="before"):
            action()
    assert disk.operations(*DURABLE) == []  # and above all, no second sync
    journal.close()
    assert disk.open == {}
    with store.open(RUN_ID) as again:
        seq = again.append(ended())
    found = store.load(RUN_ID)
    assert found.last_seq == seq
    assert bytes_of(directory).startswith(LINES[0])
    assert bytes_of(directory, ".torn") == LINES[1][: kept or 0]


def count_operations(directory: Path, operation: str) -> int:
    disk = FaultyDisk()
    live(FileStore(str(directory), disk=disk, clock=lambda: MOMENT), [])
    return len(disk.operations(operation))


def live(store: FileStore, acknowledged: list[int]) -> None:
    """Create, crash with a torn tail, open, repair, append, end; add what is acknowledged to the list."""
    with store.create(RUN_ID, meta()) as journal:
        acknowledged.append(1)
        acknowledged.append(journal.append(turn("a")))
    with (Path(store.directory) / f"{RUN_ID}.json").open("ab") as file:
        file.write(LINES[2][:30])
    with store.open(RUN_ID) as journal:
        journal.repair()
        acknowledged.append(journal.append(result("a")))
        acknowledged.append(journal.append(answer()))


@pytest.mark.parametrize("from_then_on", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "operation",
    [
        "open_directory", "make_directory", "create_file", "open_file", "read", "write", "sync", "truncate",
        "lock", "announce", "overwrite", "find", "find_directory", "drop_cache",
    ],
)  # fmt: skip
def test_whatever_fails_is_a_typed_error_and_loses_nothing(tmp_path: Path, operation: str, from_then_on: bool) -> None:
    reached = count_operations(tmp_path / "counted" / "runs", operation)
    assert reached > 0
    for number in range(1, reached + 1):
        directory = tmp_path / str(number) / "runs"
        disk = FaultyDisk(Fault(operation, number, errno.EIO, from_then_on=from_then_on))
        acknowledged: list[int] = []
        with contextlib.suppress(FiskError):
            live(FileStore(str(directory), disk=disk, clock=lambda: MOMENT), acknowledged)
        assert disk.faults[0].reached >= number
        assert disk.open == {}, f"{operation} {number} left descriptors open"
        recover(directory, acknowledged)


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EDQUOT], ids=os.strerror)
@pytest.mark.parametrize("kept", [0, 1, 25, 100, 10_000])
def test_a_disk_that_is_full_at_any_write_loses_nothing(tmp_path: Path, kept: int, problem: int) -> None:
    for number in range(1, count_operations(tmp_path / "counted" / "runs", "write") + 1):
        directory = tmp_path / str(number) / "runs"
        disk = FaultyDisk(Fault("write", number, problem, kept_bytes=kept, from_then_on=True))
        acknowledged: list[int] = []
        with pytest.raises(JournalFailed, match=os.strerror(problem)):
            live(FileStore(str(directory), disk=disk, clock=lambda: MOMENT), acknowledged)
        assert disk.open == {}
        recover(directory, acknowledged)


def recover(directory: Path, acknowledged: list[int]) -> None:
    """After the fault is gone: nothing that was acknowledged is missing, and the run can be finished."""
    store = FileStore(str(directory), disk=FaultyDisk(), clock=lambda: MOMENT)
    try:
        journal = store.open(RUN_ID)
    except StoreError:
        assert not acknowledged
        journal = store.create(RUN_ID, meta())
    with journal:
        found = journal.records()
        assert len(found) >= len(acknowledged)
        assert list(found) == sequenced([meta(), turn("a"), result("a"), answer()])[: len(found)]
        journal.append(ended("error"))
    assert store.load(RUN_ID).last_seq == len(found) + 1


def test_a_full_disk_stops_a_run_before_it_began_and_its_name_stays_free(store: FileStore, disk: FaultyDisk) -> None:
    disk.faults = [Fault("write", 1, errno.ENOSPC, kept_bytes=100)]
    with pytest.raises(JournalFailed, match="No space left"):
        store.create(RUN_ID, meta())
    assert store.info(RUN_ID).status == "unreadable"
    with store.create(RUN_ID, meta()) as journal:
        journal.append(ended())
    assert store.load(RUN_ID).last_seq == 2


def test_a_run_can_be_removed_from_a_full_disk(store: FileStore, disk: FaultyDisk) -> None:
    store.create(RUN_ID, meta()).close()
    disk.faults = [Fault(name, 1, errno.ENOSPC, from_then_on=True) for name in ("write", "overwrite", "create_file")]
    # The lock file is there already; one that has to be made needs room.
    disk.faults.pop()
    store.delete(RUN_ID)
    assert store.list() == []


@pytest.mark.parametrize("operation", ["sync", "drop_cache"])
def test_an_open_that_cannot_settle_the_cache_is_refused(store: FileStore, disk: FaultyDisk, operation: str) -> None:
    store.create(RUN_ID, meta()).close()
    disk.faults = [Fault(operation, 1)]
    with pytest.raises(JournalFailed, match="on opening"):
        store.open(RUN_ID)
    store.open(RUN_ID).close()


def test_a_failed_repair_poisons_and_keeps_what_was_torn(tmp_path: Path) -> None:
    whole = b"".join(LINES[:2])
    for operation, target in [("write", ".torn"), ("sync", ".torn"), ("truncate", ".json"), ("sync", ".json")]:
        directory = tmp_path / f"{operation}{target}"
        plant(directory, whole + LINES[2][:20])
        disk = FaultyDisk()
        store = FileStore(str(directory), disk=disk)
        journal = store.open(RUN_ID)
        disk.faults = [Fault(operation, 1, errno.EIO, target)]
        with pytest.raises(JournalFailed):
            journal.append(result("a"))
        with pytest.raises(JournalFailed):
            journal.append(result("a"))
        journal.close()
        assert bytes_of(directory).startswith(whole)
        with store.open(RUN_ID) as again:
            again.append(ended())
        assert LINES[2][:20] in bytes_of(directory, ".torn")
        assert store.load(RUN_ID).last_seq == 3


def test_deleting_that_fails_leaves_a_run_that_can_be_deleted(tmp_path: Path) -> None:
    for number in range(1, 5):
        directory = tmp_path / str(number)
        disk = FaultyDisk(Fault("remove", number, errno.EACCES))
        store = FileStore(str(directory), disk=disk)
        store.create(RUN_ID, meta()).close()
        with pytest.raises(NotPermitted):
            store.delete(RUN_ID)
        assert disk.open == {}
        if number < 4:
            assert store.load(RUN_ID).last_seq == 1
            store.delete(RUN_ID)
            assert list(directory.iterdir()) == []


def test_deleting_removes_the_lock_last_and_is_durable(store: FileStore, disk: FaultyDisk) -> None:
    store.create(RUN_ID, meta()).close()
    disk.log.clear()
    store.delete(RUN_ID)
    names = [target for _, target in disk.operations("remove")]
    assert names == [f"{RUN_ID}{suffix}" for suffix in (".torn", ".tools", ".part", ".json", ".lock")]
    assert disk.log[-1].name == "sync"


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("afterwards", [False, True], ids=["before it", "after it"])
def test_an_interrupt_leaves_the_journal_unusable_and_the_file_fine(
    store: FileStore, disk: FaultyDisk, operation: str, afterwards: bool
) -> None:
    journal = store.create(RUN_ID, meta())
    disk.faults = [Fault(operation, 1, KeyboardInterrupt(), ".json", afterwards=afterwards)]
    with pytest.raises(KeyboardInterrupt):
        journal.append(turn("a"))
    with pytest.raises(JournalFailed, match="interrupted"):
        journal.append(turn("a"))
    journal.close()
    with store.open(RUN_ID) as again:
        assert again.append(ended()) == again.last_seq
    assert store.load(RUN_ID).last_seq in (2, 3)


class Interrupter:
    """Raises KeyboardInterrupt before the N-th bytecode of some modules, as a signal might."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(("stores/journal.py", "stores/file.py", "contextlib.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.number:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("tail", [b"", LINES[2][:20], None], ids=["whole", "torn", "newline missing"])
def test_an_interrupt_at_any_bytecode_leaves_journal_and_file_in_step(directory: Path, tail: bytes | None) -> None:
    store = FileStore(str(directory), disk=FastDisk(), clock=lambda: MOMENT)
    whole = b"".join(LINES[:2])
    number = finished = 0
    while not finished:
        number += 1
        plant(directory, whole[:-1] if tail is None else whole + tail)
        journal = store.open(RUN_ID)
        interrupter = Interrupter(number)
        before = sys.gettrace()
        sys.settrace(interrupter)
        try:
            journal.append(result("a"))
            finished = number
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        with contextlib.suppress(JournalFailed):
            journal.append(answer())
        journal.close()
        with store.open(RUN_ID) as again:
            found = list(again.records())
            assert found[:2] == sequenced([meta(), turn("a")])
            again.append(ended("error"))
        data = bytes_of(directory)
        assert data.startswith(whole)
        assert b"\n\n" not in data
    assert number > 100


def test_what_was_taken_away_is_noticed(tmp_path: Path) -> None:
    def replace_file(directory: Path) -> None:
        (directory / f"{RUN_ID}.json").rename(directory / "away")
        (directory / f"{RUN_ID}.json").write_bytes(b"")

    def replace_by_copy(directory: Path) -> None:
        data = (directory / f"{RUN_ID}.json").read_bytes()
        replace_file(directory)
        (directory / f"{RUN_ID}.json").write_bytes(data)

    def replace_directory(directory: Path) -> None:
        directory.rename(directory.parent / "away")
        directory.mkdir()

    def remove_directory(directory: Path) -> None:
        for each in directory.iterdir():
            each.unlink()
        directory.rmdir()

    ways: dict[str, Callable[[Path], object]] = {
        "file removed": lambda directory: (directory / f"{RUN_ID}.json").unlink(),
        "file replaced": replace_file,
        "file replaced by its copy": replace_by_copy,
        "file written to": lambda directory: os.truncate(directory / f"{RUN_ID}.json", 10_000),
        "file cut": lambda directory: os.truncate(directory / f"{RUN_ID}.json", 10),
        "lock removed": lambda directory: (directory / f"{RUN_ID}.lock").unlink(),
        "directory renamed": lambda directory: directory.rename(directory.parent / "away"),
        "directory replaced": replace_directory,
        "directory removed": remove_directory,
    }
    for name, way in ways.items():
        directory = tmp_path / name / "runs"
        store = FileStore(str(directory))
        journal = store.create(RUN_ID, meta())
        way(directory)
        for action in (journal.ensure_held, lambda journal=journal: journal.append(ended())):
            with pytest.raises(JournalLost) as caught:
                action()
            assert "no longer ours" in str(caught.value)
        assert journal.last_seq == 1
        journal.close()


def test_a_path_that_cannot_be_looked_at_is_lost(store: FileStore, disk: FaultyDisk) -> None:
    journal = store.create(RUN_ID, meta())
    for operation in ("find", "find_directory"):
        disk.faults = [Fault(operation, 1, errno.EACCES)]
        with pytest.raises(JournalLost, match="Permission denied"):
            journal.append(ended())
    disk.faults = []
    assert journal.append(ended()) == 2
    journal.close()


def test_what_is_read_while_a_repair_is_at_work_is_not_damage(directory: Path) -> None:
    """The reader sees the file before the cut, then after an append; the second look counts."""
    whole = b"".join(LINES[:2])

    class Beside(FaultyDisk):
        def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
            data = super().read(descriptor, size_bytes, offset)
            if data and len(self.operations("read")) == 1:
                path.write_bytes(journal_bytes([meta(), turn("a"), result("a")]))
                return data[:-30] + b"rubbish\n" + data[-30:]  # no state that the file ever had as a whole
            return data

    path = plant(directory, whole + LINES[2][:20])
    assert FileStore(str(directory), disk=Beside()).load(RUN_ID).last_seq == 3


def test_every_prefix_of_a_file_can_be_continued_and_nothing_is_lost_or_invented(directory: Path) -> None:
    store = FileStore(str(directory), disk=FastDisk(), clock=lambda: MOMENT)
    whole = b"".join(LINES)
    borders = [len(b"".join(LINES[:count])) for count in range(len(LINES) + 1)]
    for size in range(borders[1] - 1, len(whole) + 1):
        path = plant(directory, whole[:size])
        count = sum(size >= border - 1 for border in borders[1:])
        for expected in (count, count + 1):
            with store.open(RUN_ID) as journal:
                assert journal.last_seq == expected
                if expected == count:
                    journal.append(ended("error", "again"))
        assert path.read_bytes().startswith(b"".join(LINES[:count]))
        torn = path.with_suffix(".torn")
        assert (torn.read_bytes() if torn.exists() else b"") == whole[borders[count] : size]
        torn.unlink(missing_ok=True)
