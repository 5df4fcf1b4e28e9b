"""M. Model errors and stop reasons: B83, B85."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fisk_ai.agent.agent import Agent
from fisk_ai.folding import RunState
from fisk_ai.messages import user_text
from fisk_ai.providers import open_provider
from fisk_ai.providers.retry import RetryPolicy
from fisk_ai.records import UserRecord
from fisk_ai.stores import FileStore
from tests.agent.bench import RUN, Typed
from tests.cases import processes_bench
from tests.cases.processes_bench import Desk, forks
from tests.cli.bench import NOTE_TOOL
from tests.providers.strict_server import KEY, Fault, StrictServer

pytestmark = forks
bench = processes_bench.desk
desk = processes_bench.quick

ANSWER: dict[str, Any] = {"text": "The answer is 42."}
APIS = pytest.mark.parametrize("api", ["anthropic", "openai"])


def serve(desk: Desk, server: StrictServer, api: str) -> None:
    desk.env |= {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
    url = server.url + ("/v1" if api == "openai" else "")
    desk.agent([], [NOTE_TOOL], provider=api, model="m", script=None, base_url=url)


def event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def cut_messages_stream(arguments: str) -> str:
    """A streamed turn of the Messages API whose call breaks off at the output limit."""
    usage = {"input_tokens": 100, "output_tokens": 1}
    message = {"id": "msg_0", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    call = {"type": "tool_use", "id": "toolu_0", "name": "note", "input": {}}
    return "".join(
        (
            event("message_start", message={**message, "stop_reason": None, "stop_sequence": None}),
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Let me note."}),
            event("content_block_stop", index=0),
            event("content_block_start", index=1, content_block=call),
            event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": arguments}),
            event("content_block_stop", index=1),
            event("message_delta", delta={"stop_reason": "max_tokens", "stop_sequence": None}, usage=usage),
            event("message_stop"),
        )
    )


def cut_chat_stream(arguments: str) -> str:
    """The same of Chat Completions."""
    call = {"index": 0, "id": "toolu_0", "type": "function", "function": {"name": "note", "arguments": arguments}}
    deltas = [({"role": "assistant", "content": "Let me note."}, None), ({"tool_calls": [call]}, None), ({}, "length")]
    frame = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[dict[str, Any]] = [
        {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} for delta, reason in deltas
    ]
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    chunks.append({**frame, "choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


CUT: dict[str, Callable[[str], str]] = {"anthropic": cut_messages_stream, "openai": cut_chat_stream}
ARGUMENTS = {"partial": '{"what": "par', "whole": '{"what":"a"}', "none": ""}


def server_with_a_cut_call(api: str, arguments: str) -> StrictServer:
    """Answer first with the cut turn, and then with the answer, if the history is the right one."""
    given = json.loads(arguments) if arguments.endswith("}") else {}
    turn = {"text": "Let me note.", "calls": [{"name": "note", "input": given, "id": "toolu_0"}]}
    cut = Fault(status=200, body=CUT[api](arguments), content_type="text/event-stream; charset=utf-8")
    return StrictServer([{**turn, "stop_reason": "max_tokens"}, ANSWER], faults={1: cut})


def kill_after(desk: Desk, records: int) -> None:
    """Leave the journal as a runner leaves it that was killed after so many records."""
    path = desk.state / "r.json"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:records]))


@APIS
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_b83_a_call_that_was_cut_off_is_never_executed(desk: Desk, api: str, arguments: str) -> None:
    """A call that the output limit had cut was executed, or left dangling in the history.

    DataDog/integrations-core#24260, mastra-ai/mastra#15718
    """
    with server_with_a_cut_call(api, arguments) as server:
        serve(desk, server, api)
        live = desk.does("run", "--checkpoint", "--name", "r", "hello")
        assert (live.code, live.out) == (0, b"The answer is 42.\n"), live
        assert server.refusals == []
        assert desk.effects == []
        whole = desk.store.load("r")
        assert_error_result(whole)

        kill_after(desk, 2)
        resumed = desk.does("run", "--resume", "r")
        assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n"), resumed
        assert desk.effects == []
        assert desk.records() == ["Meta", "Assistant", "ToolResult", "Assistant", "completed"]
        assert server.refusals == []
        assert server.requests[2].body == server.requests[1].body, "as it would have been without the kill"
        assert desk.store.load("r").counters == whole.counters
        assert desk.does("run", "--resume", "r").code == 5


def assert_error_result(state: RunState) -> None:
    """The call got one result, and that is an error which says why."""
    [block] = json.loads(bytes(state.messages[2].content))["content"]
    assert block["is_error"] is True
    assert "output-token limit" in json.dumps(block)


@APIS
def test_b83_a_cut_turn_without_content_is_no_success(desk: Desk, api: str) -> None:
    """An empty turn at the output limit was recorded as a success; here it is an error, and a dead end (contract 4.4).

    CherryHQ/stella#1079
    """
    turn = {"content": [], "message": {"role": "assistant", "content": None}, "stop_reason": "max_tokens"}
    with StrictServer([turn, ANSWER]) as server:
        serve(desk, server, api)
        failed = desk.does("run", "--checkpoint", "--name", "r", "hello")
        assert (failed.code, failed.out) == (1, b"")
        assert "output-token limit" in failed.err
        assert failed.last_line == "  fisk-ai session fork r --at 1"
        assert desk.records() == ["Meta", "Assistant", "error"]
        assert "can't be continued" in desk.refuses("run", "--resume", "r", code=5)

        kill_after(desk, 2)
        resumed = desk.does("run", "--resume", "r")
        assert (resumed.code, resumed.out) == (1, b"")
        assert "output-token limit" in resumed.err
        assert desk.records() == ["Meta", "Assistant", "error"]
        assert "can't be continued" in desk.refuses("run", "--resume", "r", code=5)
        assert len(server.requests) == 1, "it is not asked again"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def chatting(tmp_path: Path, server: StrictServer) -> Agent:
    """An agent that gives up after three attempts, without long pauses between them."""
    opened = partial(open_provider, "anthropic", base_url=server.url, environ={"ANTHROPIC_API_KEY": KEY})
    retry = RetryPolicy(attempts=3, first_wait_s=0.01)
    return Agent("m", open_with=opened, retry=retry, store=FileStore(str(tmp_path / "runs")))


OVERLOADED = Fault(status=529)
FIRST = {"text": "First."}


def history(server: StrictServer, number: int) -> list[tuple[str, list[str]]]:
    """Roles and texts of a request."""
    return [
        (message["role"], [message["content"]] if isinstance(message["content"], str) else texts(message["content"]))
        for message in server.requests[number].json["messages"]
    ]


def texts(content: list[dict[str, Any]]) -> list[str]:
    return [block["text"] for block in content]


@pytest.mark.anyio
@pytest.mark.parametrize("typed", [["y"], []], ids=["and something is typed", "and nothing is typed"])
async def test_b85_a_failed_call_leaves_the_message_in_the_history_once_and_no_error(
    tmp_path: Path, typed: list[str]
) -> None:
    """A failed model call doubled or lost the user's message, or kept the error as if the assistant had said it.

    Here a resume first asks again for an answer to what was said, and takes `y` after it (contract 4.4).
    agentscope-ai/QwenPaw#4149, RooCodeInc/Roo-Code#9249, openai/openai-agents-python#3852
    """
    faults = {2: OVERLOADED, 3: OVERLOADED, 4: OVERLOADED}
    with StrictServer([FIRST, {"text": "Second."}, {"text": "Third."}], faults=faults) as server:
        failed = await chatting(tmp_path, server).run(
            "hello", checkpoint=True, name=RUN, interactive=True, input_source=Typed("x")
        )
        assert (failed.reason, len(server.requests)) == ("error", 4)
        assert "tried 3 times" in (failed.message or "")
        state = FileStore(str(tmp_path / "runs")).load(RUN)
        assert [message.role for message in state.messages] == ["user", "assistant", "user"]

        resumed = await chatting(tmp_path, server).resume(RUN, input_source=Typed(*typed))
        assert resumed.answer == ("Third." if typed else "Second.")
        assert server.requests[4].body == server.requests[1].body, "the same request is tried again"
        asked = [("user", ["hello"]), ("assistant", ["First."]), ("user", ["x"])]
        assert history(server, 4) == asked
        if typed:
            assert history(server, 5) == [*asked, ("assistant", ["Second."]), ("user", ["y"])]
        assert server.refusals == []
        for recorded in server.requests:
            assert b"verloaded" not in recorded.body


@pytest.mark.anyio
async def test_b85_a_failed_call_for_the_prompt_itself_can_be_tried_again(tmp_path: Path) -> None:
    """The sibling: nothing was answered yet. oneprolabs/sourcelens#207"""
    faults = {1: OVERLOADED, 2: OVERLOADED, 3: OVERLOADED}
    with StrictServer([FIRST], faults=faults) as server:
        assert (await chatting(tmp_path, server).run("hello", checkpoint=True, name=RUN)).reason == "error"
        assert (await chatting(tmp_path, server).resume(RUN)).answer == "First."
        assert [recorded.body for recorded in server.requests] == [server.requests[0].body] * 4


@pytest.mark.anyio
async def test_b85_two_messages_without_an_answer_between_them_are_sent_as_one(tmp_path: Path) -> None:
    """x and y are one user message, x first, each once. iOfficeAI/AionUi#4259"""
    with StrictServer([FIRST, {"text": "Second."}]) as server:
        chat = chatting(tmp_path, server)
        await chat.run("hello", checkpoint=True, name=RUN, interactive=True, input_source=Typed())
        with chat.store.open(RUN) as journal:
            for text in ("x", "y"):
                journal.append(UserRecord(message=msgspec.Raw(user_text(text))))
        resumed = await chatting(tmp_path, server).resume(RUN, input_source=Typed())
        assert resumed.answer == "Second."
        assert history(server, 1) == [("user", ["hello"]), ("assistant", ["First."]), ("user", ["x", "y"])]
        assert server.refusals == []
