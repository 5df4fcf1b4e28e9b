"""Seeded simulation: the real journal and the real loop on a simulated disk, with faults, kills and power cuts.

    python -m tests.reliability.simulation --seed 17            repeats one seed, of both kinds
    python -m tests.reliability.simulation --seeds 0-99999      runs a range: the long form
    ... --only journal | agent

`simulate_journal` drives one journal against a model of what it may hold; `simulate_agent` a whole run, over as many
processes as it takes, against its undisturbed twin. All that happens follows from the seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fisk_ai.agent.agent import ResumeOptions
from fisk_ai.errors import (
    FiskError,
    JournalCorrupt,
    JournalFailed,
    NothingRecorded,
    NotPermitted,
    RunExists,
    RunNotFound,
    StoreError,
)
from fisk_ai.messages import user_text
from fisk_ai.records import Record, SequencedRecord, UserRecord
from fisk_ai.stores.file import FileJournal, FileStore
from tests.reliability.invariants import (
    Known,
    check_beginning,
    check_effects,
    check_end,
    check_life,
    check_tidy,
    read,
)
from tests.reliability.lives import (
    BASE,
    JOURNAL_PATH,
    MOMENT,
    PLACE,
    RUN,
    TORN_PATH,
    Ending,
    Life,
    Scenario,
    World,
    finish,
    is_done,
    live,
    observe,
    one_thread,
    random_scenario,
)
from tests.reliability.simulated_disk import Faults, PowerCut, SimulatedDisk
from tests.reliability.trials import BrokenPromise, require
from tests.strategies import meta

FAULT_KINDS = ("sync_fails", "disk_is_full", "no_descriptors", "cut_fails")

World_ = tuple[bytes, ...] | None
"""What a journal may hold: its records' payloads; None for no run at all."""


def _faults(rng: random.Random, *, operations: int) -> Faults | None:
    """Draw what goes wrong in one process, perhaps nothing."""
    if rng.random() < 0.3:
        return None
    faults = Faults(random.Random(rng.getrandbits(64)))
    if rng.random() < 0.6:
        faults.power_cut_at = rng.randint(1, operations)
    if rng.random() < 0.5:
        kind = rng.choice(FAULT_KINDS)
        setattr(faults, kind, 0.7 if kind == "cut_fails" else rng.choice((0.02, 0.1, 0.3)))
    return faults


@dataclass(slots=True)
class JournalRun:
    """One journal, what happens to it, and what it may hold."""

    rng: random.Random
    disk: SimulatedDisk
    struck: Counter[str] = field(default_factory=Counter)
    """Faults, and what was done."""
    possible: set[World_] = field(default_factory=lambda: {None})
    """What the next open may find; one element wherever something was acknowledged."""
    kept: list[bytes] = field(default_factory=list)
    """What repairs cut and reported."""
    owed: bytes = b""
    """What a repair was about to cut when it was interrupted."""
    journal: FileJournal | None = None
    held: tuple[bytes, ...] = ()
    """What the open journal holds."""
    is_poisoned: bool = False
    """True once it failed: it must refuse all that follows."""

    @property
    def store(self) -> FileStore:
        return FileStore(PLACE, disk=self.disk, clock=lambda: MOMENT)

    def step(self) -> None:
        """Do one thing, and check what can be checked after it."""
        closed = (self.create,) * 2 + (self.open,) * 6 + (self.load, self.glance, self.delete, self.lose_power)
        opened = (self.append,) * 10 + (self.repair, self.load, self.glance, self.close, self.kill, self.lose_power)
        action = self.rng.choice(opened if self.journal is not None else closed)
        faults = self.disk.faults = _faults(self.rng, operations=12)
        try:
            action()
            self.struck[action.__name__] += 1
        except PowerCut:
            self._power_is_cut()
        finally:
            self.struck.update(faults.struck if faults else {})
            self.disk.faults = None
        self._check_kept()

    def _refused(self, problem: FiskError, *expected: type[FiskError]) -> None:
        """Accept an error where a fault explains it."""
        require(not isinstance(problem, JournalCorrupt), problem)
        explained = self.disk.faults is not None and bool(self.disk.faults.struck)
        if explained and isinstance(problem, JournalFailed | NotPermitted | StoreError):
            return
        require(isinstance(problem, expected), f"{type(problem).__name__} without a reason:", problem)

    def create(self) -> None:
        record = meta(RUN, prompt="p" * self.rng.choice((1, 30, 900)))
        self.possible |= {(_payload(msgspec.structs.replace(record, checksums=True)),)}
        try:
            self.journal = self.store.create(RUN, record)
        except RunExists as problem:
            require(self.possible != {None}, problem)
        except FiskError as problem:
            self._refused(problem)
        else:
            require(None in self.possible or len(self.possible) > 1, "a run was created over another")
            self.is_poisoned = False
            self.held = (_payload(msgspec.structs.replace(record, checksums=True)),)
            self.possible = {self.held}

    def open(self) -> None:
        try:
            self.journal = self.store.open(RUN)
        except (RunNotFound, NothingRecorded) as problem:
            require(None in self.possible, "acknowledged records are gone:", problem)
        except FiskError as problem:
            self._refused(problem)
        else:
            self.is_poisoned = False
            self.held = _payloads(self.journal.records())
            self._require_possible(self.held)
            self.possible = {self.held}
            if self.journal.tail.missing_newline:
                # Never acknowledged, and until the newline is there a NUL may take its place: then the line is torn.
                self.possible.add(self.held[:-1] or None)
            self.owed = self.journal.tail.torn

    def append(self) -> None:
        record = UserRecord(message=msgspec.Raw(user_text("x" * self.rng.choice((1, 20, 300, 1500)))))
        assert self.journal is not None
        after = (*self.held, _payload(record))
        if not self.is_poisoned:
            self.possible |= {after}
        try:
            seq = self.journal.append(record)
        except FiskError as problem:
            self._failed(problem)
            return
        require(not self.is_poisoned, "a poisoned journal took another record")
        require(seq == len(after), "a wrong seq")
        self._repaired()
        self.held = after
        self.possible = {after}

    def repair(self) -> None:
        assert self.journal is not None
        try:
            self.journal.repair()
        except FiskError as problem:
            self._failed(problem)
        else:
            require(not self.is_poisoned, "a poisoned journal was repaired")
            self.possible = {self.held}
            self._repaired()

    def _failed(self, problem: FiskError) -> None:
        if self.is_poisoned:
            require(isinstance(problem, JournalFailed), "a poisoned journal says something else:", problem)
            return
        self._refused(problem)
        self.is_poisoned = isinstance(problem, JournalFailed)

    def _repaired(self) -> None:
        if self.owed:
            self.kept.append(self.owed)
            self.struck["torn tail cut"] += 1
        self.owed = b""

    def load(self) -> None:
        try:
            records = self.store.read(RUN).records
        except (RunNotFound, NothingRecorded) as problem:
            require(None in self.possible, "acknowledged records are gone:", problem)
        except FiskError as problem:
            self._refused(problem)
        else:
            self._require_possible(_payloads(records))

    def glance(self) -> None:
        infos = self.store.list() if self.disk.find_directory(PLACE) and not self.disk.faults else []
        for info in infos:
            require(info.reason is None or "empty" in info.reason, "a listing shows damage:", info.reason)

    def delete(self) -> None:
        self.possible |= {None}
        try:
            self.store.delete(RUN)
        except RunNotFound as problem:
            require(None in self.possible, problem)
        except FiskError as problem:
            self._refused(problem)
        else:
            self.possible = {None}
            self.owed = b""
            self.kept.clear()

    def close(self) -> None:
        assert self.journal is not None
        self.journal.close()
        self.journal = None
        if self.disk.faults is None:
            check_tidy(self.disk)

    def kill(self) -> None:
        self.disk = self.disk.restart()
        self.journal = None

    def lose_power(self) -> None:
        raise PowerCut

    def _power_is_cut(self) -> None:
        self.struck["crash"] += 1
        self.disk = self.disk.crash(self.rng)
        self.journal = None
        self.load()

    def _require_possible(self, found: tuple[bytes, ...]) -> None:
        sizes = sorted(-1 if each is None else len(each) for each in self.possible)
        require(found in self.possible, f"there are {len(found)} records, not {sizes} or not those")

    def _check_kept(self) -> None:
        """What was cut is somewhere, until the run is deleted (and while that is in doubt, nobody can say)."""
        if None in self.possible:
            self.kept.clear()
            self.owed = b""
            return
        aside, journal = self.disk.tree.get(TORN_PATH) or b"", self.disk.tree.get(JOURNAL_PATH) or b""
        require(all(each in aside for each in self.kept), "torn bytes that were set aside are gone")
        require(self.owed in aside or journal.endswith(self.owed), "torn bytes are nowhere any more")


def _payload(record: Record) -> bytes:
    return msgspec.json.encode(record)


def _payloads(records: Sequence[SequencedRecord]) -> tuple[bytes, ...]:
    return tuple(_payload(each.record) for each in records)


def simulate_journal(seed: int, struck: Counter[str]) -> None:
    """Play one seed; raises `BrokenPromise`. What happened is counted in `struck`."""
    rng = random.Random(seed)
    run = JournalRun(rng, SimulatedDisk(BASE, entry_with_fsync=rng.random() < 0.5), struck)
    for _ in range(rng.randint(5, 30)):
        run.step()
    # Liveness: on a disk without faults whatever is left can be opened and goes on, or can be started.
    run.disk = run.disk.restart()
    run.journal = None
    run.open()
    if run.journal is None:
        run.create()
    require(run.journal is not None, "nothing is wrong any more, and the run can't be used")
    run.append()
    run.close()


@dataclass(slots=True)
class Twin:
    """The same agent, undisturbed."""

    world: World
    known: Known


def _twin_of(scenario: Scenario) -> Twin:
    world = World()
    disk = finish(scenario, world, SimulatedDisk(BASE))
    return Twin(world, read(disk))


def simulate_agent(seed: int, struck: Counter[str]) -> None:
    """Play one seed; raises `BrokenPromise`. What happened is counted in `struck`."""
    rng = random.Random(seed)
    with one_thread():
        scenario = random_scenario(rng)
        AgentRun(rng, scenario, SimulatedDisk(BASE, entry_with_fsync=rng.random() < 0.5), struck).run(
            _twin_of(scenario)
        )


@dataclass(slots=True)
class AgentRun:
    """One run over many processes."""

    rng: random.Random
    scenario: Scenario
    disk: SimulatedDisk
    struck: Counter[str]
    world: World = field(default_factory=World)
    _wants_force: bool = False
    _wants_decision: bool = False
    _prompt: str = "Be brief."

    def run(self, twin: Twin) -> None:
        for _ in range(self.rng.randint(2, 8)):
            if is_done(self.scenario, self.disk):
                break
            self._live(twin, self._life(), _faults(self.rng, operations=self.rng.choice((15, 30, 60))))
        try:
            self.disk = finish(self.scenario, self.world, self.disk)
        except AssertionError as problem:
            raise BrokenPromise(f"liveness: {problem}") from None
        check_end(read(self.disk), twin.known, self.world, twin.world)
        check_tidy(self.disk)

    def _life(self) -> Life:
        life = Life(lines=self.rng.randint(0, 2), max_iterations=self.scenario.max_iterations)
        if self.rng.random() < 0.4:
            life.suspend_at = self.rng.randint(1, 12)
        if self.rng.random() < 0.2:
            life.provider_fails_at = self.rng.randint(1, 3)
        if self.rng.random() < 0.05 and observe(self.disk) is not None:
            self._prompt += "!"  # the configuration changes under the run
        life.system_prompt = self._prompt
        if self._wants_force:
            life.options = ResumeOptions(force=True, on_crash="rerun" if self._wants_decision else None)
            life.max_iterations = 50 if self.rng.random() < 0.8 else self.scenario.max_iterations
        elif self._wants_decision:
            life.options = ResumeOptions(on_crash=self.rng.choice(("rerun", "skip")))
        return life

    def _live(self, twin: Twin, life: Life, faults: Faults | None) -> None:
        effects, requests = len(self.world.effects), len(self.world.requests)
        unchanged = (self.disk.tree.get(JOURNAL_PATH), self.disk.on_drive(JOURNAL_PATH))
        self.disk.faults = faults
        ending = live(self.scenario, self.world, self.disk, life)
        self.disk.faults = None
        self.struck[f"ended: {ending.reason}"] += 1
        self.struck.update(faults.struck if faults else {})
        self._check_ending(ending, faults)
        if ending.lost_power:
            self.disk = self.disk.crash(self.rng)
        else:
            check_tidy(self.disk)
            if ending.reason in ("configuration_changed", "decision_needed"):
                require(self.disk.tree.get(JOURNAL_PATH) in unchanged, "a refused resume changed the journal")
            self.disk = self.disk.restart() if self.rng.random() < 0.7 else self.disk.crash(self.rng)
        check_life(ending.found, self.world, effects, requests)
        self._check_disk(twin)

    def _check_ending(self, ending: Ending, faults: Faults | None) -> None:
        self._wants_force = ending.reason in ("configuration_changed", "budget", "max_iterations")
        self._wants_decision = ending.reason == "decision_needed"
        if ending.problem is None:
            return
        code = ending.reason
        by_design = code in ("configuration_changed", "decision_needed")
        unstarted = code in ("run_not_found", "nothing_recorded", "run_exists") and self.world.acknowledged == 0
        explained = faults is not None and bool(faults.struck) and isinstance(ending.problem, StoreError)
        corrupt = isinstance(ending.problem, JournalCorrupt)
        require(not corrupt and (by_design or unstarted or explained), f"{code} without a reason:", ending.problem)

    def _check_disk(self, twin: Twin) -> None:
        if observe(self.disk) is None:
            require(self.world.acknowledged == 0, f"{self.world.acknowledged} records were acknowledged, none is there")
            require(not self.world.effects, "a tool ran in a run that is not there")
            return
        known = read(self.disk)
        there, promised = len(known.records), self.world.acknowledged
        require(there >= promised, f"{promised} records were acknowledged, {there} are there")
        check_effects(known, [key for _, key in self.world.effects])
        check_beginning(known.records, twin.known.records)


SIMULATIONS: Mapping[str, Callable[[int, Counter[str]], None]] = {
    "journal": simulate_journal,
    "agent": simulate_agent,
}


def simulate(kind: str, seeds: range) -> Counter[str]:
    """Play seeds and return what happened; the first failure names its seed and how to repeat it."""
    struck: Counter[str] = Counter()
    for seed in seeds:
        try:
            SIMULATIONS[kind](seed, struck)
        except Exception as problem:
            how = f"python -m tests.reliability.simulation --only {kind} --seed {seed}"
            raise BrokenPromise(f"seed {seed}: {type(problem).__name__}: {problem}; repeat with `{how}`") from problem
    return struck


def told(struck: Counter[str]) -> str:
    """Say what happened, and how often."""
    return ", ".join(f"{what} {times}" for what, times in sorted(struck.items()))


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.simulation")
    parser.add_argument("--seed", "--seeds", dest="seeds", type=_range, default=range(1000), help="one, or A-B")
    parser.add_argument("--only", choices=[*SIMULATIONS])
    options = parser.parse_args(arguments)
    for kind in [options.only] if options.only else SIMULATIONS:
        began = time.monotonic()
        struck = simulate(kind, options.seeds)
        took = time.monotonic() - began
        print(f"{kind}: {len(options.seeds)} seeds, 0 broken promises, {took:.1f} s: {told(struck)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
