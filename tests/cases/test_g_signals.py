"""G. Signals and processes: B48, B51, B53."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases import processes_bench
from tests.cases.processes_bench import Desk, Forked, forks, gone_soon, until
from tests.cli.bench import NOTE_TOOL, SLOW_TOOL, Done
from tests.cli.test_terminal import CTRL_C, Screen
from tests.crash.commands import is_alive
from tests.providers.strict_server import KEY, Fault, StrictServer

pytestmark = forks
desk = processes_bench.desk

STOPPING = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
ANSWER: dict[str, Any] = {"text": "The answer is 42."}
RESUME = "fisk-ai run --resume r"
PYTHON_TOOL = """
import os, time

def slow() -> str:
    \"\"\"Works until it is told to stop.\"\"\"
    note("begun")
    while not os.path.exists("go"):
        time.sleep(0.01)
    note("ended")
    return "done"

def note(text: str) -> None:
    with open("effects", "a") as file:
        file.write(text + "\\n")
"""


def suspended(child: Forked, within_s: float) -> Done:
    """The end of a run that was asked to stop: its id, the line that goes on with it, and a status of its own."""
    done = child.ends(within_s)
    assert (done.code, done.out) == (3, b""), done
    assert "run r is suspended; go on with:" in done.err
    assert done.last_line == f"  {RESUME}"
    return done


def with_slow_tool(desk: Desk, kind: str) -> None:
    calls = [{"calls": [{"name": "slow"}]}, ANSWER]
    desk.agent(calls, [SLOW_TOOL])
    if kind == "python":
        config = json.loads((desk.directory / "agent.yaml").read_text())
        (desk.directory / "agent.yaml").write_text(json.dumps({**config, "tools": {"python": ["mytools:slow"]}}))
        (desk.directory / "mytools.py").write_text(PYTHON_TOOL)


@STOPPING
@pytest.mark.parametrize("kind", ["command", "python"])
def test_b48_one_signal_lets_the_running_tool_end_and_keeps_its_result(
    desk: Desk, kind: str, number: signal.Signals
) -> None:
    """Ctrl-C ended the wait and not the command, whose late output turned up in the resumed session.

    NousResearch/hermes-agent#65298, sudoprivacy/sudocode#550, microsoft/autogen#3156, anthony-chaudhary/fak#1359
    """
    with_slow_tool(desk, kind)
    run = desk.fork("run", "--checkpoint", "--name", "r", "hello", before=os.setsid)
    desk.wait_for("effects")
    # A terminal sends Ctrl-C to the whole foreground group.
    (os.killpg if number is signal.SIGINT else os.kill)(run.pid, number)
    run.says(f"{number.name}: stopping as soon as the running step has ended")
    assert run.code is None
    (desk.directory / "go").touch()
    suspended(run, 20)
    assert desk.effects == ["begun", "ended"]
    assert desk.records() == ["Meta", "Assistant", "ToolResult", "suspended"]
    assert desk.store.load("r").pending is None

    resumed = desk.does("run", "--resume", "r")
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
    assert desk.effects == ["begun", "ended"]
    assert desk.records()[4:] == ["resumed", "Assistant", "completed"]


@pytest.fixture
def served(desk: Desk) -> Iterator[StrictServer]:
    with StrictServer([ANSWER]) as server:
        desk.env["ANTHROPIC_API_KEY"] = KEY
        budget = {"call_timeout": "60s"}
        desk.agent([], [], provider="anthropic", model="m", script=None, base_url=server.url, budget=budget)
        yield server


@STOPPING
def test_b48_one_signal_leaves_a_retry_pause_at_once(desk: Desk, served: StrictServer, number: signal.Signals) -> None:
    """A pause between attempts ignored Ctrl-C until it was over, and SIGTERM saved nothing.

    NousResearch/hermes-agent#6482, agno-agi/agno#6089
    """
    served.faults[1] = Fault(status=529, headers={"retry-after": "60"})
    run = desk.fork("run", "--checkpoint", "--name", "r", "hello")
    run.says("attempt 2 follows in 60.0 s")
    run.send(number)
    suspended(run, 10)
    assert desk.records() == ["Meta", "suspended"]
    assert desk.does("run", "--resume", "r").out == b"The answer is 42.\n"
    assert len(served.requests) == 2


@STOPPING
@pytest.mark.parametrize("ended_by", ["time limit", "second signal"])
def test_b48_a_hanging_model_call_ends_by_its_time_limit_or_a_second_signal(
    desk: Desk, served: StrictServer, number: signal.Signals, ended_by: str
) -> None:
    """A call that hung couldn't be stopped at all. NousResearch/hermes-agent#6482, agno-agi/agno#6089"""
    served.faults[1] = Fault(stall_after_bytes=40)
    if ended_by == "time limit":
        budget = {"call_timeout": "400ms"}
        desk.agent([], [], provider="anthropic", model="m", script=None, base_url=served.url, budget=budget)
    run = desk.fork("run", "--checkpoint", "--name", "r", "hello")
    until(lambda: served.requests, "the request")
    run.send(number)
    run.says(f"{number.name}: stopping")
    if ended_by == "time limit":
        suspended(run, 20)
        assert desk.records() == ["Meta", "suspended"]
    else:
        run.send(number)
        aborted = run.ends(20)
        assert (aborted.code, aborted.out, aborted.last_line) == (130, b"", f"  {RESUME}")
        assert desk.records() == ["Meta"]
    assert desk.does("run", "--resume", "r").out == b"The answer is 42.\n"
    assert len(served.requests) == 2


@pytest.mark.parametrize("how", ["key", "SIGTERM"])
def test_b48_one_signal_leaves_the_input_line_of_a_chat_at_once(desk: Desk, how: str) -> None:
    """At the input line a signal lost the chat. NousResearch/hermes-agent#6482, agno-agi/agno#6089"""
    desk.agent([{"text": "First."}, {"text": "Second."}])
    chat = Screen(desk, "run", "--chat", "--checkpoint", "--name", "r", "hello", columns=80, env={})
    try:
        chat.until_input()
        before = time.monotonic()
        if how == "key":
            chat.type("half a line" + CTRL_C)
        else:
            chat.process.kill(signal.Signals[how])
        assert chat.end() == 3
        assert time.monotonic() - before < 10
    finally:
        chat.process.close(force=True)
    assert chat.lines[-1] == f"  {RESUME}"
    assert desk.records() == ["Meta", "Assistant", "suspended"]
    resumed = desk.does("run", "--resume", "r", stdin=b"more\n")
    assert (resumed.code, resumed.out) == (0, b"Second.\n")
    assert desk.records()[3:] == ["resumed", "User", "Assistant", "suspended"]


LATE = {
    "plain": "sleep 120; echo late >> f",
    "deaf": "trap '' TERM HUP INT; sleep 120; echo late >> f",
}


@pytest.mark.parametrize(
    ("ended_by", "child"),
    [("SIGINT", "plain"), ("SIGTERM", "plain"), ("time limit", "plain"), ("SIGINT", "deaf"), ("time limit", "deaf")],
)
def test_b51_no_process_of_a_tool_outlives_an_abort_or_its_time_limit(desk: Desk, ended_by: str, child: str) -> None:
    """Grandchildren lived on, and one made a commit later that nobody recorded.

    berenddeboer/ready-for-agent#516, majiayu000/harness#670, iOfficeAI/AionCore#752
    """
    script = f'echo $$ > group; sh -c "{LATE[child]}" & echo started >> effects; wait'
    limit = "300ms" if ended_by == "time limit" else "60s"
    tool = {"name": "spawns", "description": "Spawns.", "argv": ["sh", "-c", script], "timeout": limit}
    desk.agent([{"calls": [{"name": "spawns"}]}, ANSWER], [tool])
    run = desk.fork("run", "--checkpoint", "--name", "r", "hello")
    desk.wait_for("effects")
    group = int((desk.directory / "group").read_text())
    assert is_alive(group)
    if ended_by == "time limit":
        done = run.ends()
        assert (done.code, done.out) == (0, b"The answer is 42.\n")
        assert desk.records() == ["Meta", "Assistant", "ToolResult", "Assistant", "completed"]
    else:
        run.send(signal.Signals[ended_by])
        run.says(f"{ended_by}: stopping")
        assert is_alive(group)
        run.send(signal.Signals[ended_by])
        assert run.ends().code == 130
        assert desk.records() == ["Meta", "Assistant"]
    assert gone_soon(group)
    assert not (desk.directory / "f").exists()


READERS = {
    "answer": "fisk-ai run --checkpoint --name r hello | head -c 0",
    "events": "fisk-ai run --checkpoint --name r --output stream-json hello | head -1",
    "both streams": "fisk-ai run --checkpoint --name r hello 2>&1 | head -1",
}


@pytest.mark.parametrize("line", READERS.values(), ids=READERS)
def test_b53_a_reader_that_goes_away_lets_the_run_carry_on_in_silence(desk: Desk, line: str) -> None:
    """The reader of the output left, and the run died with a traceback. Ours carries on, as docs/cli.md says.

    Backblaze/B2_Command_Line_Tool#1071, BaseIntelligence/bounty-challenge#5255, opendatahub-io/agent-eval-harness#152
    """
    steps = [{"text": f"Step {at}.", "calls": [{"name": "note", "input": {"what": "a"}}]} for at in range(5)]
    desk.agent([*steps, ANSWER], [NOTE_TOOL])
    done = desk.paste(f"set -o pipefail; {line}")
    assert done.code == 0, done
    assert "Traceback" not in done.err + done.text
    assert "BrokenPipe" not in done.err
    assert len(desk.effects) == len(set(desk.effects)) == 5
    assert desk.records() == ["Meta", *["Assistant", "ToolResult"] * 5, "Assistant", "completed"]
    assert desk.does("session", "verify", "r").code == 0
    assert "in silence" in (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
