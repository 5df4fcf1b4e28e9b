"""One line about each run, from a look at both ends of its file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fisk_ai.codec import encode_line
from fisk_ai.records import Record, TerminalRecord, Waiting, resume_mark
from fisk_ai.stores import FileStore, RunInfo
from fisk_ai.stores.base import Status
from fisk_ai.stores.listing import HEAD_BYTES, TAIL_BYTES
from tests.stores.faults import Fault, FaultyDisk
from tests.stores.test_file_order import plant
from tests.strategies import (
    CREATED,
    RUN_ID,
    TIME,
    answer,
    ended,
    fingerprint,
    follow_up,
    foreign_lines,
    journal_bytes,
    lines_of,
    meta,
    result,
    turn,
)

BIG = "x" * (HEAD_BYTES + 1000)
# More than a head and a tail, in lines that fit into either.
PADDING: list[Record] = [record for _ in range(8) for record in (turn("a"), result("a", "y" * 20_000))]


def described(store: FileStore, directory: Path, *records: Record, run_id: str = RUN_ID) -> RunInfo:
    plant(directory, journal_bytes(records), run_id)
    return store.info(run_id)


@pytest.mark.parametrize("middle", [[], PADDING], ids=["short", "long"])
@pytest.mark.parametrize(
    ("tail", "status"),
    [
        ([], "interrupted"),
        ([answer()], "interrupted"),
        ([ended("suspended")], "suspended"),
        ([answer(), ended("completed")], "completed"),
        ([ended("error", "why")], "error"),
        ([ended("budget")], "budget"),
        ([ended("max_iterations")], "max_iterations"),
        ([ended("suspended"), resume_mark()], "interrupted"),
        ([ended("suspended"), follow_up()], "interrupted"),
    ],
)
def test_the_status_is_that_of_the_last_record(
    store: FileStore, directory: Path, middle: list[Record], tail: list[Record], status: Status
) -> None:
    info = described(store, directory, meta(), *middle, *tail)
    count = 1 + len(middle) + len(tail)
    assert info == RunInfo(
        run_id=RUN_ID,
        status=status,
        provider="anthropic",
        model="claude-sonnet-5",
        prompt="report on the ORDERS stream",
        interactive=False,
        created=CREATED,
        updated=TIME,
        records=count,
    )
    assert store.list() == [info]


@pytest.mark.parametrize("middle", [[], PADDING], ids=["short", "long"])
def test_a_suspended_run_says_what_it_waits_for(store: FileStore, directory: Path, middle: list[Record]) -> None:
    waiting = Waiting(kind="approval", tool_use_id="a", name="lookup")
    end = TerminalRecord(reason="suspended", waiting=waiting)
    assert described(store, directory, meta(interactive=True), *middle, end).waiting == waiting
    assert store.info(RUN_ID).interactive is True
    with store.open(RUN_ID):
        info = store.info(RUN_ID)
        assert (info.status, info.waiting) == ("running", None)


def test_the_model_is_that_of_the_last_forced_resume(store: FileStore, directory: Path) -> None:
    mark = resume_mark(fingerprint("claude-opus-5"))
    assert described(store, directory, meta(), ended(), mark).model == "claude-opus-5"


def test_what_a_short_look_does_not_show_is_null(store: FileStore, directory: Path) -> None:
    info = described(store, directory, meta(prompt=BIG), ended("suspended"))
    assert (info.status, info.records, info.updated) == ("suspended", 2, TIME)
    assert (info.prompt, info.model, info.created, info.interactive) == (None, None, None, None)
    info = described(store, directory, meta(), turn("a"), result("a", BIG))
    assert (info.status, info.prompt, info.created) == ("interrupted", "report on the ORDERS stream", CREATED)
    assert (info.records, info.updated) == (None, None)
    info = described(store, directory, meta(prompt=BIG))
    assert info == RunInfo(RUN_ID, "interrupted")
    info = described(store, directory, meta(prompt=BIG), turn("a"), result("a", BIG), ended("budget"))
    assert (info.status, info.records) == ("budget", 4)


@pytest.mark.parametrize("size", range(-3, 4))
def test_lines_at_the_border_of_the_look_are_read_right(store: FileStore, directory: Path, size: int) -> None:
    first, crc = encode_line(1, meta(), TIME, 0)
    last, _ = encode_line(3, ended("budget"), TIME, 0)
    for border in (HEAD_BYTES, TAIL_BYTES + len(first), HEAD_BYTES + len(last)):
        room = border + size - len(first)
        padding = answer("")
        short, _ = encode_line(2, padding, TIME, crc)
        grown = answer("z" * (room - len(short) - len('{"type": "text", "text": ""}')))
        second, chained = encode_line(2, grown, TIME, crc)
        third, _ = encode_line(3, ended("budget"), TIME, chained)
        for tail in (b"", third, third[:-1], third[:20], bytes(40), third + third[:5]):
            plant(directory, first + second + tail)
            info = store.info(RUN_ID)
            assert info.status == ("budget" if tail.startswith(third[:-1]) else "interrupted")
            assert info.records in ((3,) if tail.startswith(third[:-1]) else (2, None))
            assert info.prompt == "report on the ORDERS stream"


def test_reading_is_bounded(store: FileStore, disk: FaultyDisk, directory: Path) -> None:
    asked: list[int] = []

    class Counting(FaultyDisk):
        def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
            asked.append(size_bytes)
            return super().read(descriptor, size_bytes, offset)

    plant(directory, journal_bytes([meta(), *PADDING * 4, ended()]))
    assert FileStore(str(directory), disk=Counting()).info(RUN_ID).status == "suspended"
    assert sum(asked) <= HEAD_BYTES + TAIL_BYTES


@pytest.mark.parametrize("middle", [[], PADDING], ids=["short", "long"])
def test_bad_files_are_shown_with_a_reason_and_hide_nobody(
    store: FileStore, directory: Path, middle: list[Record]
) -> None:
    def flipped(data: bytes) -> bytes:
        return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]

    ways: dict[str, Callable[[list[bytes]], bytes]] = {
        "first-line": lambda lines: b"".join([b"{oops\n", *lines[1:]]),
        "last-line": lambda lines: b"".join(lines)[:-10] + b"\n",
        "last-bit": lambda lines: flipped(b"".join(lines)),
        "swapped": lambda lines: b"".join([*lines[:-2], lines[-1], lines[-2]]),
        "lost": lambda lines: b"".join([*lines[:-2], lines[-1]]),
        "next-to-last": lambda lines: b"".join([*lines[:-2], b"{oops\n", lines[-1]]),
        "headless": lambda lines: b"".join(lines[1:]),
        "binary": lambda _lines: os.urandom(3000),
    }
    for run_id, damaged in ways.items():
        plant(directory, damaged(lines_of([meta(run_id), *middle, answer(), ended("completed")])), run_id)
    newer = foreign_lines(meta("newer", version=3, checksums=False), *middle, answer())
    for run_id, data in {
        "good": journal_bytes([meta("good"), *middle, ended()]),
        "empty": b"",
        "begun": lines_of([meta("begun")])[0][:-5],
        "nul": bytes(2000),
        "newer": b"".join(newer),
        "other": journal_bytes([meta("somebody"), ended()]),
    }.items():
        plant(directory, data, run_id)
    found = {info.run_id: info for info in store.list()}
    assert found["good"].status == "suspended"
    assert {found[name].reason for name in ("empty", "begun", "nul")} == {"empty: nothing was recorded"}
    assert found["newer"].reason == "newer: version 3"
    assert found["other"].reason == "damaged: meta names somebody"
    for name in ways:
        reason = found[name].reason or ""
        assert reason.startswith(("damaged: ", "empty: ")), name
        assert "meta names" not in reason
    assert {info.status for name, info in found.items() if name != "good"} == {"unreadable"}
    assert found["good"] in store.list()


@pytest.mark.parametrize("middle", [[], PADDING], ids=["short", "long"])
def test_a_torn_tail_is_no_damage_and_what_lacks_its_newline_counts(
    store: FileStore, directory: Path, middle: list[Record]
) -> None:
    lines = lines_of([meta(), *middle, answer(), ended("completed")])
    whole, count = b"".join(lines), len(lines)
    for data, status, records in [
        (whole[:-1], "completed", count),
        (whole[:-2], "interrupted", count - 1),
        (whole[: -len(lines[-1]) + 1], "interrupted", count - 1),
        (whole[: -len(lines[-1]) - 1], "interrupted", count - 1),
        (whole + b"{", "completed", count),
        (whole + bytes(2000), "completed", count),
        (whole + bytes(2000) + b"\n", "completed", count),
        (whole + lines[-1], "completed", count),  # a retried write
        (whole + lines[-1][:-1], "completed", count),
        (whole + lines[-1][:7], "completed", count),
    ]:
        plant(directory, data)
        for held in (False, True):
            if held:
                with store.open(RUN_ID):
                    info = store.info(RUN_ID)
                status = "running"
            else:
                info = store.info(RUN_ID)
            assert (info.status, info.records, info.reason) == (status, records, None)


@pytest.mark.parametrize("middle", [[], PADDING], ids=["short", "long"])
def test_a_run_of_other_origin_that_we_continued_is_listed(
    store: FileStore, directory: Path, middle: list[Record]
) -> None:
    plant(directory, b"".join(foreign_lines(meta("Nightly-CHAT", checksums=False), *middle)), "Nightly-CHAT")
    assert store.info("Nightly-CHAT") == store.list()[0]
    assert (store.info("Nightly-CHAT").updated, store.info("Nightly-CHAT").records) == (None, 1 + len(middle))
    for _ in range(3):
        with store.open("Nightly-CHAT") as journal:
            journal.append(ended())
        info = store.info("Nightly-CHAT")
        assert (info.status, info.updated) == ("suspended", TIME)


def test_damage_at_the_end_of_a_run_of_other_origin_is_seen(store: FileStore, directory: Path) -> None:
    lines = foreign_lines(meta(checksums=False), *PADDING, answer(), ended("completed"))
    for broken in (b"{oops\n", lines[-1][:-5] + b"\n", lines[-2]):
        plant(directory, b"".join([*lines[:-1], broken]) if broken != lines[-2] else b"".join([*lines, broken]))
        assert store.info(RUN_ID).status == "unreadable"


def test_the_newest_record_comes_first_and_file_times_mean_nothing(store: FileStore, directory: Path) -> None:
    times = {"c": "2026-12-01T03:00:00.000Z", "a": "2026-12-01T03:00:00.000Z", "b": "2030-01-01T00:00:00.000Z"}
    for run_id, time in times.items():
        line, crc = encode_line(1, meta(run_id), TIME, 0)
        plant(directory, line + encode_line(2, ended(), time, crc)[0], run_id)
    plant(directory, b"", "empty")
    wanted = ["b", "a", "c", "empty"]
    assert [info.run_id for info in store.list()] == wanted
    os.utime(directory / "c.json", (2_000_000_000, 2_000_000_000))
    os.utime(directory / "b.json", (0, 0))
    store.load("a")
    store.open("a").close()
    assert [info.run_id for info in store.list()] == wanted


def test_a_clock_that_goes_back_disturbs_nothing(store: FileStore, directory: Path) -> None:
    line, crc = encode_line(1, meta(), "2026-12-01T03:00:00.000Z", 0)
    second, crc = encode_line(2, turn("a"), "2026-12-01T02:00:00.000Z", crc)
    plant(directory, line + second + encode_line(3, ended("error"), "2026-12-01T01:59:00.000Z", crc)[0])
    assert store.load(RUN_ID).last_seq == 3
    assert store.info(RUN_ID).updated == "2026-12-01T01:59:00.000Z"
    with store.open(RUN_ID) as journal:
        assert journal.append(resume_mark()) == 4


def test_names_that_are_no_runs_are_ignored(store: FileStore, directory: Path) -> None:
    store.create(RUN_ID, meta()).close()
    for name in (".hidden.json", "a b.json", "_x.json", ".json", "x.jsonl", "x.json~", "x.txt", "é.json"):
        (directory / name).write_bytes(b"")
    os.close(os.open(os.fsencode(directory) + b"/\xff\xfe.json", os.O_CREAT))
    (directory / "sub").mkdir()
    assert [info.run_id for info in store.list()] == [RUN_ID]
    assert list(store.run_ids()) == [RUN_ID]


def test_looking_changes_nothing(store: FileStore, disk: FaultyDisk, directory: Path) -> None:
    store.create(RUN_ID, meta()).close()  # so that there is a lock that could be taken
    plant(directory, journal_bytes([meta(), ended()]) + b"{torn")
    plant(directory, b"", "empty")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}
    at = directory.stat().st_mtime_ns
    disk.log.clear()
    for _ in range(2):
        store.list()
        store.info(RUN_ID)
        store.load(RUN_ID)
        list(store.read_bytes(RUN_ID))
        store.run_ids()
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()} == before
    assert directory.stat().st_mtime_ns == at
    assert {each.name for each in disk.log} <= {"open_directory", "open_file", "find", "names", "read", "is_announced"}
    assert disk.open == {}


def test_a_run_that_vanishes_while_it_is_listed_is_left_out(store: FileStore, directory: Path) -> None:
    class Vanishing(FaultyDisk):
        def names(self, descriptor: int) -> list[str]:
            return [*super().names(descriptor), "gone.json"]

    store.create(RUN_ID, meta()).close()
    assert [info.run_id for info in FileStore(str(directory), disk=Vanishing()).list()] == [RUN_ID]


@pytest.mark.parametrize("operation", ["open_file", "read"])
def test_a_file_that_cannot_be_read_is_shown(
    store: FileStore, disk: FaultyDisk, operation: str, directory: Path
) -> None:
    for run_id in ("a", "b"):
        store.create(run_id, meta(run_id)).close()
    disk.faults = [Fault(operation, 1, errno.EIO, "a.json")]
    found = {info.run_id: info for info in store.list()}
    assert (found["a"].status, found["a"].reason) == ("unreadable", "Input/output error")
    assert found["b"].status == "interrupted"


def test_a_directory_that_cannot_be_listed_is_an_error(store: FileStore, disk: FaultyDisk) -> None:
    from fisk_ai.errors import NotPermitted

    store.create(RUN_ID, meta()).close()
    disk.faults = [Fault("names", 1, errno.EIO)]
    with pytest.raises(NotPermitted, match="Input/output error"):
        store.list()


def test_many_tools_make_a_meta_record_that_is_still_listed(store: FileStore, directory: Path) -> None:
    tools = fingerprint().tools
    assert tools is not None
    many = {f"tool_{number}": tools["lookup"] for number in range(200)}
    first = msgspec.structs.replace(meta(), fingerprint=msgspec.structs.replace(fingerprint(), tools=many))
    info = described(store, directory, first, ended())
    assert (info.status, info.model, info.records) == ("suspended", "claude-sonnet-5", 2)
