"""The enumerator against the simulated disk, against wrong protocols, and then the journal against the enumerator."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from fisk_ai.stores.disk import Disk
from tests.reliability.crash_states import Marked, Model, RecordingDisk, State, Synced, states
from tests.reliability.crash_trials import TRIALS, short_form
from tests.reliability.planted import BUGS
from tests.reliability.simulated_disk import Faults, SimulatedDisk
from tests.reliability.trials import BrokenPromise, tried
from tests.reliability.workloads import RECORDERS, Recorded, check_state, distinct_torn, record, record_repair

LINE = b"hello, world\n"
CRASH_STATES, SECOND_CRASHES, _, _ = TRIALS
Protocol = Callable[[RecordingDisk], None]


def recorded(protocol: Protocol, disk: SimulatedDisk | None = None) -> RecordingDisk:
    recording = RecordingDisk(disk or SimulatedDisk({"d": None}))
    protocol(recording)
    return recording


def enumerated(protocol: Protocol, model: Model | None = None, disk: SimulatedDisk | None = None) -> list[State]:
    recording = recorded(protocol, disk)
    return list(states(recording.operations, recording.base, model))


def lost(found: Sequence[State], content: bytes = LINE) -> int:
    """Count the states that promise what they don't have."""
    return sum(bool(state.marked("promised")) and state.tree.get("d/f") != content for state in found)


def begun(disk: Disk) -> tuple[int, int]:
    directory = disk.open_directory("/d")
    return directory, disk.create_file(directory, "f")


def right(disk: RecordingDisk) -> None:
    directory, file = begun(disk)
    disk.write(file, LINE)
    disk.sync(file)
    disk.sync(directory)
    disk.mark("promised", "1")


def no_directory_sync(disk: RecordingDisk) -> None:
    _, file = begun(disk)
    disk.write(file, LINE)
    disk.sync(file)
    disk.mark("promised", "1")


def sync_before_the_write(disk: RecordingDisk) -> None:
    directory, file = begun(disk)
    disk.sync(file)
    disk.sync(directory)
    disk.write(file, LINE)
    disk.mark("promised", "1")


def promised_after_a_second_sync(disk: RecordingDisk) -> None:
    directory, file = begun(disk)
    disk.sync(directory)
    disk.write(file, LINE)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(file)
    disk.sync(file)
    disk.mark("promised", "1")


def appended_to_a_torn_tail(disk: RecordingDisk) -> None:
    directory = disk.open_directory("/d")
    file = disk.open_file(directory, "f", writable=True)
    disk.write(file, LINE)
    disk.sync(file)
    disk.mark("promised", "1")


def failing_first_sync_of_a_file() -> SimulatedDisk:
    disk = SimulatedDisk({"d": None})
    disk.faults = Faults(random.Random(1))
    sync = disk.sync

    def first_fails(descriptor: int) -> None:
        assert disk.faults is not None
        disk.faults.sync_fails = 1.0 if disk.facts(descriptor).is_regular and not disk.faults.struck else 0.0
        sync(descriptor)

    disk.sync = first_fails  # type: ignore[method-assign]
    return disk


def test_a_right_protocol_loses_nothing() -> None:
    found = enumerated(right)
    assert lost(found) == 0
    assert len(found) > len(LINE)


def test_a_name_without_a_directory_sync_is_found_lost() -> None:
    assert lost(enumerated(no_directory_sync)) == 1


def test_a_name_kept_with_its_files_sync_is_not_lost() -> None:
    assert lost(enumerated(no_directory_sync, Model(entry_with_fsync=True))) == 0


def test_a_sync_before_the_write_is_found_at_every_byte() -> None:
    # Each cut, and the one block of NULs; the file itself is always there.
    assert lost(enumerated(sync_before_the_write)) == len(LINE) + 1


def test_a_sync_that_is_tried_again_is_found() -> None:
    assert lost(enumerated(promised_after_a_second_sync, disk=failing_first_sync_of_a_file())) == len(LINE)


def test_what_was_torn_before_stays_torn_unless_it_is_cut() -> None:
    found = enumerated(appended_to_a_torn_tail, disk=SimulatedDisk({"d": None, "d/f": b"hel"}))
    assert lost(found) == 1


@pytest.mark.parametrize("fill", [b"\0", b"\n", b"\xff"])
def test_each_block_of_a_write_may_be_missing(fill: bytes) -> None:
    data = bytes(range(1, 200)) * 7

    def long_write(disk: RecordingDisk) -> None:
        directory, file = begun(disk)
        disk.sync(directory)
        disk.write(file, data)

    contents = {state.tree["d/f"] for state in enumerated(long_write, Model(fills=(fill,))) if "d/f" in state.tree}
    for start in range(0, len(data), 512):
        stop = min(start + 512, len(data))
        assert data[:start] + fill * (stop - start) + data[stop:] in contents
    assert {data[:size] for size in range(len(data) + 1)} <= contents


def small_program(rng: random.Random) -> Protocol:
    """Draw a few operations on two files, with at most one failed sync."""

    def work(disk: RecordingDisk) -> None:
        directory = disk.open_directory("/d")
        files: dict[str, int] = {}
        for _ in range(rng.randint(1, 7)):
            name = rng.choice("fg")
            if name not in files:
                files[name] = disk.create_file(directory, name)
            match rng.randrange(7):
                case 0 | 1:
                    disk.write(files[name], bytes(rng.choices(range(1, 256), k=rng.randint(1, 4))))
                case 2:
                    disk.truncate(files[name], rng.randint(0, 5))
                case 3:
                    disk.sync(directory)
                case 4:
                    disk.remove(directory, name)
                    files.pop(name)
                case 5:
                    _sync(disk, files[name], rng)
                    disk.drop_cache(files[name])
                case _:
                    _sync(disk, files[name], rng)

    return work


def _sync(disk: RecordingDisk, file: int, rng: random.Random) -> None:
    machine = disk.disk
    assert isinstance(machine, SimulatedDisk)
    may_fail = not any(isinstance(each, Synced) and not each.succeeded for each in disk.operations)
    if not may_fail or rng.random() < 0.7:
        disk.sync(file)
        return
    machine.faults = Faults(rng, sync_fails=1.0)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(file)
    machine.faults = None


def key(tree: object) -> str:
    assert isinstance(tree, dict)
    return repr(sorted(tree.items()))


@pytest.mark.parametrize("entry_with_fsync", [False, True], ids=["strict", "entry with fsync"])
def test_whatever_the_simulated_disk_leaves_is_enumerated(*, entry_with_fsync: bool) -> None:
    model = Model(entry_with_fsync=entry_with_fsync)
    failed = 0
    for seed in range(150):
        disk = SimulatedDisk({"d": None}, entry_with_fsync=entry_with_fsync)
        recording = recorded(small_program(random.Random(seed)), disk)
        foreseen = {key(state.tree) for state in states(recording.operations, recording.base, model)}
        failed += any(isinstance(each, Synced) and not each.succeeded for each in recording.operations)
        for crash in range(20):
            assert key(disk.crash(random.Random(crash)).tree) in foreseen, f"seed {seed}, crash {crash}"
    assert failed > 20


def test_the_simulated_disk_leaves_everything_that_is_enumerated() -> None:
    def work(disk: RecordingDisk) -> None:
        directory, file = begun(disk)
        disk.write(file, b"abc")
        disk.sync(file)
        disk.write(file, b"de")
        disk.sync(directory)
        disk.truncate(file, 4)

    disk = SimulatedDisk({"d": None})
    recording = recorded(work, disk)
    at_the_end = {
        key(state.tree)
        for state in states(recording.operations, recording.base)
        if state.at >= len(recording.operations) - 1
    }
    left = {key(disk.crash(random.Random(crash)).tree) for crash in range(2000)}
    assert left <= {key(state.tree) for state in states(recording.operations, recording.base)}
    assert at_the_end - left == set()


@pytest.mark.slow
def test_no_crash_of_an_agent_run_loses_or_invents_anything() -> None:
    tally = tried(CRASH_STATES, "short")
    tally.check()
    assert tally.cases >= 10_000


@pytest.mark.slow
def test_other_bytes_than_nul_in_lost_blocks_are_refused_at_worst() -> None:
    run = record("W2 batches")
    filled = [state for state in run.states(Model(fills=(b"\n", b"\xff"))) if "blocks are" in state.why]
    assert len(filled) > 50
    for state in filled:
        check_state(run, state, may_be_refused=True)


@pytest.mark.slow
def test_a_second_crash_while_a_torn_journal_is_repaired_loses_nothing() -> None:
    """What is cut is never nowhere, and what was acknowledged is never lost."""
    tally = tried(SECOND_CRASHES, "short")
    tally.check()
    assert tally.cases >= 2_000


def in_a_run(name: str = "W2 batches") -> None:
    run = record(name)
    for state in short_form(run.states()):
        if state.marked("acknowledged"):
            check_state(run, state)


def in_a_chat() -> None:
    in_a_run("W3 chat")


def in_a_reused_name() -> None:
    run = RECORDERS["W6 reused"]()
    for state in run.states():
        if "changes lost" in state.why:
            check_state(run, state)


def in_a_repair() -> None:
    for torn in distinct_torn(record("W1 one turn"), every=300):
        second: Recorded = record_repair(torn.tree)
        for state in second.states():
            check_state(second, state)


@pytest.mark.parametrize(
    ("bug", "where"),
    [
        ("no sync of the file", in_a_run),
        ("promised before the sync", in_a_run),
        ("no sync of the directory", in_a_run),
        ("torn tail not cut", in_a_run),
        ("cut before it is kept", in_a_repair),
        ("name reused before its cut is safe", in_a_reused_name),
        ("call in doubt not named", in_a_run),
        ("clean end not taken back", in_a_chat),
    ],
)
def test_a_planted_bug_is_found_among_the_crash_states(bug: str, where: Callable[[], None]) -> None:
    with BUGS[bug](), pytest.raises(BrokenPromise):
        where()


def test_marks_are_part_of_a_state() -> None:
    found = enumerated(right)
    assert found[-1].marks == (Marked("promised", "1"),)
