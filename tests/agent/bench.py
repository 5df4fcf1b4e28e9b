"""The bench of the loop's tests: a scripted model, tools that count effects in a file, and an undisturbed twin."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.events import Event, RunResult
from fisk_ai.agent.input import EndOfChat, EndOfInput, Input, Line
from fisk_ai.folding import RunState
from fisk_ai.providers.base import ModelRequest
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.records import MetaRecord, Record, TerminalRecord
from fisk_ai.stores.base import Journal, Store
from fisk_ai.stores.memory import MemoryStore
from fisk_ai.tools.base import OnCrash, ToolContext
from fisk_ai.tools.function import FunctionTool

RUN = "orders-report"
Turns = Sequence[Mapping[str, Any]]


class Crash(BaseException):
    """Stands for the death of the process: nothing may catch it."""


class Effects:
    """A file that gets a line whenever a tool has its effect; it survives any crash."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, name: str, key: str = "-") -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{name} {key}\n".encode())
        finally:
            os.close(descriptor)

    @property
    def lines(self) -> list[tuple[str, str]]:
        if not self.path.exists():
            return []
        return [(name, key) for name, key in (line.split() for line in self.path.read_text().splitlines())]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.lines]


def effect_tool(
    name: str,
    effects: Effects,
    *,
    dies: bool = False,
    on_crash: OnCrash = "rerun",
    parallel: bool = False,
) -> FunctionTool[Any, Any]:
    """A tool that has its effect and says so; with `dies` the process dies right after it."""

    def work(context: ToolContext, what: str = "") -> str:
        effects.note(name, context.idempotency_key)
        if dies:
            raise Crash
        return f"{name} did {what or 'it'}"

    return FunctionTool(work, name=name, description=f"Does {name}", on_crash=on_crash, parallel=parallel)


def effect_tools(effects: Effects, names: str = "abcde", **how: Any) -> list[FunctionTool[Any, Any]]:
    return [effect_tool(name, effects, **how) for name in names]


def calling(*names: str, **more: Any) -> dict[str, Any]:
    """A turn that calls tools."""
    return {"calls": [{"name": name} for name in names], **more}


ANSWER: Mapping[str, Any] = {"text": "All is well."}


@dataclass(slots=True)
class Bench:
    """Agents over one store and one script; each agent stands for a process of its own."""

    turns: Turns
    effects: Effects
    store: Store
    requests: list[ModelRequest]
    """Of all processes, in order."""
    events: list[Event]
    hook: Callable[[Event], None] | None = None
    """Called with each event; may ask for a suspend, or crash."""

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        if self.hook is not None:
            self.hook(event)

    def agent(self, tools: Iterable[Any] | None = None, *, turns: Turns | None = None, **options: Any) -> Agent:
        provider = ScriptedProvider(self.turns if turns is None else turns)
        provider.requests = self.requests
        return Agent(
            "scripted",
            provider=provider,
            system_prompt="Be brief.",
            tools=effect_tools(self.effects) if tools is None else tools,
            store=self.store,
            **options,
        )

    async def run(self, agent: Agent | None = None, **options: Any) -> RunResult:
        return await (agent or self.agent()).run("go", checkpoint=True, name=RUN, on_event=self.on_event, **options)

    async def resume(self, agent: Agent | None = None, *arguments: Any, **options: Any) -> RunResult:
        return await (agent or self.agent()).resume(RUN, *arguments, on_event=self.on_event, **options)

    @property
    def state(self) -> RunState:
        return self.store.load(RUN)

    @property
    def bytes(self) -> bytes:
        return b"".join(self.store.read_bytes(RUN))

    def journal(self) -> Journal:
        return self.store.open(RUN)

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def bench(effects: Effects, *turns: Mapping[str, Any], store: Store | None = None) -> Bench:
    return Bench(turns, effects, store or MemoryStore(), [], [])


def said(request: ModelRequest) -> list[bytes]:
    """The conversation of a request, as bytes."""
    return [message.content for message in request.messages]


async def twin_of(stopped: Bench, tmp_path: Path, **options: Any) -> Bench:
    """The same script, run without any stop."""
    twin = bench(Effects(tmp_path / "twin-effects"), *stopped.turns)
    await twin.run(**options)
    return twin


def at_event(number: int, do: Callable[[], None]) -> Callable[[Event], None]:
    """A hook that does something at the `number`-th event (from 1)."""
    seen = itertools.count(1)

    def hook(_event: Event) -> None:
        if next(seen) == number:
            do()

    return hook


def crash() -> None:
    raise Crash


def records_of(bench: Bench) -> list[Record]:
    with bench.journal() as journal:
        return [each.record for each in journal.records()]


def plant(bench: Bench, records: Iterable[Record]) -> None:
    """Write a journal record by record, as if its runner had died after the last one."""
    meta, *rest = records
    assert isinstance(meta, MetaRecord)
    with bench.store.create(RUN, meta) as journal:
        for record in rest:
            journal.append(record)


def assert_same_as(stopped: Bench, twin: Bench) -> None:
    """A stopped and resumed run can't be told from its undisturbed twin."""
    ours, theirs = stopped.state, twin.state
    assert ours.messages == theirs.messages
    assert ours.counters == theirs.counters
    assert ours.last_turn is not None
    assert theirs.last_turn is not None
    assert ours.last_turn.text == theirs.last_turn.text
    for request in stopped.requests:
        assert said(request) == said(twin.requests[request.iteration])
        assert (request.system_prompt, request.tools) == (
            twin.requests[request.iteration].system_prompt,
            twin.requests[request.iteration].tools,
        )


def end_of(state: RunState) -> str | None:
    """The reason of the last record, `resumed` for a resume mark."""
    terminal: TerminalRecord | None = state.terminal
    return None if terminal is None else "resumed" if terminal.resumed else terminal.reason


class Typed:
    """A chat's input: these lines, then its end."""

    def __init__(self, *lines: str | EndOfChat) -> None:
        self._lines = list(lines)

    async def read(self) -> Input:
        if not self._lines:
            return EndOfInput()
        line = self._lines.pop(0)
        return line if isinstance(line, EndOfChat) else Line(line)
