"""The adapters end to end, over real HTTP, against a server that refuses what the real APIs refuse."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest

from fisk_ai.errors import ConfigError, InvalidReply, ProviderError, ProviderRefused, ProviderUnreachable
from fisk_ai.formats import reader_for
from fisk_ai.messages import Message, tool_result
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Delta, Provider, Reply
from fisk_ai.providers.retry import RetryPolicy, complete_with_retries
from fisk_ai.records import MAX_REQUEST_ID_CHARACTERS
from tests.providers.conftest import ask, results, user
from tests.providers.strict_server import CHAT, KEY, MESSAGES, Fault, StrictServer, Turn

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("name", ["anthropic", "openai"]),
]
ENVIRON = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
TURNS: list[dict[str, Any]] = [
    {"text": "Looking.", "calls": [{"name": "lookup", "input": {"stream": "ORDERS"}}, {"name": "lookup"}]},
    {"text": "Done \u00e9 \u2028.", "cache_read_tokens": 40},
]


@asynccontextmanager
async def reach(server: StrictServer, name: str, *, stream: bool = True) -> AsyncIterator[Provider]:
    base_url = server.url + ("/v1" if name == "openai" else "")
    provider = open_provider(name, base_url=base_url, stream=stream, environ=ENVIRON)
    try:
        yield provider
    finally:
        await provider.aclose()


def serve(turns: Iterable[Turn | Mapping[str, Any]] = TURNS, *faults: Fault) -> StrictServer:
    """Return a server on which the first requests go wrong."""
    return StrictServer(turns, faults=dict(enumerate(faults, start=1)))


def follow(reply: Reply, *messages: Message) -> list[Message]:
    """Return the conversation after a turn, with its calls answered."""
    turn = reader_for(reply.format)(reply.message)
    answered = [tool_result(call.id, f"result {call.position}", is_error=not call.usable) for call in turn.calls]
    said = Message("assistant", reply.format, reply.message)
    return [*messages, said, *([results(*answered)] if answered else [])]


async def talk(provider: Provider, turns: int, deltas: list[Delta]) -> list[Reply]:
    conversation, replies = [user()], list[Reply]()
    for iteration in range(turns):
        replies.append(await provider.complete(ask(*conversation, iteration=iteration), deltas.append))
        conversation = follow(replies[-1], *conversation)
    return replies


@pytest.mark.parametrize("stream", [True, False])
async def test_conversation_with_calls_is_what_the_api_accepts(name: str, stream: bool, deltas: list[Delta]) -> None:
    with serve() as server:
        async with reach(server, name, stream=stream) as provider:
            first, last = await talk(provider, 2, deltas)
        assert server.refusals == []
        assert [request.path for request in server.requests] == [CHAT if name == "openai" else MESSAGES] * 2
    turn = reader_for(name)(first.message)
    assert [(call.name, json.loads(call.arguments)) for call in turn.calls] == [
        ("lookup", {"stream": "ORDERS"}),
        ("lookup", {}),
    ]
    assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
    assert (last.in_tokens, last.out_tokens, last.cache_read_tokens) == (100, 10, 40)
    assert reader_for(name)(last.message).text == "Done \u00e9 \u2028."
    assert "".join(delta.text for delta in deltas) == "Looking.Done \u00e9 \u2028."


async def test_streamed_turn_equals_the_whole_one(name: str, deltas: list[Delta]) -> None:
    with serve() as server:
        async with reach(server, name) as streaming, reach(server, name, stream=False) as asking:
            streamed = await streaming.complete(ask(), deltas.append)
            whole = await asking.complete(ask(), deltas.append)
    assert json.loads(streamed.message) == json.loads(whole.message)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.in_tokens == whole.in_tokens


EXOTIC = {
    "content": b'[{"type":"thinking","thinking":"hm \\u00e9","signature":"sig=="},'
    b'{"type":"redacted_thinking","data":"x"},'
    b'{"type":"server_tool_use","id":"srv","name":"web_search","input":{"q":1e3}},'
    b'{"type":"web_search_tool_result","tool_use_id":"srv","content":[{"encrypted":"...","n":1.10}]},'
    b'{"type":"from_the_future","n":123456789012345678901234567890},'
    b'{"type":"text","text":" "},{"type":"thinking","thinking":"again","signature":"sig2=="},'
    b'{"type":"tool_use","id":"toolu_9","name":"lookup","input":{"a":1e3,"b":1.10},"caller":{"type":"direct"}}]',
    "message": b'{"role":"assistant","content":"","reasoning_content":"hm \\u00e9","tool_calls":[{"id":"c9","type":'
    b'"function","function":{"name":"lookup","arguments":"{\\"a\\":1e3, \\"b\\":1.10}"}}],"n":1.10}',
}
"""Turns with all that a provider may send, spelled in ways that a parser would change."""


async def test_whole_turns_are_kept_and_sent_back_byte_for_byte(name: str, deltas: list[Delta]) -> None:
    with serve([EXOTIC, {"text": "Done."}]) as server:
        async with reach(server, name, stream=False) as provider:
            first, _ = await talk(provider, 2, deltas)
        assert server.refusals == []
    sent = EXOTIC["message"] if name == "openai" else b'{"role":"assistant","content":' + EXOTIC["content"] + b"}"
    assert first.message == sent.replace(b'{"type":"text","text":" "},', b"")  # the API refuses to take it back
    assert first.message in server.requests[1].body


async def test_streamed_turns_are_sent_back_with_every_value_as_it_was_spelled(name: str, deltas: list[Delta]) -> None:
    turn = {**EXOTIC, "message": EXOTIC["message"].replace(b',"n":1.10', b"")}
    with serve([turn, {"text": "Done."}]) as server:
        async with reach(server, name) as provider:
            first, _ = await talk(provider, 2, deltas)
        assert server.refusals == []
    assert first.stop_reason == "tool_use"
    assert reader_for(name)(first.message).calls[0].arguments.replace(b" ", b"") == b'{"a":1e3,"b":1.10}'


async def test_unusable_calls_and_ids_are_settled_so_that_the_next_request_is_accepted(
    name: str, deltas: list[Delta]
) -> None:
    calls = [{"name": "lookup", "id": "x", "input": value} for value in ({"a": 1}, "{", [1], None, 3)]
    calls.append({"name": "lookup", "id": "", "input": {"b": 2}})
    for stream in (True, False):
        with serve([{"calls": calls}, {"text": "Done."}]) as server:
            async with reach(server, name, stream=stream) as provider:
                first, _ = await talk(provider, 2, deltas)
            assert server.refusals == []
        assert first.unusable == (1, 2, 3, 4)


async def test_plain_answer_to_a_streamed_request_is_accepted(name: str, deltas: list[Delta]) -> None:
    whole = (
        {"id": "m", "role": "assistant", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}
        if name == "anthropic"
        else {"id": "m", "choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
    )
    with serve(TURNS, Fault(status=200, body=json.dumps(whole))) as server:
        async with reach(server, name) as provider:
            reply = await provider.complete(ask(), deltas.append)
    assert reader_for(name)(reply.message).text == "x"
    assert deltas == [Delta("text", "x")]


REQUEST_ID = {"anthropic": "request-id", "openai": "x-request-id"}


@pytest.mark.parametrize("stream", [True, False])
async def test_the_apis_id_of_a_request_is_kept(name: str, stream: bool, deltas: list[Delta]) -> None:
    named = Fault(headers={REQUEST_ID[name]: "req_1"})
    endless = Fault(headers={REQUEST_ID[name]: "r" * 1000})
    with serve(TURNS, named, endless) as server:
        async with reach(server, name, stream=stream) as provider:
            replies = [await provider.complete(ask(), deltas.append) for _ in range(3)]
    assert replies[0].request_id == "req_1"
    assert len(replies[1].request_id or "") == MAX_REQUEST_ID_CHARACTERS
    assert replies[2].request_id is None


@pytest.mark.parametrize(
    "trouble",
    [
        {"status": 400},
        {"status": 200, "body": "half"},
        {"status": 200, "body": 'event: error\ndata: {"error":{"type":"x"}}\n\n', "content_type": "text/event-stream"},
        {"end_after_events": 1},
        {"reset_after_bytes": 100},
    ],
)
async def test_errors_name_the_apis_id_of_the_request(name: str, trouble: dict[str, Any], deltas: list[Delta]) -> None:
    with serve(TURNS, Fault(headers={REQUEST_ID[name]: "req_1"}, **trouble)) as server:
        async with reach(server, name) as provider:
            with pytest.raises(ProviderError, match=r"\(request-id req_1\)$"):
                await provider.complete(ask(), deltas.append)


STRANGE_EVENTS = {
    "anthropic": (
        'data: {"type":"message_start","message":{"content":[]}}\n\n'
        'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Lo"}}\n\n'
        'data: {"type":"content_block_delta","index":0,"delta":{"type":"sparkle_delta"}}\n\n'
    ),
    "openai": (
        'data: {"choices":[{"delta":{"content":"Lo"}}]}\n\n'
        'data: {"choices":[{"delta":{"logits":1}}]}\n\ndata: {"choices":[{"delta":{"logits":2}}]}\n\n'
    ),
}
"""Streams with deltas that can't be merged by any known rule."""


async def test_stream_that_cant_be_kept_verbatim_is_asked_for_again_as_a_whole(name: str, deltas: list[Delta]) -> None:
    strange = Fault(status=200, body=STRANGE_EVENTS[name], content_type="text/event-stream")
    with serve(TURNS, strange) as server:
        async with reach(server, name) as provider:
            reply = await provider.complete(ask(), deltas.append)
        assert [bool(request.json.get("stream")) for request in server.requests] == [True, False]
    assert reader_for(name)(reply.message).text == "Looking."
    assert deltas == [Delta("text", "Lo")]


async def test_server_that_streams_unasked_and_strangely_is_given_up(name: str, deltas: list[Delta]) -> None:
    strange = Fault(status=200, body=STRANGE_EVENTS[name], content_type="text/event-stream")
    with serve(TURNS, strange, strange) as server:
        async with reach(server, name) as provider:
            with pytest.raises(InvalidReply, match="asked not to") as caught:
                await provider.complete(ask(), deltas.append)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (200, "text/event-stream", 'event: error\ndata: {"type":"error","error":%s}\n\n'),
        (200, "application/json", '{"type":"error","error":%s}'),
        (401, "application/json", '{"error":%s}'),
        (500, "text/plain", "%s"),
    ],
)
async def test_key_that_a_server_repeats_is_in_no_error(
    name: str, deltas: list[Delta], status: int, content_type: str, body: str
) -> None:
    split = f"{KEY[:4]}\\u200b{KEY[4:]}"
    said = f'{{"type":"bad {KEY}","code":"{KEY}","message":"you sent {KEY} or {split}"}}'
    echo = Fault(status=status, body=body % said, content_type=content_type)
    with serve(TURNS, echo) as server:
        async with reach(server, name) as provider:
            with pytest.raises(ProviderError) as caught:
                await provider.complete(ask(), deltas.append)
    assert KEY not in repr(caught.value)
    assert KEY not in str(getattr(caught.value, "kind", None))


async def test_stream_cut_at_any_byte_is_never_a_turn(name: str, deltas: list[Delta]) -> None:
    with serve() as server:
        async with reach(server, name) as provider:
            whole = await provider.complete(ask(), deltas.append)
            size = server.answered_bytes
            for number, cut in enumerate([*range(0, size - 100, 97), size - 30], start=2):
                server.faults[number] = Fault(cut_after_bytes=cut)
                with pytest.raises((InvalidReply, ProviderUnreachable)) as caught:
                    await provider.complete(ask(), deltas.append)
                assert caught.value.retryable
            again = await provider.complete(ask(), deltas.append)
    assert again.message == whole.message


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_stream_that_ends_early_but_properly_is_never_a_turn(
    name: str, framing: Literal["length", "chunked", "close"], deltas: list[Delta]
) -> None:
    with serve() as server:
        async with reach(server, name) as provider:
            for number in range(1, 9):
                server.faults[number] = Fault(end_after_events=number - 1, framing=framing)
                with pytest.raises(InvalidReply, match="ended early") as caught:
                    await provider.complete(ask(), deltas.append)
                assert caught.value.retryable


@pytest.mark.parametrize("after", [0, 1, 300])
async def test_reset_connection_is_never_a_turn(name: str, after: int, deltas: list[Delta]) -> None:
    with serve(TURNS, Fault(reset_after_bytes=after)) as server:
        async with reach(server, name) as provider:
            with pytest.raises(ProviderUnreachable, match="ReadError") as caught:
                await provider.complete(ask(), deltas.append)
            assert (caught.value.retryable, caught.value.may_be_paid) == (True, True)
            assert (await provider.complete(ask(), deltas.append)).stop_reason == "tool_use"


@pytest.mark.parametrize("body", ["<html>Sign in</html>", "", "[]", "null", "{}"])
async def test_answers_that_are_none_are_invalid(name: str, body: str, deltas: list[Delta]) -> None:
    fault = Fault(status=200, body=body or " ", content_type="text/html")
    with serve(TURNS, fault) as server:
        async with reach(server, name) as provider:
            with pytest.raises(InvalidReply) as caught:
                await provider.complete(ask(), deltas.append)
    assert caught.value.retryable


async def test_redirects_are_not_followed(name: str, deltas: list[Delta]) -> None:
    with serve() as other, serve(TURNS, Fault(status=307, headers={"location": other.url})) as server:
        async with reach(server, name) as provider:
            with pytest.raises(ProviderRefused, match="Redirects are not followed") as caught:
                await provider.complete(ask(), deltas.append)
        assert other.requests == []
    assert not caught.value.retryable


async def test_wrong_key_is_refused_without_showing_it(name: str, deltas: list[Delta]) -> None:
    with StrictServer(TURNS, key="another-key") as server:
        async with reach(server, name) as provider:
            with pytest.raises(ProviderRefused) as caught:
                await provider.complete(ask(), deltas.append)
    assert caught.value.status == 401
    assert not caught.value.retryable
    assert KEY not in str(caught.value)
    assert f"Check {name.upper()}_API_KEY" in str(caught.value)


async def test_server_that_isnt_there_is_unreachable(name: str, deltas: list[Delta]) -> None:
    with serve() as server:
        pass
    async with reach(server, name) as provider:
        with pytest.raises(ProviderUnreachable, match=r"127\.0\.0\.1") as caught:
            await provider.complete(ask(), deltas.append)
    assert caught.value.retryable


async def test_proxies_of_the_environment_are_not_asked_about_this_machine(
    name: str, deltas: list[Delta], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with serve() as server:
        async with reach(server, name) as provider:
            assert (await provider.complete(ask(), deltas.append)).stop_reason == "tool_use"


async def test_unusable_proxy_settings_are_a_configuration_error(
    name: str, deltas: list[Delta], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://user:secret@proxy")
    provider = open_provider(name, base_url="https://unreachable.test", environ=ENVIRON)
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
        await provider.complete(ask(), deltas.append)
    assert "secret" not in str(caught.value)


async def test_closing_twice_is_fine_and_a_closed_provider_opens_again(name: str, deltas: list[Delta]) -> None:
    with serve() as server:
        async with reach(server, name) as provider:
            await provider.complete(ask(), deltas.append)
            await provider.aclose()
            await provider.aclose()
            assert (await provider.complete(ask(), deltas.append)).stop_reason == "tool_use"


class Retries:
    """The retry policy at work on a real connection, with pauses that are only noted."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.errors: list[ProviderError] = []

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def on_retry(self, _attempt: int, error: ProviderError, _wait_s: float) -> None:
        self.errors.append(error)

    async def complete(self, provider: Provider, deltas: list[Delta], call_timeout_s: float = 20) -> Reply:
        return await complete_with_retries(
            provider,
            ask(),
            on_delta=deltas.append,
            on_retry=self.on_retry,
            pause=self.pause,
            call_timeout_s=call_timeout_s,
            policy=RetryPolicy(jitter=random.Random(1)),
        )


async def test_every_kind_of_passing_trouble_ends_in_one_whole_turn(name: str, deltas: list[Delta]) -> None:
    faults = [
        Fault(status=529, headers={"retry-after": "7"}),
        Fault(cut_after_bytes=300),
        Fault(end_after_events=2),
    ]
    retries = Retries()
    with serve(TURNS, *faults) as server:
        async with reach(server, name) as provider:
            reply = await retries.complete(provider, deltas)
        assert len({request.body for request in server.requests}) == 1
    assert reader_for(name)(reply.message).text == "Looking."
    assert [type(error) for error in retries.errors] == [ProviderRefused, ProviderUnreachable, InvalidReply]
    assert retries.pauses[0] == 7


async def test_stalled_stream_is_given_up_at_the_deadline(name: str, deltas: list[Delta]) -> None:
    retries = Retries()
    with serve(TURNS, Fault(stall_after_bytes=250)) as server:
        async with reach(server, name) as provider:
            reply = await retries.complete(provider, deltas, call_timeout_s=0.3)
    assert reader_for(name)(reply.message).text == "Looking."
    assert "call_timeout (0.3 s)" in str(retries.errors[0])


async def test_cancelled_call_ends_its_connection(name: str, deltas: list[Delta]) -> None:
    with serve(TURNS, Fault(stall_after_bytes=800)) as server:
        async with reach(server, name) as provider:
            with anyio.CancelScope() as scope:
                await provider.complete(ask(), lambda _delta: scope.cancel())
            assert scope.cancelled_caught
            assert (await provider.complete(ask(), deltas.append)).stop_reason == "tool_use"
