"""Runs as streams of events, and without an event loop."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from fisk_ai.agent import events
from fisk_ai.agent.agent import RunStream
from fisk_ai.agent.control import Control
from fisk_ai.errors import ConfigError, RunAborted
from tests.agent.bench import ANSWER, RUN, Effects, bench, calling, end_of


@pytest.mark.anyio
async def test_a_stream_gives_the_events_in_order_and_then_the_result(effects: Effects) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    async with stage.agent().stream("go", checkpoint=True, name=RUN) as run:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = run.result
        seen = [type(event).__name__ async for event in run]
    assert seen == [
        *("RunStarted", "ModelCalled", "TurnRecorded", "ToolStarted", "ToolFinished"),
        *("ModelCalled", "TextStreamed", "TurnRecorded", "RunEnded"),
    ]
    assert (run.result.reason, run.result.answer) == ("completed", ANSWER["text"])


@pytest.mark.anyio
async def test_leaving_a_stream_early_cancels_the_run_and_a_resume_streams_on(effects: Effects) -> None:
    stage = bench(effects, calling("a"), {**ANSWER, "delay": 60})
    async with stage.agent().stream("go", checkpoint=True, name=RUN) as run:
        async for event in run:
            if isinstance(event, events.ModelCalled) and event.iteration == 1:
                break
    assert end_of(stage.state) is None
    stage.turns = [calling("a"), ANSWER]
    async with stage.agent().stream_resume(RUN) as run:
        kinds = [type(event) async for event in run]
    assert kinds[0] is events.RunResumed
    assert run.result.reason == "completed"
    assert effects.names == ["a"]


async def read_all(opened: AbstractAsyncContextManager[RunStream], *, problem: Exception | None = None) -> None:
    async with opened as run:
        async for _ in run:
            if problem is not None:
                raise problem


@pytest.mark.anyio
async def test_what_ends_a_run_is_raised_where_its_events_are_read(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    with pytest.raises(ConfigError, match="prompt is empty"):
        await read_all(stage.agent().stream(" "))
    control = Control()
    control.abort()
    with pytest.raises(RunAborted):
        await read_all(stage.agent().stream("go", control=control))


@pytest.mark.anyio
async def test_what_the_reader_of_a_stream_raises_comes_out_as_it_is(effects: Effects) -> None:
    with pytest.raises(ZeroDivisionError):
        await read_all(bench(effects, ANSWER).agent().stream("go"), problem=ZeroDivisionError())


@pytest.mark.anyio
async def test_a_run_that_breaks_is_raised_where_its_events_are_read(
    effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = bench(effects, ANSWER).agent()
    monkeypatch.setattr(agent, "_meta", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await read_all(agent.stream("go"))


def test_a_run_needs_no_event_loop_of_the_callers(effects: Effects) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    result = stage.agent().run_sync("go", checkpoint=True, name=RUN, on_event=stage.events.append)
    assert result.reason == "completed"
    assert isinstance(stage.events[-1], events.RunEnded)


def test_a_resume_needs_no_event_loop_of_the_callers(effects: Effects) -> None:
    stage = bench(effects)
    failing = stage.agent(turns=[{"error": "overloaded"}])
    assert failing.run_sync("go", checkpoint=True, name=RUN).reason == "error"
    stage.turns = [ANSWER]
    assert stage.agent().resume_sync(RUN).answer == ANSWER["text"]


def test_a_run_in_memory_writes_nothing_to_disk(
    tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("TMPDIR", str(home))
    monkeypatch.chdir(home / "work")
    stage = bench(effects, calling("a", "b"), ANSWER)
    agent = stage.agent()
    agent._store = None
    result = agent.run_sync("go")
    assert (result.stored, result.resumable, result.answer) == (False, False, ANSWER["text"])
    assert [path.name for path in home.rglob("*")] == ["work"]
    assert effects.names == ["a", "b"]

    agent.run_sync("go", checkpoint=True, name=RUN)
    found = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    assert found == [f"state/fisk-ai/runs/{RUN}.json", f"state/fisk-ai/runs/{RUN}.lock"]
