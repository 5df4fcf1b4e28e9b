"""A run with all that a provider may send, killed at each boundary: the provider gets back the bytes that it gave."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.assemble import load_agent
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import ModelOptions
from fisk_ai.stores.memory import MemoryStore
from tests.agent.bench import RUN, Effects, Typed, effect_tools, end_of
from tests.crash.commands import Workplace, shell_tool, started, until
from tests.providers.strict_server import KEY, Fault, StrictServer

pytestmark = pytest.mark.anyio

THINKS_AND_SEARCHES = (
    rb'[{"type":"thinking","thinking":"Search f\u0069rst \u2028.","signature":"c2ln+/=="},'
    rb'{"type": "redacted_thinking", "data": "b3BhcXVl"},'
    rb'{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"caf\u00e9","n":1e3}},'
    rb'{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result",'
    rb'"url":"https:\/\/example.test","title":null,"encrypted_content":"Zm9v","age":1.10}]},'
    rb'{"type":"thinking","thinking":"Now ours.","signature":"c2lnMg=="},'
    rb'{"type":"tool_use","id":"toolu_1","name":"a","input":{"what":"x\/y \ud83d\ude00"}}]'
)
PAUSES = (
    rb'[{"type":"server_tool_use","id":"srvtoolu_2","name":"code_execution","input":{"code":"1\n2"}},'
    rb'{"type":"code_execution_tool_result","tool_use_id":"srvtoolu_2","content":{"type":"code_execution_result",'
    rb'"stdout":"3\n","stderr":"","return_code":0,"content":[]}}]'
)
COMES_FROM_THE_FUTURE = (
    rb'[{"type":"from_the_future","n":[123456789012345678901234567890,-0.0,1E+2],"to":{"a":1,"a":2}},'
    rb'{"type":"text","text":"Looking."},'
    rb'{"type":"tool_use","id":"toolu_2","name":"b","input":{}},'
    rb'{"type":"tool_use","id":"toolu_3","name":"a","input":{"what":"z"},"caller":{"type":"direct"}}]'
)
CITES = (
    rb'[{"type":"thinking","thinking":"","signature":"c2lnMw=="},{"type":"text","text":"So it is.","citations":'
    rb'[{"type":"web_search_result_location","url":"u","title":"t","encrypted_index":"aQ==","cited_text":"\u00e9"}]}]'
)
CONTENTS = (THINKS_AND_SEARCHES, PAUSES, COMES_FROM_THE_FUTURE, CITES)
SCRIPT: list[dict[str, Any]] = [
    {"content": THINKS_AND_SEARCHES},
    {"content": PAUSES, "stop_reason": "pause_turn"},
    {"content": COMES_FROM_THE_FUTURE},
    {"content": CITES},
    {"text": "Fine."},
]
SERVER_TOOLS = (
    {"type": "web_search_20260209", "name": "web_search", "max_uses": 3},
    {"type": "code_execution_20260521", "name": "code_execution"},
)


class _Request(msgspec.Struct):
    messages: list[msgspec.Raw]


def assistant_turns(body: bytes) -> list[bytes]:
    """Return the bytes of the assistant's messages in a request."""
    messages = [bytes(raw) for raw in msgspec.json.decode(body, type=_Request).messages]
    return [raw for raw in messages if json.loads(raw)["role"] == "assistant"]


def stored(journal: bytes) -> MemoryStore:
    """Return a store that holds the journal, as a process that died left it."""
    store = MemoryStore()
    store.put_bytes(RUN, journal)
    return store


@contextmanager
def served(faults: Mapping[int, Fault] | None = None) -> Iterator[StrictServer]:
    with StrictServer(SCRIPT, faults=faults) as server:
        yield server
        assert server.refusals == []


def agent(server: StrictServer, effects: Effects, store: MemoryStore, *, stream: bool) -> Agent:
    options = ModelOptions(server_tools=SERVER_TOOLS, service_tier="auto", betas=("interleaved-thinking-2025-05-14",))
    environ = {"ANTHROPIC_API_KEY": KEY}
    return Agent(
        "some-model",
        open_with=lambda: open_provider(
            "anthropic", base_url=server.url, stream=stream, options=options, environ=environ
        ),
        model_options=options,
        system_prompt="Be brief.",
        tools=effect_tools(effects, "ab"),
        thinking_mode="budget:2048",
        store=store,
    )


async def undisturbed(tmp_path: Path, *, stream: bool) -> tuple[list[bytes], bytes]:
    """Run the twin and return its requests and its journal."""
    store = MemoryStore()
    with served() as server:
        twin = agent(server, Effects(tmp_path / "twin"), store, stream=stream)
        await twin.run("go", checkpoint=True, name=RUN, interactive=True, input_source=Typed("and now?"))
        return [request.body for request in server.requests], b"".join(store.read_bytes(RUN))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_killed_at_each_record_boundary_sends_the_turns_of_its_twin(tmp_path: Path, stream: bool) -> None:
    expected, journal = await undisturbed(tmp_path, stream=stream)
    assert len(expected) == len(SCRIPT)
    lines = journal.splitlines(keepends=True)
    [typed_at] = [number for number, line in enumerate(lines, 1) if "user" in json.loads(line)]
    asked = []
    for number in range(1, len(lines)):
        store = stored(b"".join(lines[:number]))
        before = store.load(RUN)
        with served() as server:
            run = agent(server, Effects(tmp_path / f"effects-{number}"), store, stream=stream)
            await run.resume(RUN, input_source=Typed("and now?") if number < typed_at else Typed())
            sent = [request.body for request in server.requests]
        for body in sent:
            turns = assistant_turns(body)
            assert turns == assistant_turns(expected[len(turns)])
        assert sent == expected[before.counters.model_calls :]  # whole, and nothing is asked for again
        after = store.load(RUN)
        assert end_of(after) == "suspended"
        assert after.messages == stored(journal).load(RUN).messages
        asked.append(len(sent))
    assert sorted(set(asked)) == list(range(len(SCRIPT) + 1))


async def test_turns_are_journaled_and_sent_back_in_the_bytes_of_the_answer(tmp_path: Path) -> None:
    expected, journal = await undisturbed(tmp_path, stream=False)
    said = [b'{"role":"assistant","content":' + content + b"}" for content in CONTENTS]
    assert assistant_turns(expected[-1]) == said
    for turn in said:
        assert turn in journal


async def test_streamed_turns_have_the_values_of_the_whole_ones(tmp_path: Path) -> None:
    expected, _ = await undisturbed(tmp_path, stream=True)
    sent = [json.loads(turn)["content"] for turn in assistant_turns(expected[-1])]
    assert sent == [json.loads(content) for content in CONTENTS]


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    yield
    for process in started:
        process.kill()


def workplace(directory: Path, server: StrictServer) -> Workplace:
    """An agent of its own process, whose tools kill it when they first run."""
    llm = {"provider": "anthropic", "model": "some-model", "base_url": server.url, "server_tools": list(SERVER_TOOLS)}
    deadly = "if [ ! -e NAME-killed ]; then : > NAME-killed; kill -9 $PPID; exit 1; fi"
    tools = [shell_tool(name, deadly.replace("NAME", name)) for name in "ab"]
    for tool in tools:
        tool["parameters"] = {"what": {"type": "string", "required": False}}
        tool["argv"].append("what={what}")
    return Workplace(directory, llm | {"thinking": {"enabled": True}}, tools)


def reached(server: StrictServer, number: int) -> None:
    until(lambda: len(server.requests) >= number, f"request {number}")


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_process_killed_in_generations_and_in_tools_sends_the_turns_of_its_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for name in ("killed", "twin"):
        (tmp_path / name).mkdir()
    for name in "ab":
        (tmp_path / "twin" / f"{name}-killed").touch()
    with served() as server:
        twin = workplace(tmp_path / "twin", server).directory / "agent.yaml"
        assert load_agent(str(twin)).run_sync("go").answer == "So it is."
        expected = [request.body for request in server.requests]
    assert len(expected) == len(CONTENTS)

    stalled = {number: Fault(stall_after_bytes=300) for number in (1, 4)}
    with served(stalled) as server:
        place = workplace(tmp_path / "killed", server)
        process = place.begin()
        for request, by_tool in ((1, False), (2, True), (4, False), (5, True)):
            reached(server, request)
            if by_tool:
                assert process.ends() == -signal.SIGKILL
            else:
                process.kill()
            process = place.resume()
        assert process.finishes() == (0, "So it is.\n")
        sent = [request.body for request in server.requests]
    assert [body for body, _ in itertools.groupby(sent)] == expected
    assert len(sent) == len(expected) + len(stalled)  # only what no turn came of was asked for again
