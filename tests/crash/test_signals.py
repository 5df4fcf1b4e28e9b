"""Signals to real processes: the first suspends a checkpointed run, the second aborts it, an ignored one stays so."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.commands import RUN, Process, Workplace, is_alive, shell_tool, until
from tests.providers.strict_server import Fault, StrictServer

pytestmark = pytest.mark.slow

SCRIPTED: dict[str, Any] = {"provider": "scripted", "script": "script.yaml"}
TURNS: list[dict[str, Any]] = [
    {"calls": [{"name": "slow"}, {"name": "slow"}]},
    {"text": "All is well."},
]
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A scripted run whose tool waits for a file `go` for as long as there is a file `hold`."""
    place = Workplace(tmp_path, SCRIPTED, [shell_tool("slow", "while [ -e hold ]; do sleep 0.02; done")])
    place.scripted(TURNS)
    return place


def hold(place: Workplace) -> None:
    (place.directory / "hold").touch()


def let_go(place: Workplace) -> None:
    (place.directory / "hold").unlink()


def in_a_tool(place: Workplace, *arguments: str, **more: Any) -> Process:
    """Start or resume the run and return when its tool has started."""
    hold(place)
    before = len(place.effects)
    process = (
        place.resume(*arguments, **more) if (place.directory / "stderr-1").exists() else place.begin(*arguments, **more)
    )
    until(lambda: len(place.effects) > before, "the tool's start")
    return process


def end_of(place: Workplace) -> str | None:
    terminal = place.state.terminal
    return None if terminal is None else "resumed" if terminal.resumed else terminal.reason


def keys(place: Workplace) -> list[str]:
    return [key for word, _, key in place.effects if word == "start"]


@SIGNALS
def test_during_a_tool_its_result_is_kept_and_nothing_is_repeated(place: Workplace, number: signal.Signals) -> None:
    process = in_a_tool(place)
    process.is_told(number)
    let_go(place)
    code, said = process.finishes()
    assert (code, said) == (3, "")
    assert (end_of(place), place.info.status) == ("suspended", "suspended")
    assert place.ambiguous == []
    assert f"--resume {RUN}" in process.stderr
    assert [line[0] for line in place.effects] == ["start", "end"]

    code, said = place.resume().finishes()
    assert (code, said) == (0, "All is well.\n")
    assert len(keys(place)) == len(set(keys(place))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_second_signal_aborts_and_the_tool_is_gone_with_its_children(tmp_path: Path, number: signal.Signals) -> None:
    stubborn = shell_tool(
        "slow", "trap '' TERM; echo $$ > group; (trap '' TERM; sleep 60; echo late >> effects) & wait"
    )
    place = Workplace(tmp_path, SCRIPTED, [stubborn])
    place.scripted(TURNS)
    process = place.begin()
    group = int(until(lambda: _read(tmp_path / "group"), "the tool's group"))
    process.is_told(number)
    assert is_alive(group)
    before = place.bytes
    process.send(number)
    assert process.finishes() == (130, "")
    until(lambda: not is_alive(group), "the end of the tool's group")
    assert place.bytes == before
    assert end_of(place) is None
    assert place.ambiguous == ["slow"]
    assert place.info.status == "interrupted"
    assert not place.has("late")


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_run_in_memory_is_aborted_by_the_first_signal(place: Workplace, number: signal.Signals) -> None:
    hold(place)
    process = place.start("go")
    until(lambda: place.effects, "the tool's start")
    process.send(number)
    assert process.finishes() == (130, "")
    assert not place.state_dir.exists()
    assert not place.has("end")


def test_a_retry_pause_is_left_at_once(tmp_path: Path) -> None:
    overloaded = Fault(status=529, headers={"retry-after": "60"})
    with StrictServer([{"text": "All is well."}], faults={1: overloaded}) as server:
        place = Workplace(tmp_path, {"provider": "anthropic", "model": "m", "base_url": server.url}, [])
        process = place.begin()
        process.says("attempt 2")
        process.send(signal.SIGTERM)
        assert process.ends_soon() == (3, "")
        assert end_of(place) == "suspended"
        assert place.resume().finishes() == (0, "All is well.\n")
        assert len(server.requests) == 2


def test_a_hanging_model_call_ends_by_a_second_signal(tmp_path: Path) -> None:
    with StrictServer([{"text": "All is well."}], faults={1: Fault(stall_after_bytes=40)}) as server:
        place = Workplace(tmp_path, {"provider": "anthropic", "model": "m", "base_url": server.url}, [])
        process = place.begin()
        until(lambda: server.requests, "the request")
        process.is_told(signal.SIGINT)
        process.send(signal.SIGINT)
        assert process.ends_soon() == (130, "")
        assert end_of(place) is None
        assert place.resume().finishes() == (0, "All is well.\n")


def test_a_model_call_that_answers_in_time_is_kept_and_not_paid_for_again(tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [{"calls": [{"name": "slow"}], "delay_s": 0.4}, {"text": "All is well."}]
    with StrictServer(turns) as server:
        llm = {"provider": "openai", "model": "m", "base_url": f"{server.url}/v1"}
        place = Workplace(tmp_path, llm, [shell_tool("slow", "true")])
        process = place.begin()
        until(lambda: server.requests, "the request")
        process.send(signal.SIGHUP)
        assert process.finishes() == (3, "")
        assert (end_of(place), place.state.counters.model_calls, place.effects) == ("suspended", 1, [])
        assert place.resume().finishes() == (0, "All is well.\n")
        assert len(server.requests) == 2
        assert len(keys(place)) == 1


def test_a_suspend_during_the_answer_completes_the_run(tmp_path: Path) -> None:
    with StrictServer([{"text": "All is well.", "delay_s": 0.4}]) as server:
        place = Workplace(tmp_path, {"provider": "anthropic", "model": "m", "base_url": server.url}, [])
        process = place.begin()
        until(lambda: server.requests, "the request")
        process.send(signal.SIGTERM)
        assert process.finishes() == (0, "All is well.\n")
        assert end_of(place) == "completed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda each: each.name)
def test_a_chat_that_waits_for_input_is_left_at_once(place: Workplace, number: signal.Signals) -> None:
    place.scripted([{"text": "First."}, {"text": "Second."}])
    process = place.begin("--chat")
    process.answers("First.")
    process.send(number)
    assert process.ends_soon() == (3, "")
    assert end_of(place) == "suspended"
    before = place.bytes

    process = place.resume()
    process.says("First.")
    process.send(number)
    assert process.ends_soon()[0] == 3
    assert place.bytes == before

    process = place.resume()
    assert process.process.stdin is not None
    process.process.stdin.write(b"more\n")
    process.process.stdin.flush()
    process.answers("Second.")
    process.process.stdin.close()
    assert process.ends() == 0
    assert end_of(place) == "suspended"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda each: each.name)
def test_a_signal_that_was_ignored_from_the_start_stays_ignored(place: Workplace, number: signal.Signals) -> None:
    """As under nohup, or in a shell's background job."""
    ignoring = (
        f"import os, signal, sys; signal.signal({int(number)}, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    hold(place)
    process = place.begin(through=[sys.executable, "-c", ignoring])
    until(lambda: place.effects, "the tool's start")
    process.send(number)
    process.send(number)
    let_go(place)
    assert process.finishes() == (0, "All is well.\n")
    assert "suspend" not in process.stderr


def test_a_run_that_was_suspended_in_a_batch_and_killed_after_that_names_the_call_in_flight(place: Workplace) -> None:
    process = in_a_tool(place)
    process.is_told(signal.SIGTERM)
    let_go(place)
    assert process.ends() == 3
    assert place.ambiguous == []

    process = in_a_tool(place)
    process.kill()
    assert end_of(place) == "resumed"
    assert place.info.status == "interrupted"
    pending = place.state.pending
    assert pending is not None
    assert [call.id for call in pending.ambiguous] == ["call_0_1"]

    let_go(place)
    code, said = place.resume().finishes()
    assert (code, said) == (0, "All is well.\n")
    assert len(keys(place)) == 3
    assert len(set(keys(place))) == 2


def test_a_tool_that_kills_its_runner_is_named_by_each_resume_and_can_be_skipped(tmp_path: Path) -> None:
    place = Workplace(tmp_path, SCRIPTED, [shell_tool("deadly", "kill -9 $PPID; sleep 0.1")])
    place.scripted([{"calls": [{"name": "deadly"}]}, {"text": "All is well."}])
    assert place.begin().ends() == -signal.SIGKILL
    before = place.bytes
    for _ in range(4):
        process = place.resume()
        assert process.ends() == -signal.SIGKILL
        assert "deadly (call call_0_0) may have run before" in process.stderr
        assert place.bytes == before
        assert place.ambiguous == ["deadly"]
    assert place.resume("--on-crash", "skip").finishes() == (0, "All is well.\n")
    assert len(keys(place)) == 5
    assert len(set(keys(place))) == 1


def test_a_suspended_runs_journal_grows_by_one_mark_however_often_its_tool_kills_it(tmp_path: Path) -> None:
    place = Workplace(
        tmp_path, SCRIPTED, [shell_tool("slow", "true"), shell_tool("deadly", "kill -9 $PPID; sleep 0.1")]
    )
    place.scripted([{"calls": [{"name": "slow"}, {"name": "deadly"}]}, {"text": "All is well."}])
    assert place.begin().ends() == -signal.SIGKILL
    sizes = set()
    for _ in range(3):
        assert place.resume().ends() == -signal.SIGKILL
        sizes.add(len(place.bytes))
    assert len(sizes) == 1


def test_a_suspend_by_a_shell_that_hangs_up_leaves_a_run_that_can_be_resumed(place: Workplace) -> None:
    """The whole process group gets the signal, the tool with it only if it is in the same one, which it isn't."""
    process = in_a_tool(place, start_new_session=True)
    os.killpg(process.process.pid, signal.SIGHUP)
    process.says("SIGHUP:")
    let_go(place)
    assert process.ends() == 3
    assert place.has("end", "slow")
