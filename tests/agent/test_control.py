"""Stopping a run from outside: from the loop, from another thread, before it starts, and at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent
from fisk_ai.agent.control import Control
from fisk_ai.agent.input import Input
from fisk_ai.errors import ProviderUnreachable, RunAborted
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.retry import RetryPolicy
from fisk_ai.stores.base import Orphan
from fisk_ai.stores.file import FileStore
from fisk_ai.stores.memory import MemoryJournal
from fisk_ai.tools.base import ToolContext
from fisk_ai.tools.function import FunctionTool
from tests.agent.bench import ANSWER, Bench, Crash, Effects, bench, calling, effect_tool, effect_tools, end_of
from tests.agent.disks import WatchedDisk

pytestmark = pytest.mark.anyio


def from_the_loop(do: Callable[[], None]) -> None:
    do()


def from_a_thread(do: Callable[[], None]) -> None:
    threading.Thread(target=do, daemon=True).start()


WAYS = pytest.mark.parametrize("way", [from_the_loop, from_a_thread])


class Failing:
    """A model that can't be reached."""

    name = "scripted"
    format = "anthropic"

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        raise ProviderUnreachable("no route", retryable=True)

    async def aclose(self) -> None:
        pass


class Hanging(Failing):
    """A model that never answers."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        await anyio.sleep_forever()
        raise AssertionError


def on(kind: type[events.Event], do: Callable[[], None], way: Callable[[Callable[[], None]], None]) -> Any:
    def hook(event: events.Event) -> None:
        if isinstance(event, kind):
            way(do)

    return hook


def with_model(stage: Bench, provider: Any, **options: Any) -> Agent:
    return Agent(
        "scripted",
        provider=provider,
        system_prompt="Be brief.",
        tools=effect_tools(stage.effects),
        store=stage.store,
        **options,
    )


@WAYS
async def test_a_suspend_leaves_a_retry_pause_at_once(effects: Effects, way: Any) -> None:
    stage = bench(effects, ANSWER)
    control = Control()
    stage.hook = on(events.ModelRetried, control.suspend, way)
    patient = RetryPolicy(first_wait_s=60.0, longest_wait_s=60.0)
    with anyio.fail_after(5):
        result = await stage.run(with_model(stage, Failing(), retry=patient), control=control)
    assert (result.reason, end_of(stage.state)) == ("suspended", "suspended")
    stage.hook = None
    assert (await stage.resume()).answer == ANSWER["text"]


class NeverTyped:
    """An operator who says nothing."""

    async def read(self) -> Input:
        await anyio.sleep_forever()
        raise AssertionError


@WAYS
async def test_a_suspend_leaves_the_input_line_at_once(effects: Effects, way: Any) -> None:
    stage = bench(effects, ANSWER)
    control = Control()
    stage.hook = on(events.InputAwaited, control.suspend, way)
    with anyio.fail_after(5):
        result = await stage.run(interactive=True, input_source=NeverTyped(), control=control)
    assert (result.reason, result.input_ended, end_of(stage.state)) == ("suspended", False, "suspended")


@WAYS
async def test_a_suspend_lets_the_running_tool_end_and_keeps_its_result(effects: Effects, way: Any) -> None:
    control = Control()
    asked = threading.Event()

    def slow(context: ToolContext) -> str:
        assert asked.wait(5)
        effects.note("slow", context.idempotency_key)
        return "done"

    def ask() -> None:
        control.suspend()
        asked.set()

    stage = bench(effects, calling("slow", "slow"), ANSWER)
    agent = stage.agent([FunctionTool(slow, description="Is slow")])
    stage.hook = on(events.ToolStarted, ask, way)
    result = await stage.run(agent, control=control)
    assert (result.reason, effects.names) == ("suspended", ["slow"])
    stage.hook = None
    await stage.resume(agent)
    assert effects.names == ["slow", "slow"]
    assert len({key for _, key in effects.lines}) == 2


async def test_a_suspend_before_the_start_leaves_a_run_that_can_be_resumed(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    control = Control()
    control.suspend()
    assert (await stage.run(control=control)).reason == "suspended"
    assert stage.requests == []
    assert (await stage.resume()).reason == "completed"


@WAYS
async def test_an_abort_ends_a_hanging_model_call_and_writes_nothing_more(effects: Effects, way: Any) -> None:
    stage = bench(effects, ANSWER)
    control = Control()
    stage.hook = on(events.ModelCalled, control.abort, way)
    with anyio.fail_after(5), pytest.raises(RunAborted) as caught:
        await stage.run(with_model(stage, Hanging()), control=control)
    assert caught.value.exit_code == 130
    assert end_of(stage.state) is None
    stage.hook = None
    assert (await stage.resume()).reason == "completed"


@pytest.mark.parametrize("parallel", [False, True])
async def test_an_abort_during_an_append_lets_nothing_start_after_it(effects: Effects, parallel: bool) -> None:
    """Appends are shielded; what follows one is not."""
    stage = bench(effects, calling("a", "b", "c"), ANSWER)
    control = Control()
    stage.hook = on(events.ToolFinished, control.abort, from_the_loop)
    with pytest.raises(RunAborted):
        await stage.run(stage.agent(effect_tools(effects, "abc", parallel=parallel)), control=control)
    assert len(stage.requests) == 1
    if not parallel:
        assert effects.names == ["a"]
    assert end_of(stage.state) is None


@pytest.mark.parametrize("kind", [events.RunStarted, events.TurnRecorded, events.ModelCalled, events.RunResumed])
async def test_after_an_abort_nothing_is_appended(effects: Effects, kind: Any) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    if kind is events.RunResumed:
        before = Control()
        before.suspend()
        await stage.run(control=before)
    control = Control()
    sizes: list[int] = []

    def abort() -> None:
        sizes.append(len(stage.bytes))
        control.abort()

    stage.hook = on(kind, abort, from_the_loop)
    go = stage.resume if kind is events.RunResumed else stage.run
    with pytest.raises(RunAborted):
        await go(control=control)
    assert sizes == [len(stage.bytes)]
    assert effects.names == []


async def test_an_abort_while_the_end_is_taken_back_starts_no_call(tmp_path: Path, effects: Effects) -> None:
    async def work() -> str:
        effects.note("work")
        return "done"

    disk = WatchedDisk()
    stage = bench(effects, calling("work"), ANSWER, store=FileStore(str(tmp_path / "runs"), disk=disk))
    tools = [FunctionTool(work, description="Works")]
    before, control = Control(), Control()
    stage.hook = on(events.TurnRecorded, before.suspend, from_the_loop)
    await stage.run(stage.agent(tools), control=before)
    stage.hook = None
    disk.before = lambda happening: control.abort() if happening == "write terminal" else None
    with pytest.raises(RunAborted):
        await stage.resume(stage.agent(tools), control=control)
    assert effects.names == []
    assert end_of(stage.state) == "resumed"


async def test_an_abort_before_the_start_does_nothing_at_all(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    control = Control()
    control.abort()
    with pytest.raises(RunAborted):
        await stage.run(control=control)
    assert stage.requests == []
    assert stage.told(events.ModelCalled) == []


async def test_an_abort_of_a_run_in_memory_says_that_nothing_was_stored(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    control = Control()
    control.abort()
    with pytest.raises(RunAborted, match="nothing of it was stored"):
        await stage.agent().run("go", control=control)


async def test_a_control_steers_one_run_at_a_time_and_another_one_after_it(effects: Effects) -> None:
    control = Control()
    started = anyio.Event()
    stage = bench(effects, ANSWER)
    stage.hook = on(events.ModelCalled, started.set, from_the_loop)
    async with anyio.create_task_group() as group:

        async def first() -> None:
            await stage.run(with_model(stage, Hanging()), control=control)

        group.start_soon(first)
        await started.wait()
        with pytest.raises(RuntimeError, match="one run at a time"):
            await stage.agent().run("go", control=control)
        group.cancel_scope.cancel()
    assert (await stage.agent().run("go", control=control)).reason == "completed"


async def test_a_control_may_be_used_when_its_run_has_ended(effects: Effects) -> None:
    control = Control()
    await bench(effects, ANSWER).run(control=control)
    control.suspend()
    await to_thread.run_sync(control.abort)


def test_a_control_may_be_used_when_the_loop_has_ended(effects: Effects) -> None:
    control = Control()
    with_listener: list[Any] = []

    async def main() -> None:
        with control.listening(lambda: None):
            with_listener.append(control._listener)

    anyio.run(main)
    control._listener = with_listener[0]  # as a thread sees it that looked just before the end
    thread = threading.Thread(target=control.suspend)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert control.suspend_requested


@pytest.mark.parametrize("abort", [False, True])
async def test_the_wait_for_a_tool_of_the_dead_runner_is_left_at_once(
    effects: Effects, abort: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    with pytest.raises(Crash):
        await stage.run(stage.agent([effect_tool("a", effects, dies=True)]))
    before = stage.bytes
    monkeypatch.setattr(MemoryJournal, "find_orphans", lambda _self: [Orphan("a", 1, is_same=False)])
    control = Control()
    stage.hook = on(events.OrphanFound, control.abort if abort else control.suspend, from_a_thread)
    agent = stage.agent([effect_tool("a", effects)])
    started = time.monotonic()
    if abort:
        with pytest.raises(RunAborted):
            await stage.resume(agent, control=control)
    else:
        assert (await stage.resume(agent, control=control)).reason == "suspended"
    assert time.monotonic() - started < 5
    assert stage.bytes == before
    assert effects.names == ["a"]
