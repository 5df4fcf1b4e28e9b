"""Runs that have too little of something, and go on when there is enough of it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fisk_ai.errors import NothingRecorded
from tests.reliability import resources
from tests.reliability.resources import SmallDisk, in_private_mounts, small_ext4, small_tmpfs
from tests.reliability.struck_command import ANSWER, PROMPT, CommandLine
from tests.reliability.struck_run import Stage, StruckRun, require_reached
from tests.reliability.trials import Form, Tally, Trial, require
from tests.reliability.victims import Victim, Victims
from tests.stores.processes import NOBODY

PAGE = 4096
NO_ROOM = "No space left on device"
JOBS_S = 600


def short_writes(tally: Tally, form: Form) -> None:
    """Let the journal become no larger than N bytes."""
    with tempfile.TemporaryDirectory() as directory, Victims() as victims:
        stage = Stage(victims, Path(directory), "batches")
        ends = stage.twin.whole
        sizes = range(ends[-1]) if form == "long" else range(0, ends[-1], 97)
        around = [end + off for end in ends for off in (-1, 0)] if form == "short" else []
        for size in sorted({*sizes, *around}):
            with tally.case(f"RLIMIT_FSIZE of {size} bytes"):
                _cut_at(tally, stage, size)
    require_reached(tally, ("torn", "whole", "newline missing", "end not stored", "nothing recorded"))


def _cut_at(tally: Tally, stage: Stage, size: int) -> None:
    run = stage.fresh()
    run.strike(limits={"RLIMIT_FSIZE": size})
    data = Path(run.store.path("r7")).read_bytes()
    if run.outcome.get("reason") and not run.outcome["storage_error"]:
        require(len(data) <= size, "the limit had no effect", kind="undetected")
        run.went_through()  # times are a digit shorter now and then
    else:
        require(len(data) == size, "it is no short write:", len(data), kind="undetected")
        run.failed(stage.twin)
    torn = _torn(run, data)
    tally.reached[_ending(run, data, torn)] += 1
    if size % 29 == 0 and not run.is_done():
        run.strike(limits={"RLIMIT_FSIZE": size})  # there still is no room
        run.failed(stage.twin)
    run.ends_as(stage.twin)
    kept = Path(run.store.path("r7", ".torn"))
    require((kept.read_bytes() if kept.exists() else b"").startswith(torn), "what was torn is not kept")


def _torn(run: StruckRun, data: bytes) -> bytes:
    """Return the end of a journal that is no whole record."""
    try:
        records = len(run.store.read("r7").records)
    except NothingRecorded:
        return data
    return b"" if records > data.count(b"\n") else data[data.rfind(b"\n") + 1 :]


def _ending(run: StruckRun, data: bytes, torn: bytes) -> str:
    if run.outcome.get("storage_error"):
        return "end not stored"
    if torn:
        return "torn" if b"\n" in data else "nothing recorded"
    return "whole" if data.endswith(b"\n") else "newline missing"


def full_disks(tally: Tally, form: Form) -> None:
    """Fill a small file system, let a run stop at it, and make room."""
    in_private_mounts(partial(_full_disks, tally, form))
    require_reached(tally, ("short write", "end not stored", "nothing began", "answer printed"))


def _full_disks(tally: Tally, form: Form) -> None:
    with tempfile.TemporaryDirectory() as directory, Victims() as victims:
        stage = Stage(victims, Path(directory), "batches")
        records = range(1, len(stage.twin.whole) + 1)
        for record in records if form == "long" else (1, 5, records[-1]):
            for part in (0.1, 0.5, 0.9) if form == "long" else (0.5,):
                with tally.case(f"a tmpfs that is full after {part} of record {record}"):
                    _full_at(tally, stage, record, part)
        for inodes in (1, 2, 3):
            with tally.case(f"a tmpfs of {inodes} inodes"):
                _without_inodes(stage, inodes)
        for free in range(13) if form == "long" else ():
            with tally.case(f"an ext4 with {free} KB free"):
                _full_ext4(tally, stage, free)
    with tempfile.TemporaryDirectory() as directory, Victims(command_line=True) as victims:
        with tally.case("the command line on a tmpfs that is full before the start"):
            _full_before_the_start(tally, victims, Path(directory))
        with tally.case("the command line on a tmpfs that is full at the last record"):
            _full_at_the_end(tally, victims, Path(directory))


def _full_at(tally: Tally, stage: Stage, record: int, part: float) -> None:
    """Pad the prompt so that a border between pages, the last one of which is missing, lies within a record."""
    whole = [0, *stage.twin.whole]
    place = round(whole[record - 1] * (1 - part) + whole[record] * part)
    pages = 0 if record == 1 else place // PAGE + 1
    padded = Stage(stage.victims, stage.directory, stage.workload, "sheep " + "x" * (pages * PAGE - place))
    run = padded.fresh()
    with small_tmpfs(run.directory / "state", f"size={(1 + pages) * PAGE}") as disk:  # one is the lock file's
        run.strike()
        size = Path(run.store.path("r7")).stat().st_size
        require(size == pages * PAGE, "it is no short write:", size, kind="undetected")
        run.failed(padded.twin)
        tally.reached["short write" if size else "nothing began"] += 1
        tally.reached["end not stored"] += bool(run.outcome.get("storage_error"))
        if size == 0:
            require(not run.lines("requests"), "the model was asked", kind="undetected")
        disk.grow()
        run.ends_as(padded.twin)


def _without_inodes(stage: Stage, inodes: int) -> None:
    run = stage.fresh()
    with small_tmpfs(run.directory / "state", f"size=64k,nr_inodes={inodes}") as disk:
        run.strike()
        run.failed(stage.twin)
        require(not run.lines("requests"), "the model was asked", kind="undetected")
        require(not run.store.run_ids(), "something looks like a run", kind="undetected")
        disk.grow()
        run.ends_as(stage.twin)


def _full_ext4(tally: Tally, stage: Stage, free: int) -> None:
    run = stage.fresh()
    with small_ext4(run.directory / "state") as disk:
        filler = disk.fill(free * 1024)
        run.strike()
        if run.outcome.get("reason") and not run.outcome["storage_error"]:
            run.went_through()
        else:
            run.failed(stage.twin)
            tally.reached["full ext4"] += 1
        filler.unlink()
        run.ends_as(stage.twin)


@contextmanager
def _on_small_disk(victims: Victims, directory: Path, size: int) -> Iterator[tuple[CommandLine, SmallDisk]]:
    with small_tmpfs(directory / f"small-{size}", f"size={size}") as disk:
        yield CommandLine(victims, directory / f"work-{size}", state=disk.path), disk


def _full_before_the_start(tally: Tally, victims: Victims, directory: Path) -> None:
    with _on_small_disk(victims, directory, PAGE) as (command, disk):
        said = command.begins()
        command.must_say_how_to_go_on(said, NO_ROOM)
        require(said.out == "" and not command.place.effects, "something was done:", said, kind="undetected")
        require("r7 is journaled" not in said.err, "a run is named that isn't there:", said, kind="undetected")
        disk.grow()
        command.must_end_well(0)
        tally.reached["nothing began"] += 1


def _full_at_the_end(tally: Tally, victims: Victims, directory: Path) -> None:
    twin = CommandLine(victims, directory / "twin")
    twin.must_end_well(0)
    lines = twin.journal.read_bytes().splitlines(keepends=True)
    middle_of_end = sum(map(len, lines[:-1])) + len(lines[-1]) // 2
    pages = middle_of_end // PAGE + 1
    # The lock file has a page, and so has the lock of the tools.
    with _on_small_disk(victims, directory, (2 + pages) * PAGE) as (command, disk):
        said = command.begins(PROMPT + "x" * (pages * PAGE - middle_of_end))
        require(said.out == ANSWER, "the answer isn't printed:", said)
        require("the end of the run was not stored" in said.err, "nothing is said:", said, kind="undetected")
        command.must_say_how_to_go_on(said, NO_ROOM)
        tally.reached["answer printed"] += 1
        disk.grow()
        command.must_end_well(0)


def no_descriptors(tally: Tally, form: Form) -> None:
    """Allow few descriptors to a store, and to the command line."""
    with tempfile.TemporaryDirectory() as directory, Victims(command_line=True) as victims:
        _job(tally, victims, Path(directory) / "store", "short_of_descriptors")
        for limit in range(3, 41) if form == "long" else (3, 5, 7, 9, 11, 13, 20):
            with tally.case(f"the command line with {limit} descriptors"):
                _with_descriptors(tally, CommandLine(victims, Path(directory) / str(limit)), limit)
    require_reached(tally, ("enough", "not_permitted", "stopped", "completed"))


def _job(tally: Tally, victims: Victims, directory: Path, job: str, *arguments: str) -> None:
    """Have a function of `resources` done in a child; count what it tells."""
    directory.mkdir()
    with tally.case(f"{job} {' '.join(arguments)}", times=0):
        name = f"{resources.__name__}:{job}"
        status = victims.child(Victim(str(directory), "", job=name, arguments=arguments, patience_s=JOBS_S))
        require(status == 0, (directory / "stderr").read_text(), kind="undetected")
        found: dict[str, int] = json.loads((directory / "outcome").read_text())
        tally.reached.update(found)
        tally.cases += sum(found.values())


def _with_descriptors(tally: Tally, command: CommandLine, limit: int) -> None:
    said = command.begins(limits={"RLIMIT_NOFILE": limit})
    tally.reached["completed" if said.code == 0 else "stopped"] += 1
    if said.code == 0:
        require(said.out == ANSWER, "there is no answer:", said)
        require(command.place.info.status == "completed", "the run isn't completed")
        return  # tools may have failed for lack of descriptors, and the model was told
    require(said.code in (1, 2), "another exit code:", said, kind="undetected")
    require("Too many open files" in said.err, "the cause isn't named:", said, kind="undetected")
    command.must_end_well(1)


def no_memory(tally: Tally, form: Form) -> None:
    """Let allocations fail while a journal is opened, created, appended to and closed."""
    with tempfile.TemporaryDirectory() as directory, Victims() as victims:
        _job(tally, victims, Path(directory) / "store", "short_of_memory", "2" if form == "long" else "37")
    actions = ("open", "create", "append", "close")
    require_reached(tally, [f"{action}: {ending}" for action in actions for ending in ("MemoryError", "done")])


Change = Callable[[CommandLine], None]


def _theirs(mode: int, suffix: str | None = None) -> Change:
    def change(command: CommandLine) -> None:
        path = command.place.state_dir if suffix is None else command.journal.with_suffix(suffix)
        path.touch() if suffix else None
        os.chown(path, 0, 0)
        path.chmod(mode)

    return change


def _ours(directory: int, journal: int) -> Change:
    def change(command: CommandLine) -> None:
        command.journal.chmod(journal)
        command.place.state_dir.chmod(directory)

    return change


LOOK, SHOW, RESUME, NEW, AGAIN = "session ls", "session show r7", "run --resume r7", "a new run", "the same name"
DENIED = "Permission denied"
OTHER_USER = "another user (uid 0)"
CLOSED: Mapping[str, tuple[Change, Mapping[str, str]]] = {
    "a directory of somebody else": (
        _theirs(0o755),
        dict.fromkeys((LOOK, SHOW, RESUME, NEW, AGAIN), OTHER_USER),
    ),
    "a closed directory of somebody else": (
        _theirs(0o700),
        dict.fromkeys((LOOK, SHOW, RESUME, NEW, AGAIN), DENIED),
    ),
    "a read-only directory": (_ours(0o500, 0o400), dict.fromkeys((RESUME, NEW, AGAIN), DENIED)),
    "a directory that can't be listed": (
        _ours(0o300, 0o600),
        dict.fromkeys((LOOK, SHOW, RESUME, NEW, AGAIN), DENIED),
    ),
    "a directory that can't be searched": (_ours(0o600, 0o600), dict.fromkeys((SHOW, RESUME, NEW, AGAIN), DENIED)),
    "a journal that can't be read": (_ours(0o700, 0o000), dict.fromkeys((SHOW, RESUME, AGAIN), DENIED)),
    "a journal of somebody else": (
        _theirs(0o644, ".json"),
        {SHOW: OTHER_USER, RESUME: DENIED, AGAIN: DENIED},
    ),
    "a journal of somebody else that all may write": (
        _theirs(0o666, ".json"),
        dict.fromkeys((SHOW, RESUME, AGAIN), OTHER_USER),
    ),
    "a lock file of somebody else": (_theirs(0o600, ".lock"), dict.fromkeys((RESUME, AGAIN), DENIED)),
    "a lock file of somebody else that all may write": (
        _theirs(0o666, ".lock"),
        dict.fromkeys((RESUME, AGAIN), OTHER_USER),
    ),
    "a tools' lock of somebody else": (_theirs(0o600, ".tools"), {RESUME: DENIED, AGAIN: "exists already"}),
}
"""What is closed to a user, and which commands say so how; the others work."""


def other_users(tally: Tally, _form: Form) -> None:
    """Take away from a user what a run needs."""
    with tempfile.TemporaryDirectory() as directory, Victims(command_line=True) as victims:
        os.chmod(directory, 0o755)
        for number, (what, (change, refused)) in enumerate(CLOSED.items()):
            command = CommandLine(victims, Path(directory) / str(number))
            command.begins(limits={"RLIMIT_FSIZE": _within_a_result(victims, Path(directory))})
            for path in (command.place.directory, *command.place.directory.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            change(command)
            for does in (LOOK, SHOW, RESUME, NEW, AGAIN):
                with tally.case(f"{does} with {what}"):
                    _as_nobody(tally, command, does, refused.get(does))
    require_reached(tally, ("refused", "allowed"))


_sizes: dict[Path, int] = {}


def _within_a_result(victims: Victims, directory: Path) -> int:
    """Return a size at which the journal is torn while a call may have run."""
    if directory not in _sizes:
        twin = CommandLine(victims, directory / "twin")
        twin.must_end_well(0)
        lines = twin.journal.read_bytes().splitlines(keepends=True)
        _sizes[directory] = sum(map(len, lines[:4])) + 100
    return _sizes[directory]


def _as_nobody(tally: Tally, command: CommandLine, does: str, why: str | None) -> None:
    state = command.place.state_dir
    before = {path: path.read_bytes() for path in state.iterdir() if path.suffix != ".lock"}
    said = command.does(*_words(does), user=NOBODY)
    if why is None:
        require(said.code in (0, 1) and not said.err.startswith("fisk-ai: can't use"), "it doesn't work:", said)
        tally.reached["allowed"] += 1
        return
    tally.reached["refused"] += 1
    require(why in said.err, f"it isn't said that {why}:", said, kind="undetected")
    require(said.out == "" and len(said.err.splitlines()) == 1, "more is said:", said, kind="undetected")
    require(said.code == 1 or why == "exists already", "another exit code:", said, kind="undetected")
    require(str(state) in said.err, "the place isn't named:", said, kind="undetected")
    after = {path: path.read_bytes() for path in state.iterdir() if path.suffix != ".lock"}
    require(before == after, "something was changed", kind="lost")


def _words(does: str) -> Sequence[str]:
    fresh = {NEW: "new", AGAIN: "r7"}
    return ("run", PROMPT, "--checkpoint", "--name", fresh[does]) if does in fresh else does.split()


SHORT_WRITES = Trial(
    name="short writes",
    unit="sizes",
    method="A journal may become no larger than N bytes (RLIMIT_FSIZE), for every N: a real short write at every byte; "
    "nothing happens after it, what was torn is kept, and a resume with room ends like an undisturbed run",
    promises="P11 P12 P13",
    run=short_writes,
    target=5000,
)
FULL_DISKS = Trial(
    name="full file systems",
    unit="file systems",
    method="A tmpfs or ext4 of a few pages is full before the start, within each record and at the last one, or has no "
    "inodes; an answer is printed all the same, and once there is room a resume ends like an undisturbed run",
    promises="P13 P19",
    run=full_disks,
    target=50,
)
NO_DESCRIPTORS = Trial(
    name="no descriptors",
    unit="limits",
    method="A store and the command line run with few descriptors (RLIMIT_NOFILE); the error is a documented one, "
    "nothing stays open or locked, and a resume with enough of them completes the run",
    promises="P13 P16",
    run=no_descriptors,
    target=40,
)
NO_MEMORY = Trial(
    name="no memory",
    unit="allocations",
    method="The N-th allocation fails while a journal is opened, created, appended to or closed; the journal is right "
    "or unusable, and its run is free afterwards",
    promises="P13 P16",
    run=no_memory,
    target=1000,
)
OTHER_USERS = Trial(
    name="closed to the user",
    unit="commands",
    method="The directory or a file of a run belongs to somebody else, or its mode forbids what is asked; one line "
    "says so and names the place, nothing is changed, and what only reads works where it can",
    promises="P15 P19",
    run=other_users,
    target=50,
)
TRIALS: tuple[Trial, ...] = (SHORT_WRITES, FULL_DISKS, NO_DESCRIPTORS, NO_MEMORY, OTHER_USERS)
