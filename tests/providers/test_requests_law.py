"""Every run that folds gives requests that its API accepts, with the turns in them as they were journaled."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fisk_ai.agent.decide import CallModel
from fisk_ai.errors import JournalCorrupt
from fisk_ai.folding import Folding, fold
from fisk_ai.messages import ImageBlock, ImageSource, TextBlock, encode_result, tool_result
from fisk_ai.providers.anthropic import build_request
from fisk_ai.providers.rules import check_messages_request
from fisk_ai.records import Record, ToolResultRecord, UserRecord
from tests.providers.conftest import ask
from tests.providers.conversations import FORMATS, draw_run
from tests.providers.requests_law import check_run
from tests.reliability.request_trials import TRIALS
from tests.reliability.trials import tried
from tests.strategies import answer, dumps, follow_up, meta, result, sequenced, turn


def test_every_prefix_of_every_run_gives_a_request_that_its_api_accepts() -> None:
    tally = tried(TRIALS[0], "short")
    tally.check()
    assert tally.reached["requests"] > 400


def test_no_request_is_made_unless_the_model_is_what_comes_next() -> None:
    cuts = [cut for seed in range(len(FORMATS) * 10) for cut in check_run(draw_run(seed))]
    assert all((cut.request is not None) == isinstance(cut.step, CallModel) for cut in cuts)
    assert {type(cut.step).__name__ for cut in cuts} >= {"CallModel", "RunCalls", "AnswerCall", "AwaitInput"}


def test_a_run_of_a_seed_is_always_the_same() -> None:
    assert draw_run(7) == draw_run(7)


def sent(*records: Record) -> Any:
    """Return the messages of the request that comes next."""
    body = build_request(ask(*fold(sequenced([meta(), *records])).messages), stream=False)
    assert check_messages_request(body) == []
    return json.loads(body)["messages"]


def test_what_is_typed_behind_a_refused_turns_results_is_sent_behind_them() -> None:
    messages = sent(turn("a", "b", stop_reason="refusal"), result("b"), result("a"), follow_up("again"))
    assert [block.get("tool_use_id", block.get("text")) for block in messages[-1]["content"]] == ["a", "b", "again"]


def test_images_of_a_failed_call_are_sent_behind_the_results() -> None:
    image = ImageBlock(ImageSource("base64", "image/png", "iVBORw0KGgo="))
    failed = encode_result("a", [image, TextBlock("no")], is_error=True)
    shown = encode_result("c", [image], is_error=True)
    records = [
        ToolResultRecord(tool_use_id=each, result=msgspec.Raw(raw)) for each, raw in (("a", failed), ("c", shown))
    ]
    messages = sent(turn("a", "b", "c"), *records, result("b"))
    content = messages[-1]["content"]
    assert [block["type"] for block in content] == ["tool_result"] * 3 + ["text", "image"] * 2
    assert [block["tool_use_id"] for block in content[:3]] == ["a", "b", "c"]
    assert content[0]["content"] == [{"type": "text", "text": "no"}]
    assert content[2]["content"] == [{"type": "text", "text": "(an image, shown below)"}]
    assert [block["text"].split()[5] for block in content[3::2]] == ["a", "c"]
    assert content[4] == content[6] == json.loads(msgspec.json.encode(image))


@pytest.mark.parametrize("is_error", [True, False])
def test_results_that_the_api_takes_are_sent_byte_for_byte(is_error: bool) -> None:
    raw = b'{ "type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"\\u00e9 1.0"}]'
    raw += b', "is_error": true}' if is_error else b"}"
    state = fold(sequenced([meta(), turn("a"), ToolResultRecord(tool_use_id="a", result=msgspec.Raw(raw))]))
    assert raw in build_request(ask(*state.messages), stream=False)


@pytest.mark.parametrize("content", ["", " ", [], [{"type": "text", "text": "\n"}, {"type": "text", "text": ""}]])
def test_a_blank_result_of_other_origin_is_sent_as_a_note(content: Any) -> None:
    raw = dumps({"type": "tool_result", "tool_use_id": "a", "content": content, "is_error": True})
    messages = sent(turn("a"), ToolResultRecord(tool_use_id="a", result=msgspec.Raw(raw)))
    [block] = messages[-1]["content"]
    assert block == json.loads(tool_result("a", "", is_error=True))


@pytest.mark.parametrize("content", ["", "\u200b", [], [{"type": "text", "text": " "}]])
def test_a_blank_follow_up_of_other_origin_is_sent_as_a_note(content: Any) -> None:
    typed = UserRecord(message=msgspec.Raw(dumps({"role": "user", "content": content})))
    assert sent(answer(), typed)[-1]["content"] == [{"type": "text", "text": "(nothing was typed)"}]


def test_a_follow_up_that_holds_a_tool_result_is_damage() -> None:
    folding = Folding()
    for record in sequenced([meta(), answer()]):
        folding.apply(record)
    message = b'{"role":"user","content":[' + tool_result("a", "x") + b"]}"
    with pytest.raises(JournalCorrupt, match="holds the result of a call"):
        folding.check(UserRecord(message=msgspec.Raw(message)))
