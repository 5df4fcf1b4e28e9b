from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fisk_ai.errors import InvalidReply, ProviderRefused, UnsupportedFormat
from fisk_ai.messages import Message, tool_result
from fisk_ai.providers.anthropic import Accumulator, MessagesApi, build_request, read_reply
from fisk_ai.providers.base import Delta, ModelOptions, Reply
from fisk_ai.providers.wire import StreamNotVerbatim
from tests.providers.conftest import ask, results, user

START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 5},
    },
}
STOP: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"output_tokens": 9, "cache_creation_input_tokens": 3},
}
END: dict[str, Any] = {"type": "message_stop"}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def arguments(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    start = {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {}}
    return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def play(events: Sequence[dict[str, Any] | str]) -> tuple[Reply, list[Delta]]:
    turn, shown = Accumulator(), []
    for event in events:
        delta = turn.feed("message", event if isinstance(event, str) else json.dumps(event))
        shown += [delta] if delta else []
    return turn.reply(), shown


def content(reply: Reply) -> Any:
    return json.loads(reply.message)["content"]


def test_request_holds_journaled_turns_byte_for_byte() -> None:
    turn = b'{"role": "assistant","content":[{"type":"tool_use","id":"t","name":"lookup","input":{"a":1e3,"a":1.10}}]}'
    answer = results(tool_result("t", "ok"))
    body = build_request(ask(user(), Message("assistant", "anthropic", turn), answer), stream=True)
    assert b'"messages":[' + user().content + b"," + turn + b"," + answer.content + b"]}" in body
    assert json.loads(body) | {"messages": 0} == {
        "model": "some-model",
        "max_tokens": 1000,
        "system": "Be brief.",
        "tools": [
            {
                "name": "lookup",
                "description": "Look a stream up",
                "input_schema": {"type": "object", "properties": {"stream": {"type": "string"}}},
            }
        ],
        "cache_control": {"type": "ephemeral"},
        "stream": True,
        "messages": 0,
    }


@pytest.mark.parametrize("blank", ["", " \n", "\u200b"])
def test_blank_system_prompt_and_no_tools_are_left_out(blank: str) -> None:
    body = json.loads(build_request(replace(ask(tools=()), system_prompt=blank), stream=False))
    assert sorted(body) == ["cache_control", "max_tokens", "messages", "model"]


@pytest.mark.parametrize(
    ("mode", "thinking"),
    [
        ("off", None),
        ("adaptive", {"type": "adaptive"}),
        ("budget:2048", {"type": "enabled", "budget_tokens": 2048}),
    ],
)
def test_thinking_modes_are_asked_for(mode: str, thinking: object) -> None:
    body = json.loads(build_request(replace(ask(), thinking_mode=mode), stream=False))
    assert body.get("thinking") == thinking


def test_options_are_asked_for() -> None:
    search = {"type": "web_search_20260209", "name": "web_search", "max_uses": 3}
    toolset: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": "orders"}
    options = ModelOptions(
        cache=False, service_tier="standard_only", betas=("one", "two"), server_tools=(search, toolset)
    )
    api = MessagesApi(options)
    body = json.loads(api.build_request(ask(), stream=False))
    assert [tool["name"] for tool in body["tools"][:1]] == ["lookup"]
    assert body["tools"][1:] == [search, toolset]
    assert body["service_tier"] == "standard_only"
    assert "cache_control" not in body
    assert "betas" not in body
    assert api.headers["anthropic-beta"] == "one,two"
    assert "anthropic-beta" not in MessagesApi().headers
    alone = json.loads(api.build_request(ask(tools=()), stream=False))
    assert alone["tools"] == [search, toolset]


def test_blank_text_in_a_journal_of_other_origin_is_left_out_of_the_request() -> None:
    use = b'{"type":"tool_use","id":"t","name":"lookup","input":{"text":""}}'
    turn = b'{"role":"assistant","content":[{"type":"text","text":"\\n\\u200b"},' + use + b"]}"
    body = build_request(
        ask(user(), Message("assistant", "anthropic", turn), results(tool_result("t", "x"))), stream=False
    )
    assert b'{"role":"assistant","content":[' + use + b"]}" in body


def test_text_that_only_looks_blank_is_sent_as_it_is() -> None:
    turn = b'{"role": "assistant", "content": [{"type": "text", "text": "\\u00e9"}]}'
    assert turn in build_request(ask(user(), Message("assistant", "anthropic", turn)), stream=False)


def test_turn_in_another_format_is_not_sent() -> None:
    with pytest.raises(UnsupportedFormat):
        build_request(ask(user(), Message("assistant", "openai", b'{"role":"assistant"}')), stream=False)


def test_answer_is_read_with_its_bytes_and_its_usage() -> None:
    spelled = b'[{"type":"text","text":"\\u00e9 1","citations":null}]'
    reply = read_reply(
        b'{"id":"msg_1","type":"message","role":"assistant","content":'
        + spelled
        + b',"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":5,'
        b'"cache_creation_input_tokens":null,"server_tool_use":{"x":1}}}'
    )
    assert reply.message == b'{"role":"assistant","content":' + spelled + b"}"
    assert (reply.in_tokens, reply.out_tokens, reply.cache_read_tokens, reply.cache_create_tokens) == (3, 4, 5, 0)
    assert (reply.stop_reason, reply.response_id, reply.unusable) == ("end_turn", "msg_1", ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>hello</html>",
        b"[]",
        b"null",
        b"{}",
        b'{"content":[]}',
        b'{"content":[{"type":"text","text":"half',
        b'{"content":null,"stop_reason":"end_turn"}',
        b'{"content":[],"stop_reason":null}',
        b'{"role":"user","content":[],"stop_reason":"end_turn"}',
        b'{"content":[],"stop_reason":"end_turn","usage":{"input_tokens":"3"}}',
    ],
)
def test_what_is_no_whole_answer_is_invalid_and_may_be_asked_again(body: bytes) -> None:
    with pytest.raises(InvalidReply) as caught:
        read_reply(body)
    assert caught.value.retryable


def test_error_with_status_200_is_an_error() -> None:
    with pytest.raises(ProviderRefused, match="overloaded"):
        read_reply(b'{"type":"error","error":{"type":"overloaded_error","message":"overloaded"}}')


def test_empty_turn_is_a_turn() -> None:
    assert read_reply(b'{"content":[],"stop_reason":"end_turn"}').message == b'{"role":"assistant","content":[]}'


def test_stream_gives_the_message_the_api_would_have_sent_whole() -> None:
    thinking = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let "},
        {"type": "thinking_delta", "thinking": "me \u00e9"},
        {"type": "signature_delta", "signature": "sig=="},
    )
    search = block(
        1,
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"q": 1}'},
    )
    future = block(2, {"type": "from_the_future", "data": [1, {"x": None}]})
    cited = block(
        3,
        {"type": "text", "text": "", "citations": []},
        {"type": "text_delta", "text": "T"},
        {"type": "citations_delta", "citation": {"n": 1}},
        {"type": "citations_delta", "citation": {"n": 2}},
    )
    events = [START, {"type": "ping"}, *thinking, *search, *future, *cited, *arguments("", '{"a"', ": 1}", index=4)]
    reply, shown = play([*events, {"type": "of_tomorrow"}, STOP, END])
    assert content(reply) == [
        {"type": "thinking", "thinking": "Let me \u00e9", "signature": "sig=="},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}},
        {"type": "from_the_future", "data": [1, {"x": None}]},
        {"type": "text", "text": "T", "citations": [{"n": 1}, {"n": 2}]},
        {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"a": 1}},
    ]
    assert shown == [Delta("thinking", "Let "), Delta("thinking", "me \u00e9"), Delta("text", "T")]
    assert (reply.in_tokens, reply.out_tokens, reply.cache_read_tokens, reply.cache_create_tokens) == (7, 9, 5, 3)
    assert (reply.response_id, reply.stop_reason) == ("msg_1", "end_turn")


def test_streamed_arguments_are_kept_as_they_are_spelled() -> None:
    reply, _ = play([START, *arguments('{"a": 1e', '3,  "b":1.10, "c":12345678901234567890123}'), STOP, END])
    assert b'"input":{"a": 1e3,  "b":1.10, "c":12345678901234567890123}' in reply.message


def test_streamed_escapes_are_kept_and_pairs_split_over_deltas_are_joined() -> None:
    pieces = ['{"type":"text_delta","text":"\\u00e9"}', '{"type":"text_delta","text":"\\/"}']
    events: list[dict[str, Any] | str] = [START, text()[0]]
    events += [*('{"type":"content_block_delta","index":0,"delta":' + p + "}" for p in pieces)]
    reply, _ = play([*events, text()[-1], STOP, END])
    assert b'"text":"\\u00e9\\/"' in reply.message


def test_lone_surrogate_in_a_stream_is_replaced() -> None:
    lone = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x\\ud83dy"}}'
    reply, shown = play([START, text()[0], lone, text()[-1], STOP, END])
    assert content(reply) == [{"type": "text", "text": "x\ufffdy"}]
    assert shown == [Delta("text", "x\ufffdy")]


def test_streamed_call_without_arguments_has_an_empty_object() -> None:
    reply, _ = play([START, *arguments(""), STOP, END])
    assert content(reply)[0]["input"] == {}
    assert reply.unusable == ()


@pytest.mark.parametrize(
    "pieces", [('{"a": 1, "b', '": "cut'), ("[]",), ('"text"',), ("3",), ('{"a":' * 300 + "1" + "}" * 300,)]
)
def test_streamed_arguments_that_are_cut_or_no_object_are_unusable(pieces: tuple[str, ...]) -> None:
    reply, _ = play([START, *arguments(*pieces), STOP | {"delta": {"stop_reason": "max_tokens"}}, END])
    assert content(reply)[0]["input"] == {}
    assert reply.unusable == (0,)
    assert reply.stop_reason == "max_tokens"


WHOLE = [START, *text("Hello ", "world"), STOP, END]


@pytest.mark.parametrize("count", range(len(WHOLE)))
def test_stream_that_ends_early_is_no_turn(count: int) -> None:
    with pytest.raises(InvalidReply, match="ended early") as caught:
        play(WHOLE[:count])
    assert caught.value.retryable
    assert caught.value.may_be_paid


def test_stream_without_a_stop_reason_is_no_turn() -> None:
    with pytest.raises(InvalidReply, match="stop reason"):
        play([START, *text("x"), END])


def test_unknown_delta_is_not_dropped_in_silence() -> None:
    with pytest.raises(StreamNotVerbatim):
        play([START, *block(0, {"type": "text", "text": ""}, {"type": "sparkle_delta", "x": 1}), STOP, END])


@pytest.mark.parametrize(
    ("start", "delta"),
    [
        ({"type": "from_the_future"}, {"type": "text_delta", "text": "x"}),
        ({"type": "redacted_thinking", "data": "d"}, {"type": "signature_delta", "signature": "s"}),
        ({"type": "text", "text": ""}, {"type": "input_json_delta", "partial_json": "{}"}),
        ({"type": "image"}, {"type": "citations_delta", "citation": {}}),
        ({"type": "web_search_tool_result", "content": []}, {"type": "input_json_delta", "partial_json": "{}"}),
    ],
)
def test_a_delta_that_does_not_fit_its_block_is_not_guessed_at(start: dict[str, Any], delta: dict[str, Any]) -> None:
    with pytest.raises(StreamNotVerbatim):
        play([START, *block(0, start, delta), STOP, END])


def test_blocks_of_unknown_kinds_take_the_deltas_of_fields_that_they_start_with() -> None:
    note = block(0, {"type": "note", "n": 1.10, "text": ""}, {"type": "text_delta", "text": "x"})
    use = block(
        1, {"type": "far_tool_use", "id": "f", "input": {}}, {"type": "input_json_delta", "partial_json": '{"a":1}'}
    )
    reply, _ = play([START, *note, *use, STOP, END])
    assert content(reply) == [
        {"type": "note", "n": 1.1, "text": "x"},
        {"type": "far_tool_use", "id": "f", "input": {"a": 1}},
    ]


def test_thinking_without_a_field_for_its_signature_takes_one() -> None:
    start = {"type": "thinking", "thinking": ""}
    reply, _ = play([START, *block(0, start, {"type": "signature_delta", "signature": ""}), STOP, END])
    assert content(reply) == [{"type": "thinking", "thinking": "", "signature": ""}]


def test_citations_are_added_to_those_that_the_block_started_with() -> None:
    start = {"type": "text", "text": "T", "citations": [{"n": 1}]}
    deltas = [{"type": "citations_delta", "citation": {"n": n}} for n in (2, 3)]
    reply, _ = play([START, *block(0, start, *deltas), STOP, END])
    assert content(reply) == [{"type": "text", "text": "T", "citations": [{"n": 1}, {"n": 2}, {"n": 3}]}]


REFUSED = {"type": "refusal", "category": "cyber", "explanation": "Not\nthis."}


@pytest.mark.parametrize(
    ("details", "note"),
    [
        (REFUSED, "cyber: Not this."),
        ({"category": None, "explanation": "Why."}, "Why."),
        ({"category": "bio", "explanation": " "}, "bio"),
        ({"category": 3, "explanation": []}, None),
        (None, None),
        ("text", None),
        ([], None),
    ],
)
def test_what_the_api_says_of_a_refusal_is_kept_beside_the_turn(details: Any, note: str | None) -> None:
    delta = {"stop_reason": "refusal", "stop_details": details}
    streamed, _ = play([START, *text("No"), STOP | {"delta": delta}, END])
    whole = read_reply(json.dumps({"content": [], "stop_reason": "refusal", "stop_details": details}).encode())
    assert (streamed.stop_note, whole.stop_note) == (note, note)
    assert (streamed.stop_reason, whole.stop_reason) == ("refusal", "refusal")


def test_message_that_starts_with_content_is_not_guessed_at() -> None:
    started = {"type": "message_start", "message": {**START["message"], "content": [{"type": "text", "text": "x"}]}}
    with pytest.raises(StreamNotVerbatim):
        play([started, STOP, END])


@pytest.mark.parametrize(
    "events",
    [
        [START, "not json"],
        [START, "[]"],
        [START, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}],
        [START, *text("x"), {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}],
        [START, *text("x", index=1)],
        [START, *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": 3})],
        [START, *block(0, {"type": "text", "text": ""}, {"type": "citations_delta"})],
        [START, *block(0, {"text": ""})],
    ],
)
def test_events_without_the_apis_shape_are_no_turn(events: list[dict[str, Any] | str]) -> None:
    with pytest.raises(InvalidReply) as caught:
        play(events)
    assert caught.value.retryable


@pytest.mark.parametrize(("kind", "retryable"), [("overloaded_error", True), ("invalid_request_error", False)])
def test_error_event_is_classified_by_its_type(kind: str, retryable: bool) -> None:
    with pytest.raises(ProviderRefused) as caught:
        play([START, {"type": "error", "error": {"type": kind, "message": "x"}}])
    assert caught.value.retryable is retryable
    assert caught.value.kind == kind
