"""The command line in processes that faults strike."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.commands import RUN, Workplace, shell_tool
from tests.reliability.trials import require
from tests.reliability.victims import Victim, Victims

TURNS: Sequence[Mapping[str, Any]] = [
    {"calls": [{"name": "one"}]},
    {"calls": [{"name": "two"}, {"name": "one"}]},
    {"text": "All is well."},
]
ANSWER = "All is well.\n"
PROMPT = "Count the sheep."
RECORDS = 8
"""Of a whole run: meta, three turns, three results, the end."""


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of stderr."""
        return self.err.rstrip("\n").rpartition("\n")[2].strip()


class CommandLine:
    """`fisk-ai` at work in one directory, on a scripted run with two tools."""

    def __init__(self, victims: Victims, directory: Path, *, state: Path | None = None) -> None:
        directory.mkdir(exist_ok=True)
        self._victims = victims
        tools = [shell_tool(name, "true") for name in ("one", "two")]
        self.place = Workplace(directory, {"provider": "scripted", "script": "script.yaml"}, tools)
        self.place.scripted([dict(turn) for turn in TURNS])
        if state is not None:
            self.place.state_dir = state

    @property
    def journal(self) -> Path:
        return Path(self.place.store.path(RUN))

    def does(self, *arguments: str, **victim: Any) -> Said:
        """Run a command with these faults (see `Victim`); it ends in time, and never with a traceback."""
        arguments = (*arguments, "--state-dir", str(self.place.state_dir))
        directory = self.place.directory
        status = self._victims.child(Victim(str(directory), "", job="cli", arguments=arguments, **victim))
        require(not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM), "it hangs", kind="hang")
        said = Said(os.waitstatus_to_exitcode(status), *((directory / name).read_text() for name in _STREAMS))
        bad = "Traceback" in said.err or "internal error" in said.err
        require(not bad and said.code >= 0, said.code, said.err, kind="traceback")
        return said

    def begins(self, prompt: str = PROMPT, **victim: Any) -> Said:
        """Start the run."""
        return self.does("run", prompt, "--checkpoint", "--name", RUN, **victim)

    def resumes(self, **victim: Any) -> Said:
        """Resume the run."""
        return self.does("run", "--resume", RUN, **victim)

    def must_end_well(self, kills: int) -> None:
        """Let the run go on undisturbed to its answer; at most one call for each disturbance was repeated."""
        if not self.journal.exists() or self.place.store.run_ids() == [] or not self._is_recorded():
            said = self.begins()
        elif self.place.state.terminal is None or self.place.state.terminal.reason != "completed":
            said = self.resumes()
        else:
            said = Said(0, ANSWER, "")
        require((said.code, said.out) == (0, ANSWER), "it doesn't end as it should:", said)
        keys = [key for when, _, key in self.place.effects if when == "start"]
        require(len(set(keys)) == 3, "calls are missing or were invented:", self.place.effects)
        require(len(keys) - len(set(keys)) <= kills, "too many repeats:", self.place.effects, kind="repeated")
        require(self.place.state.counters.model_calls == len(TURNS), "turns were lost or paid again", kind="repeated")

    def _is_recorded(self) -> bool:
        listed = json.loads(self.does("session", "ls", "--json").out)
        return all(row["status"] != "unreadable" for row in listed)

    def must_say_how_to_go_on(self, said: Said, *causes: str) -> None:
        """Require the documented exit of a run that its storage stopped, with its cause and the way on."""
        require(said.code == 1, "another exit code:", said, kind="undetected")
        require(any(cause in said.err for cause in causes), "the cause isn't named:", said, kind="undetected")
        require("sheep" not in said.err, "the prompt is shown:", said, kind="undetected")
        lines = said.err.splitlines()
        require(any(line.startswith("fisk-ai: ") for line in lines), "nothing is said:", said, kind="undetected")
        told = f"run {RUN}" in said.err or f"session {RUN}" in said.err
        resume = said.last_line.startswith(f"fisk-ai run --resume {RUN}")
        require(resume or not told, "a run is named, but not how to go on with it:", said, kind="undetected")


_STREAMS = ("stdout", "stderr")
