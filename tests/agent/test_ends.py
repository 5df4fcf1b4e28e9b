"""How turns end, and what a run and its resume make of that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent
from fisk_ai.agent.decide import Budget
from fisk_ai.agent.input import EndOfChat
from fisk_ai.errors import ConfigError, DeadEnd
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.records import MAX_REQUEST_ID_CHARACTERS, AssistantRecord, ToolResultRecord, UserRecord
from fisk_ai.stores.memory import MemoryStore
from tests.agent.bench import (
    ANSWER,
    Bench,
    Crash,
    Effects,
    Typed,
    assert_same_as,
    bench,
    calling,
    crash,
    effect_tool,
    end_of,
    plant,
    records_of,
    said,
    twin_of,
)

pytestmark = pytest.mark.anyio

CUT_OFF = ["refusal", "max_tokens", "content_filter", "model_context_window_exceeded"]


def results_of(stage: Bench) -> list[dict[str, Any]]:
    records = records_of(stage)
    return [json.loads(bytes(record.result)) for record in records if isinstance(record, ToolResultRecord)]


@pytest.mark.parametrize("reason", CUT_OFF)
@pytest.mark.parametrize("text", ["I can't", ""])
async def test_a_turn_that_can_not_be_continued_is_an_error_and_a_dead_end(
    effects: Effects, reason: str, text: str
) -> None:
    stage = bench(effects, {"text": text, "stop_reason": reason})
    result = await stage.run()
    assert (result.reason, end_of(stage.state)) == ("error", "error")
    assert result.answer == text
    assert result.message
    assert stage.state.terminal is not None
    assert stage.state.terminal.message == result.message
    before = stage.bytes
    with pytest.raises(DeadEnd, match="fork"):
        await stage.resume()
    assert (stage.bytes, len(stage.requests)) == (before, 1)


async def test_the_api_s_own_words_for_a_refusal_are_in_the_end_record() -> None:
    class Refusing(ScriptedProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
            note = f"cyber: {'x' * 300}"
            return replace(await super().complete(request, on_delta), stop_note=note, request_id="r\ud800" * 300)

    store = MemoryStore()
    provider = Refusing([{"text": "No.", "stop_reason": "refusal"}])
    result = await Agent("scripted", provider=provider, store=store).run("go", checkpoint=True, name="r")
    assert result.message == f"the model refused to go on (cyber: {'x' * 300})"
    state = store.load("r")
    assert state.terminal is not None
    assert state.terminal.message == result.message
    with store.open("r") as journal:
        [turn] = [each.record for each in journal.records() if isinstance(each.record, AssistantRecord)]
    assert turn.request_id == "r\ufffd" * (MAX_REQUEST_ID_CHARACTERS // 2)


async def test_a_dead_end_gets_the_end_record_that_a_crash_kept_from_it(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, {"text": "", "stop_reason": "max_tokens"})
    plant(stage, records_of(await twin_of(stage, tmp_path))[:-1])
    result = await stage.resume()
    assert (result.reason, end_of(stage.state)) == ("error", "error")
    assert stage.requests == []
    with pytest.raises(DeadEnd, match="output-token limit"):
        await stage.resume()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("reason", ["refusal", "content_filter", "model_context_window_exceeded"])
async def test_calls_of_a_refused_turn_are_answered_and_the_model_is_not_asked_again(
    tmp_path: Path, effects: Effects, reason: str, killed: bool
) -> None:
    stage = bench(effects, calling("a", text="No", stop_reason=reason), ANSWER)
    if killed:
        plant(stage, records_of(await twin_of(stage, tmp_path))[:2])
        result = await stage.resume()
    else:
        result = await stage.run()
    assert effects.names == []
    assert [result["is_error"] for result in results_of(stage)] == [True]
    assert (result.reason, end_of(stage.state)) == ("error", "error")
    with pytest.raises(DeadEnd):
        await stage.resume()


@pytest.mark.parametrize("killed", [False, True])
async def test_calls_of_a_turn_that_was_cut_off_never_run(tmp_path: Path, effects: Effects, killed: bool) -> None:
    stage = bench(effects, calling("a", "b", text="Now", stop_reason="max_tokens"), ANSWER)
    twin = await twin_of(stage, tmp_path)
    if killed:
        plant(stage, records_of(twin)[:2])
        await stage.resume()
        assert stage.told(events.CallRepeated) == []
    else:
        await stage.run()
    assert effects.names == []
    assert [result["is_error"] for result in results_of(stage)] == [True, True]
    assert end_of(stage.state) == "completed"
    assert_same_as(stage, twin)


async def test_an_unknown_stop_reason_is_mentioned_and_completes(effects: Effects) -> None:
    stage = bench(effects, {"text": "Done", "stop_reason": "tea_time"})
    assert (await stage.run()).reason == "completed"
    assert [event.text for event in stage.told(events.Noticed)] == [
        "the model stopped for a reason not known here: 'tea_time'"
    ]


async def test_a_stop_reason_that_no_journal_can_hold_is_made_valid(effects: Effects) -> None:
    stage = bench(effects, {"text": "Done", "stop_reason": "odd\ud83d"})
    assert (await stage.run()).reason == "completed"
    assert stage.state.last_stop_reason == "odd\ufffd"


async def test_calls_of_a_turn_with_an_unknown_stop_reason_run(effects: Effects) -> None:
    stage = bench(effects, calling("a", stop_reason="tea_time"), ANSWER)
    assert (await stage.run()).reason == "completed"
    assert effects.names == ["a"]


@pytest.mark.parametrize(("pauses", "reason"), [(10, "completed"), (11, "error")])
async def test_ten_paused_turns_in_a_row_are_sent_back_and_no_more(effects: Effects, pauses: int, reason: str) -> None:
    stage = bench(effects, *[{"text": f"Searching {at}", "stop_reason": "pause_turn"} for at in range(pauses)], ANSWER)
    result = await stage.run()
    assert result.reason == reason
    assert len(stage.requests) == 11
    roles = [message.role for message in stage.requests[-1].messages]
    assert roles == ["user"] + ["assistant"] * 10


async def test_a_paused_turn_is_sent_back_after_a_crash_too(tmp_path: Path, effects: Effects) -> None:
    stage = bench(effects, {"text": "Searching", "stop_reason": "pause_turn"}, ANSWER)
    twin = await twin_of(stage, tmp_path)
    plant(stage, records_of(twin)[:2])
    await stage.resume()
    assert_same_as(stage, twin)
    assert [request.iteration for request in stage.requests] == [1]


@pytest.mark.parametrize("content", [[], [{"type": "text", "text": ""}], [{"type": "text", "text": "\n\n"}]])
async def test_a_blank_turn_is_kept_and_left_out_of_requests(tmp_path: Path, effects: Effects, content: Any) -> None:
    stage = bench(effects, {"content": content, "stop_reason": "end_turn", "out_tokens": 7}, ANSWER)
    twin = await twin_of(stage, tmp_path, interactive=True, input_source=Typed("hello?"))
    await stage.run(interactive=True, input_source=Typed())
    result = await stage.resume(input_source=Typed("hello?"))
    assert result.answer == ANSWER["text"]
    for each in (stage, twin):
        assert [message.role for message in each.requests[-1].messages] == ["user"]
        assert each.state.counters.out_tokens >= 7
        assert sum(isinstance(record, AssistantRecord) for record in records_of(each)) == 2
    assert_same_as(stage, twin)


async def test_blank_follow_ups_are_neither_recorded_nor_sent(effects: Effects) -> None:
    stage = bench(effects, ANSWER, ANSWER)
    await stage.run(interactive=True, input_source=Typed("", "   ", "\n", "\u200b", "real", "\u2060 "))
    assert sum(isinstance(record, UserRecord) for record in records_of(stage)) == 1
    assert len(stage.requests) == 2


@pytest.mark.parametrize("prompt", ["", "  ", "\n", "\u200b"])
async def test_an_empty_first_prompt_is_refused_before_there_is_a_journal(effects: Effects, prompt: str) -> None:
    stage = bench(effects, ANSWER)
    with pytest.raises(ConfigError, match="prompt is empty"):
        await stage.agent().run(prompt, checkpoint=True, name="r7")
    assert stage.store.run_ids() == []


async def test_the_end_of_a_chat_completes_it(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    result = await stage.run(interactive=True, input_source=Typed(EndOfChat()))
    assert (result.reason, result.input_ended, end_of(stage.state)) == ("completed", False, "completed")


async def test_a_failed_model_call_leaves_the_follow_up_once_and_no_error_text(effects: Effects) -> None:
    stage = bench(effects)
    first = stage.agent(turns=[ANSWER, {"error": "overloaded, says the model"}])
    result = await stage.run(first, interactive=True, input_source=Typed("x"))
    assert (result.reason, end_of(stage.state)) == ("error", "error")
    assert "overloaded" in (result.message or "")

    second = stage.agent(turns=[ANSWER, {"text": "Better now."}, ANSWER])
    await stage.resume(second, input_source=Typed("y"))
    repeated, request = stage.requests[-2:]
    assert said(repeated) == said(stage.requests[1])  # the same request is tried again
    assert [json.loads(each)["content"][0]["text"] for each in said(request)] == [
        *("go", ANSWER["text"], "x", "Better now.", "y")
    ]


async def test_follow_ups_without_an_answer_between_them_become_one_message(effects: Effects) -> None:
    stage = bench(effects)
    first = stage.agent(turns=[ANSWER, {"error": "overloaded"}])
    await stage.run(first, interactive=True, input_source=Typed("x"))
    meta, turn, user, *_ = records_of(stage)
    other = bench(effects, ANSWER, ANSWER)
    plant(other, [meta, turn, user, UserRecord(message=msgspec.Raw(b'{"role":"user","content":"y"}'))])
    await other.resume(input_source=Typed())
    assert [message.role for message in other.requests[0].messages] == ["user", "assistant", "user"]
    assert [block["text"] for block in json.loads(said(other.requests[0])[2])["content"]] == ["x", "y"]


SIGNED = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
    {"type": "text", "text": "Looking."},
    {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {"what": "1e3"}},
    {"type": "thinking", "thinking": "", "signature": "ZW1wdHk="},
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
    {"type": "tool_use", "id": "toolu_2", "name": "b", "input": {}},
]
ON_THEIR_SIDE = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"encrypted_content": "b3BhcXVl"}]},
    {"type": "text", "text": "Found it."},
    {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}},
]


@pytest.mark.parametrize(("content", "calls"), [(SIGNED, ["a", "b"]), (ON_THEIR_SIDE, ["a"])])
async def test_a_turn_is_sent_back_as_it_came_through_any_number_of_resumes(
    effects: Effects, content: list[dict[str, Any]], calls: list[str]
) -> None:
    stage = bench(effects, {"content": content}, ANSWER)
    with pytest.raises(Crash):
        await stage.run(stage.agent([effect_tool("a", effects, dies=True), effect_tool("b", effects)]))
    pending = stage.state.pending
    assert pending is not None
    assert [call.name for call in pending.unanswered] == calls
    stage.hook = lambda event: crash() if isinstance(event, events.ModelCalled) else None
    tools = [effect_tool("a", effects), effect_tool("b", effects)]
    for _ in range(3):
        with pytest.raises(Crash):
            await stage.resume(stage.agent(tools))
    stage.hook = None
    await stage.resume(stage.agent(tools))
    assert json.loads(said(stage.requests[-1])[1])["content"] == content
    assert effects.names == ["a", *calls]


@pytest.mark.parametrize("unusable", ["", [], None, 3, "not json", True])
@pytest.mark.parametrize("killed", [False, True])
async def test_unusable_arguments_are_answered_with_an_error_live_and_on_resume(
    tmp_path: Path, effects: Effects, unusable: Any, killed: bool
) -> None:
    stage = bench(effects, {"calls": [{"name": "a", "input": unusable}, {"name": "b"}]}, ANSWER)
    twin = await twin_of(stage, tmp_path)
    if killed:
        plant(stage, records_of(twin)[:2])
        await stage.resume()
    else:
        await stage.run()
    assert effects.names == ["b"]
    first, second = results_of(stage)
    assert first["is_error"]
    assert "unusable" in json.dumps(first)
    assert "is_error" not in second
    assert b'"input":{}' in said(stage.requests[-1])[1]
    assert_same_as(stage, twin)


async def test_arguments_that_do_not_fit_and_tools_that_do_not_exist_are_answered(effects: Effects) -> None:
    calls = [{"name": "a", "input": {"what": 3}}, {"name": "nope"}, {"name": "b"}]
    stage = bench(effects, {"calls": calls}, ANSWER)
    await stage.run()
    assert [result.get("is_error", False) for result in results_of(stage)] == [True, True, False]
    assert effects.names == ["b"]


@pytest.mark.parametrize("number", ["12345678901234567890123", "1e999", "1E-5", "0.1"])
async def test_numbers_of_any_size_never_end_a_run(effects: Effects, number: str) -> None:
    content = b'[{"type":"tool_use","id":"x","name":"a","input":{"what":%s}}]' % number.encode()
    stage = bench(effects, {"content": msgspec.json.decode(content) if "999" not in number else []}, ANSWER)
    result = await stage.run()
    assert result.reason == "completed"


@pytest.mark.parametrize("ids", [["x", "x"], ["", "y"]])
async def test_ids_that_are_doubled_or_missing_are_made_unique_before_they_are_journaled(
    effects: Effects, ids: list[str]
) -> None:
    stage = bench(
        effects, {"calls": [{"name": name, "id": each} for name, each in zip("ab", ids, strict=True)]}, ANSWER
    )
    await stage.run()
    assert effects.names == ["a", "b"]
    journaled = [result["tool_use_id"] for result in results_of(stage)]
    assert len(set(journaled)) == 2
    assert "" not in journaled


async def test_an_answer_completes_however_much_it_cost(effects: Effects) -> None:
    stage = bench(effects, {**ANSWER, "in_tokens": 10_000})
    result = await stage.run(stage.agent(budget=Budget(1, 1)))
    assert result.reason == "completed"
