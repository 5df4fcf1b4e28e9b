"""Retries and broken streams against a server that none of us wrote, which also judges how its client behaved.

It checks neither keys nor whether a conversation is well-formed: that is what the strict server is for.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import pytest
from llmock.pytest_plugin import LLMock

from fisk_ai.errors import CONTEXT_OVERFLOW, ProviderError, ProviderRefused
from fisk_ai.formats import reader_for
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Delta, Provider, Reply
from fisk_ai.providers.retry import RetryPolicy, complete_with_retries
from tests.providers.conftest import ask

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("name", ["anthropic", "openai", "openai-responses"]),
]
"""By the formats of their turns."""


@asynccontextmanager
async def reach(name: str) -> AsyncIterator[Provider]:
    service, _, api = name.partition("-")
    spoken: Literal["chat", "responses"] = "responses" if api else "chat"
    # The fixture points the variables at its server.
    provider = open_provider(service, api=spoken, environ=os.environ)
    try:
        yield provider
    finally:
        await provider.aclose()


async def complete(name: str, deltas: list[Delta], call_timeout_s: float = 10) -> tuple[Reply, list[ProviderError]]:
    errors: list[ProviderError] = []
    async with reach(name) as provider:
        reply = await complete_with_retries(
            provider,
            ask(),
            on_delta=deltas.append,
            on_retry=lambda _attempt, error, _wait_s: errors.append(error),
            pause=anyio.sleep,
            call_timeout_s=call_timeout_s,
            policy=RetryPolicy(first_wait_s=0.06, jitter=random.Random(1)),
        )
    return reply, errors


async def test_calls_and_their_arguments_arrive(name: str, llmock: LLMock, deltas: list[Delta]) -> None:
    llmock.call_tool("lookup", {"stream": "ORDERS"}, text="Looking.")
    reply, errors = await complete(name, deltas)
    turn = reader_for(name)(reply.message)
    assert [(call.name, call.parsed()) for call in turn.calls] == [("lookup", {"stream": "ORDERS"})]
    assert (reply.stop_reason, reply.unusable, errors) == ("tool_use", (), [])
    assert reply.in_tokens > 0
    assert reply.out_tokens > 0


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_it_waits_as_long_as_it_is_asked_to(name: str, status: int, llmock: LLMock, deltas: list[Delta]) -> None:
    llmock.fail(status, times=2, retry_after=0.1).reply("Hello.")
    reply, errors = await complete(name, deltas)
    assert reader_for(name)(reply.message).text == "Hello."
    assert [error.retry_after_s for error in errors] == [0.1, 0.1]
    llmock.assert_resilient(strict=True)


async def test_it_backs_off_by_itself(name: str, llmock: LLMock, deltas: list[Delta]) -> None:
    llmock.fail(500, times=3)
    _, errors = await complete(name, deltas)
    assert len(errors) == 3
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("fault", ["disconnect", "truncate", "corrupt"])
async def test_broken_streams_are_never_taken_for_an_answer(
    name: str, fault: str, llmock: LLMock, deltas: list[Delta]
) -> None:
    llmock.call_tool("lookup", {"stream": "ORDERS"}, text="Looking the stream up for you.", times=2)
    getattr(llmock, fault)(after_chunks=4)
    reply, errors = await complete(name, deltas)
    assert len(errors) == 1
    assert [call.parsed() for call in reader_for(name)(reply.message).calls] == [{"stream": "ORDERS"}]
    # Not strict: its warnings depend on whether the server has seen the end of the second answer yet.
    llmock.assert_resilient()


async def test_stalled_stream_is_given_up(name: str, llmock: LLMock, deltas: list[Delta]) -> None:
    llmock.stall(seconds=30)
    _, errors = await complete(name, deltas, call_timeout_s=0.4)
    assert "call_timeout" in str(errors[0])


async def test_broken_arguments_are_settled(name: str, llmock: LLMock, deltas: list[Delta]) -> None:
    llmock.break_tool_call("malformed_arguments")
    reply, _ = await complete(name, deltas)
    assert reply.unusable == (0,)
    assert [call.arguments for call in reader_for(name)(reply.message).calls] == [b"{}"]


async def test_lasting_refusals_are_not_repeated(name: str, llmock: LLMock, deltas: list[Delta]) -> None:
    llmock.fail(400, message="no such thing")
    with pytest.raises(ProviderRefused, match="no such thing"):
        await complete(name, deltas)
    llmock.assert_resilient(strict=True)
    assert len(llmock.requests) == 1


async def test_overflow_of_the_context_is_told_apart(name: str, llmock: LLMock, deltas: list[Delta]) -> None:
    llmock.context_overflow()
    with pytest.raises(ProviderRefused) as caught:
        await complete(name, deltas)
    assert caught.value.kind == CONTEXT_OVERFLOW
