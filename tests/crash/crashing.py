"""Runs that are killed, and the one check of what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from fisk_ai.errors import RunAborted
from fisk_ai.folding import RunState
from fisk_ai.records import UserRecord
from fisk_ai.reports.transcript import entries_of_state, transcript
from fisk_ai.stores.file import FileStore
from tests.crash.driver import FOLLOW_UPS, RUN, Command

_PROCESSES = 12
"""More than any run takes once nothing disturbs it."""

ROOT = Path(__file__).resolve().parents[2]


class Driver:
    """The driver process; see `tests.crash.driver`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.driver"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate(timeout=30)

    def child(self, command: Command) -> int:
        """Run one child and return its wait status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@dataclass(slots=True)
class CrashingRun:
    """One run over several processes, in its own directory."""

    driver: Driver
    directory: Path
    workload: str
    kills: int = 0
    was_killed_last: bool = False
    """Whoever killed the last process has to look the answer up."""
    named: list[str] = field(default_factory=list)
    """Idempotency keys of the calls that were named ambiguous after a kill."""
    wholes: list[bytes] = field(default_factory=list)
    """The whole records that each kill left."""

    @property
    def store(self) -> FileStore:
        return FileStore(str(self.directory / "state" / "runs"))

    def lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    def state(self) -> RunState | None:
        path = Path(self.store.path(RUN))
        if not path.exists() or not path.read_bytes().partition(b"\n")[1]:
            return None
        return self.store.load(RUN)

    def killed_at(self, point: int) -> bool:
        """Start or resume, to be killed at a point, counted on over as many processes as the run takes.

        Tells whether that point was reached; else the run is done.
        """
        while not self.is_done():
            before, asked = self.state(), len(self.lines("requests"))
            status = self.driver.child(Command(str(self.directory), self.workload, point))
            self._require_nothing_paid_again(before, asked)
            if os.WIFSIGNALED(status):
                assert os.WTERMSIG(status) == signal.SIGKILL
                self._count_kill()
                assert len(self.lines("killed")) == self.kills
                return True
            self._require_good_end(status)
            point -= self.passed
        assert len(self.lines("killed")) == self.kills
        return False

    def struck_at(self, strikes: Mapping[int, int]) -> int:
        """Start or resume one process, which gets signals at points; return how many it met.

        The first asks for a suspend, the second aborts, which counts as a kill.
        """
        before, asked, met = self.state(), len(self.lines("requests")), len(self.lines("struck"))
        command = Command(str(self.directory), self.workload, strikes=dict(strikes))
        status = self.driver.child(command)
        self._require_nothing_paid_again(before, asked)
        assert status == 0, f"ended with status {status}"
        if self.outcome.get("error") == RunAborted.code:
            self._count_kill()
        else:
            self._require_good_end(status)
        return len(self.lines("struck")) - met

    def finish(self) -> None:
        """Resume in new processes until there is nothing left to do."""
        for _ in range(_PROCESSES):
            if self.is_done():
                return
            before, asked = self.state(), len(self.lines("requests"))
            status = self.driver.child(Command(str(self.directory), self.workload))
            self._require_good_end(status)
            self._require_nothing_paid_again(before, asked)
        raise AssertionError(f"the run doesn't end: {self.outcome}")

    def _count_kill(self) -> None:
        self.kills += 1
        self.was_killed_last = True
        self._note()

    def _require_good_end(self, status: int) -> None:
        self.was_killed_last = False
        assert status == 0, f"ended with status {status}"
        assert "error" not in self.outcome, self.outcome

    @property
    def passed(self) -> int:
        """How many points the last process passed, which ended by itself."""
        return int(self.lines("passed")[-1])

    def is_done(self) -> bool:
        state = self.state()
        if state is None or state.terminal is None or state.pending is not None:
            return False
        if self.workload != "chat":
            return state.terminal.reason == "completed"
        recorded = sum(isinstance(each.record, UserRecord) for each in self.store.read(RUN).records)
        return state.terminal.reason == "suspended" and recorded == len(FOLLOW_UPS) and state.answered

    @property
    def outcome(self) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads((self.directory / "outcome").read_text())
        return outcome

    def _require_nothing_paid_again(self, before: RunState | None, asked: int) -> None:
        journaled = before.counters.model_calls if before else 0
        for line in self.lines("requests")[asked:]:
            assert int(line.split()[0]) >= journaled, "a journaled turn was requested again"

    def _note(self) -> None:
        state = self.state()
        if state is None:
            assert self.lines("acked") == []
            return
        assert max(map(int, self.lines("acked")), default=0) <= state.last_seq, "an acknowledged record is gone"
        if state.pending is not None:
            self.named += [state.key_of(call) for call in state.pending.ambiguous]
        data = Path(self.store.path(RUN)).read_bytes()
        self.wholes.append(b"".join(data.splitlines(keepends=True)[: state.last_seq]).removesuffix(b"\n"))


def check_run(run: CrashingRun, twin: CrashingRun) -> None:
    """Nothing is lost, nothing is paid twice, and only what was named ran twice; all else is as in the twin."""
    ours, theirs = run.state(), twin.state()
    assert ours is not None
    assert theirs is not None
    assert ours.messages == theirs.messages
    assert ours.counters == theirs.counters
    assert ours.last_turn is not None
    assert theirs.last_turn is not None
    assert ours.last_turn.text == theirs.last_turn.text
    assert list(transcript(entries_of_state(ours))) == list(transcript(entries_of_state(theirs)))
    assert run.was_killed_last or run.outcome["answer"] == twin.outcome["answer"], "another answer was given"
    _check_file(run)
    _check_requests(run, twin)
    _check_effects(run, twin)


def _check_file(run: CrashingRun) -> None:
    data = Path(run.store.path(RUN)).read_bytes()
    for whole in run.wholes:
        assert data.startswith(whole), "records that were there have changed"
    contents = run.store.read(RUN)
    assert not contents.tail.torn
    # A run at its end whose last record lacks only its newline is whole, and nobody has written to it since.
    assert not contents.tail.missing_newline or run.was_killed_last
    with run.store.open(RUN) as journal:  # no lock is left
        assert journal.last_seq == len(contents.records)


def _check_requests(run: CrashingRun, twin: CrashingRun) -> None:
    expected = dict(line.split() for line in twin.lines("requests"))
    for line in run.lines("requests"):
        iteration, said = line.split()
        assert said == expected[iteration], f"request {iteration} differs from the undisturbed one"
    assert len(run.lines("requests")) - len(expected) <= run.kills


def _check_effects(run: CrashingRun, twin: CrashingRun) -> None:
    done = Counter(line.split()[1] for line in run.lines("effects"))
    names = Counter({line.split()[1]: line.split()[0] for line in run.lines("effects")}.values())
    assert names == Counter(line.split()[0] for line in twin.lines("effects"))
    repeated = [key for key, times in done.items() for _ in range(times - 1)]
    parallel = {line.split()[1] for line in run.lines("effects") if line.startswith("p")}
    assert sum(key not in parallel for key in repeated) <= run.kills
    assert not Counter(repeated) - Counter(run.named), "a call was repeated that was not named"
