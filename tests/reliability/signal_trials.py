"""Signals that ask a run to stop: at each step, at random moments, and within a program's own loop of appends."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fisk_ai.errors import JournalFailed
from fisk_ai.folding import RunState
from fisk_ai.records import TerminalRecord
from fisk_ai.stores.file import FileStore
from tests.crash.crashing import CrashingRun, Driver, check_run
from tests.crash.driver import WORKLOADS
from tests.crash.forked import Forked, Host
from tests.reliability.kill_trials import Sweep, sweep_of
from tests.reliability.random_kills import LOOK, WORKING, Place
from tests.reliability.tool_trials import TOOL_TREES, TOOLS_OF_THE_DEAD
from tests.reliability.trials import Form, Tally, Trial, require
from tests.stores.processes import Child
from tests.strategies import RUN_ID, meta

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _struck(sweep: Sweep, life: int, strikes: dict[int, int]) -> int:
    """Signal one of the processes of a run, let the run end, and compare it with its twin; return what it met."""
    with tempfile.TemporaryDirectory(dir=sweep.directory) as directory:
        run = CrashingRun(sweep.driver, Path(directory), sweep.workload)
        for _ in range(life):
            require(run.struck_at({}) == 0, "a signal from nowhere", kind="undetected")
        met = run.struck_at(strikes)
        run.finish()
        check_run(run, sweep.twin)  # the first signal is no kill: nothing may be repeated
        return met


def _every_step(tally: Tally, sweep: Sweep, step: int) -> None:
    for life, points in enumerate(map(int, sweep.twin.lines("passed"))):
        for point in range(1 + life % step, points + 1, step):
            number = STOPPING[point % 3]
            with tally.case(f"{sweep.workload}: {number.name} at {point} of process {life}"):
                met = _struck(sweep, life, {point: number})
                require(met == 1, f"met {met} signals", kind="undetected")
                tally.reached[number.name] += 1
            gap = 1 + point // step % 9
            with tally.case(f"{sweep.workload}: {number.name} at {point} and {gap} later of process {life}"):
                tally.reached[f"{_struck(sweep, life, {point: number, point + gap: number})} signals"] += 1


def signals_at_each_step(tally: Tally, form: Form) -> None:
    """Send the first signal at each point of each workload, and a second one soon after."""
    with Driver() as driver:
        for workload in WORKLOADS:
            with sweep_of(driver, workload) as sweep:
                _every_step(tally, sweep, 1 if form == "long" else 40)
    for what in (*(number.name for number in STOPPING), "2 signals"):
        require(tally.reached[what], f"never met: {what}", kind="undetected")


TURNS: list[dict[str, Any]] = [
    {"calls": [{"name": "look", "id": f"call_{at}", "input": {"time": "010"}} for at in range(2)], "delay": "10ms"},
    {"calls": [{"name": "look", "id": "call_0", "input": {"time": "020"}}], "delay": "10ms"},
    {"text": "All is well.", "delay": "10ms"},
]
CALLS = 3
LATEST_S = 0.2


@dataclass(slots=True)
class Signalled:
    """One run of the command line that gets one or two signals."""

    place: Place
    number: signal.Signals
    moments: random.Random
    named: tuple[str, ...] = ()

    def strike(self) -> str:
        """Start it, signal it and return how it ended."""
        twice = self.moments.random() < 0.4
        process = self.place.go()
        if self.moments.random() < WORKING:
            process.says_something()
        for latest_s in (LATEST_S, 0.04)[: 1 + twice]:
            if not process.has_ended(self.moments.uniform(0.0, latest_s)):
                process.send(self.number)
        code = process.ends()
        require("Traceback" not in process.stderr, process.stderr, kind="traceback")
        state = self.place.state
        self._check_end(process, code, state, twice=twice)
        self.named = tuple(self.place.ambiguous())
        return "completed" if code == 0 else "suspended" if code == 3 else "aborted" if state else "before it began"

    def _check_end(self, process: Forked, code: int, state: RunState | None, *, twice: bool) -> None:
        allowed = (0, 3, 130, -self.number)  # the last: before it listens, and after its run has ended
        require(code in allowed, f"exit code {code}: {process.stderr}", kind="traceback")
        end = state.terminal.reason if state and state.terminal else None
        if code in (0, 3):
            require(end == ("completed" if code == 0 else "suspended"), f"exit code {code}, but the run ended {end}")
        elif not twice:
            require(state is None or end, f"a single signal broke the run off: {process.stderr}", kind="repeated")

    def finish(self) -> None:
        """Resume it and look at what ran."""
        state = self.place.state
        if state is None or not (state.terminal and state.terminal.reason == "completed"):
            process = self.place.go()
            require(process.ends() == 0, process.stderr, kind="traceback")
        done = Counter(key for word, key in self.place.effects() if word == "start")
        repeated = [key for key, times in done.items() if times > 1]
        require(len(done) == CALLS, f"{len(done)} of {CALLS} calls ran")
        require(set(repeated) <= set(self.named), "a call was repeated that was not named", kind="repeated")
        self.place.check_never_two_at_once(self.named)


def signals_at_random_moments(tally: Tally, form: Form) -> None:
    """Send each signal, and sometimes a second one, whenever."""
    with Host() as host:
        for number in STOPPING:
            for seed in range(400 if form == "long" else 5):
                how = f"{number.name}, seed {seed} of signals_at_random_moments"
                with tally.case(how), tempfile.TemporaryDirectory() as directory:
                    place = Place(host, Path(directory) / "place")
                    place.prepare(TURNS, [LOOK])
                    signalled = Signalled(place, number, random.Random(seed * 3 + number))
                    tally.reached[signalled.strike()] += 1
                    signalled.finish()
    for what in ("suspended", "completed", "aborted", "before it began") if form == "long" else ("suspended",):
        require(tally.reached[what], f"no run ended like that: {what}", kind="undetected")


def _append_until_interrupted(directory: str, ready: int) -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = FileStore(directory)
    journal = store.create(RUN_ID, meta())
    told = 1
    record = TerminalRecord(reason="error", message="x" * 200)
    with contextlib.suppress(KeyboardInterrupt):
        os.write(ready, b".")
        while True:
            told = journal.append(record)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    require(told <= journal.last_seq <= told + 1, f"told of {told}, and the journal is at {journal.last_seq}")
    try:
        after = journal.append(record)
    except JournalFailed:
        after = 0  # interrupted within the append: unusable, whatever reached the file
    stored = len(store.read(RUN_ID).records)
    require(told <= stored and (not after or after == stored), f"told of {told} and {after}, but {stored} are there")
    journal.close()
    with store.open(RUN_ID) as again:
        require(again.append(record) == stored + 1, "the file and the journal are out of step")
    return "poisoned" if not after else "usable"


def interrupted_appends(tally: Tally, form: Form) -> None:
    """Interrupt a program's own loop of appends by Ctrl-C."""
    for seed in range(400 if form == "long" else 50):
        with tally.case(f"seed {seed} of interrupted_appends"), tempfile.TemporaryDirectory() as directory:
            began, ready = os.pipe()
            child = Child(partial(_append_until_interrupted, directory, ready))
            os.close(ready)
            os.read(began, 1)
            os.close(began)
            time.sleep(random.Random(seed).uniform(0.0, 0.02))
            os.kill(child.pid, signal.SIGINT)
            tally.reached[child.result()] += 1
    for what in ("poisoned", "usable"):
        require(tally.reached[what], f"no journal was {what}", kind="undetected")


TRIALS: tuple[Trial, ...] = (
    Trial(
        name="signals at each step",
        unit="signals",
        method=(
            "SIGINT, SIGTERM or SIGHUP at each operation on the disk and each edge of a model or tool call, and a "
            "second one soon after. After the first nothing may run or be asked for twice, after the second only what "
            "is named; each run must end like one that nobody disturbed"
        ),
        promises="P6 P7 P8 P9",
        run=signals_at_each_step,
        target=1500,
    ),
    Trial(
        name="signals at random moments",
        unit="runs",
        method=(
            "The command line gets SIGINT, SIGTERM or SIGHUP at a random moment, and sometimes a second one. It must "
            "end with a documented exit code and no traceback, and the resume must repeat nothing after a suspend"
        ),
        promises="P6 P7 P9",
        run=signals_at_random_moments,
        target=1200,
    ),
    Trial(
        name="interrupted appends",
        unit="interrupts",
        method=(
            "A program that appends in a loop gets SIGINT at a random moment. The journal it holds and the file must "
            "be in step, or the journal must refuse; nothing that was told of may be missing"
        ),
        promises="P10 P13",
        run=interrupted_appends,
        target=400,
    ),
    TOOL_TREES,
    TOOLS_OF_THE_DEAD,
)
