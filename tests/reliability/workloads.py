"""Six agent runs, recorded undisturbed, and the check of every state that a crash of them may leave.

python -m tests.reliability.workloads                   the long form: every state of every model
python -m tests.reliability.workloads "W2 batches"      of one workload
... --torn-every 10                                     and fewer of the torn journals whose repair crashes, too
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fisk_ai.agent.agent import ResumeOptions
from fisk_ai.codec import Tail
from fisk_ai.errors import FiskError, JournalCorrupt, NothingRecorded, RunNotFound
from fisk_ai.records import MetaRecord, TerminalRecord
from fisk_ai.stores.file import FileStore
from fisk_ai.stores.fork import fork
from tests.reliability.crash_states import Model, Nodes, Operation, RecordingDisk, State, states
from tests.reliability.invariants import (
    Known,
    check_append,
    check_beginning,
    check_effects,
    check_end,
    check_life,
    check_tidy,
    read,
    read_with_tail,
)
from tests.reliability.lives import (
    BASE,
    JOURNAL_PATH,
    PLACE,
    RUN,
    TORN_PATH,
    Life,
    PromisingStore,
    Scenario,
    ToolPlan,
    World,
    calling,
    finish,
    fixed_time,
    live,
    observe,
)
from tests.reliability.simulated_disk import SimulatedDisk, Tree
from tests.reliability.trials import BrokenPromise, require
from tests.strategies import foreign_lines

TOOLS = (
    *(ToolPlan(name) for name in "abc"),
    ToolPlan("fails", fails=True),
    ToolPlan("large", says="0123456789" * 6000),
)
ANSWER: Mapping[str, object] = {"text": "Done."}
BATCHES = Scenario([calling("a"), calling("b", "c"), calling("c", "a", "b"), ANSWER], TOOLS)
SCENARIOS: Mapping[str, Scenario] = {
    "W1 one turn": Scenario([ANSWER], TOOLS),
    "W2 batches": BATCHES,
    "W3 chat": Scenario(
        [calling("a", "b"), {"text": "One."}, {"text": "Two."}, calling("b", "c"), {"text": "Three."}],
        TOOLS,
        follow_ups=("more", "and more"),
        suspend_at=(4, 4),  # the first in the middle of its batch
    ),
    "W4 errors": Scenario([calling("fails", "gone"), calling("a", "fails"), ANSWER], TOOLS, max_iterations=2),
    "W5 large": Scenario([{"calls": [{"name": "large", "input": {"what": "y" * 40_000}}]}, ANSWER], TOOLS),
}


@dataclass(slots=True)
class Recorded:
    """A run that nothing disturbed, with every operation on its disk."""

    name: str
    scenario: Scenario
    base: Nodes
    operations: Sequence[Operation]
    world: World
    tree: Tree
    twin: Known
    given: int = 0
    """Records that were there before the recording."""
    at_once: int = 0
    """Records that come together: a crash leaves all of them or none."""
    torn: bytes = b""
    """The torn tail that was there before the recording."""
    finished: set[tuple[int, int]] = field(default_factory=set)
    """What was already driven to its end: records, effects."""

    def states(self, model: Model | None = None) -> Iterator[State]:
        """Yield every state that a crash may leave."""
        return states(self.operations, self.base, model)


def record(name: str) -> Recorded:
    """Record one of the first five workloads: as many processes as it takes, each after the other."""
    scenario = SCENARIOS[name]
    return _recorded(name, scenario, BASE, lambda disk, world: _drive(scenario, disk, world))


def _recorded(
    name: str, scenario: Scenario, tree: Tree, work: Callable[[RecordingDisk, World], None], torn: bytes = b""
) -> Recorded:
    disk = SimulatedDisk(tree)
    given = _whole_lines(disk) if JOURNAL_PATH in tree else 0
    recording = RecordingDisk(disk)
    world = World(mark=recording.mark)
    with fixed_time():
        work(recording, world)
    world.mark = lambda _kind, _value: None
    check_tidy(disk)
    return Recorded(
        name, scenario, recording.base, recording.operations, world, disk.tree, read(disk), given=given, torn=torn
    )


def _whole_lines(disk: SimulatedDisk) -> int:
    """Count the records with a newline: where that is missing nothing was acknowledged, and a NUL may come there."""
    try:
        known, tail = read_with_tail(disk)
    except NothingRecorded:
        return 0
    return len(known.records) - tail.missing_newline


def _drive(scenario: Scenario, disk: RecordingDisk, world: World) -> None:
    """Live on, process after process: with the scenario's budget first, forced on with a larger one after that."""
    machine = disk.disk
    assert isinstance(machine, SimulatedDisk)
    for process in range(len(scenario.follow_ups) + len(scenario.suspend_at) + 2):
        before = observe(disk)
        if before is not None and before.terminal is not None and before.terminal.reason == "completed":
            return
        life = Life(max_iterations=50 if process else scenario.max_iterations)
        life.options = ResumeOptions(force=before is not None)
        life.suspend_at = dict(enumerate(scenario.suspend_at)).get(process)
        ending = live(scenario, world, machine, life, disk)
        assert ending.problem is None, ending.problem


def record_torn() -> Recorded:
    """W6: the resume of a run whose last append was cut off."""
    lines = _lines_of(record("W2 batches"))
    torn = lines[5][: len(lines[5]) // 2]
    return _record_resume("W6 torn", BATCHES, {JOURNAL_PATH: b"".join(lines[:5]) + torn}, torn)


def record_foreign() -> Recorded:
    """W6: the resume of a journal of other origin, without times and checksums."""
    known = record("W2 batches").twin
    meta, *rest = (each.record for each in known.records[:4])
    assert isinstance(meta, MetaRecord)
    lines = foreign_lines(msgspec.structs.replace(meta, checksums=False), *rest)
    return _record_resume("W6 foreign", BATCHES, {JOURNAL_PATH: b"".join(lines)})


def record_fork() -> Recorded:
    """W6: a fork from the middle of a run, and its resume."""
    origin = record("W2 batches")
    tree = _with_place({f"{PLACE.strip('/')}/origin.json": _renamed(_lines_of(origin))})

    def work(disk: RecordingDisk, world: World) -> None:
        fork(PromisingStore(disk, world), "origin", RUN, at=5)
        _drive(BATCHES, disk, world)

    recorded = _recorded("W6 fork", BATCHES, tree, work)
    recorded.at_once = 6
    # A fork that never got a name is a run from the start, and asks as the origin did.
    recorded.world.requests[:0] = [each for each in origin.world.requests if each[0] < recorded.world.requests[0][0]]
    return recorded


def record_reused() -> Recorded:
    """W6: a new run under the name of one whose first record was torn, and longer than the new one's."""
    meta = _lines_of(record("W1 one turn"))[0]
    torn = b"\0" * 512 + meta[512:-1] + b"x" * 700 + b"\n"
    return _record_resume("W6 reused", SCENARIOS["W1 one turn"], {JOURNAL_PATH: torn}, torn)


def _renamed(lines: Sequence[bytes]) -> bytes:
    """Give a run another id: its records appended anew to a journal of that name."""
    source, target = SimulatedDisk(_with_place({JOURNAL_PATH: b"".join(lines)})), SimulatedDisk(BASE)
    meta, *rest = (each.record for each in read(source).records)
    assert isinstance(meta, MetaRecord)
    with FileStore(PLACE, disk=target).create("origin", msgspec.structs.replace(meta, run_id="origin")) as journal:
        for each in rest:
            journal.append(each)
    content = target.tree[f"{PLACE.strip('/')}/origin.json"]
    assert content is not None
    return content


def _record_resume(name: str, scenario: Scenario, files: Mapping[str, bytes], torn: bytes = b"") -> Recorded:
    return _recorded(name, scenario, _with_place(files), lambda disk, world: _drive(scenario, disk, world), torn)


def _with_place(files: Mapping[str, bytes]) -> Tree:
    return {"home": None, "home/state": None, PLACE.strip("/"): None, **files}


def _lines_of(recorded: Recorded) -> list[bytes]:
    content = recorded.tree[JOURNAL_PATH]
    assert content is not None
    return content.splitlines(keepends=True)


def record_repair(tree: Tree) -> Recorded:
    """The first steps of a resume on a state that a crash left: open, repair, one append."""
    disk = SimulatedDisk(tree)
    contents = FileStore(PLACE, disk=disk).read(RUN)

    def work(recording: RecordingDisk, world: World) -> None:
        with PromisingStore(recording, world).open(RUN) as journal:
            journal.repair()
            journal.append(TerminalRecord(reason="suspended"))

    return _recorded("repair", BATCHES, tree, work, contents.tail.torn)


RECORDERS: Mapping[str, Callable[[], Recorded]] = {
    **{name: (lambda name=name: record(name)) for name in SCENARIOS},  # type: ignore[misc]  # binds the name
    "W6 torn": record_torn,
    "W6 foreign": record_foreign,
    "W6 fork": record_fork,
    "W6 reused": record_reused,
}


def check_state(recorded: Recorded, state: State, *, may_be_refused: bool = False) -> None:
    """Hold one state to all promises.

    Args:
        recorded: the run that crashed.
        state: what it left.
        may_be_refused: blocks that never arrived hold something else than NUL: then to refuse is right, too.

    Raises:
        BrokenPromise: naming the state.
    """
    try:
        _check_state(recorded, state, may_be_refused=may_be_refused)
    except (AssertionError, FiskError) as problem:
        raise BrokenPromise(
            f"{recorded.name}, crash after operation {state.at} ({state.why}): {type(problem).__name__}: {problem}"
        ) from problem


def _check_state(recorded: Recorded, state: State, *, may_be_refused: bool) -> None:
    disk = SimulatedDisk(state.tree)
    promised = max([recorded.given, *map(int, state.marked("acknowledged"))])
    try:
        known, tail = read_with_tail(disk)
    except (RunNotFound, NothingRecorded) as problem:
        require(promised == 0, f"{promised} records were acknowledged:", problem)
        _check_startable(recorded, disk)
        return
    except JournalCorrupt as problem:
        require(may_be_refused, problem)
        return
    require(len(known.records) >= promised, f"{promised} records were acknowledged, {len(known.records)} are there")
    require(len(known.records) >= recorded.at_once, "only a part is there of what comes at once")
    require(known.records == recorded.twin.records[: len(known.records)], "what is there was not written like that")
    _check_bytes(recorded, state, tail)
    _check_torn(recorded, state)
    effects = state.marked("effect")
    check_effects(known, effects)
    check_append(SimulatedDisk(state.tree), known.records, tail.torn)
    if (len(known.records), len(effects)) not in recorded.finished:
        recorded.finished.add((len(known.records), len(effects)))
        _check_finish(recorded, known, effects, disk)


def _check_bytes(recorded: Recorded, state: State, tail: Tail) -> None:
    data, final = state.tree[JOURNAL_PATH], recorded.tree[JOURNAL_PATH]
    assert data is not None
    assert final is not None
    whole = data[: tail.whole_bytes]
    require(final.startswith(whole), "the whole records have other bytes than were written")


def _check_torn(recorded: Recorded, state: State) -> None:
    """What was torn from the start is either still there or was set aside."""
    journal, aside = state.tree[JOURNAL_PATH] or b"", state.tree.get(TORN_PATH) or b""
    require(journal.endswith(recorded.torn) or aside.endswith(recorded.torn), "torn bytes are nowhere any more")


def _check_startable(recorded: Recorded, disk: SimulatedDisk) -> None:
    meta = recorded.twin.records[0].record
    assert isinstance(meta, MetaRecord)
    bytes_before = disk.tree.get(JOURNAL_PATH) or b""
    FileStore(PLACE, disk=disk).create(RUN, meta).close()
    require((disk.tree.get(TORN_PATH) or b"").endswith(bytes_before), "a name was reused and its bytes are gone")
    known, tail = read_with_tail(disk)
    check_append(disk, known.records, tail.torn)


def _check_finish(recorded: Recorded, known: Known, effects: Sequence[str], disk: SimulatedDisk) -> None:
    """Drive what is left to its end, and compare with the undisturbed run."""
    world = World(effects=[("?", key) for key in effects])
    with fixed_time():
        disk = finish(recorded.scenario, world, disk)
    check_life(known.state, world, len(effects), 0)
    after = read(disk)
    check_beginning(after.records, recorded.twin.records)
    check_end(after, recorded.twin, world, recorded.world)
    check_tidy(disk)


def distinct_torn(recorded: Recorded, every: int = 1) -> Iterator[State]:
    """Yield the states with different torn journals, each `every`-th."""
    seen: set[bytes] = set()
    torn = (state for state in recorded.states() if _is_torn(state, seen))
    return itertools.islice(torn, 0, None, every)


def _is_torn(state: State, seen: set[bytes]) -> bool:
    data = state.tree.get(JOURNAL_PATH)
    if not data or data in seen:
        return False
    seen.add(data)
    try:
        return FileStore(PLACE, disk=SimulatedDisk(state.tree)).read(RUN).tail.needs_repair
    except NothingRecorded:
        return False


MODELS: Mapping[str, Model] = {
    "strict": Model(),
    "entry with fsync": Model(entry_with_fsync=True),
    "other fills": Model(fills=(b"\n", b"\xff")),
}


def check_all(recorded: Recorded, model: Model) -> int:
    """Check every state and return how many there are."""
    found = list(recorded.states(model))
    for state in found:
        check_state(recorded, state, may_be_refused=model.fills != Model().fills)
    return len(found)


def check_second_crashes(first: Recorded, every: int) -> int:
    """Check every state of the repair of each `every`-th torn journal; return how many there are."""
    checked = 0
    for torn in distinct_torn(first, every):
        second = record_repair(torn.tree)
        second.finished = first.finished  # how runs end from there is known
        checked += check_all(second, Model())
    return checked


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all states from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.workloads")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"one of {', '.join(RECORDERS)}")
    parser.add_argument("--torn-every", type=int, default=1, help="repair only each N-th torn journal")
    options = parser.parse_args(arguments)
    for name in options.workloads or RECORDERS:
        for model_name, model in MODELS.items():
            began = time.monotonic()
            checked = check_all(RECORDERS[name](), model)
            print(f"{name}, {model_name}: {checked} states, 0 broken promises, {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    first = record("W2 batches")
    first.finished = {(records, 0) for records in range(len(first.twin.records) + 2)}
    checked = check_second_crashes(first, options.torn_every)
    print(f"second crashes: {checked} states, 0 broken promises, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
