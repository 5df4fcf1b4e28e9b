"""K. Changed configuration: B75, B78, B79, B80."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.fingerprint import hash_text
from fisk_ai.records import TerminalRecord
from tests.cases import processes_bench
from tests.cases.processes_bench import Desk, forks
from tests.cli.bench import NOTE_TOOL, end, result, turn
from tests.providers.strict_server import KEY, StrictServer

pytestmark = forks
bench = processes_bench.desk
desk = processes_bench.quick

ANSWER: dict[str, Any] = {"text": "The answer is 42."}
NOTING: list[dict[str, Any]] = [{"calls": [{"name": "note", "input": {"what": "a"}}]}, ANSWER]
OTHER_TOOL = {"name": "other", "description": "Does something else.", "argv": ["true"]}


@pytest.fixture
def served(desk: Desk) -> Iterator[StrictServer]:
    """A server of the Messages API, and an agent that asks it."""
    with StrictServer([ANSWER, ANSWER]) as server:
        desk.env["ANTHROPIC_API_KEY"] = KEY
        with_config(desk, server)
        yield server


def with_config(
    desk: Desk, server: StrictServer, tools: list[Mapping[str, Any]] | None = None, system: str = "", **llm: Any
) -> None:
    settings = {"model": "m-1", "budget": {"max_tokens": 1000, "max_iterations": 10}, **llm}
    tools = [NOTE_TOOL] if tools is None else tools
    desk.agent([], tools, provider="anthropic", script=None, base_url=server.url, **settings)
    if system:
        config = json.loads((desk.directory / "agent.yaml").read_text())
        (desk.directory / "agent.yaml").write_text(json.dumps({**config, "system_prompt": system}))


def budget(**limits: int) -> dict[str, Any]:
    return {"budget": {"max_tokens": 1000, "max_iterations": 10, **limits}}


SECRET = "You report in verse."
CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "model": ({"model": "m-2"}, ["model m-1 is now m-2"]),
    "system prompt": (
        {"system": SECRET},
        [f"system prompt with hash {hash_text('You report.')[:12]} is now {hash_text(SECRET)[:12]}"],
    ),
    "a tool's schema": (
        {"tools": [{**NOTE_TOOL, "parameters": {"what": {"type": "integer"}}}]},
        ["tools changed: note (parameters)"],
    ),
    "a tool's description": (
        {"tools": [{**NOTE_TOOL, "description": "Changed."}]},
        ["tools changed: note (description)"],
    ),
    "a tool's command": (
        {"tools": [{**NOTE_TOOL, "argv": ["echo", "{what}"]}]},
        ["tools changed: note (command)"],
    ),
    "a tool's place in a turn": ({"tools": [{**NOTE_TOOL, "parallel": True}]}, ["tools changed: note (command)"]),
    "a new tool": ({"tools": [NOTE_TOOL, OTHER_TOOL]}, ["tools added: other"]),
    "a tool less": ({"tools": []}, ["tools removed: note"]),
    "thinking mode": (
        {"thinking": {"enabled": True, "budget_tokens": 2048}},
        ["thinking mode off is now budget:2048"],
    ),
    "token budget": (budget(max_tokens=2000), ["token budget 1000 is now 2000"]),
    "iteration budget": (budget(max_iterations=20), ["iteration budget 10 is now 20"]),
    "all at once": (
        {"model": "m-2", "system": SECRET, "tools": [OTHER_TOOL], **budget(max_tokens=2000)},
        ["model m-1 is now m-2", "system prompt with hash", "added: other; removed: note", "token budget 1000 is now"],
    ),
}


@pytest.mark.parametrize(("changed", "says"), CHANGES.values(), ids=CHANGES)
def test_b75_a_change_is_refused_by_name_and_force_uses_the_new_settings_and_says_so(
    desk: Desk, served: StrictServer, changed: dict[str, Any], says: list[str]
) -> None:
    """A resume went on with another model without a word, or honoured one changed flag and dropped another.

    anthropics/claude-code#76363, github/copilot-cli#4645, github/copilot-cli#4340, github/copilot-cli#4397
    """
    desk.stored("r", end("suspended"))
    with_config(desk, served, **changed)
    said = desk.refuses("run", "--resume", "r", code=5)
    assert "the configuration changed" in said
    assert "--force" in said
    for each in says:
        assert each in said
    assert "verse" not in said
    assert served.requests == []

    forced = desk.does("run", "--resume", "r", "--force")
    assert (forced.code, forced.out) == (0, b"The answer is 42.\n"), forced
    for each in says:
        assert each in "\n".join(line for line in forced.err.splitlines() if line.startswith("forced: "))
    check_request(served, changed)
    [mark] = [item.record for item in desk.store.read("r").records if getattr(item.record, "resumed", False)]
    assert isinstance(mark, TerminalRecord)
    assert mark.fingerprint == desk.store.load("r").fingerprint


def check_request(server: StrictServer, changed: dict[str, Any]) -> None:
    """The request has the new settings, and all the others as they were."""
    [request] = [recorded.json for recorded in server.requests]
    tools = changed.get("tools", [NOTE_TOOL])
    assert request["model"] == changed.get("model", "m-1")
    assert changed.get("system", "You report.") in json.dumps(request["system"])
    assert ("thinking" in request) == ("thinking" in changed)
    sent = {tool["name"]: tool for tool in request.get("tools", [])}
    assert sent.keys() == {tool["name"] for tool in tools}
    for tool in tools:
        assert sent[tool["name"]]["description"] == tool["description"]
        for name, schema in tool.get("parameters", {}).items():
            assert sent[tool["name"]]["input_schema"]["properties"][name]["type"] == schema["type"]


def test_b75_the_new_settings_are_the_ones_that_the_next_resume_is_compared_with(
    desk: Desk, served: StrictServer
) -> None:
    """What was forced once needs no force again, and going back does. github/copilot-cli#4645"""
    desk.stored("r", end("suspended"), interactive=True)
    with_config(desk, served, model="m-2")
    assert desk.does("run", "--resume", "r", "--force").code == 0
    assert desk.does("run", "--resume", "r", stdin=b"more\n").code == 0
    assert [recorded.json["model"] for recorded in served.requests] == ["m-2", "m-2"]
    with_config(desk, served)
    assert "model m-2 is now m-1" in desk.refuses("run", "--resume", "r", code=5)


def test_b75_what_only_says_how_to_run_is_no_change(desk: Desk, served: StrictServer) -> None:
    """The sibling: settings that are not part of the conversation, and the order of tools, refuse nobody."""
    with_config(desk, served, [NOTE_TOOL, OTHER_TOOL])
    desk.stored("r", end("suspended"))
    retimed = {**NOTE_TOOL, "timeout": "5s", "on_crash": "ask"}
    with_config(desk, served, [OTHER_TOOL, retimed], max_output_tokens=99)
    assert desk.does("run", "--resume", "r").code == 0


LIMITS: dict[str, tuple[str, str, str]] = {
    "max_tokens": ("budget", "token budget", "tokens"),
    "max_iterations": ("max_iterations", "iteration budget", "turns"),
}
"""Reason of the end, and the words for the limit and for what it limits."""
USED = {"max_tokens": 45, "max_iterations": 2}
"""After two of three turns."""


def out_of_budget(desk: Desk, limit: str) -> int:
    """Run into a limit; return it."""
    turns = [
        {"calls": [{"name": "note", "input": {"what": "a"}}], "in_tokens": 15, "out_tokens": 5 + at} for at in (0, 5)
    ]
    desk.agent([*turns, ANSWER], budget={limit: USED[limit]})
    stopped = desk.does("run", "--checkpoint", "--name", "r", "hello")
    assert (stopped.code, stopped.out) == (4, b""), stopped
    assert stopped.last_line == "  fisk-ai run --resume r --force"
    return USED[limit]


def with_limit(desk: Desk, limit: str, value: int) -> None:
    config = json.loads((desk.directory / "agent.yaml").read_text())
    config["llm"]["budget"] = {limit: value}
    (desk.directory / "agent.yaml").write_text(json.dumps(config))


@pytest.mark.parametrize("limit", LIMITS)
def test_b78_a_raised_limit_lets_the_run_go_on_in_place(desk: Desk, limit: str) -> None:
    """Users who raised a limit were ignored, or told that the stop was final.

    agentclientprotocol/claude-agent-acp#1097, hackerai-tech/hackerai#749, nbramia/LifeOS#1176
    """
    reason, label, unit = LIMITS[limit]
    used = out_of_budget(desk, limit)
    assert desk.records()[-1] == reason
    counters = desk.store.load("r").counters
    assert (counters.model_calls, counters.total_tokens) == (2, 45)

    before = desk.snapshot()
    same = desk.does("run", "--resume", "r")
    assert (same.code, same.out) == (4, b"")
    assert f"{used} of {used} {unit} are used" in same.err
    assert same.last_line == "  fisk-ai run --resume r --force"
    assert desk.snapshot() == before

    with_limit(desk, limit, used + 100)
    said = desk.refuses("run", "--resume", "r", code=5)
    assert f"{label} {used} is now {used + 100}" in said
    assert "pass --force to go on" in said

    forced = desk.does("run", "--resume", "r", "--force")
    assert (forced.code, forced.out) == (0, b"The answer is 42.\n")
    after = desk.store.load("r").counters
    assert after.model_calls == 3
    assert after.in_tokens > counters.in_tokens, "the recorded counters go on"
    assert len(desk.effects) == 2


@pytest.mark.parametrize("limit", LIMITS)
def test_b78_a_limit_below_what_is_used_stops_at_once(desk: Desk, limit: str) -> None:
    """A lower limit is a change like any other; forced, nothing is left and so nothing is appended (contract 4.5).

    nbramia/LifeOS#1176
    """
    _, label, unit = LIMITS[limit]
    used = out_of_budget(desk, limit)
    with_limit(desk, limit, used - 1)
    assert f"{label} {used} is now {used - 1}" in desk.refuses("run", "--resume", "r", code=5)
    before = desk.snapshot()
    lower = desk.does("run", "--resume", "r", "--force")
    assert (lower.code, lower.out) == (4, b"")
    assert f"{used} of {used - 1} {unit} are used" in lower.err
    assert desk.snapshot() == before
    assert len(desk.effects) == 2


def in_two_folders(desk: Desk) -> tuple[Path, Path]:
    """Move the agent into folder p beside a folder q; its run has a call to make there."""
    desk.agent(NOTING)
    desk.stored("r", turn("Noting.", "a"), end("suspended"))
    p, q = desk.directory / "p", desk.directory / "q"
    for path in (p, q):
        path.mkdir()
    for name in ("agent.yaml", "turns.yaml"):
        (desk.directory / name).rename(p / name)
    return p, q


@pytest.mark.parametrize("config", ["../p/agent.yaml", "absolute"])
def test_b79_a_run_is_found_from_anywhere_and_its_tools_work_in_their_place(desk: Desk, config: str) -> None:
    """Sessions were tied to the folder that they began in, or their tools worked in the wrong one.

    Ours work where agent.yaml is. aaif-goose/goose#1559, google-gemini/gemini-cli#2888
    """
    p, q = in_two_folders(desk)
    assert [row["run_id"] for row in desk.does("session", "ls", "--json", cwd=q).data] == ["r"]
    assert desk.does("session", "show", "r", cwd=q).code == 0
    path = str(p / "agent.yaml") if config == "absolute" else config
    resumed = desk.does("run", "--resume", "r", "--config", path, cwd=q)
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n"), resumed
    assert (p / "effects").exists()
    assert list(q.iterdir()) == []


def test_b79_without_its_configuration_a_run_is_refused_and_the_place_that_was_searched_is_named(desk: Desk) -> None:
    """Elsewhere, or when the folder is gone, nothing works silently in the wrong place. aaif-goose/goose#1559"""
    p, q = in_two_folders(desk)
    assert f"looked for {q}/agent.yaml" in desk.refuses("run", "--resume", "r", code=2, names="", cwd=q)
    kept = desk.directory / "kept"
    shutil.copytree(p, kept)
    shutil.rmtree(p)
    config = ("--config", "../p/agent.yaml")
    assert "p/agent.yaml" in desk.refuses("run", "--resume", "r", *config, code=2, names="", cwd=q)
    assert desk.does("session", "show", "r", cwd=q).code == 0
    moved = desk.does("run", "--resume", "r", "--config", "../kept/agent.yaml", cwd=q)
    assert (moved.code, moved.out) == (0, b"The answer is 42.\n"), moved
    assert (kept / "effects").exists()


def test_b79_a_working_directory_that_is_gone_is_no_obstacle(desk: Desk) -> None:
    """The sibling: the folder in which the shell still stands was deleted. google-gemini/gemini-cli#2888"""
    p, q = in_two_folders(desk)
    for args in (("session", "ls"), ("session", "show", "r")):
        assert desk.does(*args, before=q.rmdir, cwd=q).code == 0
        q.mkdir()
    relative = desk.does("run", "--resume", "r", before=q.rmdir, cwd=q)
    assert (relative.code, relative.out, relative.err.count("\n")) == (2, b"", 1), relative
    assert "agent.yaml" in relative.err
    q.mkdir()
    done = desk.does("run", "--resume", "r", "--config", str(p / "agent.yaml"), before=q.rmdir, cwd=q)
    assert (done.code, done.out) == (0, b"The answer is 42.\n"), done
    assert (p / "effects").exists()


def test_b80_six_resumes_put_nothing_into_the_history_twice(desk: Desk) -> None:
    """Each resume put the system prompt into the history again, and input grew by thousands of tokens.

    openai/codex#16212
    """
    lines = [f"line {number}" for number in range(6)]
    turns = [{"text": f"Answer {number}."} for number in range(7)]
    desk.env["ANTHROPIC_API_KEY"] = KEY
    with StrictServer(turns) as served, StrictServer(turns) as twin:
        with_config(desk, served, budget={"max_tokens": 100_000})
        assert desk.does("run", "--chat", "--checkpoint", "--name", "r", "hello").code == 0
        sizes = []
        for line in lines:
            resumed = desk.does("run", "--resume", "r", stdin=f"{line}\n".encode())
            assert resumed.code == 0, resumed
            sizes.append((desk.state / "r.json").stat().st_size)
        with_config(desk, twin, budget={"max_tokens": 100_000})
        at_once = "".join(f"{line}\n" for line in lines).encode()
        assert desk.does("run", "--chat", "--checkpoint", "--name", "twin", "hello", stdin=at_once).code == 0
        assert [recorded.body for recorded in served.requests] == [recorded.body for recorded in twin.requests]
    assert len(served.requests) == 7
    for recorded in served.requests:
        assert recorded.body.count(b"You report.") == 1
        assert recorded.body.count(b'"name":"note"') == 1
    real = ["resumed", "User", "Assistant", "suspended"]
    assert desk.records() == ["Meta", "Assistant", "suspended", *real * 6]
    assert desk.store.load("r").messages == desk.store.load("twin").messages
    grown = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(grown) - min(grown) < 50, "each resume adds its own records and nothing else"


def test_b80_six_suspends_between_tools_change_no_request(desk: Desk) -> None:
    """The same where runs are suspended in the middle of a task. openai/codex#16212"""
    step = {"calls": [{"name": "note", "input": {"what": "a"}}]}
    turns = [step] * 6 + [ANSWER]
    suspends = {
        "name": "note",
        "description": "Asks its runner to suspend.",
        "argv": ["sh", "-c", "echo {what} >> effects; kill -TERM $PPID"],
        "parameters": {"what": {"type": "string"}},
    }
    desk.env["ANTHROPIC_API_KEY"] = KEY
    with StrictServer(turns) as served:
        with_config(desk, served, [suspends], budget={"max_tokens": 100_000})
        codes = [desk.fork("run", "--checkpoint", "--name", "r", "hello").ends().code]
        while codes[-1] == 3:
            codes.append(desk.fork("run", "--resume", "r").ends().code)
        bodies = [recorded.json for recorded in served.requests]
    assert codes == [3] * 6 + [0]
    assert len(desk.effects) == 6
    for number, body in enumerate(bodies):
        assert json.dumps(body).count("You report.") == 1
        assert [tool["name"] for tool in body["tools"]] == ["note"]
        assert [message["role"] for message in body["messages"]] == ["user", *["assistant", "user"] * number]
        if number:
            assert without_marks(body["messages"])[:-2] == without_marks(bodies[number - 1]["messages"])
    real = ["ToolResult", "suspended", "resumed", "Assistant"]
    assert desk.records() == ["Meta", "Assistant", *real * 6, "completed"]


def without_marks(messages: Any) -> Any:
    """A conversation without the marks of what is to be cached, which move to its end."""
    return [
        {
            **message,
            "content": [{k: v for k, v in block.items() if k != "cache_control"} for block in message["content"]],
        }
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def test_b79_results_of_a_call_are_kept_wherever_it_is_resumed(desk: Desk) -> None:
    """A result that was recorded in one folder is not made again in another. aaif-goose/goose#1559"""
    p, q = in_two_folders(desk)
    desk.store.delete("r")
    shutil.copy(p / "agent.yaml", desk.directory / "agent.yaml")
    desk.stored("r", turn("Noting.", "a"), result("a"), end("suspended"))
    done = desk.does("run", "--resume", "r", "--config", str(p / "agent.yaml"), cwd=q)
    assert (done.code, done.out) == (0, b"The answer is 42.\n"), done
    assert not (p / "effects").exists()
