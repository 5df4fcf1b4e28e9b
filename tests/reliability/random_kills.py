"""Runs of the command line that are killed at random moments, while the model is asked and while tools work."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fisk_ai.folding import RunState
from fisk_ai.stores.file import FileStore
from tests.crash.forked import Forked, Host
from tests.reliability.trials import Form, Tally, Trial, require

RUN = "r7"
ANSWER = "All streams are well."
LONGEST_TOOL_MS = 50
LATEST_KILL_S = 0.3
WORKING = 0.85
"""Of all processes; the others may be killed before their run begins."""
KILLS_OF_A_RUN = 15

_WORK = (
    'echo "start $FISK_AI_IDEMPOTENCY_KEY" >> effects; sleep "0.$1"; '
    'echo "end $FISK_AI_IDEMPOTENCY_KEY" >> effects; echo "slept $1"'
)
LOOK = {
    "name": "look",
    "description": "Look at a stream",
    "argv": ["sh", "-c", _WORK, "sh", "{time}"],
    "parameters": {"time": {"type": "string"}},
}


def script(moments: random.Random) -> list[dict[str, Any]]:
    """Return turns of up to three calls, each of which takes its time."""
    turns: list[dict[str, Any]] = []
    for _ in range(moments.randint(4, 9)):
        times = [f"{moments.randint(0, LONGEST_TOOL_MS):03}" for _ in range(moments.randint(1, 3))]
        calls = [{"name": "look", "id": f"call_{at}", "input": {"time": time}} for at, time in enumerate(times)]
        turns.append({"calls": calls, "delay": f"{moments.randint(0, 20)}ms"})
    return [*turns, {"text": ANSWER}]


@dataclass(slots=True)
class Place:
    """A directory where `fisk-ai` runs."""

    host: Host
    directory: Path

    def prepare(self, turns: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
        """Write the configuration."""
        self.directory.mkdir()
        document = {"llm": {"provider": "scripted", "script": "turns.yaml"}, "tools": {"commands": tools}}
        (self.directory / "agent.yaml").write_text(json.dumps(document))  # JSON is YAML
        (self.directory / "turns.yaml").write_text(json.dumps(turns))

    @property
    def store(self) -> FileStore:
        return FileStore(str(self.directory / "runs"))

    @property
    def state(self) -> RunState | None:
        """The run as it is recorded; None before its first record was whole."""
        path = Path(self.store.path(RUN))
        if not path.exists() or b"\n" not in path.read_bytes():
            return None
        return self.store.load(RUN)

    def go(self, *more: str, die_before_note: bool = False) -> Forked:
        """Start the run, or resume it if there is one."""
        how = ["go", "--checkpoint", "--name", RUN] if self.state is None else ["--resume", RUN]
        arguments = ("run", *how, *more, "--state-dir", "runs")
        return self.host.start(self.directory, *arguments, die_before_note=die_before_note)

    def effects(self) -> list[list[str]]:
        path = self.directory / "effects"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def ambiguous(self) -> list[str]:
        """Keys of the calls that may have run."""
        state = self.state
        pending = state.pending if state else None
        return [state.key_of(call) for call in pending.ambiguous] if state and pending else []

    def check_never_two_at_once(self, ended: Collection[str] = ()) -> None:
        """Look at starts and ends; a call that was `ended` by an abort has a start only."""
        running: str | None = None
        for word, key in self.effects():
            known = running is None or running in ended if word == "start" else running == key
            require(known, "two calls ran at once", kind="repeated")
            running = key if word == "start" else None


@dataclass(slots=True)
class Killed:
    """One run that is killed until it has had enough."""

    place: Place
    moments: random.Random
    kills: int = 0
    named: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def goes_on(self) -> bool:
        """Start or resume it and kill it at a random moment; tell whether it is still not at its end."""
        before = self.place.state
        process = self.place.go("--output", "stream-json")
        if self.moments.random() < WORKING:
            process.says_something()
        ended = process.has_ended(self.moments.uniform(0.0, LATEST_KILL_S))
        if not ended:
            process.kill()
            self.kills += 1
        code = process.ends()
        require(code in (0, -9), f"exit code {code}: {process.stderr}", kind="traceback")
        self._check(process, before)
        return not self.is_completed

    @property
    def is_completed(self) -> bool:
        """Also a process that was killed may have come to the end."""
        state = self.place.state
        return state is not None and state.terminal is not None and state.terminal.reason == "completed"

    def _check(self, process: Forked, before: RunState | None) -> None:
        told = [json.loads(line) for line in process.stdout.splitlines() if line.endswith("}")]
        after = self.place.state
        durable = after.last_seq if after else 0
        require(max((event.get("seq") or 0 for event in told), default=0) <= durable, "an acknowledged record is gone")
        journaled = before.counters.model_calls if before else 0
        asked = [event["iteration"] for event in told if event["event"] == "model_called"]
        require(all(each >= journaled for each in asked), "a journaled turn was asked for again", kind="repeated")
        self.asked += asked
        self.named += self.place.ambiguous()

    def finish(self) -> None:
        """Let it come to its end."""
        process = self.place.go("--output", "stream-json")
        require(process.ends() == 0, f"no end: {process.stderr}", kind="traceback")

    def check(self, twin: RunState | None) -> None:
        """Compare it with a run that nobody disturbed."""
        state = self.place.state
        require(state and state.terminal and state.terminal.reason == "completed", "it is not completed")
        assert state is not None
        assert twin is not None
        require(state.messages == twin.messages and state.counters == twin.counters, "it differs from its twin")
        done = Counter(key for word, key in self.place.effects() if word == "start")
        require(len(done) == twin.counters.tool_calls, "a call is missing or was invented")
        repeated = Counter({key: times - 1 for key, times in done.items() if times > 1})
        require(not repeated - Counter(self.named), "a call was repeated that was not named", kind="repeated")
        require(repeated.total() <= self.kills, "more repeats than kills", kind="repeated")
        self.place.check_never_two_at_once()


def _one(tally: Tally, host: Host, directory: Path, seed: int) -> int:
    """Kill one run, and return how often."""
    moments = random.Random(seed)
    turns = script(moments)
    twin, killed = Place(host, directory / "twin"), Killed(Place(host, directory / "killed"), moments)
    for place in (twin, killed.place):
        place.prepare(turns, [LOOK])
    require(twin.go().ends() == 0, "the undisturbed run failed")
    while killed.goes_on() and killed.kills < KILLS_OF_A_RUN:
        pass
    if not killed.is_completed:
        killed.finish()
    killed.check(twin.state)
    tally.reached["in a tool"] += len(killed.named)
    tally.reached["between or in model calls"] += killed.kills - len(killed.named)
    return killed.kills


def random_kills(tally: Tally, form: Form) -> None:
    """Kill runs until there were enough kills and enough runs."""
    kills, runs = (1000, 100) if form == "long" else (15, 2)
    done = seed = 0
    with Host() as host:
        while done < kills or seed < runs:
            with tally.case(f"seed {seed} of random_kills", 0), tempfile.TemporaryDirectory() as directory:
                done += (killed := _one(tally, host, Path(directory), seed))
                tally.cases += killed
            seed += 1
            require(seed < 20 * runs, "hardly anything is killed", kind="undetected")
    for what in ("in a tool", "between or in model calls"):
        require(tally.reached[what] >= kills // 20, f"hardly any kill came {what}", kind="undetected")


RANDOM_KILLS = Trial(
    name="random kills",
    unit="kills",
    method=(
        "The command line is killed with SIGKILL at random moments of runs whose tools take up to 50 ms, and resumed "
        "until it ends. Nothing that was told of may be lost, only the named call may run twice and never beside "
        "itself, and each run must end like one that nobody disturbed"
    ),
    promises="P5 P6 P7 P8 P9",
    run=random_kills,
    target=1000,
)
