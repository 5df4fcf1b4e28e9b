"""L. Counters and limits: B81."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent
from fisk_ai.agent.control import Control
from fisk_ai.agent.decide import Budget
from fisk_ai.folding import Counters
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.stores import FileStore
from tests.agent.bench import ANSWER, RUN, Crash, Effects, calling, effect_tools, said
from tests.cases import processes_bench
from tests.cases.processes_bench import Desk, forks
from tests.cli.bench import NOTE_TOOL

pytestmark = forks
desk = processes_bench.desk

USAGE = [(100, 10, 1, 1000), (200, 20, 2, 2000), (300, 30, 3, 3000)]
"""Input, output, cache read, cache creation: any two sums differ."""
TURNS = [calling("a"), calling("b"), ANSWER]


class Metered(ScriptedProvider):
    """Reports the usage above."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        reply = await super().complete(request, on_delta)
        given, made, read, created = USAGE[request.iteration]
        return replace(reply, in_tokens=given, out_tokens=made, cache_read_tokens=read, cache_create_tokens=created)


def after(turns: int, tool_calls: int) -> Counters:
    """The totals after so many turns."""
    sums = [sum(column) for column in zip(*USAGE[:turns], strict=True)]
    return Counters(turns, tool_calls, *sums)


def agent(tmp_path: Path, provider: Metered, budget: Budget | None = None) -> Agent:
    """An agent as a new process would make it."""
    tmp_path.mkdir(exist_ok=True)
    store = FileStore(str(tmp_path / "runs"))
    return Agent(
        "scripted",
        provider=provider,
        tools=effect_tools(Effects(tmp_path / "effects"), "ab"),
        store=store,
        budget=budget,
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def segment(agent: Agent, how: str) -> None:
    """Start or resume the run, and stop it when its next turn has been recorded."""
    control = Control()

    def stop(event: events.Event) -> None:
        if isinstance(event, events.TurnRecorded):
            if how == "crash":
                raise Crash
            control.suspend()

    begun = agent.store.run_ids()
    start = (
        agent.resume(RUN, control=control, on_event=stop)
        if begun
        else agent.run("go", checkpoint=True, name=RUN, control=control, on_event=stop)
    )
    try:
        result = await start
    except Crash:
        return
    assert result.counters == agent.store.load(RUN).counters


@pytest.mark.anyio
@pytest.mark.parametrize("stops", list(itertools.product(["suspend", "crash"], repeat=3)), ids=" ".join)
async def test_b81_totals_count_each_turn_once_over_any_stops(tmp_path: Path, stops: tuple[str, ...]) -> None:
    """After a resume the totals showed only the new part, or the old part twice.

    UKGovernmentBEIS/inspect_ai#2628, multica-ai/multica#5568, gitmoot/gitmoot#661
    """
    provider = Metered(TURNS)
    for number, how in enumerate(stops):
        await segment(agent(tmp_path, provider), how)
        calls = {0: 0, 1: 1, 2: 2}[number]
        assert agent(tmp_path, provider).store.load(RUN).counters == after(number + 1, calls)
    state = agent(tmp_path, provider).store.load(RUN)
    if state.terminal is None:  # the crash came between the answer and its end
        result = await agent(tmp_path, provider).resume(RUN)
        assert (result.reason, result.counters, result.iterations) == ("completed", after(3, 2), 3)
    state = agent(tmp_path, provider).store.load(RUN)
    assert (state.counters.in_tokens, state.counters.out_tokens) == (600, 60)
    assert (state.counters.cache_read_tokens, state.counters.cache_create_tokens) == (6, 6000)
    assert [request.iteration for request in provider.requests] == [0, 1, 2], "no turn was paid for twice"

    twin = Metered(TURNS)
    undisturbed = await agent(tmp_path / "twin", twin).run("go")
    assert undisturbed.counters == state.counters
    assert list(map(said, twin.requests)) == list(map(said, provider.requests))


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["suspend", "crash"])
@pytest.mark.parametrize("limit", ["tokens", "iterations"])
async def test_b81_the_first_check_after_a_resume_uses_the_whole_total(tmp_path: Path, how: str, limit: str) -> None:
    """The sibling: a limit that began anew with each resume. gitmoot/gitmoot#661"""
    used = after(2, 1)
    budget = Budget(max_tokens=used.total_tokens) if limit == "tokens" else Budget(max_iterations=2)
    provider = Metered(TURNS)
    for _ in range(2):
        await segment(agent(tmp_path, provider, budget), how)
    result = await agent(tmp_path, provider, budget).resume(RUN)
    assert result.reason == {"tokens": "budget", "iterations": "max_iterations"}[limit]
    assert result.counters == after(2, 2), "calls that were made are answered first"
    assert len(provider.requests) == 2

    more = Budget(max_tokens=used.total_tokens + 1) if limit == "tokens" else Budget(max_iterations=3)
    provider = Metered(TURNS)
    for _ in range(2):
        await segment(agent(tmp_path / "more", provider, more), how)
    assert (await agent(tmp_path / "more", provider, more).resume(RUN)).reason == "completed"


def test_b81_what_commands_show_is_the_total_too(desk: Desk) -> None:
    """Whoever asks is told the same. multica-ai/multica#5568"""
    step = {"calls": [{"name": "note", "input": {"what": "a"}}]}
    turns: list[dict[str, Any]] = [
        {**turn, "in_tokens": given, "out_tokens": made}
        for turn, (given, made, *_) in zip([step, step, ANSWER], USAGE, strict=True)
    ]
    suspends = {**NOTE_TOOL, "argv": ["sh", "-c", "kill -TERM $PPID; : {what}"]}
    desk.agent(turns, [suspends])
    assert desk.does("run", "--checkpoint", "--name", "r", "hello").code == 3
    assert desk.does("run", "--resume", "r").code == 3
    shown = desk.does("session", "show", "r", "--json").data
    assert (shown["counters"]["in_tokens"], shown["counters"]["out_tokens"]) == (300, 30)
    last = desk.does("run", "--resume", "r", "--output", "json")
    assert last.code == 0
    for counters in (
        json.loads(last.out)["counters"],
        desk.does("session", "show", "r", "--json").data["counters"],
        desk.does("session", "ls", "--usage", "--json").data[0]["counters"],
    ):
        assert (counters["in_tokens"], counters["out_tokens"], counters["model_calls"]) == (600, 60, 3)
        assert counters["total_tokens"] == 660
    assert " 660 " in desk.does("session", "ls", "--usage").text
