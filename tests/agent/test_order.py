"""The order within a turn, which all guarantees rest on."""

from __future__ import annotations

import itertools
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.records import ToolResultRecord
from fisk_ai.stores.file import FileStore
from fisk_ai.tools.base import ToolContext
from fisk_ai.tools.function import FunctionTool
from tests.agent.bench import (
    ANSWER,
    RUN,
    Crash,
    Effects,
    assert_same_as,
    bench,
    calling,
    effect_tool,
    effect_tools,
    plant,
    records_of,
    twin_of,
)
from tests.agent.disks import WatchedDisk

pytestmark = pytest.mark.anyio

SUBSETS = [order for size in range(4) for order in itertools.permutations((0, 1, 2), size)]


async def test_a_tool_finds_its_own_call_on_disk_before_it_does_anything(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "runs"))
    found: list[list[str]] = []

    def look(context: ToolContext) -> str:
        """Read the journal as another process would."""
        pending = FileStore(str(tmp_path / "runs")).load(context.run_id).pending
        assert pending is not None
        found.append([call.id for call in pending.unanswered])
        return "looked"

    stage = bench(Effects(tmp_path / "effects"), calling("look", "look"), ANSWER, store=store)
    await stage.run(stage.agent([FunctionTool(look, description="Looks")]))
    assert found == [["call_0_0", "call_0_1"], ["call_0_1"]]


class LoggedModel(ScriptedProvider):
    """Says when it is asked."""

    def __init__(self, turns: list[dict[str, object]], log: list[str]) -> None:
        super().__init__(turns)
        self._log = log

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self._log.append("model")
        return await super().complete(request, on_delta)


async def test_each_step_is_written_and_synced_before_the_next_one_starts(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = FileStore(str(tmp_path / "runs"), disk=disk)

    def tool(name: str) -> FunctionTool[[], str]:
        def work() -> str:
            disk.log.append(f"tool {name}")
            return "done"

        return FunctionTool(work, name=name, description=f"Does {name}")

    model = LoggedModel([calling("a", "b"), {"text": "Done"}], disk.log)
    agent = Agent("scripted", provider=model, tools=[tool("a"), tool("b")], store=store)
    told: list[str] = []

    def on_event(event: events.Event) -> None:
        # An event about a record comes after the record is durable.
        if isinstance(event, events.TurnRecorded | events.ToolFinished):
            assert disk.log[-1] == "sync file"
            told.append(type(event).__name__)

    await agent.run("go", checkpoint=True, name=RUN, on_event=on_event)
    start = disk.log.index("write meta")
    assert disk.log[start:] == [
        *("write meta", "sync file", "sync directory"),
        "model",
        *("write assistant", "sync file"),
        "tool a",
        *("write tool_result", "sync file"),
        "tool b",
        *("write tool_result", "sync file"),
        "model",
        *("write assistant", "sync file"),
        *("write terminal", "sync file"),
    ]
    assert told == ["TurnRecorded", "ToolFinished", "ToolFinished", "TurnRecorded"]


async def test_a_torn_tail_is_cut_before_the_first_effect(tmp_path: Path, effects: Effects) -> None:
    disk = WatchedDisk()
    stage = bench(effects, calling("a"), ANSWER, store=FileStore(str(tmp_path / "runs"), disk=disk))
    plant(stage, records_of(await twin_of(stage, tmp_path))[:2])
    with (tmp_path / "runs" / f"{RUN}.json").open("ab") as file:
        file.write(b'{"seq":')
    stage.hook = lambda event: disk.log.append("tool") if isinstance(event, events.ToolStarted) else None
    await stage.resume()
    assert disk.log.index("truncate") < disk.log.index("tool")


async def test_a_new_directory_is_durable_before_the_model_is_asked(tmp_path: Path) -> None:
    disk = WatchedDisk()
    model = LoggedModel([{"text": "Done"}], disk.log)
    store = FileStore(str(tmp_path / "state" / "fisk-ai" / "runs"), disk=disk)
    await Agent("scripted", provider=model, store=store).run("go", checkpoint=True)
    before = disk.log[: disk.log.index("model")]
    assert before.count("sync directory") >= 4  # three new directories in their parents, and the file in its own


@pytest.mark.parametrize("order", SUBSETS, ids=lambda order: "".join("abc"[at] for at in order) or "none")
async def test_just_the_unanswered_calls_of_a_batch_run_and_results_are_sent_in_call_order(
    tmp_path: Path, effects: Effects, order: tuple[int, ...]
) -> None:
    stage = bench(effects, calling("a", "b", "c"), ANSWER)
    twin = await twin_of(stage, tmp_path)
    meta, turn, *results = records_of(twin)[:5]
    plant(stage, [meta, turn, *(results[at] for at in order)])
    result = await stage.resume()
    assert effects.names == [name for at, name in enumerate("abc") if at not in order]
    assert (result.reason, result.answer) == ("completed", ANSWER["text"])
    assert_same_as(stage, twin)


@pytest.mark.parametrize("slowest", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
async def test_requests_do_not_depend_on_which_of_a_parallel_group_is_done_first(
    tmp_path: Path, effects: Effects, slowest: tuple[int, ...]
) -> None:
    stage = bench(effects, calling("a", "b", "c"), ANSWER)
    twin = await twin_of(stage, tmp_path)
    meta, turn, *results = records_of(twin)[:5]
    plant(stage, [meta, turn, *(results[at] for at in slowest)])
    await stage.resume()
    assert_same_as(stage, twin)
    assert effects.names == []


async def test_a_crash_in_a_batch_repeats_only_the_call_in_flight(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, calling("a", "b", "c", "d", "e"), ANSWER)
    dying = [effect_tool(name, effects, dies=name == "d") for name in "abcde"]
    with pytest.raises(Crash):
        await stage.run(stage.agent(dying))
    pending = stage.state.pending
    assert pending is not None
    assert [call.name for call in pending.ambiguous] == ["d"]

    await stage.resume()
    assert [effects.names.count(name) for name in "abcde"] == [1, 1, 1, 2, 1]
    assert [event.name for event in stage.told(events.CallRepeated)] == ["d"]
    assert_same_as(stage, await twin_of(stage, tmp_path))


async def test_a_repeated_call_has_its_first_key_and_all_other_keys_differ(effects: Effects) -> None:
    stage = bench(effects, calling("a", "b"), calling("a", "b"), ANSWER)
    dying = [effect_tool("a", effects), effect_tool("b", effects, dies=True)]
    with pytest.raises(Crash):
        await stage.run(stage.agent(dying))
    await stage.resume(stage.agent(effect_tools(effects, "ab")))
    assert effects.names == ["a", "b", "b", "a", "b"]
    keys = [key for _, key in effects.lines]
    assert keys[1] == keys[2]
    assert len(set(keys)) == 4
    assert all(len(key) == 32 for key in keys)


async def test_ids_that_repeat_over_turns_are_told_apart(effects: Effects) -> None:
    """Some providers call their calls `call_0` in every turn."""

    def turn(name: str) -> dict[str, object]:
        return {"calls": [{"name": name, "id": "call_0"}]}

    stage = bench(effects, turn("a"), turn("b"), turn("c"), ANSWER)
    dying = [effect_tool("a", effects, dies=True), *effect_tools(effects, "bc")]
    with pytest.raises(Crash):
        await stage.run(stage.agent(dying))
    await stage.resume(stage.agent(effect_tools(effects, "abc")))
    assert effects.names == ["a", "a", "b", "c"]
    assert [event.name for event in stage.told(events.CallRepeated)] == ["a"]
    assert len({key for _, key in effects.lines}) == 3


async def test_a_skipped_call_does_not_skip_a_later_one_of_the_same_id(effects: Effects) -> None:
    stage = bench(effects, {"calls": [{"name": "a", "id": "x"}]}, {"calls": [{"name": "a", "id": "x"}]}, ANSWER)
    with pytest.raises(Crash):
        await stage.run(stage.agent([effect_tool("a", effects, dies=True)]))
    await stage.resume(stage.agent([effect_tool("a", effects, on_crash="skip")]))
    assert effects.names == ["a", "a"]
    first, second = [record for record in records_of(stage) if isinstance(record, ToolResultRecord)]
    assert b"unknown" in bytes(first.result)
    assert b"a did it" in bytes(second.result)


async def test_a_parallel_group_runs_side_by_side_and_before_what_comes_after_it(tmp_path: Path) -> None:
    log: list[str] = []
    met = anyio.Event()

    async def first() -> str:
        log.append("first starts")
        await met.wait()
        log.append("first ends")
        return "done"

    async def second() -> str:
        log.append("second starts")
        met.set()
        return "done"

    async def alone() -> str:
        log.append("alone")
        return "done"

    tools = [
        FunctionTool(first, description="Is first", parallel=True),
        FunctionTool(second, description="Is second", parallel=True),
        FunctionTool(alone, description="Is alone"),
    ]
    stage = bench(Effects(tmp_path / "effects"), calling("first", "alone", "second"), ANSWER)
    await stage.run(stage.agent(tools))
    assert set(log[:2]) == {"first starts", "second starts"}
    assert log[2:] == ["first ends", "alone"]


async def test_all_of_a_parallel_group_are_named_ambiguous_and_a_journaled_one_is_not_repeated(
    effects: Effects,
) -> None:
    stage = bench(effects, calling("a", "b", "c"), ANSWER)

    async def waits(context: ToolContext) -> str:
        effects.note("b", context.idempotency_key)
        while len(stage.told(events.ToolFinished)) < 2:
            await checkpoint()
        raise Crash

    a, plain, c = effect_tools(effects, "abc", parallel=True)
    dying = FunctionTool(waits, name="b", description="Does b", parallel=True)
    with pytest.raises(BaseExceptionGroup):
        await stage.run(stage.agent([a, dying, c]))
    pending = stage.state.pending
    assert pending is not None
    assert [call.name for call in pending.ambiguous] == ["b"]
    await stage.resume(stage.agent([a, plain, c]), ResumeOptions(force=True))
    assert sorted(effects.names) == ["a", "b", "b", "c"]


async def test_thirty_two_calls_that_finish_at_once_make_thirty_two_whole_records(tmp_path: Path) -> None:
    def big(context: ToolContext) -> str:
        return context.call_id + "x" * 50_000

    store = FileStore(str(tmp_path / "runs"))
    stage = bench(Effects(tmp_path / "effects"), calling(*["big"] * 32), ANSWER, store=store)
    await stage.run(stage.agent([FunctionTool(big, description="Is big", parallel=True)]))
    with stage.journal() as journal:
        records = journal.records()
    assert [each.seq for each in records] == list(range(1, 37))
    results = {each.record.tool_use_id for each in records if isinstance(each.record, ToolResultRecord)}
    assert results == {f"call_0_{at}" for at in range(32)}
