"""Pipes that close, disks that are full, streams that are missing, encodings that can't say it."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from .bench import NOTE_TOOL, Bench, Done, end, turn

SIX_TURNS: list[dict[str, Any]] = [
    *({"text": f"Step {number}.", "calls": [{"name": "note", "input": {"what": "a"}}]} for number in range(5)),
    {"text": "The answer is 42."},
]


def _shell(bench: Bench, line: str, *, code: int = 0) -> Done:
    done = bench.paste(line)
    assert done.code == code, done
    assert "Traceback" not in done.err
    assert "Exception ignored" not in done.err
    return done


def test_run_whose_reader_goes_away_carries_on_in_silence(bench: Bench) -> None:
    bench.agent(SIX_TURNS)
    run = "fisk-ai run --checkpoint --name {} --output stream-json hello"
    head = _shell(bench, f"set -o pipefail; {run.format('r')} | head -1")
    assert head.text.startswith('{"event":"run_started"')
    assert head.err == ""
    assert bench.store.info("r").status == "completed"
    both = _shell(bench, "set -o pipefail; fisk-ai run --checkpoint --name s hello 2>&1 | head -1")
    assert both.text.startswith("run s is journaled")
    assert bench.store.info("s").status == "completed"
    assert len(bench.effects) == 10


def test_chat_whose_reader_goes_away_goes_on_to_the_end_of_its_input(bench: Bench) -> None:
    bench.agent([{"text": f"Answer {number}.", "delay": "50ms"} for number in range(4)])
    lines = "printf 'a\\nb\\nc\\n' | fisk-ai run --chat --checkpoint --name r hello"
    _shell(bench, f"set -o pipefail; {lines} | head -1")
    state = bench.store.load("r")
    assert state.counters.model_calls == 4
    assert state.terminal is not None
    assert state.terminal.reason == "suspended"


@pytest.mark.parametrize("target", ["/dev/full", "&-"])
def test_stdout_that_cannot_be_written_is_one_line_and_exit_1(bench: Bench, target: str) -> None:
    bench.agent(SIX_TURNS)
    full = _shell(bench, f"fisk-ai run --checkpoint --name r hello >{target}", code=1)
    complaints = [line for line in full.err.splitlines() if line.startswith("fisk-ai:")]
    assert len(complaints) == 1
    assert "standard output could not be written: " in complaints[0]
    assert full.last_line == "what it says is kept: fisk-ai session show r"
    assert bench.store.info("r").status == "completed"
    for command in ("session ls", "session show r --json", "--version", "session --help"):
        listed = _shell(bench, f"fisk-ai {command} >{target}", code=1)
        assert listed.err.count("\n") == 1, (command, listed.err)


def test_stderr_that_cannot_be_written_is_nobodys_business(bench: Bench) -> None:
    bench.agent(SIX_TURNS)
    for target in ("/dev/full", "&-"):
        assert _shell(bench, f"fisk-ai run --checkpoint hello 2>{target}").out == b"The answer is 42.\n"
    assert _shell(bench, "fisk-ai run nothing --resume x 2>/dev/full", code=2).out == b""


def test_missing_streams_never_lend_their_numbers_to_a_journal(bench: Bench) -> None:
    bench.agent(SIX_TURNS)
    _shell(bench, "fisk-ai run --checkpoint --name r hello <&- >&- 2>&-", code=1)
    assert bench.cli("session", "verify", "r").code == 0
    assert bench.store.load("r").counters.model_calls == 6
    assert _shell(bench, "fisk-ai run --checkpoint <&-", code=2).err.startswith("fisk-ai: the prompt is empty")
    assert _shell(bench, "fisk-ai run 0>unreadable", code=2).err.endswith("can't be read: Bad file descriptor\n")


def test_terminal_that_hangs_up_suspends_the_run(bench: Bench) -> None:
    slow = {
        **NOTE_TOOL,
        "argv": ["sh", "-c", "echo begun >> effects; while [ ! -e go ]; do sleep 0.02; done; : {what}"],
    }
    bench.agent(SIX_TURNS, [slow])
    master, terminal = os.openpty()
    process = bench.start(
        "run", "--checkpoint", "--name", "r", "hello", stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    bench.wait_for("effects")
    os.close(master)
    process.send_signal(signal.SIGHUP)
    (bench.directory / "go").touch()
    assert process.wait(timeout=30) == 3
    assert bench.store.info("r").status == "suspended"


def test_signal_that_was_ignored_at_the_start_stays_ignored(bench: Bench) -> None:
    bench.agent([{"text": "The answer is 42.", "delay": "300ms"}])
    started = "trap '' INT HUP; fisk-ai run --checkpoint --name r hello &"
    waited = "until [ -e xdg/fisk-ai/runs/r.json ]; do sleep 0.02; done"
    done = _shell(bench, f"{started} {waited}; kill -INT $!; kill -HUP $!; wait $!")
    assert done.out == b"The answer is 42.\n"


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}],
)
def test_encoding_that_cannot_say_it_is_no_reason_to_fail(bench: Bench, environment: dict[str, str]) -> None:
    bench.agent([{"text": "Gr\xfc\xdfe \U0001f600 \u4f60\u597d"}])
    run = bench.cli("run", "--checkpoint", "--name", "r", "h\xe9llo", env=environment)
    assert run.code == 0
    expected = (
        b"Gr\xc3\xbc\xc3\x9fe \xf0\x9f\x98\x80 \xe4\xbd\xa0\xe5\xa5\xbd\n",
        b"Gr\\xfc\\xdfe \\U0001f600 \\u4f60\\u597d\n",
    )
    assert run.out in expected
    assert bench.store.load("r").prompt == "h\xe9llo"
    assert bench.cli("session", "show", "r", env=environment).code == 0


def test_prompt_that_is_no_text_becomes_text(bench: Bench) -> None:
    run = subprocess.run(
        ["bash", "-c", "fisk-ai run --checkpoint --name r $'\\xff\\xfe go'"],
        cwd=bench.directory,
        env=bench.env,
        capture_output=True,
        timeout=60,
    )
    assert run.returncode == 0, run
    assert bench.store.load("r").prompt == "\ufffd\ufffd go"


def test_nothing_moves_and_nothing_is_coloured_where_stderr_is_no_terminal(bench: Bench) -> None:
    bench.agent(SIX_TURNS)
    done = bench.cli("run", "hello", env={"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"})
    assert "\x1b" not in done.err
    assert "\r" not in done.err
    assert done.err.splitlines()[:3] == ["Step 0.", '> note {"what":"a"}', "  ok 0.0 s: noted a"]


def test_tools_side_by_side_are_told_apart_and_what_never_started_is_named(bench: Bench) -> None:
    side = {
        **NOTE_TOOL,
        "parallel": True,
        "argv": ["sh", "-c", "touch {what}; until [ -e a -a -e b ]; do sleep 0.01; done"],
    }
    calls = [{"name": name, "input": {"what": what}} for name, what in (("note", "a"), ("note", "b"), ("absent", "c"))]
    bench.agent([{"text": "Go.", "calls": calls}, {"text": "Fine."}], [side])
    shown = bench.cli("run", "hello").err.splitlines()
    assert sorted(line.partition(" ok ")[0] for line in shown if " ok " in line) == ["  note", "  note"]
    assert any(line.startswith("> absent (not started): there is no tool named 'absent'") for line in shown)


def test_failure_of_the_program_itself_is_one_line_that_says_how_to_go_on(bench: Bench) -> None:
    bench.stored("r", turn("Done."), end("suspended"))
    (bench.directory / "sitecustomize.py").write_text(
        "import fisk_ai.agent.loop as loop\n"
        "def broken(*args, **kwargs):\n    raise ZeroDivisionError('what\\never')\n"
        "loop.decide = broken\n"
    )
    broken = bench.cli("run", "--resume", "r", env={"PYTHONPATH": str(bench.directory)})
    assert broken.code == 1
    assert "fisk-ai: internal error, please report it: ZeroDivisionError: what ever. What was journaled" in broken.err
    assert broken.last_line == "  fisk-ai run --resume r"
    process = bench.start("run", "--resume", "r", env={"PYTHONPATH": str(bench.directory), "FISK_AI_DEBUG": "1"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"Traceback" in err
