"""The bytes on the wire: a stopped and resumed run sends what its undisturbed twin sends, and nothing is refused."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.control import Control
from fisk_ai.messages import TextBlock
from fisk_ai.providers import open_provider
from fisk_ai.stores.memory import MemoryStore
from fisk_ai.tools.base import ToolOutput
from tests.agent.bench import RUN, Crash, Effects, Typed, at_event, crash, effect_tools, end_of
from tests.agent.test_faults import RawTool
from tests.providers.strict_server import KEY, StrictServer

pytestmark = pytest.mark.anyio

PROVIDERS = pytest.mark.parametrize("name", ["anthropic", "openai", "openai-responses"])
"""By the formats of their turns."""

ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "gAAA=="},
    {"type": "web_search_call", "id": "ws_0", "status": "completed", "action": {"query": "\u2028"}},
    {"type": "from_the_future", "id": "ff_0", "n": 1.5},
    {"type": "message", "id": "m_0", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
    {"type": "function_call", "id": "fc_0", "call_id": "x", "name": "a", "arguments": '{"what": "1e3 \\ud83d\\ude00"}'},
    {"type": "function_call", "id": "fc_1", "call_id": "y", "name": "b", "arguments": "{}"},
]
CALLS = [{"name": "a", "input": {"what": "1e3 \u2028 \U0001f600"}}, {"name": "b"}]
SCRIPT: list[dict[str, Any]] = [
    {"text": "Looking.", "calls": CALLS, "output": ITEMS},
    {"calls": [{"name": "gone", "id": "call_0"}, {"name": "c", "id": "call_1"}]},
    {"calls": [{"name": "d", "id": "call_0"}, {"name": "e", "id": "call_1", "input": {"what": ""}}]},
    {"text": "First answer."},
    {"text": "", "calls": [{"name": "a", "id": "call_0"}]},
    {"text": "Second answer."},
]


@contextmanager
def served(name: str, turns: list[dict[str, Any]]) -> Iterator[tuple[StrictServer, str]]:
    with StrictServer(turns) as server:
        yield server, server.url + ("" if name == "anthropic" else "/v1")
        assert server.refusals == []


def agent(name: str, url: str, effects: Effects, store: MemoryStore, tools: Any = None) -> Agent:
    environ = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
    provider, _, api = name.partition("-")
    spoken: Literal["chat", "responses"] = "responses" if api else "chat"
    return Agent(
        "some-model",
        provider=provider,
        open_with=lambda: open_provider(provider, base_url=url, api=spoken, environ=environ),
        system_prompt="Be brief.",
        tools=effect_tools(effects) if tools is None else tools,
        store=store,
    )


async def undisturbed(name: str, tmp_path: Path) -> list[bytes]:
    with served(name, SCRIPT) as (server, url):
        chat: Any = {"interactive": True, "input_source": Typed("and now?")}
        await agent(name, url, Effects(tmp_path / "twin"), MemoryStore()).run("go", checkpoint=True, name=RUN, **chat)
        return [request.body for request in server.requests]


@PROVIDERS
@pytest.mark.parametrize("clean", [True, False], ids=["suspended", "killed"])
async def test_a_run_that_is_stopped_at_each_place_sends_the_same_bytes(name: str, tmp_path: Path, clean: bool) -> None:
    expected = await undisturbed(name, tmp_path)
    assert len(expected) == len(SCRIPT)
    for number in range(2, 18, 3):
        with served(name, SCRIPT) as (server, url):
            effects, store, typed = Effects(tmp_path / f"effects-{number}"), MemoryStore(), Typed("and now?")
            for stop in (number, number, number, 0):
                await _go(agent(name, url, effects, store), store, stop, clean, typed)
            assert end_of(store.load(RUN)) == "suspended"
            sent = [request.body for request in server.requests]
            for body in sent:
                assert body in expected
            if clean:
                assert sent == expected
            assert [body for body, _ in itertools.groupby(sent)] == expected


async def _go(agent: Agent, store: MemoryStore, number: int, clean: bool, typed: Typed) -> None:
    """Start or go on, stopping at the `number`-th event."""
    control = Control()
    hook = at_event(number, control.suspend if clean else crash)
    options: dict[str, Any] = {"on_event": hook, "input_source": typed, "control": control}
    with contextlib.suppress(Crash):
        if RUN in store.run_ids():
            await agent.resume(RUN, **options)
        else:
            await agent.run("go", checkpoint=True, name=RUN, interactive=True, **options)


THINKING = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
    {"type": "text", "text": "Looking."},
    {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {"what": "x"}},
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
    {"type": "tool_use", "id": "toolu_2", "name": "b", "input": {}},
]


async def test_signed_thinking_is_sent_back_as_it_came_after_a_kill(tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [{"content": THINKING}, {"text": "Done"}]
    with served("anthropic", turns) as (server, url):  # the server compares with what it sent, value for value
        effects, store = Effects(tmp_path / "effects"), MemoryStore()
        with pytest.raises(Crash):
            await agent("anthropic", url, effects, store, effect_tools(effects, "ab", dies=True)).run(
                "go", checkpoint=True, name=RUN
            )
        result = await agent("anthropic", url, effects, store, effect_tools(effects, "ab")).resume(RUN)
        assert result.answer == "Done"
        assert len(server.requests) == 2


@PROVIDERS
async def test_a_result_without_text_can_be_sent(name: str, tmp_path: Path) -> None:
    with served(name, [{"calls": [{"name": "raw"}]}, {"text": "Done"}]) as (_, url):
        effects = Effects(tmp_path / "effects")
        for outcome in (ToolOutput(()), ToolOutput((TextBlock(""),)), ToolOutput((TextBlock(" \n"),), is_error=True)):
            run = agent(name, url, effects, MemoryStore(), [RawTool(effects, outcome)])
            assert (await run.run("go")).answer == "Done"


@PROVIDERS
async def test_a_prompt_of_any_text_can_be_sent(name: str, tmp_path: Path) -> None:
    with served(name, [{"text": "Done"}]) as (_, url):
        run = agent(name, url, Effects(tmp_path / "effects"), MemoryStore(), [])
        for prompt in ("\ud83d", "\0", " x\u2028", "\ufeffa"):
            assert (await run.run(prompt)).answer == "Done"
