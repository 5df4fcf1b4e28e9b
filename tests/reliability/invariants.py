"""The promises, as one set of checks that every enumerated state and every simulated run has to pass.

I1  every acknowledged record is there, at its place
I2  what is there is a beginning of the undisturbed twin
I3  at most one call of a crash is repeated, and it was named; parallel calls are the exception
I4  a clean suspend repeats nothing
I5  when nothing disturbs it any more, a run ends (`lives.finish`, `simulation`)
I6  conversation, counters and every model request are those of the twin
I7  no journaled turn is asked for again
I8  a documented error or success; no descriptor stays open
I10 files are 0600, directories 0700
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fisk_ai.agent.guard import OUTCOME_UNKNOWN
from fisk_ai.codec import Tail
from fisk_ai.folding import Folding, RunState, fold
from fisk_ai.messages import read_result
from fisk_ai.records import AssistantRecord, MetaRecord, SequencedRecord, TerminalRecord, ToolResultRecord, UserRecord
from fisk_ai.stores.file import FileStore
from tests.reliability.lives import PLACE, RUN, World
from tests.reliability.simulated_disk import SimulatedDisk
from tests.reliability.trials import require


@dataclass(frozen=True, slots=True)
class Known:
    """A journal, read."""

    records: tuple[SequencedRecord, ...]
    state: RunState

    @property
    def ambiguous(self) -> list[str]:
        """Keys of the calls that may have run."""
        pending = self.state.pending
        return [self.state.key_of(call) for call in pending.ambiguous] if pending else []

    @property
    def unanswered(self) -> list[str]:
        """Keys of the calls without a result."""
        pending = self.state.pending
        return [self.state.key_of(call) for call in pending.unanswered] if pending else []


def read(disk: SimulatedDisk) -> Known:
    """Read a journal as any reader may."""
    return read_with_tail(disk)[0]


def read_with_tail(disk: SimulatedDisk) -> tuple[Known, Tail]:
    """Read a journal, and how its file ends."""
    contents = FileStore(PLACE, disk=disk).read(RUN)
    return Known(tuple(contents.records), fold(contents.records)), contents.tail


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the twin."""

    seq: int
    """Of its turn."""
    parallel: bool


def calls_of(records: Sequence[SequencedRecord]) -> dict[str, Call]:
    """Return all calls that were ever made, by idempotency key."""
    folding = Folding()
    found: dict[str, Call] = {}
    for record in records:
        folding.apply(record)
        if isinstance(record.record, AssistantRecord) and folding.last_turn is not None:
            turn = folding.last_turn
            for call in turn.calls:
                found[folding.key_of(call)] = Call(turn.seq, call.position in turn.parallel)
    return found


def check_effects(known: Known, effects: Sequence[str]) -> None:
    """I3: who had an effect is answered or named, and nothing runs before its turn is durable."""
    calls = calls_of(known.records) if effects or known.state.pending else {}
    for key in set(effects):
        require(key in calls, "a tool ran whose turn is not in the journal")
    in_doubt = set(effects) & set(known.unanswered)
    require(in_doubt <= set(known.ambiguous), "a call had its effect, and the journal neither answers nor names it")
    alone = [key for key in known.ambiguous if not calls[key].parallel]
    require(len(alone) <= 1, "more than one call may have run", kind="repeated")


def steps_of(records: Sequence[SequencedRecord]) -> list[object]:
    """Return what a run said and did, comparable between disturbed and undisturbed ones.

    Ends, times and durations are left out, and the results of a turn are a mapping: those of parallel calls come in
    any order.
    """
    steps: list[object] = []
    for each in records:
        match each.record:
            case MetaRecord(prompt=prompt):
                steps.append(("prompt", prompt))
            case AssistantRecord() as turn:
                steps.append(("turn", turn.iteration, bytes(turn.message), turn.stop_reason, turn.parallel))
                steps.append({})
            case ToolResultRecord() as result:
                assert isinstance(steps[-1], dict)
                steps[-1][result.tool_use_id] = bytes(result.result)
            case UserRecord(message=message):
                steps.append(("user", bytes(message)))
            case TerminalRecord():
                continue
    return steps


def is_unknown_outcome(result: bytes) -> bool:
    """Tell whether a result says that nobody knows."""
    return OUTCOME_UNKNOWN in read_result(result).text


def check_beginning(records: Sequence[SequencedRecord], twin: Sequence[SequencedRecord]) -> None:
    """I2: nothing was invented."""
    ours, theirs = steps_of(records), steps_of(twin)
    require(len(ours) <= len(theirs), "the run has more steps than its twin")
    for at, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if isinstance(mine, dict) and isinstance(other, dict):
            _check_results(mine, other, is_last=at == len(ours) - 1)
        else:
            require(mine == other, f"step {at} differs from the twin's:", mine, other)


def _check_results(mine: Mapping[str, bytes], other: Mapping[str, bytes], *, is_last: bool) -> None:
    require(is_last or mine.keys() == other.keys(), "a turn went on without all its results")
    for call_id, result in mine.items():
        expected = other.get(call_id)
        require(result == expected or is_unknown_outcome(result), "a result differs from the twin's:", result, expected)


def check_life(found: RunState | None, world: World, effects_before: int, requests_before: int) -> None:
    """I3, I4, I7: what one process did, given the run as it found it."""
    pending = found.pending if found else None
    named = {found.key_of(call): call for call in pending.ambiguous} if found and pending else {}
    earlier = {key for _, key in world.effects[:effects_before]}
    now = Counter(key for _, key in world.effects[effects_before:])
    repeated = [key for key in now if key in earlier]
    require(all(times == 1 for times in now.values()), "one process had the same effect twice", kind="repeated")
    require(set(repeated) <= set(named), "a call was repeated that was not named", kind="repeated")
    alone = [key for key in repeated if pending and named[key].position not in pending.turn.parallel]
    require(len(alone) <= 1, "more than one call was repeated", kind="repeated")
    asked = [iteration for iteration, _ in world.requests[requests_before:]]
    journaled = found.counters.model_calls if found else 0
    require(all(iteration >= journaled for iteration in asked), "a journaled turn was asked for again", kind="repeated")
    require(len(set(asked)) == len(asked), "one process asked for a turn twice", kind="repeated")


def check_end(known: Known, twin: Known, world: World, twin_world: World) -> None:
    """I6, at a run's last end."""
    check_beginning(known.records, twin.records)
    if any(isinstance(each.record, ToolResultRecord) and _is_skipped(each.record) for each in known.records):
        return  # the model was told that an outcome is unknown: from there on the requests rightly differ
    require(known.state.messages == twin.state.messages, "the conversation differs from the twin's")
    require(known.state.last_turn is not None and twin.state.last_turn is not None, "there is no answer")
    ours, theirs = known.state.counters, twin.state.counters
    require(ours == theirs, "the counters differ from the twin's:", ours, theirs)
    expected = dict(twin_world.requests)
    for iteration, said in world.requests:
        require(expected.get(iteration) == said, f"request {iteration} differs from the twin's")


def _is_skipped(record: ToolResultRecord) -> bool:
    return is_unknown_outcome(bytes(record.result))


def check_tidy(disk: SimulatedDisk) -> None:
    """I8, I10: after a process that ended by itself."""
    require(disk.open_descriptors == 0, disk.open_descriptors, "descriptors were left open")
    for path, mode in disk.modes.items():
        if path.startswith(PLACE.strip("/")):
            require(mode == (0o700 if disk.tree[path] is None else 0o600), f"{path} has mode {mode:o}")


def check_append(disk: SimulatedDisk, records: Sequence[SequencedRecord], torn: bytes) -> None:
    """A journal that a reader has read takes another record and can be read after that; its torn bytes are kept."""
    store = FileStore(PLACE, disk=disk)
    with store.open(RUN) as journal:
        require(tuple(journal.records()) == tuple(records), "a resume reads something else than a reader")
        cut = journal.repair()
        require(cut == torn, "something else was cut than what is torn")
        if not _is_completed(records):
            require(journal.append(TerminalRecord(reason="error")) == len(records) + 1, "a wrong seq")
    kept = disk.tree.get(f"{PLACE.strip('/')}/{RUN}.torn") or b""
    require(kept.endswith(cut), "what was cut is not kept")
    after = store.read(RUN)
    require(not after.tail.needs_repair, "the tail is torn after a repair")
    require(tuple(after.records[: len(records)]) == tuple(records), "an append changed earlier records")
    check_tidy(disk)


def _is_completed(records: Sequence[SequencedRecord]) -> bool:
    last = records[-1].record
    return isinstance(last, TerminalRecord) and last.reason == "completed"
