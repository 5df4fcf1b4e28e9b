from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fisk_ai.errors import InvalidReply, ProviderRefused
from fisk_ai.messages import (
    NEUTRAL,
    ImageBlock,
    ImageSource,
    Message,
    TextBlock,
    encode_result,
    tool_result,
    user_text,
)
from fisk_ai.providers.base import Delta, ModelOptions, Reply
from fisk_ai.providers.openai import Accumulator, build_request, read_reply
from fisk_ai.providers.wire import StreamNotVerbatim
from tests.providers.conftest import ask, results, user

IMAGE = ImageBlock(ImageSource("base64", "image/png", "aGk="))
DONE = "[DONE]"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call(index: int, **fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, **fields}]})


def play(events: Sequence[dict[str, Any] | str]) -> tuple[Reply, list[Delta]]:
    turn, shown = Accumulator(), []
    for event in events:
        delta = turn.feed("message", event if isinstance(event, str) else json.dumps(event))
        shown += [delta] if delta else []
    return turn.reply(), shown


def sent(*messages: Message) -> list[Any]:
    body: list[Any] = json.loads(build_request(ask(*messages), stream=False, official=False))["messages"]
    return body[1:]


def answer(message: str, finish: str = '"stop"', usage: str = "null") -> bytes:
    choice = f'{{"index":0,"message":{message},"finish_reason":{finish}}}'
    return f'{{"id":"c-1","choices":[{choice}],"usage":{usage}}}'.encode()


def test_request_holds_journaled_turns_byte_for_byte() -> None:
    turn = b'{ "role":"assistant","content":null,"tool_calls":[{"id":"t","n":1e3}],"reasoning_content":"\\u00e9" }'
    body = build_request(
        ask(user(), Message("assistant", "openai", turn), results(tool_result("t", "ok"))), stream=True, official=False
    )
    assert b"," + turn + b"," in body
    parsed = json.loads(body)
    assert parsed["messages"][0] == {"role": "system", "content": "Be brief."}
    assert parsed["messages"][1] == {"role": "user", "content": "go"}
    assert parsed["messages"][3] == {"role": "tool", "tool_call_id": "t", "content": "ok"}
    assert parsed["stream_options"] == {"include_usage": True}
    assert parsed["tools"][0]["function"]["name"] == "lookup"


@pytest.mark.parametrize(("official", "key"), [(True, "max_completion_tokens"), (False, "max_tokens")])
def test_output_limit_has_the_name_that_the_server_knows(official: bool, key: str) -> None:
    body = json.loads(build_request(ask(tools=()), stream=False, official=official))
    assert body.keys() == {"model", "messages", key}
    assert body[key] == 1000


def test_service_tier_is_handed_on_and_caching_has_no_word() -> None:
    options = ModelOptions(cache=True, service_tier="flex")
    body = json.loads(build_request(ask(tools=()), stream=False, official=True, options=options))
    assert body.keys() == {"model", "messages", "max_completion_tokens", "service_tier"}
    assert body["service_tier"] == "flex"


def test_thinking_budget_is_refused_rather_than_ignored() -> None:
    with pytest.raises(ProviderRefused, match="thinking budget"):
        build_request(replace(ask(), thinking_mode="budget:2000"), stream=False, official=True)


def test_results_come_first_then_their_images_then_what_was_typed() -> None:
    typed = b'{"type":"text","text":"and now?"}'
    message = results(
        encode_result("a", [TextBlock("one"), TextBlock("two")]),
        encode_result("b", [IMAGE]),
        tool_result("c", "it broke", is_error=True),
        typed,
    )
    assert sent(user(), message)[1:] == [
        {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "b", "content": "(an image, shown below)"},
        {"role": "tool", "tool_call_id": "c", "content": "Error: it broke"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "The result of tool call b has this to show:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]


def test_several_texts_of_the_users_are_one_message() -> None:
    two = Message("user", NEUTRAL, b'{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}')
    assert sent(two) == [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}]
    assert sent(Message("user", NEUTRAL, user_text("x"))) == [{"role": "user", "content": "x"}]
    assert sent(Message("user", NEUTRAL, b'{"role":"user","content":"x"}')) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("content", ["null", '""', '"x"'])
def test_content_is_kept_as_it_was_sent(content: str) -> None:
    message = f'{{"role":"assistant","content":{content},"refusal":null,"annotations":[],"audio":null}}'
    assert read_reply(answer(message)).message == message.encode()


def test_absent_content_stays_absent() -> None:
    message = '{"role":"assistant","reasoning_content":"hm"}'
    assert read_reply(answer(message)).message == message.encode()


CALLS = '{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}'  # noqa: E501


@pytest.mark.parametrize(
    ("finish", "message", "reason"),
    [
        ("stop", '{"role":"assistant","content":"x"}', "end_turn"),
        ("stop", CALLS, "tool_use"),
        ("tool_calls", CALLS, "tool_use"),
        ("tool_calls", '{"role":"assistant","content":"x"}', "end_turn"),
        ("function_call", '{"role":"assistant","content":"x","tool_calls":[]}', "end_turn"),
        ("stop", '{"role":"assistant","content":null,"refusal":"I can\'t"}', "refusal"),
        ("stop", '{"role":"assistant","content":"x","refusal":"I can\'t"}', "end_turn"),
        ("length", CALLS, "max_tokens"),
        ("content_filter", '{"role":"assistant","content":"x"}', "content_filter"),
        ("new_reason", '{"role":"assistant","content":"x"}', "new_reason"),
    ],
)
def test_finish_reasons_are_mapped_on_entry(finish: str, message: str, reason: str) -> None:
    assert read_reply(answer(message, f'"{finish}"')).stop_reason == reason


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ('{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":60}}', (40, 5, 60)),
        ('{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":60}}', (0, 5, 60)),
        ('{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":null}', (100, 5, 0)),
        ("null", (0, 0, 0)),
        ("{}", (0, 0, 0)),
    ],
)
def test_cached_tokens_are_counted_apart(usage: str, counted: tuple[int, int, int]) -> None:
    reply = read_reply(answer('{"role":"assistant","content":"x"}', usage=usage))
    assert (reply.in_tokens, reply.out_tokens, reply.cache_read_tokens) == counted


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html></html>",
        b"[]",
        b"null",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":null}',
        answer("null"),
        answer('{"role":"assistant","content":"x"}', "null"),
        answer('{"role":"assistant","content":"x"}', '""'),
        answer('{"role":"assistant","content":3}'),
    ],
)
def test_what_is_no_whole_answer_is_invalid_and_may_be_asked_again(body: bytes) -> None:
    with pytest.raises(InvalidReply) as caught:
        read_reply(body)
    assert caught.value.retryable


def test_tokens_written_to_a_cache_are_counted_apart() -> None:
    usage = '{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30}}'
    reply = read_reply(answer('{"role":"assistant","content":"x"}', usage=usage))
    assert (reply.in_tokens, reply.cache_read_tokens, reply.cache_create_tokens) == (10, 60, 30)


def test_error_with_status_200_is_an_error() -> None:
    with pytest.raises(ProviderRefused, match="no capacity") as caught:
        read_reply(b'{"error":{"message":"no capacity","type":"server_error"}}')
    assert caught.value.retryable


def test_stream_gives_the_message_the_api_would_have_sent_whole() -> None:
    reply, shown = play(
        [
            chunk({"role": "assistant", "content": None}),
            chunk({"reasoning_content": "hm"}),
            chunk({"reasoning_content": "m"}),
            chunk({"content": "Look"}),
            chunk({"content": "ing"}),
            call(0, id="a", type="function", function={"name": "lookup", "arguments": ""}),
            call(0, function={"arguments": '{"s": '}),
            call(1, id="b", function={"name": "lookup", "arguments": "{}"}),
            call(0, id="", function={"name": None, "arguments": "1e3}"}),
            chunk({}, "tool_calls"),
            {"id": "c-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
            DONE,
        ]
    )
    assert json.loads(reply.message) == {
        "role": "assistant",
        "content": "Looking",
        "reasoning_content": "hmm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "lookup", "arguments": '{"s": 1e3}'}},
            {"id": "b", "type": "function", "function": {"name": "lookup", "arguments": "{}"}},
        ],
    }
    assert shown == [Delta("thinking", "hm"), Delta("thinking", "m"), Delta("text", "Look"), Delta("text", "ing")]
    assert (reply.in_tokens, reply.out_tokens, reply.stop_reason) == (3, 2, "tool_use")


def test_role_that_is_repeated_in_every_chunk_is_one_role() -> None:
    reply, _ = play(
        [chunk({"role": "assistant", "content": "a"}), chunk({"role": "assistant", "content": "b"}, "stop")]
    )
    assert json.loads(reply.message) == {"role": "assistant", "content": "ab"}


def test_stream_that_ends_cleanly_after_its_finish_reason_is_whole_without_done() -> None:
    reply, _ = play([chunk({"content": "x"}, "stop")])
    assert json.loads(reply.message) == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("ending", [[], [DONE]])
def test_stream_without_a_finish_reason_is_no_turn(ending: list[str]) -> None:
    with pytest.raises(InvalidReply, match="ended early") as caught:
        play([chunk({"content": "x"}), *ending])
    assert caught.value.retryable


WHOLE_CALL = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"n":1}'}}]}
NAMELESS_CALL = {"tool_calls": [{"function": {"name": "f", "arguments": '{"n":1}'}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [{"tool_calls": [{"index": 1, "id": "a"}]}, {"tool_calls": [{"index": 0, "id": "b"}]}],
        [{"tool_calls": [{"index": 0, "id": "a"}]}, {"tool_calls": [{"index": 0, "id": "b"}]}],
        [{"tool_calls": [{"index": 0, "id": "a"}]}, {"tool_calls": [{"id": "b", "function": {"arguments": "{}"}}]}],
        [WHOLE_CALL, WHOLE_CALL],
        [WHOLE_CALL, {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}],
        [NAMELESS_CALL, NAMELESS_CALL],
        [{"annotations": [{"type": "a"}]}, {"annotations": [{"type": "b"}]}],
        [{"logits": 1}, {"logits": 2}],
        [{"content": "a"}, {"content": ["b"]}],
    ],
)
def test_deltas_that_cant_be_merged_are_not_guessed_at(deltas: list[dict[str, Any]]) -> None:
    with pytest.raises(StreamNotVerbatim):
        play([*map(chunk, deltas), chunk({}, "stop")])


@pytest.mark.parametrize("data", ["not json", "[]", '{"choices":[{"delta":[]}]}', '{"choices":{}}'])
def test_chunks_without_the_apis_shape_are_no_turn(data: str) -> None:
    with pytest.raises(InvalidReply):
        play([data])


def test_calls_of_a_shape_that_nobody_knows_are_no_turn() -> None:
    with pytest.raises(InvalidReply):
        play([chunk({"tool_calls": "lookup"}, "stop")])


def test_error_in_a_stream_is_an_error() -> None:
    with pytest.raises(ProviderRefused) as caught:
        play([chunk({"content": "x"}), {"error": {"message": "overloaded", "type": "server_error"}}])
    assert caught.value.retryable


def test_other_choices_are_ignored() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    reply, _ = play([chunk({"content": "x"}, "stop"), other])
    assert json.loads(reply.message)["content"] == "x"


def test_streamed_lone_surrogate_is_replaced() -> None:
    raw = '{"choices":[{"index":0,"delta":{"content":"x\\ud83dy"},"finish_reason":"stop"}]}'
    assert json.loads(play([raw])[0].message)["content"] == "x\ufffdy"
