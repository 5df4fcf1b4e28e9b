"""One agent run over many processes: what each of them does, and what the world outside of the disk remembers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from unittest import mock

import anyio

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.agent.control import Control
from fisk_ai.agent.decide import Budget
from fisk_ai.agent.input import EndOfInput, Input, Line
from fisk_ai.errors import FiskError, NothingRecorded, ProviderRefused, RunNotFound
from fisk_ai.folding import RunState
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.records import MetaRecord, Record, UserRecord
from fisk_ai.stores.base import Journal
from fisk_ai.stores.disk import Disk
from fisk_ai.stores.file import FileJournal, FileStore
from fisk_ai.tools.base import OnCrash, ToolContext
from fisk_ai.tools.function import FunctionTool
from tests.reliability.simulated_disk import PowerCut, SimulatedDisk

T = TypeVar("T")

RUN = "r7"
PLACE = "/home/state/runs"
JOURNAL_PATH = "home/state/runs/r7.json"
TORN_PATH = "home/state/runs/r7.torn"
MOMENT = datetime(2026, 12, 1, 3, 21, 7, 456000, tzinfo=UTC)
BASE: Mapping[str, None] = {"home": None}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """A tool that has its effect, and then answers or fails."""

    name: str
    on_crash: OnCrash = "rerun"
    parallel: bool = False
    fails: bool = False
    says: str = ""
    """Instead of naming itself."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a run would do if nothing happened to it."""

    turns: Sequence[Mapping[str, Any]]
    tools: Sequence[ToolPlan]
    follow_ups: Sequence[str] = ()
    max_iterations: int = 50
    """The first budget; who resumes after its end raises it."""
    suspend_at: Sequence[int] = ()
    """For the first processes of a recording: the event at which each is asked to suspend."""

    @property
    def is_chat(self) -> bool:
        return bool(self.follow_ups)


@dataclass(slots=True)
class Life:
    """How one process behaves."""

    suspend_at: int | None = None
    """The event at which an operator asks for a suspend."""
    provider_fails_at: int | None = None
    """The model call (from 1) that is refused."""
    lines: int = 1
    """How many follow-ups are typed before the input ends."""
    system_prompt: str = "Be brief."
    options: ResumeOptions = field(default_factory=ResumeOptions)
    max_iterations: int = 50


@dataclass(slots=True)
class World:
    """What happened outside of the disk; no crash takes it back."""

    effects: list[tuple[str, str]] = field(default_factory=list)
    """Tool and idempotency key, in order."""
    requests: list[tuple[int, str]] = field(default_factory=list)
    """Iteration and digest of the conversation of each model call, in order."""
    acknowledged: int = 0
    """The last seq that an append returned."""
    mark: Callable[[str, str], None] = lambda _kind, _value: None
    """Told of effects (by key) and acknowledged seqs as they happen."""

    def had_effect(self, tool: str, key: str) -> None:
        self.effects.append((tool, key))
        self.mark("effect", key)

    def promised(self, seq: int) -> None:
        self.acknowledged = seq
        self.mark("acknowledged", str(seq))


class PromisingStore(FileStore):
    """The file store; the world is told of each append that returns."""

    def __init__(self, disk: Disk, world: World) -> None:
        super().__init__(PLACE, disk=disk, clock=lambda: MOMENT)
        self._world = world

    def create(self, run_id: str, meta: MetaRecord) -> FileJournal:
        journal = super().create(run_id, meta)
        self._world.promised(1)
        return self._watched(journal)

    def adopt(self, run_id: str, lines: Sequence[bytes]) -> None:
        super().adopt(run_id, lines)
        self._world.promised(len(lines))

    def open(self, run_id: str) -> FileJournal:
        return self._watched(super().open(run_id))

    def _watched(self, journal: FileJournal) -> FileJournal:
        append = journal.append_payload

        def noted(key: str, payload: bytes) -> int:
            seq = append(key, payload)
            self._world.promised(seq)
            return seq

        journal.append_payload = noted  # type: ignore[method-assign]
        return journal


class _Model(ScriptedProvider):
    def __init__(self, scenario: Scenario, world: World, life: Life) -> None:
        super().__init__(scenario.turns, keep_requests=False)
        self._world = world
        self._fails_at = life.provider_fails_at
        self._calls = itertools.count(1)

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        said = b"\n".join(message.content for message in request.messages)
        self._world.requests.append((request.iteration, hashlib.sha256(said).hexdigest()))
        if next(self._calls) == self._fails_at:
            raise ProviderRefused("not now")
        return await super().complete(request, on_delta)


@dataclass(slots=True)
class _Operator:
    """Types the first follow-up that is not journaled yet, a few times, and leaves."""

    scenario: Scenario
    machine: SimulatedDisk
    lines: int

    async def read(self) -> Input:
        recorded = follow_ups_recorded(self.machine)
        if not self.lines or recorded == len(self.scenario.follow_ups):
            return EndOfInput()
        self.lines -= 1
        return Line(self.scenario.follow_ups[recorded])


_world: ContextVar[World] = ContextVar("the world that a tool has its effect on")


@functools.cache
def _tool(plan: ToolPlan) -> FunctionTool[Any, Any]:
    """Make a tool, once: describing one to a model takes longer than a simulated run."""

    async def work(context: ToolContext, what: str = "") -> str:
        _world.get().had_effect(plan.name, context.idempotency_key)
        if plan.fails:
            raise ValueError("as it always does")
        return plan.says or f"{plan.name} did {what or 'it'}"

    return FunctionTool(
        work, name=plan.name, description=f"Does {plan.name}", on_crash=plan.on_crash, parallel=plan.parallel
    )


def observe(disk: Disk) -> RunState | None:
    """Look at the run as any reader may; None if there is none."""
    try:
        return FileStore(PLACE, disk=disk).load(RUN)
    except (RunNotFound, NothingRecorded):
        return None


def follow_ups_recorded(machine: SimulatedDisk) -> int:
    """Count what was typed and journaled, as the cache shows it."""
    with machine.without_faults():
        records = FileStore(PLACE, disk=machine).read(RUN).records
    return sum(isinstance(each.record, UserRecord) for each in records)


def is_done(scenario: Scenario, disk: SimulatedDisk) -> bool:
    """Tell whether a run has come to its last end."""
    state = observe(disk)
    if state is None or state.terminal is None or state.pending is not None:
        return False
    if not scenario.is_chat:
        return state.terminal.reason == "completed"
    recorded = follow_ups_recorded(disk)
    is_answered = state.answered and state.last_stop_reason != "pause_turn"
    return state.terminal.reason == "suspended" and is_answered and recorded == len(scenario.follow_ups)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended."""

    result: events.RunResult | None = None
    problem: FiskError | None = None
    lost_power: bool = False
    found: RunState | None = None
    """The run as a resume found it: what a reader saw before may have been in the cache only."""

    @property
    def reason(self) -> str:
        """The reason, or the error's code."""
        if self.result is not None:
            return self.result.reason
        return "lost power" if self.problem is None else self.problem.code


def live(scenario: Scenario, world: World, machine: SimulatedDisk, life: Life, disk: Disk | None = None) -> Ending:
    """Start the run, or resume it if it is there, as a process of its own would.

    `disk` is the machine's as the process sees it, if that is another (a recording one).
    """
    _world.set(world)
    with machine.without_faults():
        is_there = observe(machine) is not None
    agent = Agent(
        "scripted",
        provider=_Model(scenario, world, life),
        system_prompt=life.system_prompt,
        tools=[_tool(plan) for plan in scenario.tools],
        budget=Budget(max_iterations=life.max_iterations),
        store=PromisingStore(disk or machine, world),
    )
    control = Control()
    count = itertools.count(1)
    found: list[RunState] = []

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.RunResumed):
            found.append(event.state)
        if next(count) == life.suspend_at:
            control.suspend()

    steering: dict[str, Any] = {
        "control": control,
        "on_event": on_event,
        "input_source": _Operator(scenario, machine, life.lines),
    }

    async def work() -> events.RunResult:
        if is_there:
            return await agent.resume(RUN, life.options, **steering)
        return await agent.run("go", checkpoint=True, name=RUN, interactive=scenario.is_chat, **steering)

    ending = _end_of(work)
    return replace(ending, found=found[0] if found else None)


def _end_of(work: Callable[[], Awaitable[events.RunResult]]) -> Ending:
    try:
        return Ending(result=anyio.run(work))
    except FiskError as problem:
        return Ending(problem=problem)
    except BaseException as problem:
        if not _is_power_cut(problem):
            raise
        return Ending(lost_power=True)


def _is_power_cut(problem: BaseException) -> bool:
    if isinstance(problem, BaseExceptionGroup):
        return all(_is_power_cut(each) for each in problem.exceptions)
    return isinstance(problem, PowerCut)


def finish(scenario: Scenario, world: World, disk: SimulatedDisk) -> SimulatedDisk:
    """Resume in new processes, undisturbed, until the run is at its end."""
    for _ in range(len(scenario.follow_ups) + 5):
        if is_done(scenario, disk):
            return disk
        ending = live(scenario, world, disk, Life(options=ResumeOptions(force=True, on_crash="rerun")))
        if world.acknowledged or not isinstance(ending.problem, NothingRecorded):  # a start that failed: start again
            assert ending.problem is None, f"an undisturbed process failed: {ending.problem}"
        disk = disk.restart()
    raise AssertionError("nothing disturbs the run, and it doesn't end")


class _InlineWriter:
    """Stands for `JournalWriter`: the same calls, in the event loop's own thread, so that a seed repeats exactly."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    async def append(self, record: Record) -> int:
        return self.journal.append(record)

    async def call(self, work: Callable[[], T]) -> T:
        return work()

    def stop(self) -> None:
        """There is nothing to stop."""


async def _inline(work: Callable[[], T]) -> T:
    return work()


@contextlib.contextmanager
def fixed_time() -> Iterator[None]:
    """Stop the clocks, so that a run's bytes depend on nothing outside."""
    with (
        mock.patch("fisk_ai.agent.loop.time", mock.Mock(monotonic=lambda: 0.0)),
        mock.patch("fisk_ai.agent.agent.utc_now", return_value=MOMENT),
    ):
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run everything in one thread and with stopped clocks: what happens depends on the seed alone."""
    with (
        fixed_time(),
        mock.patch("fisk_ai.agent.agent.JournalWriter", _InlineWriter),
        mock.patch("fisk_ai.agent.agent.never_abandoned", _inline),
        _quiet_loops(),
    ):
        yield


@contextlib.contextmanager
def _quiet_loops() -> Iterator[None]:
    """Keep asyncio from reporting tasks that a power cut left with an exception that nobody fetched."""
    with mock.patch.object(asyncio.BaseEventLoop, "call_exception_handler"):
        yield


def calling(*names: str, **more: Any) -> dict[str, Any]:
    """A turn that calls tools; its ids are the same in each turn."""
    return {"calls": [{"name": name, "id": f"call_{at}"} for at, name in enumerate(names)], **more}


def random_scenario(rng: random.Random) -> Scenario:
    """Draw what an agent does."""
    policies: Sequence[OnCrash] = ("rerun", "rerun", "ask", "skip")
    tools = [ToolPlan(name, on_crash=rng.choice(policies), fails=name == "d") for name in "abcd"]
    tools += [ToolPlan(name, parallel=True) for name in "pq"]
    follow_ups = [f"more {at}" for at in range(rng.choice((0, 0, 1, 2)))]
    turns: list[dict[str, Any]] = []
    for at in range(len(follow_ups) + 1):
        for _ in range(rng.randint(0, 3)):
            turns.append(_random_turn(rng))
        turns.append({"text": f"Answer {at}."})
    return Scenario(turns, tools, follow_ups, max_iterations=rng.choice((50, 50, 50, 50, 1, 3)))


def _random_turn(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.1:
        return {"text": "Hm.", "stop_reason": "pause_turn"}
    names = [rng.choice(("a", "b", "c", "d", "p", "q", "gone")) for _ in range(rng.randint(1, 4))]
    stop_reason = {"stop_reason": "max_tokens"} if rng.random() < 0.08 else {}
    text = {"text": "x" * rng.choice((3, 30, 700))} if rng.random() < 0.5 else {}
    return calling(*names, **stop_reason, **text)
