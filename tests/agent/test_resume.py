"""Stopping at every place, cleanly and not, and going on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.agent import events
from fisk_ai.agent.agent import ResumeOptions
from fisk_ai.agent.control import Control
from fisk_ai.agent.decide import Budget
from fisk_ai.agent.guard import OUTCOME_UNKNOWN
from fisk_ai.errors import AlreadyCompleted, ConfigurationChanged, DecisionNeeded, FiskError
from fisk_ai.records import ToolResultRecord, resume_mark
from fisk_ai.stores.file import FileStore
from fisk_ai.tools.base import ToolContext
from fisk_ai.tools.function import FunctionTool
from tests.agent.bench import (
    ANSWER,
    RUN,
    Bench,
    Crash,
    Effects,
    Typed,
    assert_same_as,
    at_event,
    bench,
    calling,
    crash,
    effect_tool,
    effect_tools,
    end_of,
    plant,
    records_of,
    twin_of,
)

pytestmark = pytest.mark.anyio

SCRIPT = (calling("a", text="Looking."), calling("b", "c", "d"), {"text": "", "stop_reason": "pause_turn"}, ANSWER)
CHAT = (calling("a"), {"text": "First."}, calling("b", "c"), {"text": "Second."}, {"text": "Third."})


async def suspend_at(stage: Bench, number: int, **options: Any) -> bool:
    """Start or resume, asking for a suspend at the `number`-th event; tell whether that was reached."""
    control = Control()
    stage.hook = at_event(number, control.suspend)
    go = stage.resume if RUN in stage.store.run_ids() else stage.run
    await go(control=control, **options)
    return control.suspend_requested


async def crash_at(stage: Bench, number: int, **options: Any) -> bool:
    """Start or resume and die at the `number`-th event; tell whether that was reached."""
    stage.hook = at_event(number, crash)
    go = stage.resume if RUN in stage.store.run_ids() else stage.run
    try:
        await go(**options)
    except Crash:
        return True
    return False


async def finish(stage: Bench, **options: Any) -> None:
    stage.hook = None
    if end_of(stage.state) != "completed":
        await stage.resume(**{key: value for key, value in options.items() if key != "interactive"})


async def test_a_suspend_at_any_event_repeats_nothing(tmp_path: Path) -> None:
    twin = await twin_of(bench(Effects(tmp_path / "x"), *SCRIPT), tmp_path)
    reached = 0
    for number in range(1, 100):
        stage = bench(Effects(tmp_path / f"effects-{number}"), *SCRIPT)
        if not await suspend_at(stage, number):
            break
        reached += 1
        before = stage.state
        assert before.pending is None or before.pending.ambiguous == ()
        await finish(stage)
        assert stage.effects.names == list("abcd")
        assert [request.iteration for request in stage.requests] == [0, 1, 2, 3]
        assert_same_as(stage, twin)
    assert reached == len(twin.events)


async def test_a_run_that_is_suspended_at_each_step_is_its_undisturbed_twin(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, *SCRIPT)
    assert await suspend_at(stage, 3)
    suspends = 1
    while end_of(stage.state) == "suspended":
        suspends += await suspend_at(stage, 3)
    assert suspends == 8  # four turns and four calls
    assert effects.names == list("abcd")
    assert [request.iteration for request in stage.requests] == [0, 1, 2, 3]
    assert_same_as(stage, await twin_of(stage, tmp_path))


async def test_a_chat_that_is_suspended_at_any_event_repeats_nothing(tmp_path: Path) -> None:
    def typed() -> dict[str, Any]:
        return {"interactive": True, "input_source": Typed("more", "  ", "and more")}

    twin = await twin_of(bench(Effects(tmp_path / "x"), *CHAT), tmp_path, **typed())
    for number in range(1, 100):
        stage, options = bench(Effects(tmp_path / f"effects-{number}"), *CHAT), typed()
        if not await suspend_at(stage, number, **options):
            break
        assert end_of(stage.state) == "suspended"
        await finish(stage, **options)
        assert stage.effects.names == list("abc")
        assert [request.iteration for request in stage.requests] == [0, 1, 2, 3, 4]
        assert_same_as(stage, twin)
        assert end_of(stage.state) == "suspended"
    assert number > 20


async def test_a_suspend_where_the_last_record_is_one_appends_nothing(effects: Effects) -> None:
    stage = bench(effects, *SCRIPT)
    await suspend_at(stage, 1)
    before = stage.bytes
    await suspend_at(stage, 1)
    assert stage.bytes == before


async def test_a_chat_that_is_left_again_without_a_word_appends_nothing(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    result = await stage.run(interactive=True, input_source=Typed())
    assert (result.reason, result.input_ended, result.answer) == ("suspended", True, ANSWER["text"])
    before = stage.bytes
    result = await stage.resume(input_source=Typed())
    assert (result.reason, stage.bytes) == ("suspended", before)


async def test_each_suspend_and_resume_adds_its_two_records_and_no_prompt_again(tmp_path: Path) -> None:
    script = [calling("a")] * 6 + [ANSWER]
    stage = bench(Effects(tmp_path / "effects"), *script)
    twin = await twin_of(stage, tmp_path)
    await suspend_at(stage, 3)
    for _ in range(5):
        await suspend_at(stage, 4)
    await finish(stage)
    assert_same_as(stage, twin)
    assert len(records_of(stage)) == len(records_of(twin)) + 2 * 6
    assert all(request.system_prompt == "Be brief." for request in stage.requests)


async def test_a_resume_mark_is_durable_before_the_first_effect_of_a_resume(effects: Effects) -> None:
    stage = bench(effects, calling("a", "b"), ANSWER)
    control = Control()
    stage.hook = lambda event: control.suspend() if isinstance(event, events.ToolFinished) else None
    await stage.run(control=control)
    assert end_of(stage.state) == "suspended"

    stage.hook = lambda event: crash() if isinstance(event, events.ToolStarted) else None
    with pytest.raises(Crash):
        await stage.resume()
    state = stage.state
    assert end_of(state) == "resumed"
    assert state.interrupted
    assert state.pending is not None
    assert [call.name for call in state.pending.ambiguous] == ["b"]
    assert stage.store.info(RUN).status == "interrupted"

    stage.hook = None
    await stage.resume()
    assert effects.names == ["a", "b"]


async def test_a_call_that_is_answered_without_running_is_answered_behind_the_mark(effects: Effects) -> None:
    stage = bench(effects, {"calls": [{"name": "a", "input": 3}]}, ANSWER)
    control = Control()
    stage.hook = lambda event: control.suspend() if isinstance(event, events.TurnRecorded) else None
    await stage.run(control=control)
    stage.hook = None
    await stage.resume()
    kinds = [type(record) for record in records_of(stage)]
    assert records_of(stage)[3] == resume_mark()
    assert kinds.index(ToolResultRecord) == 4


async def test_a_torn_end_is_cut_and_told_though_nothing_is_left_to_do(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, ANSWER, store=FileStore(str(tmp_path / "runs")))
    plant(stage, records_of(await twin_of(stage, tmp_path))[:-1])
    with (tmp_path / "runs" / f"{RUN}.json").open("ab") as file:
        file.write(b'{"seq":')
    await stage.resume()
    assert [event.cut_bytes for event in stage.told(events.TailRepaired)] == [7]
    assert end_of(stage.state) == "completed"


def check_crash(stage: Bench, before: Any, done: list[str]) -> None:
    """What a crash may have repeated: the call that was named, and a turn that was not journaled."""
    repeated = Counter(stage.effects.names) - Counter("abcd")
    named = {call.name for call in before.pending.ambiguous} if before.pending else set()
    assert repeated.total() <= 1
    assert set(repeated) <= named
    assert set("abcd") <= set(stage.effects.names)
    assert done == stage.effects.names[: len(done)]


async def test_a_crash_at_any_event_repeats_at_most_the_call_that_is_named(tmp_path: Path) -> None:
    twin = await twin_of(bench(Effects(tmp_path / "x"), *SCRIPT), tmp_path)
    for number in range(1, 100):
        stage = bench(Effects(tmp_path / f"effects-{number}"), *SCRIPT)
        if not await crash_at(stage, number):
            break
        before, done, asked = stage.state, stage.effects.names, len(stage.requests)
        await finish(stage)
        check_crash(stage, before, done)
        # A journaled turn is never asked for again.
        assert [each.iteration for each in stage.requests[asked:]] == list(range(before.counters.model_calls, 4))
        assert_same_as(stage, twin)
    assert number == len(twin.events) + 1


@pytest.mark.parametrize("first", [4, 6, 8, 11, 13, 17])
async def test_a_second_crash_during_the_resume_repeats_at_most_one_more_call(tmp_path: Path, first: int) -> None:
    twin = await twin_of(bench(Effects(tmp_path / "x"), *SCRIPT), tmp_path)
    for number in range(1, 100):
        stage = bench(Effects(tmp_path / f"effects-{number}"), *SCRIPT)
        assert await crash_at(stage, first)
        if not await crash_at(stage, number):
            break
        await finish(stage)
        assert (Counter(stage.effects.names) - Counter("abcd")).total() <= 2
        assert_same_as(stage, twin)


async def test_an_answer_without_its_end_record_is_never_paid_for_again(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    plant(stage, records_of(await twin_of(stage, tmp_path))[:-1])
    result = await stage.resume()
    assert (result.reason, result.answer) == ("completed", ANSWER["text"])
    assert stage.requests == []
    assert end_of(stage.state) == "completed"
    with pytest.raises(AlreadyCompleted):
        await stage.resume()


async def test_a_chats_answer_without_its_end_record_waits_for_input(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, ANSWER, {"text": "More."})
    chat = {"interactive": True, "input_source": Typed()}
    plant(stage, records_of(await twin_of(stage, tmp_path, **chat))[:-1])
    result = await stage.resume(input_source=Typed("go on"))
    assert (result.reason, result.answer) == ("suspended", "More.")
    assert [request.iteration for request in stage.requests] == [1]


async def test_a_call_that_always_kills_its_runner_is_named_each_time_and_can_be_skipped(effects: Effects) -> None:
    stage = bench(effects, calling("a", "b"), ANSWER)
    deadly = [effect_tool("a", effects, dies=True), effect_tool("b", effects)]
    with pytest.raises(Crash):
        await stage.run(stage.agent(deadly))
    before = stage.bytes
    for attempt in range(1, 5):
        with pytest.raises(Crash):
            await stage.resume(stage.agent(deadly))
        assert len(stage.told(events.CallRepeated)) == attempt
        assert stage.bytes == before
    await stage.resume(stage.agent(deadly), ResumeOptions(on_crash="skip"))
    assert effects.names == ["a"] * 5 + ["b"]
    assert end_of(stage.state) == "completed"


async def test_the_journal_grows_by_one_mark_however_often_a_suspended_run_is_killed(effects: Effects) -> None:
    stage = bench(effects, calling("a", "b"), ANSWER)
    deadly = [effect_tool("a", effects, dies=True), effect_tool("b", effects)]
    control = Control()
    control.suspend()
    await stage.run(stage.agent(deadly), control=control)
    sizes = []
    for _ in range(4):
        with pytest.raises(Crash):
            await stage.resume(stage.agent(deadly))
        sizes.append(len(stage.bytes))
    assert len(set(sizes)) == 1
    assert len(records_of(stage)) == 4  # meta, suspended, mark, turn


async def interrupted(effects: Effects, *names: str, **how: Any) -> Bench:
    """A run that died while its first call ran."""
    stage = bench(effects, calling(*names), ANSWER)
    tools = [effect_tool(name, effects, dies=name == names[0], **how) for name in names]
    with pytest.raises(Crash):
        await stage.run(stage.agent(tools))
    return stage


async def test_a_suspend_before_a_doubtful_call_is_settled_does_not_take_its_doubt_back(effects: Effects) -> None:
    stage = await interrupted(effects, "a", "b")
    before = stage.bytes
    control = Control()
    control.suspend()
    result = await stage.resume(stage.agent(effect_tools(effects, "ab")), control=control)
    assert (result.reason, stage.bytes) == ("suspended", before)
    pending = stage.state.pending
    assert pending is not None
    assert [call.name for call in pending.ambiguous] == ["a"]
    assert stage.store.info(RUN).status == "interrupted"

    await stage.resume(stage.agent(effect_tools(effects, "ab")))
    assert [event.name for event in stage.told(events.CallRepeated)] == ["a"]
    assert effects.names == ["a", "a", "b"]


async def test_once_the_doubt_is_settled_a_suspend_is_clean(effects: Effects) -> None:
    stage = await interrupted(effects, "a", "b")
    control = Control()
    stage.hook = lambda event: control.suspend() if isinstance(event, events.ToolFinished) else None
    await stage.resume(stage.agent(effect_tools(effects, "ab")), control=control)
    assert end_of(stage.state) == "suspended"
    await stage.resume(stage.agent(effect_tools(effects, "ab")))
    assert effects.names == ["a", "a", "b"]


async def test_half_a_parallel_group_that_is_settled_leaves_the_other_half_in_doubt(effects: Effects) -> None:
    stage = bench(effects, calling("a", "b"), ANSWER)
    control = Control()
    tools = effect_tools(effects, "ab", parallel=True)
    twin = bench(Effects(effects.path.with_name("twin")), calling("a", "b"), ANSWER)
    await twin.run(twin.agent(tools))
    plant(stage, records_of(twin)[:2])
    effects.path.unlink()
    stage.hook = lambda event: control.suspend() if isinstance(event, events.ToolFinished) else None
    await stage.resume(stage.agent(tools), ResumeOptions(on_crash="skip"), control=control)
    pending = stage.state.pending
    assert pending is not None
    assert [call.name for call in pending.ambiguous] == ["b"]
    assert stage.store.info(RUN).status == "interrupted"
    assert effects.names == []


async def test_ask_refuses_and_changes_nothing_until_somebody_decides(effects: Effects) -> None:
    stage = await interrupted(effects, "a", "b", on_crash="ask")
    before = stage.bytes
    agent = stage.agent(effect_tools(effects, "ab", on_crash="ask"))
    with pytest.raises(DecisionNeeded, match=r"a \(call call_0_0\)"):
        await stage.resume(agent)
    assert stage.bytes == before
    await stage.resume(agent, ResumeOptions(on_crash="rerun"))
    assert effects.names == ["a", "a", "b"]


async def test_skip_tells_the_model_that_the_outcome_is_unknown_and_never_that_it_failed(effects: Effects) -> None:
    stage = await interrupted(effects, "a", "b", on_crash="skip")
    await stage.resume(stage.agent(effect_tools(effects, "ab", on_crash="skip")))
    assert effects.names == ["a", "b"]
    told = next(record for record in records_of(stage) if isinstance(record, ToolResultRecord))
    assert OUTCOME_UNKNOWN.encode() in bytes(told.result)
    assert b"is_error" not in bytes(told.result)


@pytest.mark.parametrize("on_crash", ["rerun", "skip"])
async def test_a_doubtful_call_whose_tool_is_gone_is_not_said_to_have_never_run(
    effects: Effects, on_crash: Any
) -> None:
    stage = await interrupted(effects, "a", "b")
    await stage.resume(stage.agent(effect_tools(effects, "b")), ResumeOptions(force=True, on_crash=on_crash))
    told = next(record for record in records_of(stage) if isinstance(record, ToolResultRecord))
    assert OUTCOME_UNKNOWN.encode() in bytes(told.result)
    assert effects.names == ["a", "b"]


async def test_a_doubtful_call_whose_arguments_no_longer_fit_is_not_said_to_have_never_run(effects: Effects) -> None:
    stage = await interrupted(effects, "a")

    def stricter(what: int) -> str:
        return "done"

    tool = FunctionTool(stricter, name="a", description="Does a")
    await stage.resume(stage.agent([tool]), ResumeOptions(force=True))
    told = next(record for record in records_of(stage) if isinstance(record, ToolResultRecord))
    assert b"It may have taken effect" in bytes(told.result)


async def test_a_tool_sees_the_run_and_the_call_it_works_for(effects: Effects) -> None:
    seen: list[tuple[str, str]] = []

    def look(context: ToolContext) -> str:
        seen.append((context.run_id, context.call_id))
        return "looked"

    stage = bench(effects, calling("look"), ANSWER)
    await stage.run(stage.agent([FunctionTool(look, description="Looks")]))
    assert seen == [(RUN, "call_0_0")]


@pytest.mark.parametrize("force", [False, True])
async def test_a_completed_run_is_refused_and_nothing_runs(effects: Effects, force: bool) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    await stage.run()
    before, asked = stage.bytes, len(stage.requests)
    with pytest.raises(AlreadyCompleted):
        await stage.resume(None, ResumeOptions(force=force))
    assert (stage.bytes, len(stage.requests), effects.names) == (before, asked, ["a"])


async def test_a_refusal_leaves_the_file_as_it_was_torn_tail_included(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, calling("a"), ANSWER, store=FileStore(str(tmp_path / "runs")))
    await suspend_at(stage, 3)
    path = tmp_path / "runs" / f"{RUN}.json"
    path.write_bytes(path.read_bytes() + b'{"seq":')
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with pytest.raises(ConfigurationChanged):
        await stage.resume(stage.agent(budget=Budget(1, 1)))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert not (tmp_path / "runs" / f"{RUN}.torn").exists()

    stage.hook = None
    await stage.resume()
    assert [event.cut_bytes for event in stage.told(events.TailRepaired)] == [7]
    assert (tmp_path / "runs" / f"{RUN}.torn").read_bytes() == b'{"seq":'
    assert end_of(stage.state) == "completed"


LONG = ({**calling("a"), "in_tokens": 100, "out_tokens": 10}, {**calling("b"), "in_tokens": 200, "out_tokens": 20})


@pytest.mark.parametrize(
    ("used_up", "larger", "smaller", "reason"),
    [
        (Budget(110, None), Budget(10_000, None), Budget(50, None), "budget"),
        (Budget(None, 1), Budget(None, 9), Budget(None, 1), "max_iterations"),
    ],
)
async def test_a_budget_counts_over_resumes_and_a_resume_with_nothing_left_appends_nothing(
    effects: Effects, used_up: Budget, larger: Budget, smaller: Budget, reason: str
) -> None:
    stage = bench(effects, *LONG, ANSWER)
    result = await stage.run(stage.agent(budget=used_up))
    assert (result.reason, end_of(stage.state), effects.names) == (reason, reason, ["a"])
    before = stage.bytes

    assert (await stage.resume(stage.agent(budget=used_up))).reason == reason  # the same: nothing is left
    assert stage.bytes == before
    with pytest.raises(ConfigurationChanged, match="budget"):
        await stage.resume(stage.agent(budget=larger))
    assert (await stage.resume(stage.agent(budget=smaller), ResumeOptions(force=True))).reason == reason
    assert stage.bytes == before
    assert len(stage.requests) == 1

    result = await stage.resume(stage.agent(budget=larger), ResumeOptions(force=True))
    assert (result.reason, effects.names) == ("completed", ["a", "b"])
    assert [request.iteration for request in stage.requests] == [0, 1, 2]


async def test_numbers_of_tokens_that_can_not_be_are_kept_within_what_can_be_read_back(effects: Effects) -> None:
    stage = bench(effects, {**ANSWER, "in_tokens": 10**30})
    await stage.run(stage.agent(budget=Budget(None, None)))
    assert stage.state.counters.in_tokens == 2**53


async def test_an_interrupted_run_without_budget_answers_its_calls_first_and_then_says_so(effects: Effects) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    with pytest.raises(Crash):
        await stage.run(stage.agent([effect_tool("a", effects, dies=True)], budget=Budget(None, 1)))
    result = await stage.resume(stage.agent([effect_tool("a", effects)], budget=Budget(None, 1)))
    assert (result.reason, end_of(stage.state)) == ("max_iterations", "max_iterations")
    assert effects.names == ["a", "a"]


async def test_a_forced_resume_leaves_its_fingerprint_on_the_mark_and_is_the_runs_from_then_on(
    effects: Effects,
) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    control = Control()
    control.suspend()
    await stage.run(control=control)
    new = stage.agent(max_output_tokens=100)
    new.model = "another"
    stage.hook = lambda event: crash() if isinstance(event, events.ToolStarted) else None
    with pytest.raises(Crash):
        await stage.resume(new, ResumeOptions(force=True))
    state = stage.state
    assert records_of(stage)[2] == resume_mark(new.fingerprint)
    assert state.fingerprint == new.fingerprint
    assert stage.told(events.RunResumed)[0].forced == ("model scripted is now another",)

    stage.hook = None
    with pytest.raises(ConfigurationChanged, match="model another is now scripted"):
        await stage.resume()
    await stage.resume(new)
    assert end_of(stage.state) == "completed"


async def test_a_forced_resume_of_an_answer_leaves_its_trace_before_the_end(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    plant(stage, records_of(await twin_of(stage, tmp_path))[:-1])
    new = stage.agent(thinking_mode="adaptive")
    await stage.resume(new, ResumeOptions(force=True))
    assert stage.state.fingerprint == new.fingerprint
    assert [type(record).__name__ for record in records_of(stage)][2:] == ["TerminalRecord", "TerminalRecord"]
    assert stage.requests == []


async def test_counters_continue_and_count_each_turn_once(tmp_path: Path, effects: Effects) -> None:
    usage = [(100, 10), (200, 20), (300, 30)]
    turns = [{**calling("a"), "in_tokens": used, "out_tokens": said} for used, said in usage[:2]]
    stage = bench(effects, *turns, {**ANSWER, "in_tokens": 300, "out_tokens": 30})
    await suspend_at(stage, 3)
    assert await crash_at(stage, 3)  # its call has run, and is not recorded
    await suspend_at(stage, 6)
    await finish(stage)
    counters = stage.state.counters
    assert (counters.in_tokens, counters.out_tokens, counters.model_calls, counters.tool_calls) == (600, 60, 3, 2)


async def test_error_budget_and_suspended_runs_can_go_on_and_unknown_runs_can_not(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    with pytest.raises(FiskError, match="no run 'orders-report'"):
        await stage.resume()
    assert stage.store.run_ids() == []
