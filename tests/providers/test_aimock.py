"""Scripted runs and faults from a second server that none of us wrote: aimock, a program for Node.js.

It is no package for Python, so it isn't locked with the others, and these tests are skipped without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent
from fisk_ai.formats import reader_for
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Provider
from fisk_ai.records import AssistantRecord
from fisk_ai.stores import FileStore
from fisk_ai.tools.function import FunctionTool

VARIABLE = "FISK_AI_TEST_AIMOCK"
FORMATS = ("anthropic", "openai", "openai-responses")
TURNS: tuple[Mapping[str, Any], ...] = (
    {
        "reasoning": "I have to look.",
        "content": "Looking.",
        "toolCalls": [{"name": "lookup", "arguments": {"item": item}} for item in ("lamps", "chairs")],
    },
    {
        "blocks": [
            {"type": "toolCall", "name": "lookup", "arguments": {"item": "beds"}},
            {"type": "text", "text": "And the beds."},
        ]
    },
    {"content": "All is there."},
)
BREAKS_OFF: Mapping[str, Any] = {
    "response": {"content": "This is cut short in the middle of what it says."},
    "truncateAfterChunks": 2,
}
OVERLOADED: Mapping[str, Any] = {
    "response": {"error": {"message": "overloaded", "type": "overloaded_error"}, "status": 529}
}
WHOLE: Mapping[str, Any] = {"response": {"content": "Whole."}}

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.parametrize("name", FORMATS)]


def script() -> Iterator[dict[str, Any]]:
    # Not by the number of turns: with Responses it counts items.
    latest: tuple[Mapping[str, Any], ...] = ({"hasToolResult": False}, {"toolResultContains": "chairs"}, {})
    for result, turn in zip(latest, TURNS, strict=True):
        yield {"match": {"userMessage": "take stock", **result}, "response": turn}
    for name in FORMATS:
        for number, answer in enumerate((BREAKS_OFF, OVERLOADED, WHOLE)):
            yield {"match": {"userMessage": f"fail over {name}.", "sequenceIndex": number}, **answer}


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server that plays the script."""
    program = os.environ.get(VARIABLE) or shutil.which("aimock")
    if not program:
        pytest.skip(f"needs aimock: npm install @copilotkit/aimock, and its path in {VARIABLE} or on PATH")
    directory = tmp_path_factory.mktemp("aimock")
    (directory / "script.json").write_text(json.dumps({"fixtures": list(script())}))
    (directory / "aimock.json").write_text(json.dumps({"llm": {"fixtures": "script.json"}}))
    command = [program, "--config", "aimock.json", "--port", "0"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(line.split()[-1] for line in server.stdout if "listening on" in line)
        finally:
            server.terminate()


@asynccontextmanager
async def reach(name: str, url: str, *, stream: bool = True) -> AsyncIterator[Provider]:
    service, _, responses = name.partition("-")
    provider = open_provider(
        service,
        base_url=url if service == "anthropic" else f"{url}/v1",
        api="responses" if responses else "chat",
        stream=stream,
        environ={"ANTHROPIC_API_KEY": "any"},
    )
    try:
        yield provider
    finally:
        await provider.aclose()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_scripted_run_is_journaled_as_it_was_played(name: str, stream: bool, aimock: str, tmp_path: Path) -> None:
    looked_up: list[str] = []

    def lookup(item: str) -> str:
        looked_up.append(item)
        return f"{item}: in stock"

    tool = FunctionTool(lookup, description="Looks an item up.")
    store = FileStore(str(tmp_path / "runs"))
    async with reach(name, aimock, stream=stream) as provider:
        agent = Agent("some-model", provider=provider, tools=[tool], store=store)
        result = await agent.run("take stock", checkpoint=True, name="r1")
    assert (result.reason, result.answer) == ("completed", "All is there.")
    assert looked_up == ["lamps", "chairs", "beds"]
    records = [numbered.record for numbered in store.read("r1").records]
    turns = [record.message for record in records if isinstance(record, AssistantRecord)]
    assert [reader_for(name)(bytes(turn)).text for turn in turns] == ["Looking.", "And the beds.", "All is there."]
    assert b"I have to look." in bytes(turns[0])


async def test_faults_are_asked_again_until_the_answer_is_whole(name: str, aimock: str) -> None:
    retries: list[events.ModelRetried] = []

    def told(event: events.Event) -> None:
        if isinstance(event, events.ModelRetried):
            retries.append(event)

    async with reach(name, aimock) as provider:
        agent = Agent("some-model", provider=provider, tools=[])
        result = await agent.run(f"fail over {name}.", on_event=told)
    assert (result.reason, result.answer) == ("completed", "Whole.")
    assert [retry.may_be_paid for retry in retries] == [True, False]
    assert "529" in retries[1].error
