"""Trials on simulated disks: every crash state of the workloads and of their repairs, and seeded simulations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tests.reliability.crash_states import State
from tests.reliability.simulation import SIMULATIONS
from tests.reliability.trials import Form, Tally, Trial, require
from tests.reliability.workloads import (
    MODELS,
    RECORDERS,
    Recorded,
    check_state,
    distinct_torn,
    record,
    record_repair,
)

_SHORT_SEEDS = {"journal": 5_000, "agent": 500}
_LONG_SEEDS = {"journal": 1_000_000, "agent": 30_000}
_FAULTS = ("power cut", "sync failed", "disk is full", "no descriptors")
_ENDINGS = ("suspended", "completed", "error", "max_iterations", "configuration_changed", "decision_needed")
_MUST_HAPPEN = {
    "journal": (*_FAULTS, "cut failed", "torn tail cut"),
    "agent": (*_FAULTS, *(f"ended: {ending}" for ending in _ENDINGS)),
}


def short_form(found: Iterator[State]) -> Iterator[State]:
    """Leave out most of the cuts within one write: each byte is cut in the long form."""
    return (state for number, state in enumerate(found) if number % 5 == 0 or "cut at byte" not in state.why)


def crash_states(tally: Tally, form: Form) -> None:
    """Every state that a power cut may leave of the six workloads."""
    for recorder in RECORDERS.values():
        for model_name, model in MODELS.items():
            if form == "short" and model_name != "strict":
                continue
            run = recorder()
            found = run.states(model) if form == "long" else short_form(run.states(model))
            _check(tally, run, found, may_be_refused=model_name == "other fills")
            _require_driven_on(run)


def _check(tally: Tally, run: Recorded, found: Iterator[State], *, may_be_refused: bool = False) -> None:
    for number, state in enumerate(found):
        with tally.case(f"{run.name}, state {number} (after operation {state.at}, {state.why})"):
            check_state(run, state, may_be_refused=may_be_refused)


def _require_driven_on(run: Recorded) -> None:
    """From each number of records a run has to have been driven to its end at least once."""
    expected = len(run.twin.records) - max(run.given, run.at_once)
    require(len(run.finished) >= expected, f"{run.name}: states were missing", kind="undetected")


def second_crashes(tally: Tally, form: Form) -> None:
    """Every state that a power cut leaves of the repair of a torn journal."""
    first = record("W2 batches")
    for torn in distinct_torn(first, every=1 if form == "long" else 130):
        second = record_repair(torn.tree)
        second.finished = {(records, 0) for records in range(100)}  # how runs end is the first trial's
        found = second.states()
        _check(tally, second, found if form == "long" else short_form(found))


def _simulation(kind: str) -> Callable[[Tally, Form], None]:
    def run(tally: Tally, form: Form) -> None:
        seeds = (_LONG_SEEDS if form == "long" else _SHORT_SEEDS)[kind]
        struck: Counter[str] = Counter()
        for seed in range(seeds):
            with tally.case(f"python -m tests.reliability.simulation --only {kind} --seed {seed}"):
                SIMULATIONS[kind](seed, struck)
        tally.reached.update(struck)
        missing = [what for what in _MUST_HAPPEN[kind] if struck[what] < 5]
        require(not missing, "hardly ever reached:", *missing, kind="undetected")

    return run


TRIALS = (
    Trial(
        name="crash states",
        unit="states",
        method="Every state that a power cut may leave, after each operation of six workloads on a recorded disk: "
        "unsynced writes absent, cut at every byte, without some blocks, reordered; names lost. Each is loaded, "
        "resumed to its end, appended to, loaded again and compared with the undisturbed twin.",
        promises="P5 P7 P8 P10 P12",
        run=crash_states,
        target=200_000,
    ),
    Trial(
        name="second crashes",
        unit="states",
        method="The same for the repair of every torn journal that a first crash left.",
        promises="P12 P13",
        run=second_crashes,
        target=25_000,
    ),
    Trial(
        name="simulated journals",
        unit="seeds",
        method="Processes drawn from a seed create, open, append, repair, list and delete on a simulated disk that "
        "fails, fills up, loses power and lies after failed syncs; a model says what must be there.",
        promises="P10 P11 P12 P13 P16",
        run=_simulation("journal"),
        target=_LONG_SEEDS["journal"],
    ),
    Trial(
        name="simulated runs",
        unit="seeds",
        method="The agent's loop, unchanged, on the simulated disk and a fixed clock, killed, suspended, refused and "
        "resumed as the seed says; when the faults stop, each run must end like its twin.",
        promises="all",
        run=_simulation("agent"),
        target=_LONG_SEEDS["agent"],
    ),
)
