"""Disks, tools and providers that fail."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent
from fisk_ai.errors import JournalFailed, JournalLost, NotPermitted
from fisk_ai.messages import TextBlock
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.records import AssistantRecord, ToolResultRecord
from fisk_ai.stores.file import FileStore
from fisk_ai.stores.memory import MemoryJournal
from fisk_ai.tools.base import OnCrash, ToolContext, ToolOutput
from fisk_ai.tools.function import FunctionTool
from tests.agent.bench import (
    ANSWER,
    RUN,
    Bench,
    Effects,
    Typed,
    assert_same_as,
    bench,
    calling,
    effect_tools,
    end_of,
    records_of,
    twin_of,
)
from tests.agent.disks import WatchedDisk, fail_at

pytestmark = pytest.mark.anyio

BATCH = (calling("a", "b", "c", "d"), ANSWER)


def on_disk(tmp_path: Path, effects: Effects, disk: WatchedDisk, *turns: Mapping[str, Any]) -> Bench:
    return bench(effects, *turns, store=FileStore(str(tmp_path / "runs"), disk=disk))


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("what", ["write tool_result", "sync file"])
async def test_a_result_that_can_not_be_stored_stops_the_run_before_the_next_effect(
    tmp_path: Path, effects: Effects, what: str, parallel: bool
) -> None:
    # The second result: syncs 1 and 2 are of meta and the turn.
    disk = WatchedDisk(before=fail_at(what, 2 if what.startswith("write") else 4))
    stage = on_disk(tmp_path, effects, disk, *BATCH)
    tools = effect_tools(effects, parallel=parallel)
    with pytest.raises(JournalFailed, match="could not be written") as caught:
        await stage.run(stage.agent(tools))
    assert caught.value.exit_code == 1
    if not parallel:
        assert effects.names == ["a", "b"]
    assert len(stage.requests) == 1

    disk.before = None
    done = [record for record in records_of(stage) if isinstance(record, ToolResultRecord)]
    before = effects.names
    await stage.resume(stage.agent(tools))
    again = effects.names[len(before) :]
    if not parallel:
        # A failed write left nothing; after a failed sync the line is there and is used: it was only not promised.
        assert again == (["b", "c", "d"] if len(done) == 1 else ["c", "d"])
    assert set(effects.names) == set("abcd")
    assert_same_as(stage, await _twin(tmp_path, tools, *BATCH))


async def _twin(tmp_path: Path, tools: list[Any], *turns: Mapping[str, Any]) -> Bench:
    twin = bench(Effects(tmp_path / "twin"), *turns)
    await twin.run(twin.agent(tools))
    return twin


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("what", ["write", "sync file"])
async def test_nothing_happens_after_a_failed_append_wherever_it_fails(tmp_path: Path, what: str, code: int) -> None:
    twin = await twin_of(bench(Effects(tmp_path / "x"), *BATCH), tmp_path)
    appends = len(records_of(twin))
    for number in range(1, appends + 1):
        effects = Effects(tmp_path / f"effects-{number}")
        disk = _failing_append(what, number, code)
        stage = bench(effects, *BATCH, store=FileStore(str(tmp_path / f"runs-{number}"), disk=disk))
        outcome = None
        try:
            outcome = await stage.run()
        except JournalFailed:
            assert number < appends
        asked, done = len(stage.requests), effects.names
        assert asked <= (number > 1) + (number > 6)
        assert done == list("abcd")[: max(number - 2, 0)][:4]
        if outcome is not None:  # only the end itself could not be stored
            assert (number, outcome.reason, outcome.answer) == (appends, "completed", ANSWER["text"])
            assert isinstance(outcome.storage_error, JournalFailed)
        disk.before = None
        if number == 1 and what == "write":
            continue  # there is no run
        if end_of(stage.state) != "completed":
            await stage.resume()
        assert_same_as(stage, twin)


def _failing_append(what: str, number: int, code: int) -> WatchedDisk:
    """Fail the `number`-th append, at its write or its sync, and everything like it after that."""
    writes = 0

    def before(happening: str) -> None:
        nonlocal writes
        writes += happening.startswith("write ") and happening != "write bytes"
        if writes >= number and happening.startswith(what):
            raise OSError(code, "as the test says")

    return WatchedDisk(before=before)


async def test_a_run_that_was_taken_away_stops_before_its_next_effect(tmp_path: Path, effects: Effects) -> None:
    stage = on_disk(tmp_path, effects, WatchedDisk(), *BATCH)
    path = tmp_path / "runs" / f"{RUN}.json"

    def hook(event: events.Event) -> None:
        if isinstance(event, events.ToolFinished) and event.name == "a":
            path.rename(path.with_suffix(".moved"))

    stage.hook = hook
    with pytest.raises(JournalLost):
        await stage.run()
    assert effects.names == ["a"]


async def test_the_model_is_not_asked_for_a_run_that_was_taken_away(tmp_path: Path, effects: Effects) -> None:
    stage = on_disk(tmp_path, effects, WatchedDisk(), calling("a"), ANSWER)
    path = tmp_path / "runs" / f"{RUN}.json"

    def hook(event: events.Event) -> None:
        if isinstance(event, events.ToolFinished):
            path.rename(path.with_suffix(".moved"))

    stage.hook = hook
    with pytest.raises(JournalLost):
        await stage.run()
    assert len(stage.requests) == 1


async def test_a_parallel_call_that_may_not_start_stops_the_run(
    effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be tried again and again."""
    tried: list[str] = []

    def refused_once(_self: MemoryJournal, _tool: str, call_id: str, _timeout_s: float | None) -> Any:
        tried.append(call_id)
        if len(tried) == 1:
            raise NotPermitted("here", "the tools' lock can't be opened")
        return contextlib.nullcontext(None)

    monkeypatch.setattr(MemoryJournal, "guard_call", refused_once)
    tools = effect_tools(effects, "ab", parallel=True)
    for tool in tools:
        monkeypatch.setattr(tool, "starts_processes", True)
    stage = bench(effects, calling("a", "b"), ANSWER)
    with pytest.raises(NotPermitted, match="lock"):
        await stage.run(stage.agent(tools))
    assert len(stage.requests) == 1


async def test_a_result_that_may_not_be_kept_is_replaced_by_a_note_so_that_its_call_is_not_repeated(
    effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def large() -> str:
        effects.note("large")
        return "x" * 5000

    monkeypatch.setattr("fisk_ai.codec.MAX_LINE_BYTES", 4000)
    stage = bench(effects, calling("large"), ANSWER)
    result = await stage.run(stage.agent([FunctionTool(large, description="Is large")]))
    assert result.reason == "completed"
    assert effects.names == ["large"]
    [finished] = stage.told(events.ToolFinished)
    assert finished.is_error
    assert "can't be kept" in finished.text


async def test_a_turn_that_may_not_be_kept_ends_the_run_with_an_error(
    effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fisk_ai.codec.MAX_LINE_BYTES", 4000)
    stage = bench(effects, {"text": "x" * 5000})
    result = await stage.run()
    assert (result.reason, result.answer, end_of(stage.state)) == ("error", None, "error")
    assert "can't be kept" in (result.message or "")


async def test_a_follow_up_that_may_not_be_kept_is_not_sent(effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fisk_ai.codec.MAX_LINE_BYTES", 4000)
    stage = bench(effects, ANSWER, ANSWER)
    await stage.run(interactive=True, input_source=Typed("x" * 5000))
    assert len(stage.requests) == 1
    assert "not sent" in stage.told(events.Noticed)[0].text


class RawTool:
    """A tool of somebody else's making, which doesn't keep its side of the contract."""

    name = "raw"
    description = "Does it"
    parameters: Mapping[str, Any] = {"type": "object"}
    identity: Mapping[str, Any] = {"function": "raw", "parallel": False}
    on_crash: OnCrash = "rerun"
    parallel = False
    timeout_s = None
    starts_processes = False

    def __init__(self, effects: Effects, outcome: ToolOutput | Exception) -> None:
        self._effects = effects
        self._outcome = outcome

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        return None

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        self._effects.note("raw")
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize(
    "outcome",
    [
        RuntimeError("broken \ud83d"),
        ToolOutput((TextBlock("x\ud83dy"),)),
        ToolOutput((3,)),  # type: ignore[arg-type]
    ],
    ids=["raises", "surrogate", "no block"],
)
async def test_whatever_a_tool_does_is_recorded_so_that_no_resume_repeats_it(
    effects: Effects, outcome: ToolOutput | Exception
) -> None:
    stage = bench(effects, calling("raw"), ANSWER)
    result = await stage.run(stage.agent([RawTool(effects, outcome)]))
    assert (result.reason, effects.names) == ("completed", ["raw"])
    [finished] = stage.told(events.ToolFinished)
    assert finished.is_error
    assert "may have taken effect" in finished.text


class RawProvider:
    """A provider of somebody else's making."""

    name = "raw"
    format = "anthropic"

    def __init__(self, message: bytes) -> None:
        self._message = message

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        return Reply("anthropic", self._message, "tool_use")

    async def aclose(self) -> None:
        pass


def _calls(*ids: str) -> bytes:
    blocks = [{"type": "tool_use", "id": each, "name": "a", "input": {}} for each in ids]
    return json.dumps({"role": "assistant", "content": blocks}).encode()


@pytest.mark.parametrize(
    "message",
    [_calls("x", "x"), _calls(""), b"[]", b'{"role":', b'{"role":"assistant","content":[\n]}', b"\xff"],
    ids=["doubled", "missing", "no message", "cut", "line break", "no UTF-8"],
)
async def test_a_turn_that_is_not_valid_is_never_journaled(effects: Effects, message: bytes) -> None:
    stage = bench(effects)
    agent = Agent("m", provider=RawProvider(message), tools=effect_tools(effects, "a"), store=stage.store)
    result = await stage.run(agent)
    assert result.reason == "error"
    assert effects.names == []
    assert not any(isinstance(record, AssistantRecord) for record in records_of(stage))  # and it can be read


async def test_a_provider_that_breaks_leaves_a_run_that_can_go_on(effects: Effects) -> None:
    class Broken(RawProvider):
        name = "scripted"

        async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
            raise ZeroDivisionError

    stage = bench(effects, calling("a"), ANSWER)
    agent = stage.agent()
    broken = Agent(
        "scripted", provider=Broken(b""), system_prompt="Be brief.", tools=effect_tools(effects), store=stage.store
    )
    with pytest.raises(ZeroDivisionError):
        await stage.run(broken)
    await stage.resume(agent)
    assert effects.names == ["a"]
