"""Model calls that fail, seen from a program: what the result holds, and what an abort and a lost journal do."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent
from fisk_ai.agent.control import Control
from fisk_ai.agent.decide import fitting_record
from fisk_ai.errors import JournalLost, ProviderError, ProviderRefused, RunAborted
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.retry import RetryPolicy
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.stores.file import FileStore
from tests.agent.bench import (
    ANSWER,
    RUN,
    Bench,
    Effects,
    Typed,
    bench,
    calling,
    effect_tools,
    end_of,
)

pytestmark = pytest.mark.anyio
QUICK = RetryPolicy(first_wait_s=0.001)
Failure = Callable[[], ProviderError]


def limited() -> ProviderError:
    return ProviderError("slow down", retryable=True, retry_after_s=3600, rate_limited=True)


def overflow() -> ProviderError:
    return ProviderRefused("too long", kind="context_overflow")


class Moody(ScriptedProvider):
    """A scripted model whose calls fail from a given one on, for as long as it is told."""

    def __init__(self, stage: Bench, failure: Failure, *, good: int) -> None:
        super().__init__(stage.turns)
        self.attempts = 0
        self._failure = failure
        self._good = good

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self.attempts += 1
        if self.attempts > self._good:
            raise self._failure()
        return await super().complete(request, on_delta)


def moody(stage: Bench, failure: Failure, *, good: int = 0) -> Agent:
    return Agent(
        "scripted",
        provider=Moody(stage, failure, good=good),
        system_prompt="Be brief.",
        tools=effect_tools(stage.effects),
        store=stage.store,
        retry=QUICK,
    )


async def test_a_rate_limit_suspends_cleanly_and_tells_a_program_when_it_ends(effects: Effects) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    result = await stage.run(moody(stage, limited, good=1))
    assert (result.reason, result.resumable, end_of(stage.state)) == ("suspended", True, "suspended")
    assert result.provider_error is not None
    assert result.provider_error.resume_at is not None
    left = result.provider_error.resume_at - datetime.now(UTC)
    assert timedelta(minutes=59) < left <= timedelta(hours=1, seconds=1)
    assert stage.state.terminal is not None
    assert stage.state.terminal.message == result.message
    assert stage.state.pending is None

    again = await stage.resume(moody(stage, limited))
    assert again.reason == "suspended"
    final = await stage.resume()
    assert (final.answer, final.provider_error) == (ANSWER["text"], None)
    assert effects.names == ["a"], "nothing was done twice"
    assert stage.told(events.CallRepeated) == []


async def test_a_rate_limit_ends_a_run_in_memory_as_an_error(effects: Effects) -> None:
    result = await moody(bench(effects, ANSWER), limited).run("go")
    assert (result.reason, result.resumable) == ("error", False)
    assert "slow down" in (result.message or "")


async def test_a_suspend_while_a_rate_limit_is_waited_for_is_the_operators(effects: Effects) -> None:
    def soon() -> ProviderError:
        return ProviderError("slow down", retryable=True, retry_after_s=60, rate_limited=True)

    stage = bench(effects, ANSWER)
    control = Control()
    stage.hook = lambda event: control.suspend() if isinstance(event, events.ModelRetried) else None
    with anyio.fail_after(5):
        result = await stage.run(moody(stage, soon), control=control)
    assert (result.reason, result.message, result.provider_error) == ("suspended", None, None)
    assert end_of(stage.state) == "suspended"


async def test_each_attempt_is_announced_with_its_number(effects: Effects) -> None:
    def passing() -> ProviderError:
        return ProviderError("hm", retryable=True)

    stage = bench(effects, ANSWER)
    await stage.run(moody(stage, passing))
    called = [(event.iteration, event.attempt) for event in stage.told(events.ModelCalled)]
    assert called == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert [event.may_be_paid for event in stage.told(events.ModelRetried)] == [True] * 3


async def test_no_attempt_is_made_once_the_journal_is_lost(tmp_path: Path, effects: Effects) -> None:
    def passing() -> ProviderError:
        return ProviderError("hm", retryable=True)

    def lose(event: events.Event) -> None:
        if isinstance(event, events.ModelRetried):
            os.unlink(tmp_path / "runs" / f"{RUN}.lock")

    stage = bench(effects, ANSWER, store=FileStore(str(tmp_path / "runs")))
    stage.hook = lose
    agent = moody(stage, passing)
    with pytest.raises(JournalLost):
        await stage.run(agent)
    assert len(stage.told(events.ModelCalled)) == 1
    assert len(stage.told(events.ModelRetried)) == 1


async def test_an_overflow_names_the_record_up_to_which_the_conversation_fitted(effects: Effects) -> None:
    stage = bench(effects, calling("a"), ANSWER)
    result = await stage.run(moody(stage, overflow, good=1))
    assert result.reason == "error"
    assert (result.message or "").endswith("too long; it did up to record 1: fork the run there, or earlier")
    assert fitting_record(stage.state) == 1

    chat = bench(effects, ANSWER)
    result = await chat.run(moody(chat, overflow, good=1), interactive=True, input_source=Typed("more"))
    assert (result.message or "").endswith("it did up to record 2: fork the run there, or earlier")
    assert fitting_record(chat.state) == 2

    paused = bench(effects, {"text": "Searching", "stop_reason": "pause_turn"}, ANSWER)
    await paused.run(moody(paused, overflow, good=1))
    assert fitting_record(paused.state) == 1


async def test_an_overflow_without_a_record_to_fork_at_has_no_such_advice(effects: Effects) -> None:
    stage = bench(effects, ANSWER)
    assert "fork" not in ((await stage.run(moody(stage, overflow))).message or "")
    in_memory = await moody(bench(effects, calling("a"), ANSWER), overflow, good=1).run("go")
    assert "fork" not in (in_memory.message or "")


BEGUN = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n"
    b'data: {"type":"message_start","message":{"content":[]}}\n\n'
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Well"}}\n\n'
)


async def test_an_abort_closes_the_connection_in_the_middle_of_an_answer(effects: Effects) -> None:
    closed = anyio.Event()

    async def begin_to_answer(client: SocketStream) -> None:
        async with client:
            await client.receive()
            await client.send(BEGUN)
            try:
                while True:
                    await client.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                closed.set()

    stage, control = bench(effects), Control()
    stage.hook = lambda event: control.abort() if isinstance(event, events.TextStreamed) else None
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, begin_to_answer)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        provider = open_provider("anthropic", base_url=url, environ={"ANTHROPIC_API_KEY": "k"})
        with anyio.fail_after(10):
            with pytest.raises(RunAborted):
                await stage.run(Agent("m", provider=provider, store=stage.store), control=control)
            await closed.wait()  # before the provider is closed
        await provider.aclose()
        group.cancel_scope.cancel()
    assert end_of(stage.state) is None
    assert stage.state.counters.model_calls == 0
