"""Through pydantic-ai over real HTTP: its errors, streams and cancellation as the retry policy meets them."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from fisk_ai.errors import InvalidReply, ProviderError, ProviderRefused, ProviderUnreachable
from fisk_ai.formats import reader_for
from fisk_ai.messages import Message, tool_result
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Delta, ModelOptions, ModelRequest, Provider, Reply
from fisk_ai.providers.retry import RetryPolicy, complete_with_retries
from tests.providers import conftest
from tests.providers.conftest import results, user
from tests.providers.gemini_server import LIMITED, GeminiServer
from tests.providers.strict_server import CHAT, KEY, MESSAGES, Fault, StrictServer, Turn
from tests.providers.test_http import TURNS, follow

pytest.importorskip("pydantic_ai", reason='needs the extra: pip install "fisk-ai[pydantic-ai]"')

from pydantic_ai.models import Model

from fisk_ai.providers.pydantic_ai.conversation import dump, load
from fisk_ai.providers.pydantic_ai.provider import PydanticAIProvider

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("name", ["anthropic", "openai"])
THINKING_TURNS: list[dict[str, Any]] = [
    {
        "content": [
            {"type": "thinking", "thinking": "Look first.", "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "ZW5j"},
            {"type": "text", "text": "Looking \u2028 \u00e9."},
            {"type": "tool_use", "id": "toolu_0_0", "name": "lookup", "input": {"stream": "ORDERS", "n": 1.5}},
        ]
    },
    {"text": "Done."},
]


def ask(*messages: Message) -> ModelRequest:
    """Return a request as the strict server takes one: of system prompts it knows only those that are plain text."""
    return replace(conftest.ask(*messages), system_prompt="")


async def talk(provider: Provider, turns: int, deltas: list[Delta]) -> list[Reply]:
    conversation, replies = [user()], list[Reply]()
    for _ in range(turns):
        replies.append(await provider.complete(ask(*conversation), deltas.append))
        conversation = follow(replies[-1], *conversation)
    return replies


def model_for(name: str, url: str, key: str = KEY) -> Model:
    if name == "anthropic":
        pytest.importorskip("anthropic", reason="needs an SDK that pydantic-ai uses: pip install anthropic")
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel("some-model", provider=AnthropicProvider(base_url=url, api_key=key))
    pytest.importorskip("openai", reason="needs an SDK that pydantic-ai uses: pip install openai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("some-model", provider=OpenAIProvider(base_url=url + "/v1", api_key=key))


@asynccontextmanager
async def reach(server: StrictServer, name: str, *, stream: bool = True, key: str = KEY) -> AsyncIterator[Provider]:
    # Without the cache: the strict server knows only the breakpoints of our own adapter.
    options = ModelOptions(cache=False)
    provider = PydanticAIProvider(model_for(name, server.url, key), options=options, stream=stream, secrets=[key])
    try:
        yield provider
    finally:
        await provider.aclose()


def serve(turns: Iterable[Turn | Mapping[str, Any]] = TURNS, *faults: Fault) -> StrictServer:
    return StrictServer(turns, faults=dict(enumerate(faults, start=1)))


async def failure(server: StrictServer, name: str, *, stream: bool = True, key: str = KEY) -> ProviderError:
    """Return how one attempt fails; more than one request would be a retry that nobody asked for."""
    async with reach(server, name, stream=stream, key=key) as provider:
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask(), lambda _: None)
    assert len(server.requests) == 1
    return caught.value


@BOTH
@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_with_calls_is_what_the_api_accepts(name: str, stream: bool, deltas: list[Delta]) -> None:
    with serve() as server:
        async with reach(server, name, stream=stream) as provider:
            first, last = await talk(provider, 2, deltas)
        assert server.refusals == []
        assert [request.path for request in server.requests] == [CHAT if name == "openai" else MESSAGES] * 2
    turn = reader_for("pydantic-ai")(first.message)
    assert [(call.name, json.loads(call.arguments)) for call in turn.calls] == [
        ("lookup", {"stream": "ORDERS"}),
        ("lookup", {}),
    ]
    assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
    assert (last.in_tokens, last.out_tokens, last.cache_read_tokens) == (100, 10, 40)
    assert reader_for("pydantic-ai")(last.message).text == "Done \u00e9 \u2028."
    assert "".join(delta.text for delta in deltas) == "Looking.Done \u00e9 \u2028."
    assert all(dump(load(reply.message)) == reply.message for reply in (first, last))


@pytest.mark.parametrize("stream", [True, False])
async def test_signed_thinking_goes_back_as_it_came(stream: bool, deltas: list[Delta]) -> None:
    with serve(THINKING_TURNS) as server:
        async with reach(server, "anthropic", stream=stream) as provider:
            first, _ = await talk(provider, 2, deltas)
        assert server.refusals == []
        sent = server.requests[1].json["messages"][1]["content"]
    assert sent == THINKING_TURNS[0]["content"]
    assert Delta("thinking", "Look first.") in deltas or [d.kind for d in deltas][:2] == ["thinking"] * 2
    assert reader_for("pydantic-ai")(first.message).text == "Looking \u2028 \u00e9."


@BOTH
@pytest.mark.parametrize(
    ("fault", "kind", "retryable", "rate_limited"),
    [
        (Fault(status=429, headers={"retry-after": "7"}), "rate_limit_error", True, True),
        (Fault(status=500), "api_error", True, False),
        (Fault(status=529), "overloaded_error", True, False),
        (Fault(status=400), "invalid_request_error", False, False),
        (Fault(status=404), "not_found_error", False, False),
        (Fault(status=503, headers={"x-should-retry": "false"}), "api_error", False, False),
    ],
)
async def test_refusals_are_told_apart_and_asked_once(
    name: str, fault: Fault, kind: str, retryable: bool, rate_limited: bool
) -> None:
    with serve(TURNS, fault) as server:
        error = await failure(server, name)
    assert isinstance(error, ProviderRefused)
    assert (error.status, error.kind) == (fault.status, kind)
    assert (error.retryable, error.rate_limited) == (retryable, rate_limited)
    assert error.retry_after_s == (7 if rate_limited else None)
    assert f"some-model answered with HTTP {fault.status} ({kind}): as the script says" in str(error)


@BOTH
async def test_a_conversation_that_is_too_long_is_told_apart(name: str) -> None:
    body = json.dumps(
        {"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}}
    )
    with serve(TURNS, Fault(status=400, body=body)) as server:
        error = await failure(server, name)
    assert error.is_context_overflow
    assert not error.retryable
    assert "no longer fits" in str(error)


@BOTH
async def test_a_wrong_key_is_refused_without_showing_it(name: str) -> None:
    with serve() as server:
        error = await failure(server, name, key="a-wrong-key-1")
    assert isinstance(error, ProviderRefused)
    assert error.status == 401
    assert "invalid key [key]" in str(error)
    assert "Check the key" in str(error)


@BOTH
@pytest.mark.parametrize("body", ["<html>oops</html>", "", "{}", "null", "[]", '{"half', '{"choices":[]}'])
@pytest.mark.parametrize("stream", [True, False])
async def test_answers_that_are_none_are_never_a_turn(name: str, body: str, stream: bool) -> None:
    with serve(TURNS, Fault(status=200, body=body or " ")) as server:
        error = await failure(server, name, stream=stream)
    assert isinstance(error, InvalidReply)
    assert error.retryable


async def attempt(provider: Provider, replies: list[Reply]) -> ProviderError | None:
    try:
        replies.append(await provider.complete(ask(), lambda _: None))
    except ProviderError as error:
        return error
    return None


@BOTH
async def test_a_stream_that_ends_early_but_properly_is_never_a_turn(name: str) -> None:
    replies: list[Reply] = []
    faults = {number: Fault(end_after_events=number - 1) for number in range(1, 100)}
    with StrictServer(TURNS, faults=faults) as server:
        async with reach(server, name) as provider:
            while (error := await attempt(provider, replies)) is not None:
                assert error.retryable, (len(server.requests), error)
        events = len(server.requests) - 1
    # What may be missing of a whole turn is what follows the stop reason: the end event, or the usage.
    assert events > 5
    assert len(reader_for("pydantic-ai")(replies[0].message).calls) == 2


@BOTH
@pytest.mark.parametrize(
    "fault", [Fault(cut_after_bytes=300), Fault(reset_after_bytes=0), Fault(reset_after_bytes=300)]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_broken_connection_is_worth_a_retry(name: str, fault: Fault, stream: bool) -> None:
    with serve(TURNS, fault) as server:
        error = await failure(server, name, stream=stream)
    assert error.retryable
    assert error.may_be_paid


@BOTH
async def test_a_server_that_isnt_there_is_unreachable(name: str) -> None:
    with serve() as server:
        url = server.url
    provider = PydanticAIProvider(model_for(name, url))
    with pytest.raises(ProviderUnreachable) as caught:
        await provider.complete(ask(), lambda _: None)
    await provider.aclose()
    assert (caught.value.retryable, caught.value.sent) == (True, False)


@BOTH
async def test_passing_trouble_ends_in_one_whole_turn_by_our_own_retries(name: str, deltas: list[Delta]) -> None:
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    faults = (Fault(status=429, headers={"retry-after": "9"}), Fault(end_after_events=4), Fault(reset_after_bytes=0))
    with serve(TURNS, *faults) as server:
        async with reach(server, name) as provider:
            reply = await complete_with_retries(
                provider,
                ask(),
                on_delta=deltas.append,
                on_retry=lambda *_: None,
                pause=pause,
                call_timeout_s=20,
                policy=RetryPolicy(jitter=random.Random(1)),
            )
        assert len(server.requests) == 4
    assert waits[0] == 9
    assert reply.stop_reason == "tool_use"


@BOTH
@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_ends_its_connection(name: str, stream: bool) -> None:
    with serve(TURNS, Fault(stall_after_bytes=200)) as server:
        async with reach(server, name, stream=stream) as provider:
            with anyio.move_on_after(0.3) as scope:
                await provider.complete(ask(), lambda _: None)
            assert scope.cancelled_caught
            again = await provider.complete(ask(), lambda _: None)  # and the client still works
        assert len(server.requests) == 2
    assert again.stop_reason == "tool_use"


@BOTH
async def test_closing_twice_is_fine_and_a_closed_provider_opens_again(name: str) -> None:
    with serve() as server:
        async with reach(server, name) as provider:
            for _ in range(2):
                await provider.complete(ask(), lambda _: None)
                await provider.aclose()
                await provider.aclose()


CALL = {"functionCall": {"name": "lookup", "args": {"stream": "ORDERS"}}, "thoughtSignature": "c2lnbmVkLWNhbGw="}
GEMINI_TURNS: list[list[dict[str, Any]]] = [
    [{"text": "Look first.", "thought": True}, CALL, {"functionCall": {"name": "lookup", "args": {}}}],
    [{"text": "Done"}, {"text": ".", "thoughtSignature": "c2lnbmVkLXRleHQ="}],
]


@pytest.fixture
def gemini(monkeypatch: pytest.MonkeyPatch) -> GeminiServer:
    pytest.importorskip("google.genai", reason='needs the extra: pip install "fisk-ai[pydantic-ai]"')
    server = GeminiServer(GEMINI_TURNS)
    monkeypatch.setenv("GOOGLE_API_KEY", "gemini-test-key")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    return server


def gemini_request(*messages: Any) -> ModelRequest:
    return replace(ask(*messages), model="google:gemini-3-pro-preview")


@pytest.mark.parametrize("stream", [True, False])
async def test_gemini_by_its_name_gets_back_what_it_signed(
    gemini: GeminiServer, stream: bool, deltas: list[Delta]
) -> None:
    provider = open_provider("pydantic-ai", model="google:gemini-3-pro-preview", stream=stream)
    with gemini:
        first = await provider.complete(gemini_request(), deltas.append)
        calls = reader_for("pydantic-ai")(first.message).calls
        answered = results(*(tool_result(call.id, "7 messages") for call in calls))
        conversation = [*follow(first, user())[:2], answered]
        last = await provider.complete(gemini_request(*conversation), deltas.append)
        again = [*follow(last, *conversation), user("Thanks.")]
        await provider.complete(gemini_request(*again[:-2], again[-1]), deltas.append)
    await provider.aclose()
    assert {path.partition("?")[0].rpartition(":")[2] for path in gemini.paths} == {
        "streamGenerateContent" if stream else "generateContent"
    }
    assert [call.parsed() for call in calls] == [{"stream": "ORDERS"}, {}]
    assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
    assert (first.in_tokens, first.cache_read_tokens, first.out_tokens) == (60, 40, 15)
    assert Delta("thinking", "Look first.") in deltas
    assert reader_for("pydantic-ai")(last.message).text == "Done."
    sent = gemini.requests[1]["contents"][1]["parts"]
    assert [part["functionCall"]["args"] for part in sent if "functionCall" in part] == [{"stream": "ORDERS"}, {}]
    [signature] = [part["thoughtSignature"] for part in sent if "thoughtSignature" in part]
    assert base64.urlsafe_b64decode(signature) == b"signed-call"


async def test_gemini_says_in_its_body_how_long_to_wait(gemini: GeminiServer) -> None:
    gemini.errors = {1: LIMITED}
    provider = open_provider("pydantic-ai", model="google:gemini-3-pro-preview")
    with gemini, pytest.raises(ProviderRefused) as caught:
        await provider.complete(gemini_request(), lambda _: None)
    await provider.aclose()
    assert len(gemini.requests) == 1
    assert (caught.value.status, caught.value.kind, caught.value.retry_after_s) == (429, "RESOURCE_EXHAUSTED", 37)
    assert caught.value.rate_limited
    assert "gemini-test-key" not in str(caught.value)
