from __future__ import annotations

import signal
import socket
import subprocess
from typing import Any

import pytest

from .bench import NOTE_TOOL, SLOW_TOOL, Bench, command_in, end, result, turn
from .conftest import Inline

Turns = list[dict[str, Any]]

SLOW_TURNS: Turns = [{"text": "I wait.", "calls": [{"name": "slow"}]}, {"text": "The answer is 42."}]
CALLS: Turns = [{"text": "Noting.", "calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "The answer is 42."}]


def test_completed_run_exits_0_and_stdout_holds_only_the_answer(bench: Bench) -> None:
    bench.agent(CALLS)
    plain = bench.cli("run", "hello")
    assert (plain.code, plain.out) == (0, b"The answer is 42.\n")
    assert not bench.state.exists(), "a run without --checkpoint writes nothing"
    stored = bench.cli("run", "--checkpoint", "--name", "r", "hello")
    assert (stored.code, stored.out) == (0, b"The answer is 42.\n")
    assert "fisk-ai run --resume r" in stored.err


def test_failed_model_exits_1_and_the_last_line_resumes(bench: Bench) -> None:
    bench.agent([{"error": "the model is on holiday"}])
    failed = bench.cli("run", "--checkpoint", "--name", "r", "hello")
    assert (failed.code, failed.out) == (1, b"")
    assert "run r failed: the model could not be asked: the model is on holiday" in failed.err
    bench.agent([{"text": "Back again."}])
    again = bench.paste(command_in(failed.err))
    assert (again.code, again.out) == (0, b"Back again.\n")


def test_usage_and_configuration_exit_2(bench: Bench) -> None:
    wrong = bench.cli("run", "--zzz")
    assert (wrong.code, wrong.out) == (2, b"")
    assert wrong.err == "fisk-ai: No such option '--zzz'.\nfisk-ai: `fisk-ai run --help` shows what can be given\n"
    (bench.directory / "agent.yaml").unlink()
    assert bench.cli("run", "hello").code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_suspends_with_exit_3_and_the_pasted_line_repeats_nothing(
    bench: Bench, number: signal.Signals
) -> None:
    bench.agent(SLOW_TURNS, [SLOW_TOOL])
    odd = "odd 'state\" dir"
    process = bench.start("run", "--checkpoint", "--name", "r", "--state-dir", odd, "hello")
    bench.wait_for("effects")
    process.send_signal(number)
    (bench.directory / "go").touch()
    suspended = bench.wait(process)
    assert (suspended.code, suspended.out) == (3, b"")
    assert f"{number.name}: stopping as soon as the running step has ended" in suspended.err
    assert "run r is suspended; go on with:" in suspended.err
    resumed = bench.paste(command_in(suspended.err))
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
    assert bench.effects == ["begun", "ended"]


def test_second_signal_aborts_with_exit_130_and_the_last_line_resumes(bench: Bench) -> None:
    bench.agent(SLOW_TURNS, [SLOW_TOOL])
    process = bench.start("run", "--checkpoint", "--name", "r", "hello")
    bench.wait_for("effects")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while b"SIGINT" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    aborted = bench.wait(process)
    assert (aborted.code, aborted.out) == (130, b"")
    assert "run 'r' was aborted: it can be resumed from its last record" in aborted.err
    (bench.directory / "go").touch()
    resumed = bench.paste(command_in(aborted.err))
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
    assert "slow (call call_0_0) may have run before; it runs again" in resumed.err


def test_first_signal_aborts_a_run_without_a_checkpoint(bench: Bench) -> None:
    bench.agent(SLOW_TURNS, [SLOW_TOOL])
    process = bench.start("run", "hello")
    bench.wait_for("effects")
    process.send_signal(signal.SIGINT)
    aborted = bench.wait(process)
    assert (aborted.code, aborted.out) == (130, b"")
    assert aborted.last_line.endswith("was aborted: nothing of it was stored")


def test_used_up_budget_exits_4_and_says_how_to_go_on(bench: Bench) -> None:
    bench.agent(CALLS, budget={"max_iterations": 1})
    stopped = bench.cli("run", "--checkpoint", "--name", "r", "hello")
    assert (stopped.code, stopped.out) == (4, b"")
    assert "run r stopped at its budget: 1 of 1 turns are used. Raise llm.budget in the configuration" in stopped.err
    before = bench.snapshot()
    same = bench.cli("run", "--resume", "r")
    assert same.code == 4
    assert bench.snapshot() == before
    bench.agent(CALLS, budget={"max_iterations": 2})
    refused = bench.cli("run", "--resume", "r")
    assert refused.code == 5
    assert "iteration budget 1 is now 2" in refused.err
    resumed = bench.paste(command_in(stopped.err))
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
    assert bench.cli("run", "--resume", "r").code == 5


def test_locked_run_exits_6_naming_the_holder_and_a_damaged_one_7(bench: Bench, inline: Inline) -> None:
    path = bench.stored("r", turn("Noting.", "a"), result("a"), end("suspended"))
    with bench.store.open("r"):
        for refused in (bench.cli("run", "--resume", "r"), inline("session", "rm", "r")):
            assert refused.code == 6
            assert "run 'r' is in use by process" in refused.err
    path.write_bytes(path.read_bytes().replace(b"noted", b"NOTED"))
    assert inline("run", "--resume", "r").code == 7


def test_of_ten_processes_that_resume_one_run_one_works(bench: Bench) -> None:
    bench.agent(SLOW_TURNS, [SLOW_TOOL])
    bench.stored("r", turn("I wait.", "a", tool="slow"), end("suspended"))
    processes = [bench.start("run", "--resume", "r", stdout=subprocess.DEVNULL) for _ in range(10)]
    bench.wait_for("effects")
    assert _all_but_one_end(processes)
    (holder,) = (process for process in processes if process.poll() is None)
    for process in processes:
        if process is not holder:
            refused = bench.wait(process)
            assert refused.code == 6
            assert f"run 'r' is in use by process {holder.pid} on {socket.gethostname()}: wait for it" in refused.err
    listed = bench.cli("session", "ls", "--json")
    assert [row["status"] for row in listed.data] == ["running"]
    (bench.directory / "go").touch()
    assert bench.wait(holder).code == 0
    assert bench.effects == ["begun", "ended"]


def _all_but_one_end(processes: list[subprocess.Popen[bytes]]) -> bool:
    for _ in range(3000):
        if sum(process.poll() is not None for process in processes) == len(processes) - 1:
            return True
        signal.sigtimedwait((), 0.01)
    return False


@pytest.mark.parametrize(
    ("stop", "why"),
    [("refusal", "the model refused to go on"), ("max_tokens", "cut off at the output-token limit")],
)
def test_dead_end_exits_1_with_what_was_said_and_a_fork_that_works(
    bench: Bench, inline: Inline, stop: str, why: str
) -> None:
    bench.agent([*CALLS[:1], {"text": "I would rather not.", "stop_reason": stop}])
    failed = inline("run", "--checkpoint", "--name", "r", "hello")
    assert (failed.code, failed.out) == (1, b"")
    assert "I would rather not.\n" in failed.err
    assert why in failed.err
    assert failed.last_line == "  fisk-ai session fork r --at 3"
    refused = inline("run", "--resume", "r")
    assert refused.code == 5
    assert why in refused.err
    shown = inline("session", "show", "r")
    assert shown.text.endswith("go on with:\n  fisk-ai session fork r --at 3\n")
    forked = bench.paste(failed.last_line)
    assert forked.code == 0
    bench.agent(CALLS)
    resumed = bench.paste(command_in(forked.err))
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
    assert len(bench.effects) == 1


@pytest.mark.parametrize(
    "name", ["a 'b' \"c\" $HOME `x`", "c\x1b[31m \\ '", "d\n e", "f\u202eg", "h\udcff\t"], ids=ascii
)
def test_hints_work_when_pasted_whatever_the_paths_are(bench: Bench, name: str) -> None:
    bench.agent([{"error": "not now"}], [NOTE_TOOL])
    odd = bench.directory / name
    odd.mkdir()
    for name in ("agent.yaml", "turns.yaml"):
        (bench.directory / name).rename(odd / name)
    place = ("--config", str(odd / "agent.yaml"), "--state-dir", str(odd / "runs"))
    failed = bench.cli("run", "--checkpoint", "--name", "r", *place, "hello")
    assert failed.code == 1
    (odd / "turns.yaml").write_text('[{text: "The answer is 42."}]')
    resumed = bench.paste(command_in(failed.err))
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n"), resumed.err
