"""A process that runs an agent in forked children, which get a signal, mostly SIGKILL, at the N-th point they pass.

Points are all operations on the disk (before, in the middle of, and after each) and the edges of model and tool calls.
Forking from a process that has imported everything makes a kill cost milliseconds. Commands come as JSON lines on
stdin; for each, the wait status of the child goes to stdout. What the child did is in the files of its directory:

    effects     a line for each effect of a tool: name and idempotency key
    requests    a line for each model call: iteration and hash of all that the model was sent
    acked       a line for each step that the caller was told of: its seq
    killed      the point at which it died
    struck      the points at which it got another signal
    passed      how many points it passed, if it ended by itself
    outcome     how the run ended, as JSON
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.agent.control import Control
from fisk_ai.agent.input import EndOfInput, Input, Line
from fisk_ai.cli.signals import steered
from fisk_ai.errors import FiskError
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.records import UserRecord
from fisk_ai.stores.disk import FileFacts, OsDisk
from fisk_ai.stores.file import FileStore
from fisk_ai.tools.base import OnCrash, ToolContext
from fisk_ai.tools.function import FunctionTool

RUN = "r7"


def _calls(*names: str) -> dict[str, Any]:
    return {"calls": [{"name": name, "id": f"call_{at}"} for at, name in enumerate(names)]}


WORKLOADS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "one-turn": [{"text": "Done."}],
    "batches": [_calls("a"), _calls("b", "fails"), _calls("c", "a", "gone", "d"), {"text": "Done."}],
    "chat": [_calls("a"), {"text": "First."}, {"text": "Second."}, _calls("b", "c"), {"text": "Third."}],
    "odd": [
        {"text": "Hm", "stop_reason": "pause_turn"},
        {"calls": [{"name": "a", "input": 3}, {"name": "b"}], "stop_reason": "max_tokens"},
        _calls("p", "a", "p"),
        {"text": "Done."},
    ],
    "errors": [_calls("fails"), _calls("gone", "fails", "b"), {"text": "Done."}],
    "side-by-side": [_calls("p", "p", "p", "fails"), _calls("a", "p", "p"), {"text": "Done."}],
    "suspends": [
        _calls("a", "suspends", "b"),
        _calls("c") | {"suspends": True},
        _calls("p", "p-suspends", "suspends"),
        {"text": "Done."},
    ],
}
"""What the model says. `suspends` (a tool, or said of a turn) has somebody ask for a suspend meanwhile."""

FOLLOW_UPS = ("more", "and more")


class Command(msgspec.Struct):
    """One child."""

    directory: str
    workload: str
    kill_at: int = 0
    """The point at which it dies, from 1; 0 lets it live."""
    on_crash: OnCrash | None = None
    strikes: dict[int, int] = {}
    """Points at which it gets other signals, which a run takes as a request: the number of each."""


class Points:
    """Counts the points that are passed, and dies at one of them."""

    def __init__(self) -> None:
        self._command = Command("", "")
        self._passed = itertools.count(1)
        self.control = Control()

    def begin(self, command: Command) -> None:
        self._command = command

    def end(self) -> None:
        self.note("passed", str(next(self._passed) - 1))

    def passes(self, what: str) -> None:
        if self.is_last(what):
            self.die(what)

    def is_last(self, what: str) -> bool:
        number = next(self._passed)
        if number in self._command.strikes:
            self.note("struck", what)
            os.kill(os.getpid(), self._command.strikes[number])
        return number == self._command.kill_at

    def die(self, what: str) -> None:
        self.note("killed", what)
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, name: str, text: str) -> None:
        path = os.path.join(self._command.directory, name)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, text.encode() + b"\n")
        os.close(descriptor)


class DeadlyDisk(OsDisk):
    """The real file system, with points around everything that changes it."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def make_directory(self, parent: int, name: str) -> int:
        made = super().make_directory(parent, name)
        self._points.passes("after make directory")
        return made

    def create_file(self, directory: int, name: str) -> int:
        self._points.passes("before create")
        created = super().create_file(directory, name)
        self._points.passes("after create")
        return created

    def write(self, descriptor: int, data: bytes) -> None:
        self._points.passes("before write")
        if self._points.is_last("in write"):
            super().write(descriptor, data[: len(data) // 2])
            self._points.die("in write")
        if self._points.is_last("before newline"):
            super().write(descriptor, data[:-1])
            self._points.die("before newline")
        super().write(descriptor, data)
        self._points.passes("after write")

    def sync(self, descriptor: int) -> None:
        facts: FileFacts = self.facts(descriptor)
        what = "directory sync" if facts.is_directory else "sync"
        self._points.passes(f"before {what}")
        # Nothing is synced: SIGKILL takes a process, not the power, and what syncs are for is tested elsewhere.
        self._points.passes(f"after {what}")

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._points.passes("before truncate")
        super().truncate(descriptor, size_bytes)
        self._points.passes("after truncate")

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        got = super().lock(descriptor, shared=shared)
        self._points.passes("after lock")
        return got

    def announce(self, descriptor: int) -> bool:
        announced = super().announce(descriptor)
        self._points.passes("after announce")
        return announced


class DeadlyModel(ScriptedProvider):
    """Plays the workload, with points around each call."""

    def __init__(self, turns: Sequence[Mapping[str, Any]], points: Points) -> None:
        super().__init__([{key: turn[key] for key in turn if key != "suspends"} for turn in turns])
        self._suspends = [bool(turn.get("suspends")) for turn in turns]
        self._points = points

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self._points.passes("before model call")
        self._points.note("requests", f"{request.iteration} {_hash(request)}")
        if self._suspends[request.iteration]:
            self._points.control.suspend()
        self._points.passes("in model call")
        reply = await super().complete(request, on_delta)
        self._points.passes("after model call")
        return reply


def _hash(request: ModelRequest) -> str:
    """Hash all that is sent; where the turns stand in the journal isn't, and depends on how often a run ended."""
    messages = [(message.role, message.format, message.content) for message in request.messages]
    rest = dataclasses.replace(request, messages=())
    return hashlib.sha256(msgspec.json.encode([messages, rest], order="deterministic")).hexdigest()


def _tool(name: str, points: Points) -> FunctionTool[Any, Any]:
    def work(context: ToolContext) -> str:
        points.passes("at tool start")
        points.note("effects", f"{name} {context.idempotency_key}")
        points.passes("after effect")
        if name.endswith("suspends"):
            points.control.suspend()
        if name == "fails":
            raise ValueError("as it always does")
        return f"{name} done"

    return FunctionTool(work, name=name, description=f"Does {name}", parallel=name.startswith("p"))


class NextLine:
    """Types the first follow-up that is not journaled yet, and leaves."""

    def __init__(self, recorded: int) -> None:
        self._lines = list(FOLLOW_UPS[recorded : recorded + 1])

    async def read(self) -> Input:
        return Line(self._lines.pop()) if self._lines else EndOfInput()


def _store(command: Command, points: Points) -> FileStore:
    return FileStore(os.path.join(command.directory, "state", "runs"), disk=DeadlyDisk(points))


def _recorded(command: Command) -> int:
    records = FileStore(os.path.join(command.directory, "state", "runs")).read(RUN).records
    return sum(isinstance(each.record, UserRecord) for each in records)


async def _steered(command: Command, points: Points, tools: list[FunctionTool[Any, Any]]) -> str:
    """Run as the command line does: signals are requests to the run."""
    result = await steered(partial(_work, command, points, tools), stored=True, say=partial(points.note, "said"))
    return json.dumps({"reason": result.reason, "answer": result.answer})


async def _work(
    command: Command, points: Points, tools: list[FunctionTool[Any, Any]], control: Control
) -> events.RunResult:
    points.control = control
    agent = Agent(
        "scripted",
        provider=DeadlyModel(WORKLOADS[command.workload], points),
        tools=tools,
        store=_store(command, points),
    )

    def told(event: events.Event) -> None:
        if isinstance(event, events.TurnRecorded | events.ToolFinished | events.InputRecorded):
            points.note("acked", str(event.seq))
            points.passes(f"told {type(event).__name__}")

    if _is_there(command):
        options = ResumeOptions(on_crash=command.on_crash)
        source = NextLine(_recorded(command))
        return await agent.resume(RUN, options, input_source=source, control=control, on_event=told)
    return await agent.run(
        "go",
        checkpoint=True,
        name=RUN,
        interactive=command.workload == "chat",
        input_source=NextLine(len(FOLLOW_UPS)),
        control=control,
        on_event=told,
    )


def _is_there(command: Command) -> bool:
    """Tell whether there is a run to resume: one whose first record was never whole is started again."""
    try:
        FileStore(os.path.join(command.directory, "state", "runs")).load(RUN)
    except FiskError:
        return False
    return True


def _child(command: Command, points: Points, tools: list[FunctionTool[Any, Any]]) -> None:
    points.begin(command)
    try:
        outcome = anyio.run(_steered, command, points, tools)
    except FiskError as problem:
        outcome = json.dumps({"error": problem.code, "text": str(problem)})
    points.end()
    with open(os.path.join(command.directory, "outcome"), "w", encoding="utf-8") as file:
        file.write(outcome)


def main() -> None:
    """Fork a child for each command; what takes time is done before."""
    points = Points()
    tools = [_tool(name, points) for name in ("a", "b", "c", "d", "fails", "suspends", "p", "p-suspends")]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # who starts this may ignore them
    anyio.run(anyio.sleep, 0)
    gc.freeze()
    for line in sys.stdin.buffer:
        command = msgspec.json.decode(line, type=Command)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                _child(command, points, tools)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
