"""The processes of a check: each goes on from a copy of one run that was suspended right before its only call.

So the idempotency key is the same in all of them, and worlds that hold it can be compared.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.agent.control import Control
from fisk_ai.agent.orphan import KILL_WAIT_S, end_orphans
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.stores.base import Journal, Orphan
from fisk_ai.stores.disk import OsDisk
from fisk_ai.stores.file import FileStore
from fisk_ai.testing.points import KillPoint, Note, Scope, Steps, WatchedTool
from fisk_ai.testing.processes import Life, live
from fisk_ai.testing.report import NothingProven, Told
from fisk_ai.tools.base import OnCrash, Tool

_RUN = "crash-kit"
_SUSPENDED = "suspended"
_POLL_S = 0.01


class _Disk(OsDisk):
    """The file system without syncs, as SIGKILL takes a process and not the power."""

    def sync(self, descriptor: int) -> None:
        """Take what is written for durable."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """What a life left running."""

    found: bool
    killed: bool
    """True if one had to be, as its time was up."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Runs the agent whose model makes one call, in forked processes."""

    tool: Tool
    arguments: Mapping[str, Any]
    world: Path
    """Where the tool works."""
    directory: Path
    """For runs and logs."""
    limit_s: float
    """How long a process may take."""

    def prepare(self) -> None:
        """Make the run that the others are copies of: its model has asked for the call, and nothing has run."""
        _load_event_loop()
        self.directory.mkdir()

        def work(_note: Note) -> None:
            control = Control()

            def told(event: events.Event) -> None:
                if isinstance(event, events.TurnRecorded):
                    control.suspend()

            agent = self._agent(_SUSPENDED, self.tool)
            anyio.run(partial(agent.run, "Go.", checkpoint=True, name=_RUN, control=control, on_event=told))

        require_well(self._live(_SUSPENDED, work, Steps(Scope())), "the run can't be prepared")

    def new_run(self, name: str) -> None:
        """Make a run that begins with the call."""
        shutil.copytree(self.directory / _SUSPENDED, self.directory / name)

    def resume(
        self,
        run: str,
        log: str,
        *,
        scope: Scope | None = None,
        point: KillPoint | None = None,
        on_crash: OnCrash | None = None,
    ) -> Life:
        """Go on with a run in a process of its own.

        Args:
            run: its name.
            log: name of the file for what it notes.
            scope: the code in which lines are counted.
            point: where it dies.
            on_crash: what is done with a call that may have run.
        """
        steps = Steps(scope or Scope())

        def work(note: Note) -> None:
            def told(event: events.Event) -> None:
                if isinstance(event, events.ToolStarted):
                    note("call", key=event.idempotency_key)
                if isinstance(event, events.ToolFinished):
                    note("told", text=event.text, is_error=event.is_error)

            agent = self._agent(run, WatchedTool(self.tool, steps, note, point))
            result = agent.resume_sync(_RUN, ResumeOptions(on_crash=on_crash), on_event=told)
            note("run", reason=result.reason)

        return self._live(log, work, steps)

    def end_orphans(self, run: str, *, wait_s: float) -> Orphans:
        """Wait for processes that the tool left, as a resume does, and end them when the time is up."""
        with self._store(run).open(_RUN) as journal:
            found = journal.find_orphans()
            if living := _wait_for_orphans(journal, wait_s):
                end_orphans(journal, living)
                _wait_for_orphans(journal, KILL_WAIT_S)
        return Orphans(bool(found), bool(living))

    def _live(self, log: str, work: Callable[[Note], None], steps: Steps) -> Life:
        path = self.directory / f"{log}.log"
        return live(work, log=path, directory=self.world, limit_s=self.limit_s, whereabouts=steps.whereabouts)

    def _agent(self, run: str, tool: Tool) -> Agent:
        turns: list[dict[str, Any]] = [{"calls": [{"name": tool.name, "input": self.arguments}]}, {"text": "Done."}]
        return Agent("scripted", provider=ScriptedProvider(turns), tools=[tool], store=self._store(run))

    def _store(self, run: str) -> FileStore:
        return FileStore(str(self.directory / run), disk=_Disk())


def _wait_for_orphans(journal: Journal, wait_s: float) -> Sequence[Orphan]:
    """Return those that still live when the time is up."""
    deadline = time.monotonic() + wait_s
    while (living := journal.find_orphans()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return living


def _load_event_loop() -> None:
    """Load here what every child would load again, in a thread because a loop may run in this one."""
    loading = threading.Thread(target=anyio.run, args=(anyio.sleep, 0))
    loading.start()
    loading.join()


def require_well(life: Life, what: str) -> None:
    """Raise `NothingProven`, beginning with `what`, if a life did not end by itself and well."""
    for kind in ("refused", "failed"):
        if (found := life.noted(kind)) is not None:
            raise NothingProven(f"{what}: {found['text']}\n{life.output}".rstrip())
    if life.status != 0:
        raise NothingProven(f"{what}: its process ended with status {life.status}\n{life.output}".rstrip())


def told_in(life: Life) -> Told | None:
    """Return what the model was told about the call."""
    told = life.noted("told")
    return None if told is None else Told(told["text"], told["is_error"])


def keys_in(life: Life) -> tuple[str, ...]:
    """Return the idempotency keys of the calls that began."""
    return tuple(note["key"] for note in life.notes if note["kind"] == "call")


def ending_of(life: Life) -> str:
    """Say how a run ended: its reason, the code of what refused it, or what went wrong."""
    for kind, fact in (("run", "reason"), ("refused", "code")):
        if (found := life.noted(kind)) is not None:
            return str(found[fact])
    failed = life.noted("failed")
    return f"status {life.status}" if failed is None else str(failed["text"]).strip().rpartition("\n")[2]
