"""What the tests of reported failures share.

Journals are written as in the list of cases, one verb a record: `asks("a", "b")` is a model turn with two calls,
`says("Done.")` the final turn, `gives("a")` a tool's result, `types("more")` a follow-up, `ends("completed")` the end.
A call's id is the name of its tool.

`Library` runs agents over a file store within this process and keeps every request; `Shell` runs the command line.
Both can `plant` a journal, play the script that a planted journal came from, and be compared with an uninterrupted
twin. `untouched` checks that a refusal leaves no trace.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from fisk_ai import codec
from fisk_ai.agent.agent import Agent
from fisk_ai.agent.assemble import load_agent
from fisk_ai.folding import RunState
from fisk_ai.messages import read_result, tool_result, user_text
from fisk_ai.providers import anthropic
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.providers.wire import Api
from fisk_ai.records import (
    AssistantRecord,
    Fingerprint,
    MetaRecord,
    Reason,
    Record,
    TerminalRecord,
    ToolResultRecord,
    UserRecord,
)
from fisk_ai.stores import FileStore, MemoryStore
from tests.agent.bench import RUN, Effects, effect_tools
from tests.agent.bench import Bench as AgentBench
from tests.agent.bench import assert_same_as as agent_assert_same_as
from tests.cli.bench import Bench as CliBench
from tests.cli.bench import Done
from tests.providers.strict_rules import SentTurn, check_chat_request, check_messages_request, read_strict
from tests.stores.faults import FastDisk

__all__ = ["RUN", "Done", "Effects", "Library", "Shell", "asks", "ends", "gives", "says", "types"]

Block = Mapping[str, Any]
Files = dict[str, tuple[bytes, int, int, int]]

PROMPT = "go"
CREATED = "2026-12-01T03:21:00.123Z"
TIME = "2026-12-01T03:21:07.456Z"
TOKENS = (10, 5)


def blocks(*content: Block, stop_reason: str | None = None, tokens: tuple[int, int] = TOKENS) -> AssistantRecord:
    """A model turn of these blocks."""
    calls = any(block["type"] == "tool_use" for block in content)
    return AssistantRecord(
        iteration=0,
        message=msgspec.Raw(msgspec.json.encode({"role": "assistant", "content": content})),
        stop_reason=stop_reason or ("tool_use" if calls else "end_turn"),
        in_tokens=tokens[0],
        out_tokens=tokens[1],
    )


def call(name: str, arguments: object | None = None, *, call_id: str | None = None) -> Block:
    """A call, whose id is its tool's name unless it is given."""
    given = {} if arguments is None else arguments
    return {"type": "tool_use", "id": name if call_id is None else call_id, "name": name, "input": given}


def asks(*names: str, text: str = "", **more: Any) -> AssistantRecord:
    """A(a, b): a model turn that calls these tools."""
    said = [{"type": "text", "text": text}] if text else []
    return blocks(*said, *map(call, names), **more)


def says(text: str = "All is well.", **more: Any) -> AssistantRecord:
    """A!: a final turn."""
    return blocks({"type": "text", "text": text}, **more)


def gives(name: str, text: str | None = None, *, is_error: bool = False) -> ToolResultRecord:
    """R(a): the result of a call; what the bench's tools say if no text is given."""
    said = result_text(name) if text is None else text
    result = msgspec.Raw(tool_result(name, said, is_error=is_error))
    return ToolResultRecord(tool_use_id=name, result=result, name=name)


def result_text(name: str) -> str:
    """Return what the bench's tools say."""
    return f"{name} did it"


def types(text: str) -> UserRecord:
    """U: a follow-up."""
    return UserRecord(message=msgspec.Raw(user_text(text)))


def ends(reason: Reason, message: str | None = None) -> TerminalRecord:
    """T(reason)."""
    return TerminalRecord(reason=reason, message=message)


def numbered(records: Sequence[Record]) -> list[Record]:
    """Return the records with their turns' iterations in order."""
    turns = 0
    result: list[Record] = []
    for record in records:
        if isinstance(record, AssistantRecord):
            result.append(msgspec.structs.replace(record, iteration=turns))
            turns += 1
        else:
            result.append(record)
    return result


def written(records: Sequence[Record]) -> list[bytes]:
    """Encode records as the lines of a journal, with right seq and checksum."""
    lines: list[bytes] = []
    crc = 0
    for seq, record in enumerate(numbered(records), 1):
        line, crc = codec.encode_line(seq, record, TIME, crc)
        lines.append(line)
    return lines


def resealed(lines: Sequence[bytes]) -> list[bytes]:
    """Give lines that were changed by hand the checksums that they would have had if written so."""
    result: list[bytes] = []
    crc = 0
    for line in lines:
        body = line.rstrip(b"\n").rpartition(b',"crc":"')[0]
        crc = zlib.crc32(body, crc)
        result.append(body + b',"crc":"%08x"}\n' % crc)
    return result


def foreign(records: Sequence[Record]) -> list[bytes]:
    """Encode records as another program might: without time and checksums."""
    lines = []
    for seq, record in enumerate(numbered(records), 1):
        key = codec.payload_key(record)
        payload = json.loads(codec.encode_payload(record))
        payload.pop("checksums", None)
        line = {"seq": seq, "protocol": f"io.choria.fisk-ai.v1.session.{key}", key: payload}
        lines.append(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    return lines


def script(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the turns among these records as a script of the scripted provider."""
    return [
        {
            "content": msgspec.json.decode(record.message)["content"],
            "stop_reason": record.stop_reason,
            "in_tokens": record.in_tokens,
            "out_tokens": record.out_tokens,
        }
        for record in records
        if isinstance(record, AssistantRecord)
    ]


def meta(fingerprint: Fingerprint, *, run_id: str = RUN, prompt: str = PROMPT, interactive: bool = False) -> MetaRecord:
    """M: the first record of a run that an agent with this fingerprint could have begun."""
    return MetaRecord(
        version=2,
        run_id=run_id,
        created=CREATED,
        fingerprint=fingerprint,
        prompt=prompt,
        checksums=True,
        interactive=interactive,
    )


def put(path: Path, data: bytes) -> Path:
    """Write a journal's bytes where a store keeps them, with the modes that it wants."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def files(directory: Path) -> Files:
    """Return bytes, size, mtime and mode of every file of runs, but for the lock files: taking a lock is no change."""
    found: Files = {}
    for path in sorted(directory.rglob("*")) if directory.exists() else ():
        if path.suffix != ".lock" and not path.is_dir():
            facts = path.lstat()
            found[str(path)] = (path.read_bytes(), facts.st_size, facts.st_mtime_ns, facts.st_mode)
    return found


@contextmanager
def untouched(directory: Path) -> Iterator[None]:
    """Check that nothing about the stored runs changes meanwhile."""
    before = files(directory)
    yield
    assert files(directory) == before


def lines_parse(data: bytes) -> list[dict[str, Any]]:
    """Return a journal's lines parsed by the standard library, strictly; every one of them has to."""
    assert data.endswith(b"\n"), data[-80:]

    def refuse(token: str) -> None:
        raise AssertionError(f"not JSON: {token}")

    return [json.loads(line.decode(), parse_constant=refuse) for line in data.split(b"\n")[:-1]]


def body_of(request: ModelRequest, api: Api | None = None) -> bytes:
    """Return what an API (the Messages API without `api`) would be sent for a request, accepted by its rules."""
    body = (api or anthropic.MessagesApi()).build_request(request, stream=False)
    read = read_strict(body)
    turns = [message for message in read["messages"] if message["role"] == "assistant"]
    check = check_messages_request if api is None or api.name == "anthropic" else check_chat_request
    check(read, [SentTurn(turn, turn, paused=False) for turn in turns])
    return body


def same_as(state: RunState, twin: RunState) -> None:
    """Check that a stopped and resumed run can't be told from its undisturbed twin."""
    assert state.messages == twin.messages
    assert state.counters == twin.counters
    assert state.next_iteration == twin.next_iteration
    assert state.last_turn is not None
    assert twin.last_turn is not None
    assert state.last_turn.text == twin.last_turn.text
    assert state.pending is None


class AnsweringProvider:
    """An API whose answers are given as bytes; what reads them, and what is sent, is the real adapter's."""

    def __init__(self, api: Api, answers: Sequence[bytes], requests: list[ModelRequest]) -> None:
        self.name, self.format = api.name, api.format
        self._api, self._answers, self._requests = api, answers, requests

    async def complete(self, request: ModelRequest, _on_delta: OnDelta) -> Reply:
        """Give the answer at the request's position."""
        self._requests.append(replace(request, messages=tuple(request.messages)))
        return self._api.read_reply(self._answers[request.iteration])

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


@dataclass(slots=True)
class Library(AgentBench):
    """Agents over a file store within this process; each agent stands for a process of its own."""

    tools: Sequence[Any] | None = None
    """None: five tools a to e, which note their effects."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of each agent."""
    api: Api | None = None
    """None: the model plays `turns`."""
    answers: Sequence[bytes] = ()
    """What the API answers, call by call."""

    def agent(self, tools: Any = None, *, turns: Any = None, **options: Any) -> Agent:
        """Return an agent as a new process would make it."""
        given = self.tools if tools is None else tools
        if self.api is not None:
            options["provider"] = AnsweringProvider(self.api, self.answers, self.requests)
        else:
            options["provider"] = ScriptedProvider(self.turns if turns is None else turns)
            options["provider"].requests = self.requests
        kwargs = {"system_prompt": "Be brief.", "store": self.store, **self.options, **options}
        return Agent("scripted", tools=effect_tools(self.effects) if given is None else given, **kwargs)

    def plays(self, *turns: AssistantRecord) -> None:
        """Let the model give these turns."""
        self.turns = script(turns)

    def speaks(self, api: Api, *answers: bytes) -> None:
        """Let an API give these answers."""
        self.api, self.answers = api, answers

    def crash_after(self, lines: int) -> Path:
        """Cut the journal back to its first lines, as if its runner had died right after writing them."""
        whole = self.path.read_bytes().split(b"\n")
        assert len(whole) > lines
        return put(self.path, b"".join(line + b"\n" for line in whole[:lines]))

    @property
    def path(self) -> Path:
        """Where the run's journal is."""
        return Path(self.store_of_files.path(RUN))

    def meta(self, **more: Any) -> MetaRecord:
        """M, as the current agent would write it."""
        return meta(self.agent().fingerprint, **more)

    def lines(self, *records: Record, **more: Any) -> list[bytes]:
        """Return the lines of a journal with these records after M."""
        return written([self.meta(**more), *records])

    def plant(self, *records: Record, tail: bytes = b"", **more: Any) -> Path:
        """Write the journal of a runner that died after the last of these records, and perhaps while it wrote one."""
        return put(self.path, b"".join(self.lines(*records, **more)) + tail)

    @property
    def bodies(self) -> list[bytes]:
        """What was sent, in order; each is a request that the API takes."""
        return [body_of(request, self.api) for request in self.requests]

    @property
    def results(self) -> list[str]:
        """The texts of all results in the journal, in order."""
        records = [each.record for each in self.store_of_files.read(RUN).records]
        return [read_result(bytes(each.result)).text for each in records if isinstance(each, ToolResultRecord)]

    @property
    def store_of_files(self) -> FileStore:
        """The store, where it is known to be one of files."""
        assert isinstance(self.store, FileStore)
        return self.store

    @property
    def untouched(self) -> Any:
        """Check that nothing in the store changes meanwhile."""
        return untouched(self.path.parent)

    async def twin(self, prompt: str = PROMPT) -> Library:
        """Run the same script without a stop, with effects of its own."""
        elsewhere = Effects(self.effects.path.with_name("twin-effects"))
        twin = replace(self, effects=elsewhere, store=MemoryStore(), requests=[], events=[], hook=None)
        await twin.agent().run(prompt, checkpoint=True, name=RUN)
        return twin

    async def check_same_as_twin(self) -> None:
        """Check answer, conversation, counters and requests against an undisturbed twin's."""
        twin = await self.twin()
        agent_assert_same_as(self, twin)
        same_as(self.state, twin.state)
        whole = {request.iteration: body for request, body in zip(twin.requests, twin.bodies, strict=True)}
        for request, body in zip(self.requests, self.bodies, strict=True):
            assert body == whole[request.iteration], f"request {request.iteration} differs from the undisturbed one"

    def load_twice(self) -> RunState:
        """Load the run twice, which has to give the same, and check that every line parses."""
        first, second = self.store.load(RUN), self.store.load(RUN)
        assert first == second
        lines_parse(self.path.read_bytes())
        return second


def library(directory: Path) -> Library:
    """Return a bench with nothing in it yet, over a disk that never waits."""
    store = FileStore(str(directory / "state" / "runs"), disk=FastDisk())
    return Library([], Effects(directory / "effects"), store, [], [])


def counting_tool(name: str, **more: Any) -> dict[str, Any]:
    """A command tool that adds a line to its own file; the line is its idempotency key."""
    argv = ["sh", "-c", f"echo $FISK_AI_IDEMPOTENCY_KEY >> effect-{name}; printf '{result_text(name)}'"]
    return {"name": name, "description": f"Does {name}", "argv": argv, **more}


class Shell(CliBench):
    """A directory with agent.yaml, its script and its runs; `cli` is a process, `fast` is within this one."""

    fast: Callable[..., Done]
    """Run the command line within this process; the fixture sets it."""

    def plays(self, *turns: AssistantRecord, tools: Sequence[Mapping[str, Any]] | None = None, **llm: Any) -> None:
        """Let the model give these turns; without `tools`, a to e count their effects."""
        self.agent(script(turns), [counting_tool(name) for name in "abcde"] if tools is None else tools, **llm)

    def path(self, run_id: str = RUN) -> Path:
        """Where a run's journal is."""
        return self.state / f"{run_id}.json"

    def meta(self, **more: Any) -> MetaRecord:
        """M, as the current agent.yaml would write it."""
        return meta(load_agent(str(self.directory / "agent.yaml")).fingerprint, **more)

    def lines(self, *records: Record, **more: Any) -> list[bytes]:
        """Return the lines of a journal with these records after M."""
        return written([self.meta(**more), *records])

    def plant(self, *records: Record, tail: bytes = b"", run_id: str = RUN, **more: Any) -> Path:
        """Write the journal of a runner that died after the last of these records, and perhaps while it wrote one."""
        return put(self.path(run_id), b"".join(self.lines(*records, run_id=run_id, **more)) + tail)

    def resume(self, *more: str, run_id: str = RUN) -> Done:
        """Resume a run within this process."""
        return self.fast("run", "--resume", run_id, *more)

    def session(self, *args: str) -> Done:
        """Run `fisk-ai session` within this process."""
        return self.fast("session", *args)

    def row(self, run_id: str = RUN) -> dict[str, Any]:
        """Return a run's row of `ls --json`."""
        done = self.session("ls", "--json")
        assert done.code == 0, done.err
        rows = [row for row in done.data if row["run_id"] == run_id]
        assert len(rows) == 1, done.text
        found: dict[str, Any] = rows[0]
        return found

    def keys(self, name: str) -> list[str]:
        """Return the idempotency keys with which a tool had its effect, once for each time."""
        path = self.directory / f"effect-{name}"
        return path.read_text().split() if path.exists() else []

    def counts(self, names: str = "abcde") -> list[int]:
        """Return how often each tool had its effect."""
        return [len(self.keys(name)) for name in names]

    @property
    def untouched(self) -> Any:
        """Check that nothing in the state directory changes meanwhile."""
        return untouched(self.state)

    def refused(self, code: int, *words: str, args: Sequence[str] | None = None, run_id: str = RUN) -> str:
        """Check that a command (a resume without `args`) is refused and leaves no trace; return its one line."""
        with self.untouched:
            done = self.fast(*(args or ("run", "--resume", run_id)))
        check_refusal(done, code, run_id, *words)
        return done.last_line

    def twin(self, prompt: str = PROMPT) -> RunState:
        """Return the state of the same script run without any stop, in a directory of its own."""
        elsewhere = self.directory / "twin"
        elsewhere.mkdir()
        for name in ("agent.yaml", "turns.yaml"):
            shutil.copy(self.directory / name, elsewhere / name)
        store = MemoryStore()
        load_agent(str(elsewhere / "agent.yaml"), store=store).run_sync(prompt, checkpoint=True, name=RUN)
        return store.load(RUN)

    def check_same_as_twin(self, run_id: str = RUN) -> None:
        """Check answer, conversation and counters against an undisturbed twin's."""
        same_as(self.store.load(run_id), self.twin())


def check_refusal(done: Done, code: int, *words: str) -> None:
    """Check that a command ended with this code, an empty stdout, and one readable line that holds these words."""
    assert done.code == code, (done.code, done.err)
    assert code != 0
    assert done.out == b""
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) == 1, done.err
    for word in words:
        assert word in done.last_line, (word, done.last_line)


def message_answer(content: bytes, stop_reason: str = "tool_use") -> bytes:
    """Return an answer of the Messages API with these blocks, spelled as they are given."""
    head = b'{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"%b","content":%b,'
    return head % (stop_reason.encode(), content) + b'"usage":{"input_tokens":10,"output_tokens":5}}'


def chat_answer(message: bytes, finish_reason: str = "tool_calls") -> bytes:
    """Return a Chat Completions answer with this message, spelled as it is given."""
    head = b'{"id":"c1","object":"chat.completion","choices":[{"index":0,"finish_reason":"%b","message":%b}],'
    return head % (finish_reason.encode(), message) + b'"usage":{"prompt_tokens":10,"completion_tokens":5}}'


MESSAGE_DONE = message_answer(b'[{"type":"text","text":"All is well."}]', "end_turn")
CHAT_DONE = chat_answer(b'{"role":"assistant","content":"All is well."}', "stop")
