"""A process that runs an agent in forked children, which die by SIGKILL at the N-th point that they pass.

Points are all operations on the disk (before, in the middle of, and after each) and the edges of model and tool calls.
Forking from a process that has imported everything makes a kill cost milliseconds. Commands come as JSON lines on
stdin; for each, the wait status of the child goes to stdout. What the child did is in the files of its directory:

    effects     a line for each effect of a tool: name and idempotency key
    requests    a line for each model call: iteration and hash of the conversation
    acked       a line for each step that the caller was told of: its seq
    killed      the point at which it died
    outcome     how the run ended, as JSON
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.agent.input import EndOfInput, Input, Line
from fisk_ai.errors import FiskError
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.scripted import ScriptedProvider
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
}
FOLLOW_UPS = ("more", "and more")


class Command(msgspec.Struct):
    """One child."""

    directory: str
    workload: str
    kill_at: int = 0
    """The point at which it dies, from 1; 0 lets it live."""
    on_crash: OnCrash | None = None


class Points:
    """Counts the points that are passed, and dies at one of them."""

    def __init__(self) -> None:
        self._command = Command("", "")
        self._passed = itertools.count(1)

    def begin(self, command: Command) -> None:
        self._command = command

    def passes(self, what: str) -> None:
        if self.is_last():
            self.die(what)

    def is_last(self) -> bool:
        return next(self._passed) == self._command.kill_at

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
        if self._points.is_last():
            super().write(descriptor, data[: len(data) // 2])
            self._points.die("in write")
        if self._points.is_last():
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
        super().__init__(turns)
        self._points = points

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self._points.passes("before model call")
        said = hashlib.sha256(b"\n".join(message.content for message in request.messages)).hexdigest()
        self._points.note("requests", f"{request.iteration} {said}")
        self._points.passes("in model call")
        reply = await super().complete(request, on_delta)
        self._points.passes("after model call")
        return reply


def _tool(name: str, points: Points) -> FunctionTool[Any, Any]:
    def work(context: ToolContext) -> str:
        points.passes("at tool start")
        points.note("effects", f"{name} {context.idempotency_key}")
        points.passes("after effect")
        if name == "fails":
            raise ValueError("as it always does")
        return f"{name} done"

    return FunctionTool(work, name=name, description=f"Does {name}", parallel=name == "p")


class NextLine:
    """Types the first follow-up that is not journaled yet, and leaves."""

    def __init__(self, recorded: int) -> None:
        self._lines = list(FOLLOW_UPS[recorded : recorded + 1])

    async def read(self) -> Input:
        return Line(self._lines.pop()) if self._lines else EndOfInput()


def _store(command: Command, points: Points) -> FileStore:
    return FileStore(os.path.join(command.directory, "state", "runs"), disk=DeadlyDisk(points))


def _recorded(command: Command) -> int:
    store = FileStore(os.path.join(command.directory, "state", "runs"))
    return b"".join(store.read_bytes(RUN)).count(b".session.user")


async def _work(command: Command, points: Points, tools: list[FunctionTool[Any, Any]]) -> str:
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
        result = await agent.resume(RUN, options, input_source=NextLine(_recorded(command)), on_event=told)
    else:
        chat = command.workload == "chat"
        result = await agent.run(
            "go", checkpoint=True, name=RUN, interactive=chat, input_source=NextLine(len(FOLLOW_UPS)), on_event=told
        )
    return json.dumps({"reason": result.reason, "answer": result.answer})


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
        outcome = anyio.run(_work, command, points, tools)
    except FiskError as problem:
        outcome = json.dumps({"error": problem.code, "text": str(problem)})
    with open(os.path.join(command.directory, "outcome"), "w", encoding="utf-8") as file:
        file.write(outcome)


def main() -> None:
    """Fork a child for each command; what takes time is done before."""
    points = Points()
    tools = [_tool(name, points) for name in ("a", "b", "c", "d", "fails", "p")]
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
