"""Section D of the reported failures: tool calls and their results."""

from __future__ import annotations

import errno
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from fisk_ai.agent.control import Control
from fisk_ai.agent.events import Event, ToolFinished
from fisk_ai.errors import JournalCorrupt, JournalFailed
from fisk_ai.providers.anthropic import MessagesApi
from fisk_ai.providers.openai import ChatApi
from fisk_ai.providers.wire import Api
from fisk_ai.records import Reason, Record, ToolResultRecord
from fisk_ai.stores import FileStore
from fisk_ai.stores.disk import OsDisk
from fisk_ai.tools import FunctionTool
from tests.agent.bench import Effects, effect_tools
from tests.cases.bench import (
    CHAT_DONE,
    MESSAGE_DONE,
    RUN,
    Library,
    Shell,
    asks,
    blocks,
    call,
    chat_answer,
    ends,
    gives,
    library,
    lines_parse,
    message_answer,
    result_text,
    says,
)
from tests.stores.faults import Fault, FaultyDisk

pytestmark = pytest.mark.anyio

SUBSETS = [names for size in range(4) for names in itertools.permutations("abc", size)]
DONE = says()


def results_sent(body: bytes) -> list[tuple[str, Any]]:
    """Return id and content of the results in the last message of a request."""
    last = json.loads(body)["messages"][-1]
    return [(block["tool_use_id"], block["content"]) for block in last["content"]]


@pytest.mark.parametrize("recorded", SUBSETS, ids=lambda names: "".join(names) or "none")
@pytest.mark.parametrize("end", [None, "suspended", "error"])
async def test_b27_of_a_batch_just_the_unrecorded_calls_run(
    lib: Library, recorded: Sequence[str], end: Reason | None
) -> None:
    """After a death within a batch, calls lacked results, or finished results were thrown away with the rest.

    anthropics/claude-code#2039, strands-agents/harness-sdk#859, github/copilot-cli#3183, earendil-works/pi#7053,
    org2AI/ORG2#1639, anthropics/claude-code#31330.
    """
    assert len(SUBSETS) == 16
    lib.plays(asks("a", "b", "c"), DONE)
    lib.plant(asks("a", "b", "c"), *map(gives, recorded), *([ends(end)] if end else []))
    assert (await lib.agent().resume(RUN)).reason == "completed"
    assert lib.effects.names == [name for name in "abc" if name not in recorded]
    (body,) = lib.bodies
    assert results_sent(body) == [(name, [{"type": "text", "text": result_text(name)}]) for name in "abc"]
    lib.load_twice()
    await lib.check_same_as_twin()


class Turns:
    """Tools a, b and c that run side by side and end in the given order."""

    def __init__(self, order: str, effects: Effects) -> None:
        self._order = order
        self._effects = effects
        self._ended = {name: anyio.Event() for name in order}

    def tool(self, name: str) -> FunctionTool[Any, Any]:
        async def work() -> str:
            self._effects.note(name)
            before = self._order[: self._order.index(name)]
            if before:
                await self._ended[before[-1]].wait()
            return result_text(name)

        return FunctionTool(work, name=name, description=f"Does {name}", parallel=True)

    def finished(self, event: Event) -> None:
        """Let the next one end when the result of the one before is recorded."""
        if isinstance(event, ToolFinished) and event.name in self._ended:
            self._ended[event.name].set()


@pytest.mark.parametrize("order", ["abc", "bca", "cba"])
async def test_b28_results_are_sent_in_the_order_of_the_calls(lib: Library, order: str) -> None:
    """The order of completion live differed from the order that a resume rebuilt; or only the last turn was sent.

    cloudwego/eino#1242, dbos-inc/dbos-transact-py#688, simonw/llm#1426.
    """
    lib.plays(asks("d", text="First."), asks("a", "b", "c"), asks("e"), DONE)
    control = Control()
    turns = Turns(order, lib.effects)
    lib.tools = [*map(turns.tool, "abc"), *effect_tools(lib.effects, "de")]

    def hook(event: Event) -> None:
        turns.finished(event)
        if isinstance(event, ToolFinished) and event.name == order[-1]:
            control.suspend()

    lib.hook = hook
    assert (await lib.run(control=control)).reason == "suspended"
    in_file = [each.record for each in lib.store_of_files.read(RUN).records]
    assert [each.name for each in in_file if isinstance(each, ToolResultRecord)] == ["d", *order]

    lib.hook = None
    lib.tools = [*map(Turns("abc", lib.effects).tool, "abc"), *effect_tools(lib.effects, "de")]
    assert (await lib.resume()).reason == "completed"
    assert sorted(lib.effects.names) == ["a", "b", "c", "d", "e"]
    assert [name for name, _ in results_sent(lib.bodies[2])] == ["a", "b", "c"]
    assert len(json.loads(lib.bodies[2])["messages"]) == 5, "all of the conversation, not its last turn"

    sequential = Turns("abc", lib.effects)
    lib.hook = sequential.finished
    twin = await in_order_of_calls(lib)
    assert lib.bodies == twin.bodies
    assert lib.state.messages == twin.state.messages


async def in_order_of_calls(lib: Library) -> Library:
    """Return an undisturbed twin whose tools end in the order of their calls."""
    twin = library(lib.path.parent.parent / "twin")
    (lib.path.parent.parent / "twin").mkdir()
    twin.turns = lib.turns
    turns = Turns("abc", twin.effects)
    twin.tools = [*map(turns.tool, "abc"), *effect_tools(twin.effects, "de")]
    twin.hook = turns.finished
    await twin.run()
    return twin


IDS = {
    "doubled": ("x", "x"),
    "thrice": ("x", "x", "x"),
    "empty": ("",),
    "all empty": ("", ""),
    "taken by the way out": ("call_1", "", "x", "x"),
    "not allowed in a request": ("a b/é", "a b/é"),
}
APIS = pytest.mark.parametrize(
    ("api", "done"), [(MessagesApi(), MESSAGE_DONE), (ChatApi(official=True), CHAT_DONE)], ids=["anthropic", "openai"]
)


def answer_with_ids(api: Api, ids: Iterable[str]) -> bytes:
    calls = [*zip(ids, "abcde", strict=False)]
    if api.name == "anthropic":
        return message_answer(json.dumps([call(name, {}, call_id=each) for each, name in calls]).encode())
    functions = [
        {"id": each, "type": "function", "function": {"name": name, "arguments": "{}"}} for each, name in calls
    ]
    return chat_answer(json.dumps({"role": "assistant", "content": None, "tool_calls": functions}).encode())


@APIS
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
async def test_b30_ids_of_calls_are_made_unique_before_they_are_recorded(
    lib: Library, api: Api, done: bytes, ids: Sequence[str]
) -> None:
    """Two calls with one id in a turn, or an empty one, made the stored history invalid for good.

    ducks/claux#40, CherryHQ/cherry-studio#18119, anthropics/claude-code#13850, openai/openai-agents-python#4827.
    """
    lib.speaks(api, answer_with_ids(api, ids), done)
    assert (await lib.run()).reason == "completed"
    names = [*"abcde"[: len(ids)]]
    assert lib.effects.names == names
    assert lib.results == [result_text(name) for name in names]
    live = lib.bodies  # checked against the API's rules
    lib.load_twice()
    for recorded in range(len(ids) + 1):
        lib.crash_after(2 + recorded)
        assert (await lib.resume()).reason == "completed"
        assert lib.bodies[-1] == live[-1]
        assert lib.results == [result_text(name) for name in names]


CONTRADICTIONS: dict[str, tuple[tuple[Record, ...], str, int]] = {
    "a result for no call": ((asks("a"), gives("z"), gives("a"), DONE), "z", 3),
    "a result for no call after the last one": ((asks("a"), gives("a"), gives("z"), DONE), "z", 4),
    "a result before any call": ((gives("z"), asks("a"), gives("a"), DONE), "z", 2),
    "a result for a call of an earlier turn": ((asks("a"), gives("a"), asks("b"), gives("a"), gives("b")), "a", 5),
    "a second, different result": ((asks("a", "b"), gives("a"), gives("a", "else"), gives("b"), DONE), "a", 4),
    "a second, equal result": ((asks("a", "b"), gives("a"), gives("a"), gives("b"), DONE), "a", 4),
    "a result that is of another call": (
        (asks("a", "b"), ToolResultRecord(tool_use_id="a", result=gives("b").result), gives("b"), DONE),
        "b",
        3,
    ),
    "a doubled id": ((blocks(call("a"), call("b", call_id="a")), gives("a"), DONE), "", 2),
    "an empty id": ((blocks(call("a", call_id="")), gives("a"), DONE), "", 2),
}


@pytest.mark.parametrize(("records", "call_id", "seq"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_b30_results_that_contradict_the_calls_are_damage(
    shell: Shell, records: Sequence[Record], call_id: str, seq: int
) -> None:
    """As above, for what is stored already: the id is named, nothing is sent, and nothing is dropped in silence."""
    shell.plays(asks("a"), asks("b"), DONE)
    shell.plant(*records)
    for flags in ([], ["--force"]):
        line = shell.refused(7, RUN, f"seq {seq}", args=["run", "--resume", RUN, *flags])
        assert repr(call_id) in line or "call ids of the turn are missing or doubled" in line
    with shell.untouched, pytest.raises(JournalCorrupt):
        shell.store.load(RUN)
    assert shell.counts("ab") == [0, 0]


class Instant:
    """Tools that all end at one moment: when the last of them has begun."""

    def __init__(self, count: int, *, threads: bool) -> None:
        self._barrier = threading.Barrier(count, timeout=30)
        self._all_began = anyio.Event()
        self.began = 0
        self._count = count
        self._threads = threads

    def tool(self, name: str) -> FunctionTool[Any, Any]:
        text = f"{name:>3} " * 25_000

        def in_thread() -> str:
            self._barrier.wait()
            return text

        async def in_loop() -> str:
            self.began += 1
            if self.began == self._count:
                self._all_began.set()
            await self._all_began.wait()
            return text

        function: Callable[[], Any] = in_thread if self._threads else in_loop
        return FunctionTool(function, name=name, description="Waits for the others", parallel=True)


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "asyncio"])
async def test_b32_results_that_come_at_one_moment_are_written_one_by_one(lib: Library, threads: bool) -> None:
    """Several writers shared one handle, and produced mixed or lost records.

    gptme/gptme-contrib#1294, modelcontextprotocol/php-sdk#500.
    """
    disk = FaultyDisk()
    lib.store = FileStore(str(lib.path.parent), disk=disk)
    instant = Instant(32, threads=threads)
    lib.tools = [instant.tool(f"t{number}") for number in range(32)]
    lib.plays(asks(*(f"t{number}" for number in range(32))), DONE)
    done: list[str] = []

    def hook(event: Event) -> None:
        if isinstance(event, ToolFinished):
            data = lib.path.read_bytes()
            assert data.endswith(b"}\n")
            assert b'"tool_use_id":"%b"' % event.call_id.encode() in data, "on disk before it counts as done"
            assert disk.operations("write", "sync")[-1] == ("sync", lib.path.name)
            done.append(event.name)

    lib.hook = hook
    assert (await lib.run()).reason == "completed"

    assert sorted(done) == sorted(f"t{number}" for number in range(32))
    lines = lines_parse(lib.path.read_bytes())
    assert [line["seq"] for line in lines] == [*range(1, 37)]
    assert sorted(line["tool_result"]["name"] for line in lines[2:34]) == sorted(done)
    written = [each for each in disk.operations("write", "sync") if each[1] == lib.path.name]
    assert written == [("write", lib.path.name), ("sync", lib.path.name)] * 36
    body = lib.bodies[-1]
    assert [name for name, _ in results_sent(body)] == [f"t{number}" for number in range(32)]
    state = lib.load_twice()
    assert state.counters.tool_calls == 32


FAULTS = {
    "a write": Fault("write", 4, errno.EIO, RUN + ".json"),
    "half a write": Fault("write", 4, errno.ENOSPC, RUN + ".json", kept_bytes=60),
    "a sync": Fault("sync", 4, errno.EIO, RUN + ".json"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_b33_nothing_follows_a_result_that_could_not_be_stored(lib: Library, fault: str) -> None:
    """Storing one result failed within a batch; the rest was lost, or the state moved on without the record.

    NousResearch/hermes-agent#103389, openai/openai-agents-python#4615.
    """
    planned = replace(FAULTS[fault])
    directory = str(lib.path.parent)
    lib.plays(asks("a", "b", "c", "d"), DONE)
    lib.store = FileStore(directory, disk=FaultyDisk(planned))
    with pytest.raises(JournalFailed, match="journal could not be written"):
        await lib.run()
    assert planned.reached == planned.number, "the fault was met, and nothing was tried after it"
    assert lib.effects.names == ["a", "b"]
    assert len(lib.requests) == 1

    lib.store = FileStore(directory, disk=FaultyDisk())
    stored = fault == "a sync"  # its bytes are there, and opening syncs them before it believes them
    assert lib.state.last_seq == (4 if stored else 3)
    assert (await lib.resume()).reason == "completed"
    assert lib.effects.names == ["a", "b", *([] if stored else ["b"]), "c", "d"]
    lib.load_twice()
    await lib.check_same_as_twin()


@pytest.mark.parametrize("fault", FAULTS)
async def test_b33_nothing_follows_it_in_a_parallel_group_either(lib: Library, fault: str) -> None:
    """As above, where the other calls are under way: what comes after the failure is not stored, and runs again."""
    planned = replace(FAULTS[fault])
    directory = str(lib.path.parent)
    lib.plays(asks("a", "b", "c", "d"), DONE)
    instant = Instant(4, threads=False)
    lib.tools = [instant.tool(name) for name in "abcd"]
    lib.store = FileStore(directory, disk=FaultyDisk(planned))
    with pytest.raises(JournalFailed, match="journal could not be written"):
        await lib.run()
    assert planned.reached == planned.number
    assert len(lib.requests) == 1
    recorded = lib.results
    assert len(recorded) == (2 if fault == "a sync" else 1)

    lib.store = FileStore(directory, disk=FaultyDisk())
    again = Instant(4 - len(recorded), threads=False)
    lib.tools = [again.tool(name) for name in "abcd"]
    assert (await lib.resume()).reason == "completed"
    assert again.began == 4 - len(recorded), "only what was not recorded"
    assert lib.results[: len(recorded)] == recorded
    assert len(results_sent(lib.bodies[-1])) == 4
    lib.load_twice()


def test_b33_the_command_says_so_and_ends(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, for the operator: exit code, message, and a command with which to go on that works."""
    shell.plays(asks("a", "b", "c", "d"), DONE)
    written = 0
    write = OsDisk.write

    def fails_once(self: OsDisk, descriptor: int, data: bytes) -> None:
        nonlocal written
        written += data.startswith(b'{"seq":')
        if written == 4:
            written += 1
            raise OSError(errno.EIO, "Input/output error")
        write(self, descriptor, data)

    monkeypatch.setattr(OsDisk, "write", fails_once)
    done = shell.fast("run", "go", "--checkpoint", "--name", RUN)
    assert written == 5, "the fault was met, and no record was tried after it"
    assert (done.code, done.out) == (1, b"")
    assert "journal could not be written: an append failed: Input/output error" in done.err
    assert done.last_line.strip() == f"fisk-ai run --resume {RUN}"
    assert shell.counts() == [1, 1, 0, 0, 0]

    assert shell.resume().code == 0
    assert shell.counts() == [1, 2, 1, 1, 0]
    assert len(set(shell.keys("b"))) == 1, "the repeat has the key of the first time"
    shell.refused(5, RUN, "completed")
    shell.check_same_as_twin()
