"""Runs whose terminal goes away, that a supervisor ends, or that are stopped and let go on."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.commands import RUN, Process, Workplace, shell_tool, until
from tests.providers.strict_server import StrictServer

pytestmark = pytest.mark.slow

SCRIPTED: dict[str, Any] = {"provider": "scripted", "script": "script.yaml"}
HELD = "while [ -e hold ]; do sleep 0.02; done"
ALL_IS_WELL = (0, "All is well.\n")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A scripted run whose tool works for as long as there is a file `hold`."""
    place = Workplace(tmp_path, SCRIPTED, [shell_tool("slow", f"echo $$ > group; {HELD}", timeout="1s")])
    place.scripted([{"calls": [{"name": "slow"}]}, {"text": "All is well."}])
    (tmp_path / "hold").touch()
    return place


def let_go(place: Workplace) -> None:
    (place.directory / "hold").unlink()


def starts(place: Workplace) -> list[str]:
    return [key for word, _, key in place.effects if word == "start"]


def is_stopped(process: Process) -> bool:
    return Path(f"/proc/{process.process.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"


def stop(process: Process) -> None:
    """Send what Ctrl-Z sends. The process needs a group of its own: in an orphaned one the kernel drops the signal."""
    process.send(signal.SIGTSTP)
    until(lambda: is_stopped(process), "the stop")


def start_at_a_terminal(place: Workplace) -> tuple[int, int]:
    """Start the run in a session at a terminal of its own; return its pid and the other end of the terminal."""
    arguments = ["run", "go", "--checkpoint", "--name", RUN, "--config", "agent.yaml", "--state-dir", "state"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.directory)
        os.execve(sys.executable, [sys.executable, "-m", "fisk_ai", *arguments], place.environment)
    return pid, terminal


def read_until(terminal: int, text: str) -> None:
    said = b""
    while text.encode() not in said:
        said += os.read(terminal, 4096)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_terminal_that_is_closed_suspends_the_run(place: Workplace) -> None:
    """The system sends SIGHUP, and whatever is still said to the terminal fails."""
    pid, terminal = start_at_a_terminal(place)
    read_until(terminal, "slow")
    until(lambda: place.effects, "the tool's start")
    os.close(terminal)
    time.sleep(0.2)  # the tool works on without a terminal
    assert [word for word, _, _ in place.effects] == ["start"]
    let_go(place)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    assert place.info.status == "suspended"
    assert place.ambiguous == []
    assert place.resume().finishes() == ALL_IS_WELL
    assert len(starts(place)) == 1


def test_a_supervisor_that_ends_runner_and_tool_finds_the_tools_end_recorded(place: Workplace) -> None:
    """As systemd does by default: SIGTERM to all processes of a service at once."""
    process = place.begin(process_group=0)
    group = int(until(lambda: _read(place.directory / "group"), "the tool's start"))
    process.send(signal.SIGTERM)
    os.killpg(group, signal.SIGTERM)
    assert process.finishes() == (3, "")
    assert "ended by SIGTERM" in process.stderr
    assert place.ambiguous == []
    assert place.resume().finishes() == ALL_IS_WELL
    assert len(starts(place)) == 1


def test_a_supervisor_that_loses_its_patience_leaves_the_call_in_doubt(place: Workplace) -> None:
    process = place.begin(process_group=0)
    group = int(until(lambda: _read(place.directory / "group"), "the tool's start"))
    process.is_told(signal.SIGTERM)
    process.send(signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    assert process.finishes() == (-signal.SIGKILL, "")
    assert place.ambiguous == ["slow"]
    let_go(place)
    assert place.resume().finishes() == ALL_IS_WELL
    assert len(starts(place)) == 2
    assert len(set(starts(place))) == 1


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def test_a_run_that_is_stopped_in_a_tool_goes_on_and_takes_its_end_for_no_time_out(place: Workplace) -> None:
    """The tool is in a session of its own and works on; its time is up before anybody looks."""
    process = place.begin(process_group=0)
    until(lambda: place.effects, "the tool's start")
    began = time.monotonic()
    stop(process)
    let_go(place)
    until(lambda: place.has("end"), "the tool's end")
    time.sleep(max(0.0, began + 1.2 - time.monotonic()))
    assert is_stopped(process)
    process.send(signal.SIGCONT)
    assert process.finishes() == ALL_IS_WELL
    assert "timed out" not in process.stderr
    assert len(starts(place)) == 1


def test_a_run_that_is_stopped_in_a_model_call_goes_on_and_asks_once(tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [{"calls": [{"name": "slow"}], "delay_s": 0.4}, {"text": "All is well."}]
    with StrictServer(turns) as server:
        llm = {"provider": "anthropic", "model": "m", "base_url": server.url}
        place = Workplace(tmp_path, llm, [shell_tool("slow", "true")])
        process = place.begin(process_group=0)
        until(lambda: server.requests, "the request")
        stop(process)
        time.sleep(0.6)  # the answer comes meanwhile
        assert place.state.counters.model_calls == 0
        process.send(signal.SIGCONT)
        assert process.finishes() == ALL_IS_WELL
        assert len(server.requests) == 2
        assert len(starts(place)) == 1


def test_a_model_call_whose_time_was_up_while_the_run_was_stopped_is_made_again(tmp_path: Path) -> None:
    with StrictServer([{"text": "All is well.", "delay_s": 0.3}]) as server:
        llm = {"provider": "anthropic", "model": "m", "base_url": server.url, "budget": {"call_timeout": "700ms"}}
        place = Workplace(tmp_path, llm, [])
        process = place.begin(process_group=0)
        until(lambda: server.requests, "the request")
        began = time.monotonic()
        stop(process)
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))
        process.send(signal.SIGCONT)
        assert process.finishes() == ALL_IS_WELL
        assert place.state.counters.model_calls == 1
        assert len(server.requests) <= 2


def test_a_run_that_is_stopped_between_its_steps_goes_on(place: Workplace) -> None:
    place.scripted([{"text": "First."}, {"text": "Second."}])
    process = place.begin("--chat", process_group=0)
    process.answers("First.")
    stop(process)
    assert process.process.stdin is not None
    process.process.stdin.write(b"more\n")
    process.process.stdin.flush()
    process.send(signal.SIGCONT)
    process.answers("Second.")
    process.process.stdin.close()
    assert process.ends() == 0
    assert place.state.counters.model_calls == 2


def test_a_stopped_run_that_is_asked_to_suspend_does_so_when_it_goes_on(place: Workplace) -> None:
    process = place.begin(process_group=0)
    until(lambda: place.effects, "the tool's start")
    stop(process)
    process.send(signal.SIGTERM)
    let_go(place)
    process.send(signal.SIGCONT)
    assert process.finishes() == (3, "")
    assert place.ambiguous == []
    assert place.resume().finishes() == ALL_IS_WELL
    assert len(starts(place)) == 1
