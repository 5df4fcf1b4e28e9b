from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import pytest

from fisk_ai.errors import ConfigError, InvalidReply, ProviderError, ProviderRefused, UnsupportedFormat
from fisk_ai.formats import reader_for
from fisk_ai.messages import ImageBlock, ImageSource, Message, TextBlock, encode_result, tool_result
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Delta, ModelOptions, Provider, Reply
from fisk_ai.providers.responses import Accumulator, ResponsesApi, build_request, read_reply
from tests.providers.conftest import LOOKUP, ask, results, user
from tests.providers.strict_responses import ResponsesSpeech
from tests.providers.strict_server import KEY, Fault, StrictServer, Turn

IMAGE = ImageBlock(ImageSource("base64", "image/png", "aGk="))
FORMAT = "openai-responses"
REASONING = (
    '{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gA=="}'
)
SEARCH = '{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"caf\\u00e9"}}'
SAID = '{"id":"msg_1","type":"message","role":"assistant","status":"completed","phase":"commentary","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Looking\\/"}]}'  # noqa: E501
UNKNOWN = '{"type":"from_the_future","id":"ff_1","n":1.10,"big":123456789012345678901234567890}'
CALL = '{"id":"fc_1","type":"function_call","status":"completed","call_id":"c1","name":"lookup","arguments":"{ \\"stream\\" : 1e3 }"}'  # noqa: E501
RICH = f"[{REASONING} ,{SEARCH},{SAID}, {UNKNOWN},{CALL}]".encode()


def answer(output: str, status: str = "completed", **more: Any) -> bytes:
    rest = json.dumps({"id": "resp_1", "status": status, **more})[:-1]
    return f'{rest},"output":{output}}}'.encode()


def said(*parts: dict[str, Any]) -> str:
    return json.dumps([{"id": "msg_1", "type": "message", "role": "assistant", "content": parts}])


HELLO = said({"type": "output_text", "text": "Hello."})


def sent(*messages: Message, official: bool = True) -> list[Any]:
    items: list[Any] = json.loads(build_request(ask(*messages), stream=False, official=official))["input"]
    return items


def head(thinking_mode: str = "off", *, official: bool = True, **how: Any) -> dict[str, Any]:
    request = replace(ask(), thinking_mode=thinking_mode)
    body: dict[str, Any] = json.loads(build_request(request, stream=False, official=official, **how))
    return body


def play(events: Sequence[dict[str, Any] | str], *, official: bool = True) -> tuple[Reply, list[Delta]]:
    turn, shown = Accumulator(official=official), []
    for event in events:
        delta = turn.feed("message", event if isinstance(event, str) else json.dumps(event))
        shown += [delta] if delta else []
    return turn.reply(), shown


def final(output: list[Any], kind: str = "completed", **more: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "status": kind, "output": output, **more}
    return {"type": f"response.{kind}", "response": response}


def test_request_holds_journaled_items_byte_for_byte() -> None:
    turn = Message("assistant", FORMAT, b'{"role":"assistant","output": ' + RICH + b" }")
    body = build_request(ask(user(), turn, results(tool_result("c1", "ok"))), stream=True, official=True)
    assert b"," + RICH[1:-1] + b"," in body
    parsed = json.loads(body)
    assert parsed["instructions"] == "Be brief."
    assert parsed["input"][0] == {"role": "user", "content": "go"}
    assert parsed["input"][-1] == {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    assert (parsed["store"], parsed["include"], parsed["stream"]) == (False, ["reasoning.encrypted_content"], True)
    assert parsed["tools"] == [
        {
            "type": "function",
            "name": LOOKUP.name,
            "description": LOOKUP.description,
            "parameters": LOOKUP.parameters,
            "strict": False,
        }
    ]


@pytest.mark.parametrize(
    ("mode", "official", "asked"),
    [
        ("off", True, {"effort": "none"}),
        ("off", False, None),
        ("adaptive", True, {"effort": "medium", "summary": "auto"}),
        ("adaptive", False, {"effort": "medium", "summary": "auto"}),
    ],
)
def test_thinking_is_asked_for_in_the_apis_words(mode: str, official: bool, asked: dict[str, str] | None) -> None:
    assert head(mode, official=official).get("reasoning") == asked


def test_what_was_given_up_is_left_out() -> None:
    body = head("adaptive", without=("include", "summary", "effort"))
    assert body.keys() == {"model", "max_output_tokens", "store", "instructions", "tools", "input"}
    assert head("adaptive", without=("summary",))["reasoning"] == {"effort": "medium"}


def test_thinking_budget_is_refused_rather_than_ignored() -> None:
    with pytest.raises(ProviderRefused, match="thinking budget"):
        head("budget:2000")


def test_server_tools_follow_the_runs_own_and_the_tier_is_handed_on() -> None:
    search = {"type": "web_search", "search_context_size": "low"}
    body = head(options=ModelOptions(server_tools=(search,), service_tier="flex"))
    assert body["tools"][-1] == search
    assert len(body["tools"]) == 2
    assert body["service_tier"] == "flex"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "custom", "name": "x"}, "'custom' doesn't run on the provider's side"),
        ({"type": "local_shell"}, "'local_shell' doesn't run"),
        ({"type": "mcp", "server_label": "dice"}, "approve the calls of mcp server 'dice'"),
    ],
)
def test_server_tools_that_nobody_would_answer_are_refused(tool: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ResponsesApi(official=True, options=ModelOptions(server_tools=(tool,)))


def test_mcp_servers_that_need_no_approval_are_taken() -> None:
    tool = {"type": "mcp", "server_label": "dice", "require_approval": "never"}
    assert ResponsesApi(official=True, options=ModelOptions(server_tools=(tool,))).format == FORMAT


RESULTS = results(
    encode_result("a", [TextBlock("one"), IMAGE]),
    encode_result("b", [IMAGE], is_error=True),
    tool_result("c", "it broke", is_error=True),
    b'{"type":"text","text":"and now?"}',
)
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}


def test_images_of_results_stay_with_their_results() -> None:
    assert sent(user(), RESULTS)[1:] == [
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "one"}, PICTURE]},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "Error:"}, PICTURE]},
        {"type": "function_call_output", "call_id": "c", "output": "Error: it broke"},
        {"role": "user", "content": "and now?"},
    ]


def test_compatible_servers_get_images_of_results_from_the_user() -> None:
    assert sent(user(), RESULTS, official=False)[1:] == [
        {"type": "function_call_output", "call_id": "a", "output": "one"},
        {"type": "function_call_output", "call_id": "b", "output": "Error: (an image, shown below)"},
        {"type": "function_call_output", "call_id": "c", "output": "Error: it broke"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "The result of tool call a has this to show:"},
                PICTURE,
                {"type": "input_text", "text": "The result of tool call b has this to show:"},
                PICTURE,
                {"type": "input_text", "text": "and now?"},
            ],
        },
    ]


def test_turns_of_another_api_are_refused_by_name() -> None:
    chat = Message("assistant", "openai", b'{"role":"assistant","content":"x"}')
    with pytest.raises(UnsupportedFormat, match="'openai'"):
        sent(user(), chat, user())


def test_whole_answer_is_journaled_as_it_came() -> None:
    reply = read_reply(answer(RICH.decode()), official=True)
    assert reply.message == b'{"role":"assistant","output":' + RICH + b"}"
    assert (reply.format, reply.stop_reason, reply.response_id) == (FORMAT, "tool_use", "resp_1")
    turn = reader_for(FORMAT)(reply.message)
    assert turn.text == "Looking/"
    assert [(call.id, call.name, call.arguments) for call in turn.calls] == [("c1", "lookup", b'{ "stream" : 1e3 }')]


REFUSED = said({"type": "refusal", "refusal": "I can't."})
BOTH = said({"type": "output_text", "text": "Half."}, {"type": "refusal", "refusal": "I can't."})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (answer(HELLO), "end_turn"),
        (answer("[]"), "end_turn"),
        (answer(f"[{CALL}]"), "tool_use"),
        (answer(f"[{SEARCH}]"), "end_turn"),
        (answer(REFUSED), "refusal"),
        (answer(BOTH), "end_turn"),
        (answer(HELLO, "incomplete", incomplete_details={"reason": "max_output_tokens"}), "max_tokens"),
        (answer(f"[{CALL}]", "incomplete", incomplete_details={"reason": "max_output_tokens"}), "max_tokens"),
        (answer(HELLO, "incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
        (answer(HELLO, "incomplete", incomplete_details={"reason": "new_reason"}), "new_reason"),
        (answer(HELLO, "incomplete", incomplete_details=None), "max_tokens"),
    ],
)
def test_status_is_mapped_on_entry(body: bytes, reason: str) -> None:
    assert read_reply(body, official=True).stop_reason == reason


def test_what_a_refusal_says_is_its_text() -> None:
    assert reader_for(FORMAT)(read_reply(answer(REFUSED), official=True).message).text == "I can't."


def test_messages_of_one_turn_are_paragraphs() -> None:
    two = json.loads(said({"type": "output_text", "text": "First."})) + json.loads(HELLO)
    assert reader_for(FORMAT)(read_reply(answer(json.dumps(two)), official=True).message).text == "First.\n\nHello."


@pytest.mark.parametrize("output", ["[]", f"[{REASONING}]", said({"type": "output_text", "text": " \n"})])
def test_turn_that_says_nothing_is_empty_and_left_out(output: str) -> None:
    reply = read_reply(answer(output), official=True)
    assert reader_for(FORMAT)(reply.message).empty


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"input_tokens": 100, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 60}}, (40, 5, 60, 0)),
        (
            {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}},
            (10, 0, 60, 30),
        ),
        ({"input_tokens": 100, "output_tokens": 5, "input_tokens_details": None}, (100, 5, 0, 0)),
        (None, (0, 0, 0, 0)),
    ],
)
def test_cached_tokens_are_counted_apart(usage: Any, counted: tuple[int, ...]) -> None:
    reply = read_reply(answer(HELLO, usage=usage), official=True)
    assert (reply.in_tokens, reply.out_tokens, reply.cache_read_tokens, reply.cache_create_tokens) == counted


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html></html>",
        b"[]",
        b"null",
        b"{}",
        answer("null"),
        answer("{}"),
        answer("[3]"),
        answer(HELLO, ""),
        answer(HELLO, "in_progress"),
        answer(HELLO, "queued"),
        answer(HELLO, "cancelled"),
        answer('[{"type":"message","content":null}]'),
    ],
)
def test_what_is_no_whole_answer_is_invalid_and_may_be_asked_again(body: bytes) -> None:
    with pytest.raises(InvalidReply) as caught:
        read_reply(body, official=True)
    assert caught.value.retryable


def fail(how: str, error: dict[str, str]) -> None:
    """Meet a failure in a whole answer, at the end of a stream, or in an event of its own."""
    if how == "whole":
        read_reply(answer("[]", "failed", error=error), official=True)
    else:
        play([{"type": "error", **error} if how == "event" else final([], "failed", error=error)])


@pytest.mark.parametrize("how", ["whole", "streamed", "event"])
@pytest.mark.parametrize(
    ("codes", "retryable"),
    [
        (["server_error", "rate_limit_exceeded", "vector_store_timeout", "new_code"], True),
        (["invalid_prompt", "image_too_large", "bio_policy"], False),
    ],
)
def test_failures_are_worth_a_retry_by_their_code(how: str, codes: list[str], retryable: bool) -> None:
    for code in codes:
        with pytest.raises(ProviderRefused, match="no luck") as caught:
            fail(how, {"code": code, "message": "no luck"})
        assert (caught.value.kind, caught.value.retryable) == (code, retryable)


def test_error_with_status_200_is_an_error() -> None:
    with pytest.raises(ProviderRefused, match="no capacity"):
        read_reply(b'{"error":{"message":"no capacity","type":"server_error"}}', official=True)


def test_event_that_holds_an_error_is_one_whatever_its_type() -> None:
    with pytest.raises(ProviderRefused, match="no luck"):
        play(['{"error":{"code":500,"message":"no luck","type":"server_error"}}'])


EVENTS = [
    event.partition(b"data: ")[2].decode()
    for event in ResponsesSpeech(Turn(output=msgspec.Raw(RICH)), 0).events({"model": "m"})
]


def test_stream_gives_the_bytes_of_its_last_event_and_shows_the_rest() -> None:
    reply, shown = play(EVENTS)
    assert reply.message == b'{"role":"assistant","output":' + RICH + b"}"
    assert (reply.stop_reason, reply.in_tokens, reply.out_tokens, reply.response_id) == ("tool_use", 100, 10, "resp_0")
    assert "".join(delta.text for delta in shown if delta.kind == "text") == "Looking/"
    assert "".join(delta.text for delta in shown if delta.kind == "thinking") == "hm"


def test_events_of_unknown_types_are_passed_over_and_nothing_is_read_after_the_end() -> None:
    turn = Accumulator(official=True)
    events = ["", '{"type":"response.sparkle.delta","delta":{"x":1}}', *EVENTS]
    for event in events:
        assert not turn.done
        turn.feed("message", event)
    assert turn.done


@pytest.mark.parametrize("ending", [[], ["[DONE]"]])
@pytest.mark.parametrize("count", range(len(EVENTS)))
def test_stream_without_its_last_event_is_no_turn(count: int, ending: list[str]) -> None:
    with pytest.raises(InvalidReply, match="ended early") as caught:
        play([*EVENTS[:count], *ending])
    assert caught.value.retryable


def test_type_of_an_event_may_stand_beside_it() -> None:
    turn = Accumulator(official=False)
    turn.feed("response.completed", json.dumps({"response": {"output": json.loads(HELLO)}}))
    assert turn.reply().stop_reason == "end_turn"


def test_messages_and_parts_of_a_summary_are_shown_apart() -> None:
    def piece(kind: str, text: str, **place: int) -> dict[str, Any]:
        return {"type": f"response.{kind}.delta", "delta": text, **place}

    _, shown = play(
        [
            piece("reasoning_summary_text", "a", output_index=0, summary_index=0),
            piece("reasoning_summary_text", "b", output_index=0, summary_index=0),
            piece("reasoning_summary_text", "c", output_index=0, summary_index=1),
            piece("output_text", "x", output_index=1),
            piece("output_text", "y", output_index=2),
            piece("refusal", "z", output_index=2),
            final(json.loads(HELLO)),
        ]
    )
    assert "".join(delta.text for delta in shown if delta.kind == "thinking") == "ab\n\nc"
    assert "".join(delta.text for delta in shown if delta.kind == "text") == "x\n\nyz"


def done(index: int, raw: str) -> str:
    return f'{{"type":"response.output_item.done","output_index":{index},"item":{raw}}}'


def test_items_that_came_one_by_one_stand_in_for_an_empty_output() -> None:
    reply, _ = play([done(1, CALL), done(0, REASONING), final([])])
    assert reply.message == f'{{"role":"assistant","output":[{REASONING},{CALL}]}}'.encode()
    assert reply.stop_reason == "tool_use"


def test_encrypted_reasoning_that_the_last_event_lacks_is_taken_from_its_own() -> None:
    bare = json.loads(REASONING) | {"encrypted_content": None}
    reply, _ = play([done(0, REASONING), done(1, CALL), final([bare, json.loads(CALL)])])
    assert REASONING.encode() in reply.message
    assert json.loads(reply.message)["output"] == [json.loads(REASONING), json.loads(CALL)]


@pytest.mark.parametrize("data", ["not json", "[]", '{"type":"response.completed"}', '{"type":3}'])
def test_events_without_the_apis_shape_are_no_turn(data: str) -> None:
    with pytest.raises(InvalidReply):
        play([data])


def test_streamed_lone_surrogate_is_replaced() -> None:
    event = json.dumps(final(json.loads(HELLO))).replace("Hello", "\\ud83dx")
    assert reader_for(FORMAT)(play([event])[0].message).text == "\ufffdx."


@asynccontextmanager
async def reach(server: StrictServer, *, stream: bool = True) -> AsyncIterator[Provider]:
    options = ModelOptions(server_tools=({"type": "web_search"},))
    provider = open_provider(
        "openai",
        base_url=f"{server.url}/v1",
        api="responses",
        stream=stream,
        options=options,
        environ={"OPENAI_API_KEY": KEY},
    )
    try:
        yield provider
    finally:
        await provider.aclose()


async def converse(provider: Provider, deltas: list[Delta]) -> list[Reply]:
    """Play a turn with calls and the one after it."""
    first = await provider.complete(ask(), deltas.append)
    calls = reader_for(FORMAT)(first.message).calls
    turn = Message("assistant", first.format, first.message)
    answers = results(*(tool_result(call.id, "3 consumers") for call in calls))
    return [first, await provider.complete(ask(user(), turn, answers, iteration=1), deltas.append)]


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "turn",
    [
        Turn(output=msgspec.Raw(RICH)),
        Turn(text="Looking.", calls=[{"name": "lookup"}, {"name": "lookup", "id": ""}]),
        Turn(calls=[{"name": "lookup", "id": "x"}, {"name": "lookup", "id": "x", "input": "cut {"}]),
        Turn(output=msgspec.Raw(f"[{CALL},{REASONING}]".encode()), stop_reason="max_tokens"),
    ],
)
async def test_what_was_said_is_taken_back(turn: Turn, stream: bool, deltas: list[Delta]) -> None:
    with StrictServer([turn, Turn(text="Done.")]) as server:
        async with reach(server, stream=stream) as provider:
            first, second = await converse(provider, deltas)
        assert server.refusals == []
    assert first.stop_reason == turn.reason(0)
    assert second.stop_reason == "end_turn"
    assert reader_for(FORMAT)(second.message).text == "Done."


LIMIT = ask().max_output_tokens
HALF_A_CALL = {"name": "lookup", "input": '{"stream":"OR'}


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (Turn(text="Once upon a", out_tokens=LIMIT), "max_tokens"),
        (Turn(calls=[HALF_A_CALL], out_tokens=LIMIT), "max_tokens"),
        (Turn(calls=[{"name": "lookup"}], out_tokens=LIMIT), "tool_use"),
        (Turn(text="Once upon a time.", out_tokens=LIMIT - 1), "end_turn"),
        (Turn(calls=[HALF_A_CALL], out_tokens=LIMIT - 1), "tool_use"),
    ],
    ids=["answer", "call", "whole call", "whole answer", "broken call"],
)
async def test_turn_at_the_output_limit_is_cut_off_though_llamacpp_calls_it_completed(
    turn: Turn, reason: str, stream: bool, deltas: list[Delta]
) -> None:
    with StrictServer([turn]) as server:
        async with reach(server, stream=stream) as provider:
            reply = await provider.complete(ask(), deltas.append)
    assert reply.stop_reason == reason


def test_openai_is_believed_that_a_turn_is_complete() -> None:
    reply = replace(read_reply(answer(HELLO), official=True), out_tokens=LIMIT)
    assert ResponsesApi(official=True).settle_stop(reply, ask()) == reply


def test_stream_that_is_cut_at_any_byte_is_no_turn() -> None:
    turn = Turn(text="Hi", calls=[{"name": "lookup"}])
    whole = b"".join(ResponsesSpeech(turn, 0).events({"model": "m"}))
    asked, headers = httpx2.Request("POST", "http://127.0.0.1"), {"content-type": "text/event-stream"}
    end = whole.rindex(b"event: ")
    for cut in (*range(0, end, 17), *range(end, len(whole))):
        response = httpx2.Response(200, headers=headers, content=whole[:cut], request=asked)
        ours = Accumulator(official=True)
        for event in httpx2.EventSource(response):
            ours.feed(event.event, event.data)
        with pytest.raises(InvalidReply, match="ended early"):
            ours.reply()


@pytest.mark.anyio
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_stream_that_breaks_off_is_no_turn_however_politely(framing: str, deltas: list[Delta]) -> None:
    whole = b"".join(ResponsesSpeech(Turn(text="Hi"), 0).events({"model": "some-model"}))
    cut = {"status": 200, "body": whole[:-1].decode(), "content_type": "text/event-stream", "framing": framing}
    with StrictServer([Turn(text="Hi")], faults={1: msgspec.convert(cut, Fault)}) as server:
        async with reach(server) as provider:
            with pytest.raises(ProviderError) as caught:
                await provider.complete(ask(), deltas.append)
            assert caught.value.retryable
            assert (await provider.complete(ask(), deltas.append)).stop_reason == "end_turn"


UNSUPPORTED = {
    "include": '{"error":{"message":"Encrypted content is not supported with this model.","param":"include"}}',
    "effort": '{"error":{"message":"Unsupported value: \'none\' is not supported","param":"reasoning.effort"}}',
    "summary": '{"error":{"message":"Your organization must be verified to generate reasoning summaries."}}',
}


@pytest.mark.parametrize("part", UNSUPPORTED)
def test_parts_that_only_some_models_take_are_given_up_once(part: str) -> None:
    api = ResponsesApi(official=True)
    assert api.concessions.make(400, UNSUPPORTED[part].encode())
    assert not api.concessions.make(400, UNSUPPORTED[part].encode())
    assert part in api.concessions
    body = json.loads(api.build_request(replace(ask(), thinking_mode="adaptive"), stream=False))
    assert [part in named for named in (body, body.get("reasoning", {}))] == [False, False]


@pytest.mark.parametrize(
    "text",
    [
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        "your messages must include a user",
        "the encrypted content for item rs_1 could not be verified",
    ],
)
def test_other_refusals_give_nothing_up(text: str) -> None:
    body = json.dumps({"error": {"message": text, "param": "input"}}).encode()
    assert not ResponsesApi(official=True).concessions.make(400, body)


@pytest.mark.anyio
async def test_refused_part_is_left_out_and_the_turn_asked_for_again(deltas: list[Delta]) -> None:
    refused = Fault(status=400, body=UNSUPPORTED["summary"])
    with StrictServer([Turn(text="Hi"), Turn(text="Ho")], faults={1: refused}) as server:
        async with reach(server) as provider:
            request = replace(ask(), thinking_mode="adaptive")
            await provider.complete(request, deltas.append)
            await provider.complete(request, deltas.append)
        asked = [request.json["reasoning"] for request in server.requests]
    assert asked == [{"effort": "medium", "summary": "auto"}, {"effort": "medium"}, {"effort": "medium"}]
