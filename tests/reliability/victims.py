"""A process whose forked children run an agent, or the command line, while faults strike them.

All of a child's work on the disk is done by one thread: strace counts by thread, so the N-th call of that thread is the
N-th call of the run, and nothing but the store's own calls is counted. Commands come as JSON lines on stdin; for each,
the wait status of the child goes to stdout. What a child says goes through a pipe, which no limit on files or
descriptors stops, and from there into the files of its directory:

    effects, requests, acked   as in `tests.crash.driver`
    story                      what this child did and was told, in order
    stories                    the same of all children
    outcome                    how it ended, as JSON
    stderr                     what it wrote there
    stdout                     of the command line

In `prompt` there may be the prompt of the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Self

import anyio
import msgspec

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.cli.main import main as command_line
from fisk_ai.errors import FiskError
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.stores.disk import OsDisk
from fisk_ai.stores.file import FileStore
from fisk_ai.tools.base import ToolContext
from fisk_ai.tools.function import FunctionTool
from tests.crash.crashing import ROOT, Driver
from tests.crash.driver import FOLLOW_UPS, RUN, WORKLOADS, Command, DeadlyModel, NextLine, Points

PATIENCE_S = 30
"""A child that takes longer hangs: SIGALRM ends it, and its status says so."""
_PTRACER = 0x59616D61, ctypes.c_ulong(-1)
"""prctl: whoever may trace us by their rights may do so, though we are no child of theirs."""


class Victim(Command):
    """One child, and what strikes it."""

    job: str = "run"
    """`run` (or resume), `delete`, `cli`, or a function as `module:name`."""
    arguments: Sequence[str] = ()
    """For `cli`."""
    strace: Sequence[str] = ()
    """Arguments of the strace that is attached to the thread of the disk, or to all threads of a `cli`."""
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    """Soft limits by their names, such as RLIMIT_FSIZE."""
    user: int | None = None
    patience_s: int = PATIENCE_S
    plant: str = ""
    """A function, as `module:name`, that puts a bug into the product, for tests of the tests."""


class Victims(Driver):
    """The process; used as `tests.crash.crashing.Driver` is."""

    def __init__(self, *, command_line: bool = False) -> None:
        self._more = ["--command-line"] if command_line else []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.victims", *self._more],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self


class DiskThread:
    """The thread that does what is to be done on the disk."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="the disk", daemon=True).start()
        self.native_id: int = self.call(threading.get_native_id)

    def call(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._jobs.put((work, done))
        return done.result()

    def _work(self) -> None:
        while True:
            work, done = self._jobs.get()
            try:
                done.set_result(work())
            except BaseException as problem:  # noqa: BLE001 - raised where the result is waited for
                done.set_exception(problem)


class OneThreadDisk(OsDisk):
    """The real file system, touched by one thread only."""

    def __init__(self, thread: DiskThread) -> None:
        self._thread = thread

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_"):
            return found
        thread: DiskThread = super().__getattribute__("_thread")
        return lambda *args, **more: thread.call(partial(found, *args, **more))


class Story(Points):
    """Tells through a pipe what a child does."""

    pipe = -1

    def note(self, name: str, text: str) -> None:
        notes = [(name, text)]
        if name in ("requests", "effects"):
            notes.append(("story", f"{name} {text}"))
        for note in notes:
            os.write(self.pipe, json.dumps(note).encode() + b"\n")

    def told(self, event: events.Event) -> None:
        match event:
            case events.TurnRecorded():
                what = f"turn {event.iteration}"
            case events.ToolFinished():
                what = f"call {event.name}"
            case events.InputRecorded():
                what = f"input {event.text}"
            case _:
                return
        self.note("acked", str(event.seq))
        self.note("story", f"acked {what}")


class _Model(DeadlyModel):
    """Notes what a provider sends: where in the journal a turn stands is not part of it."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        messages = [replace(message, seq=None) for message in request.messages]
        return await super().complete(replace(request, messages=messages), on_delta)


def _tool(name: str, story: Story) -> FunctionTool[Any, Any]:
    def work(context: ToolContext) -> str:
        story.note("effects", f"{name} {context.idempotency_key}")
        if name.endswith("suspends"):
            story.control.suspend()
        if name == "fails":
            raise ValueError("as it always does")
        return f"{name} done"

    return FunctionTool(work, name=name, description=f"Does {name}", parallel=name.startswith("p"))


def state_directory(victim: Command) -> str:
    return os.path.join(victim.directory, "state", "runs")


STORY = Story()
TOOLS = [_tool(name, STORY) for name in ("a", "b", "c", "d", "fails", "suspends", "p", "p-suspends")]
"""Made before the forks: describing a function takes longer than a run."""


async def _work(victim: Victim, store: FileStore) -> dict[str, Any]:
    agent = Agent("scripted", provider=_Model(WORKLOADS[victim.workload], STORY), tools=TOOLS, store=store)
    recorded = _recorded(victim)
    if recorded is None:
        result = await agent.run(
            _prompt(victim),
            checkpoint=True,
            name=RUN,
            interactive=victim.workload == "chat",
            input_source=NextLine(len(FOLLOW_UPS)),
            control=STORY.control,
            on_event=STORY.told,
        )
    else:
        result = await agent.resume(
            RUN,
            ResumeOptions(on_crash=victim.on_crash),
            input_source=NextLine(recorded),
            control=STORY.control,
            on_event=STORY.told,
        )
    problem = result.storage_error and str(result.storage_error)
    if problem is None:
        STORY.note("story", "acked end")
    return {"reason": result.reason, "answer": result.answer, "storage_error": problem}


def _prompt(victim: Victim) -> str:
    """Return what the run is to be about: the file `prompt` of its directory, or something short."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(victim.directory, "prompt")) as file:
        return file.read()
    return "Count the sheep."


def _recorded(victim: Victim) -> int | None:
    """Return the number of follow-ups in the journal, or None if there is no run to resume."""
    store = FileStore(state_directory(victim))
    try:
        store.load(RUN)
        return b"".join(store.read_bytes(RUN)).count(b".session.user")
    except FiskError:
        return None


def _run(victim: Victim, thread: DiskThread) -> None:
    store = FileStore(state_directory(victim), disk=OneThreadDisk(thread))
    try:
        outcome = anyio.run(_work, victim, store)
    except FiskError as problem:
        outcome = {"error": problem.code, "text": str(problem)}
    except Exception as problem:  # noqa: BLE001 - told, for the checks to judge
        outcome = {"escaped": f"{type(problem).__name__}: {problem}"}
    STORY.note("outcome", json.dumps(outcome))


def _delete(victim: Victim, thread: DiskThread) -> None:
    outcome = {"reason": "deleted"}
    try:
        FileStore(state_directory(victim), disk=OneThreadDisk(thread)).delete(RUN)
    except FiskError as problem:
        outcome = {"error": problem.code, "text": str(problem)}
    STORY.note("outcome", json.dumps(outcome))


def _command_line(victim: Victim) -> NoReturn:
    sys.argv = ["fisk-ai", *victim.arguments]
    command_line()


def _child(victim: Victim, ready: int, go: int, pipe: int) -> None:
    signal.alarm(victim.patience_s)
    os.chdir(victim.directory)
    _redirect()
    ctypes.CDLL(None).prctl(*_PTRACER, 0, 0, 0)
    thread = DiskThread() if victim.job in ("run", "delete") else None
    os.write(ready, f"{thread.native_id if thread else os.getpid()}\n".encode())
    os.read(go, 1)
    for descriptor in (ready, go):
        os.close(descriptor)
    STORY.pipe = pipe
    STORY.begin(victim)
    if victim.plant:
        _named(victim.plant)()
    _restrict(victim)
    match victim.job, thread:
        case "run", DiskThread():
            _run(victim, thread)
        case "delete", DiskThread():
            _delete(victim, thread)
        case "cli", _:
            _command_line(victim)
        case _:
            STORY.note("outcome", json.dumps(_named(victim.job)(victim)))


def _named(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _redirect() -> None:
    """Let stdout and stderr be files here, and stdin empty."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _restrict(victim: Victim) -> None:
    for name, value in victim.limits.items():
        which = getattr(resource, name)
        resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
    if victim.user is not None:
        os.setgroups([])
        os.setgid(victim.user)
        os.setuid(victim.user)


def _forked(victim: Victim) -> tuple[int, int, int, int]:
    """Fork a child that waits; return its pid, the thread to be traced, where it waits, and what it says."""
    (is_ready, ready), (go, lets_go), (said, says) = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            for descriptor in (is_ready, lets_go, said):
                os.close(descriptor)
            _child(victim, ready, go, says)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - shown as the interpreter would
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):  # a limit may stop even this
                sys.stderr.flush()
            os._exit(code)
    for descriptor in (ready, go, says):
        os.close(descriptor)
    traced = int(os.read(is_ready, 20))
    os.close(is_ready)
    return pid, traced, lets_go, said


def _attached(victim: Victim, traced: int) -> subprocess.Popen[bytes] | None:
    if not victim.strace:
        return None
    strace = subprocess.Popen(["strace", *victim.strace, "-p", str(traced)], stderr=subprocess.PIPE)
    assert strace.stderr is not None
    line = strace.stderr.readline()
    if b"attached" not in line:
        raise RuntimeError(f"strace could not be attached: {line.decode()}")
    return strace


def _struck(victim: Victim) -> int:
    """Run one child to its end and return its wait status."""
    pid, traced, lets_go, said = _forked(victim)
    strace = _attached(victim, traced)
    os.close(lets_go)
    status = os.waitpid(pid, 0)[1]
    if strace is not None:
        strace.communicate()
    with open(said, "rb") as notes:
        _write_down(victim.directory, notes.read())
    return status


def _write_down(directory: str, notes: bytes) -> None:
    files: dict[str, list[str]] = {"story": []}
    for note in notes.splitlines():
        name, text = json.loads(note)
        files.setdefault(name, []).append(text + "\n")
    for name, lines in files.items():
        with open(os.path.join(directory, name), "w" if name in ("outcome", "story") else "a") as file:
            file.writelines(lines)
    with open(os.path.join(directory, "stories"), "a") as file:
        file.writelines(files["story"])


def _warm_up() -> None:
    """Import what the command line needs, by running it: it takes time in each child, or is closed to another user."""
    from fisk_ai.cli import terminal
    from fisk_ai.cli.commands import run_command_line

    agent = {
        "llm": {"provider": "scripted", "script": "script.yaml"},
        "tools": {"commands": [{"name": "a", "description": "a", "argv": ["true"]}]},
    }
    commands = [["run", "go", "--checkpoint", "--name", "r"], ["session", "ls"], ["session", "show", "r"]]
    commands += [["session", "verify", "r"], ["run", "--resume", "r"]]
    kept = [os.dup(number) for number in range(3)]
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        _redirect()
        for name, content in (("agent.yaml", agent), ("script.yaml", [{"calls": [{"name": "a"}]}, {"text": "Done."}])):
            with open(name, "w", encoding="utf-8") as file:
                json.dump(content, file)
        for arguments in commands:
            run_command_line([*arguments, "--state-dir", "state"])
            terminal.flush()
            terminal.stdout.release()
            sys.stdout = sys.__stdout__
        os.chdir(ROOT)
    for number, original in enumerate(kept):
        os.dup2(original, number)
        os.close(original)


def main() -> None:
    if "--command-line" in sys.argv:
        _warm_up()
    anyio.run(anyio.sleep, 0)
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        print(_struck(msgspec.json.decode(line, type=Victim)), flush=True)


if __name__ == "__main__":
    main()
