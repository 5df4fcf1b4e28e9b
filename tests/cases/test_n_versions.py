"""N. Versions: B86, B87."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.agent.decide import Budget
from fisk_ai.errors import ConfigurationChanged
from fisk_ai.folding import RunState
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.stores import FileStore
from fisk_ai.tools.function import FunctionTool
from tests.agent.bench import Typed
from tests.cases import processes_bench
from tests.cases.processes_bench import Desk, forks
from tests.cli.bench import end, result, turn

pytestmark = forks
bench = processes_bench.desk
desk = processes_bench.quick

JOURNALS = Path(__file__).parents[1] / "journals"
Lines = list[dict[str, Any]]


def plain(path: Path) -> Lines:
    """The records of a journal, as another program writes them: without times and checksums."""
    lines: Lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        line.pop("crc", None)
        line.pop("time", None)
    lines[0]["meta"].pop("checksums", None)
    return lines


def write(path: Path, lines: Lines) -> None:
    path.write_bytes(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))


def stored(desk: Desk, change: Callable[[Lines], object]) -> Path:
    """A suspended run that was changed like this."""
    path = desk.stored("r", turn("Noting.", "a"), result("a"), end("suspended"))
    lines = plain(path)
    change(lines)
    write(path, lines)
    return path


COMMANDS = [("run", "--resume", "r"), ("run", "--resume", "r", "--force"), ("session", "fork", "r", "--name", "f")]


@pytest.mark.parametrize("version", [3, 10**30])
def test_b86_a_newer_journal_is_refused_by_both_versions_and_listed_as_newer(desk: Desk, version: int) -> None:
    """Whole sessions were dropped by an older program, or refused with a misleading reason.

    can1357/oh-my-pi#7862, OpenHands/software-agent-sdk#4080, github/copilot-cli#3520
    """
    stored(desk, lambda lines: lines[0]["meta"].update(version=version))
    for args in COMMANDS:
        said = desk.refuses(*args, code=5)
        assert f"run 'r': the journal has version {version}, this fisk-ai reads versions up to 2" in said
    before = desk.snapshot()
    [row] = desk.does("session", "ls", "--json").data
    assert (row["run_id"], row["status"], row["reason"]) == ("r", "unreadable", f"newer: version {version}")
    assert "r " in desk.does("session", "ls").text
    for command in ("show", "verify"):
        looked = desk.does("session", command, "r")
        assert looked.code == 5
        assert f"version {version}" in looked.err + looked.text
    assert desk.snapshot() == before


DREAM = {"seq": 4, "protocol": "io.choria.fisk-ai.v1.session.dream", "dream": {"of": "sheep"}}
UNKNOWN: dict[str, Callable[[Lines], object]] = {
    "an unknown kind": lambda lines: lines.insert(3, DREAM),
    "an unknown protocol for a known payload": lambda lines: lines[2].update(protocol="io.choria.fisk-ai.v2.session.x"),
    "an unknown payload for a known protocol": lambda lines: lines[2].update(payload=lines[2].pop("tool_result")),
}


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_b86_an_unknown_record_at_a_known_version_is_refused_with_its_line(
    desk: Desk, change: Callable[[Lines], object]
) -> None:
    """Unknown records were skipped in silence, and what came after them made no sense. can1357/oh-my-pi#7862"""
    path = stored(desk, change)
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(at for at, line in enumerate(lines, 1) if b"dream" in line or b"payload" in line or b"v2" in line)
    for args in COMMANDS:
        said = desk.refuses(*args, code=7)
        assert f"damaged at line {number}, byte {len(b''.join(lines[: number - 1]))}" in said


def with_unknown_fields(lines: Lines) -> None:
    for line in lines:
        line["shard"] = {"a": [None, 1.5]}
        payload = line[line["protocol"].rpartition(".")[2]]
        payload["from_tomorrow"] = [{"b": True}]
    lines[0]["meta"]["fingerprint"]["region"] = "eu"


def test_b86_unknown_fields_are_no_obstacle(desk: Desk) -> None:
    """Versions only ever add fields, which an older reader does without. OpenHands/software-agent-sdk#4080"""
    path = stored(desk, with_unknown_fields)
    before = path.read_bytes()
    desk.agent([{"text": "unused"}, {"text": "The answer is 42."}])
    resumed = desk.does("run", "--resume", "r")
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n"), resumed
    assert path.read_bytes().startswith(before)
    assert desk.does("session", "verify", "r").code == 0


NO_VERSION: dict[str, Any] = {"text": "2", "float": 2.0, "true": True, "negative": -1, "zero": 0, "null": None}


@pytest.mark.parametrize("version", [*NO_VERSION.values(), ...], ids=[*NO_VERSION, "missing"])
def test_b86_a_version_that_is_none_is_damage(desk: Desk, version: Any) -> None:
    """`2`, 2.0 or true were taken for a version, or the session was said not to exist. github/copilot-cli#3520"""

    def change(lines: Lines) -> None:
        lines[0]["meta"]["version"] = version
        if version is ...:
            del lines[0]["meta"]["version"]

    stored(desk, change)
    for args in COMMANDS:
        assert "damaged at line 1, byte 0" in desk.refuses(*args, code=7)
    [row] = desk.does("session", "ls", "--json").data
    assert (row["run_id"], row["status"]) == ("r", "unreadable")
    assert row["reason"].startswith("damaged: ")


class AsAnthropic(ScriptedProvider):
    """Plays a script in place of the API that the samples were made with."""

    name = "anthropic"


def tool(name: str) -> FunctionTool[Any, Any]:
    def work(stream: str = "") -> str:
        return f"looked at {stream}"

    return FunctionTool(work, name=name, description="Looks")


def agent_for(path: Path, run_id: str) -> Agent:
    """An agent with the model, the thinking mode and the budgets of a run."""
    store = FileStore(str(path))
    stored = store.load(run_id).fingerprint
    return Agent(
        stored.model,
        provider=AsAnthropic([{"text": f"Answer {number}."} for number in range(9)]),
        tools=[tool("lookup"), tool("stream_info")],
        thinking_mode=stored.thinking_mode,
        budget=Budget(stored.max_tokens, stored.max_iterations),
        store=store,
    )


def lay_down(path: Path, lines: Lines) -> str:
    run_id: str = lines[0]["meta"]["run_id"]
    path.chmod(0o700)
    write(path / f"{run_id}.json", lines)
    return run_id


async def goes_on(path: Path, run_id: str) -> RunState:
    """Resume a run to its next answer, by force as its tools can't be compared; its old bytes stay as they are."""
    agent = agent_for(path, run_id)
    typed = Typed("more") if agent.store.load(run_id).answered else Typed()
    before = (path / f"{run_id}.json").read_bytes()
    with pytest.raises(ConfigurationChanged):
        await agent.resume(run_id)
    assert (path / f"{run_id}.json").read_bytes() == before
    result = await agent.resume(run_id, ResumeOptions(force=True), input_source=typed)
    assert (result.answer or "").startswith("Answer ")
    assert (path / f"{run_id}.json").read_bytes().startswith(before)
    return agent.store.load(run_id)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


SAMPLES = ["v1", "v2-other-origin", "v2-interrupted", "v2"]


@pytest.mark.anyio
@pytest.mark.parametrize("name", SAMPLES)
async def test_b87_a_sample_of_each_version_and_origin_resumes_wherever_it_was_cut(tmp_path: Path, name: str) -> None:
    """After an upgrade nearly a fifth of all healthy sessions were called corrupt.

    github/copilot-cli#2089, github/copilot-cli#2899, github/copilot-cli#2900
    """
    whole = (JOURNALS / f"{name}.json").read_bytes().splitlines(keepends=True)
    run_id: str = json.loads(whole[0])["meta"]["run_id"]
    for number in range(1, len(whole) + 1):
        place = tmp_path / str(number)
        place.mkdir(mode=0o700)
        (place / f"{run_id}.json").write_bytes(b"".join(whole[:number]))
        before = FileStore(str(place)).load(run_id)
        if before.terminal is not None and before.terminal.reason == "completed":
            continue
        if before.answered and not before.interactive:
            continue  # an answer is only printed and ended, which `test_b46` is about
        after = await goes_on(place, run_id)
        assert after.counters.model_calls == before.counters.model_calls + 1
        assert after.version == before.version


OPTIONAL: dict[str, tuple[str, ...]] = {
    "meta": ("interactive", "forked_from", "checksums"),
    "assistant": (
        *("format", "stop_reason", "in_tokens", "out_tokens", "cache_read_tokens", "cache_create_tokens"),
        *("duration_ms", "response_id", "request_id", "parallel", "unusable"),
    ),
    "tool_result": ("name", "duration_ms", "remote"),
    "terminal": ("message", "waiting", "fingerprint"),
}
WITHOUT = [f"{kind}.{name}" for kind, names in OPTIONAL.items() for name in names]


def without(lines: Lines, fields: list[str]) -> Lines:
    for field in fields:
        kind, name = field.split(".")
        for line in lines:
            line.get(kind, {}).pop(name, None)
    for name in ("provider", "tools"):
        lines[0]["meta"]["fingerprint"].pop(name, None)
    return lines


@pytest.mark.anyio
@pytest.mark.parametrize(
    "fields", [*([field] for field in WITHOUT), WITHOUT], ids=lambda each: each[0] if len(each) == 1 else "all"
)
async def test_b87_an_early_journal_without_newer_fields_loads_with_defaults_and_resumes(
    tmp_path: Path, fields: list[str]
) -> None:
    """A field that became mandatory made old sessions unreadable. github/copilot-cli#2899"""
    lines = without(plain(JOURNALS / "v2-interrupted.json"), fields)
    run_id = lay_down(tmp_path, lines)
    state = FileStore(str(tmp_path)).load(run_id)
    assert (state.fingerprint.provider, state.fingerprint.tools, state.interactive) == ("anthropic", None, False)
    if "assistant.in_tokens" in fields:
        assert state.counters.in_tokens == 0
    assert (state.counters.cache_read_tokens, state.counters.cache_create_tokens) == (0, 0)
    after = await goes_on(tmp_path, run_id)
    assert after.counters.model_calls == 2
    assert after.terminal is not None
    assert after.terminal.reason == "completed"


def test_b87_there_is_a_sample_for_each_version() -> None:
    """Samples stay in the tests for ever; `test_no_golden_journal_was_changed_or_lost` keeps them as they are."""
    found = {
        json.loads((JOURNALS / f"{name}.json").read_bytes().splitlines()[0])["meta"]["version"] for name in SAMPLES
    }
    assert found == {1, 2}
