"""What an operator sees and types: the program at a real terminal, shown on an emulated screen."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest

from tests.providers.strict_server import KEY, Fault, StrictServer

from .bench import NOTE_TOOL, SLOW_TOOL, Bench, end, turn

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
ANSWERS: list[dict[str, Any]] = [{"text": f"Answer {number}."} for number in (1, 2, 3, 4)]
WAITING: list[dict[str, Any]] = [{"text": "I wait.", "calls": [{"name": "slow"}]}, {"text": "The answer is 42."}]


class Screen:
    """A process at a terminal, and what its screen shows."""

    def __init__(self, bench: Bench, *args: str, columns: int, env: dict[str, str]) -> None:
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "fisk_ai", *args],
            cwd=str(bench.directory),
            env={**bench.env, "PROMPT_TOOLKIT_NO_CPR": "1", **env},
            dimensions=(40, columns),
            timeout=30,
        )
        self.raw = b""
        self._screen = pyte.Screen(columns, 40)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, text: str, times: int = 1) -> None:
        """Read until the screen shows a text."""
        while self.text.count(text) < times:
            self._read()

    def until_input(self) -> None:
        """Read until the program waits for a line."""
        while not self.lines or not self.lines[-1].startswith("you>"):
            self._read()

    def type(self, text: str) -> None:
        self.process.send(text)

    def end(self) -> int:
        """Read to the end and return the exit code."""
        try:
            while True:
                self._read()
        except pexpect.EOF:
            self.process.close()
        assert "Traceback" not in self.text, self.text
        return self.process.exitstatus if self.process.exitstatus is not None else -(self.process.signalstatus or 0)

    def _read(self) -> None:
        try:
            piece: Any = self.process.read_nonblocking(65536, timeout=30)
        except pexpect.TIMEOUT:
            raise AssertionError(f"nothing more came; the screen shows:\n{self.text}") from None
        self.raw += piece
        self._stream.feed(piece)


Open = Callable[..., Screen]


@pytest.fixture
def screen(bench: Bench) -> Iterator[Open]:
    """Start the program at a terminal."""
    opened: list[Screen] = []

    def start(*args: str, columns: int = 80, **env: str) -> Screen:
        opened.append(Screen(bench, *args, columns=columns, env=env))
        return opened[-1]

    yield start
    for each in opened:
        each.process.close(force=True)


def test_answer_is_seen_once_where_both_streams_are_one_terminal(bench: Bench, screen: Open) -> None:
    done = screen("run", "hello")
    assert done.end() == 0
    assert done.text.count("The answer is 42.") == 1
    bench.stored("r", turn("The answer is 42."))
    resumed = screen("run", "--resume", "r")
    assert resumed.end() == 0
    assert resumed.text.count("The answer is 42.") == 1
    assert bench.store.info("r").status == "completed"


def test_answer_goes_to_stdout_also_if_the_terminal_has_shown_it(bench: Bench, screen: Open) -> None:
    both = pexpect.spawn(
        "bash",
        ["-c", "fisk-ai run hello > answer"],
        cwd=str(bench.directory),
        env=bench.env,
        timeout=30,
    )
    seen: Any = both.read()
    both.close()
    assert both.exitstatus == 0
    assert b"The answer is 42." in bytes(seen)
    assert (bench.directory / "answer").read_bytes() == b"The answer is 42.\n"


def test_spinner_names_what_is_waited_for_and_leaves_no_trace(bench: Bench, screen: Open) -> None:
    bench.agent(WAITING, [SLOW_TOOL])
    for columns in (80, 40):
        run = screen("run", "--checkpoint", "--name", f"r{columns}", "hello", columns=columns)
        run.until("slow 0:00:0")
        assert all(len(line) <= columns for line in run.lines)
        (bench.directory / "go").touch()
        assert run.end() == 0
        assert "0:00:0" not in run.text
        assert b"\x1b[?25h" in run.raw[run.raw.rindex(b"\x1b[?25l") :], "the cursor is shown again"
        assert run.lines[-1] == "The answer is 42."
        (bench.directory / "go").unlink()


def test_long_tool_name_does_not_break_the_spinner_of_a_narrow_terminal(bench: Bench, screen: Open) -> None:
    name = "a_tool_name_that_is_longer_than_forty_columns"
    bench.agent([{"calls": [{"name": name}]}, {"text": "Fine."}], [{**SLOW_TOOL, "name": name}])
    run = screen("run", "hello", columns=40)
    run.until(f"{name[:20]}")
    run.until("\u2026 0:00:0")
    moving = [line for line in run.lines if "0:00:0" in line]
    assert len(moving) == 1
    assert name[:20] in moving[0]
    (bench.directory / "go").touch()
    assert run.end() == 0


def test_pause_before_another_attempt_says_what_it_waits_for_and_is_left_by_ctrl_c(bench: Bench, screen: Open) -> None:
    with StrictServer(
        [{"text": "The answer is 42."}], faults={1: Fault(status=429, headers={"retry-after": "60"})}
    ) as server:
        bench.agent([], provider="anthropic", model="m", script=None, base_url=server.url)
        run = screen("run", "--checkpoint", "--name", "r", "hello", columns=100, ANTHROPIC_API_KEY=KEY)
        run.until("attempt 2 in 60.0 s: anthropic answered with HTTP 429")
        run.until("0:00:0")
        run.type(CTRL_C)
        assert run.end() == 3
    assert "0:00:0" not in run.text
    assert run.lines[-2:] == ["run r is suspended; go on with:", "  fisk-ai run --resume r"]


def test_dumb_terminal_gets_plain_lines_and_no_color_gets_no_colour(bench: Bench, screen: Open) -> None:
    bench.agent(WAITING, [SLOW_TOOL])
    (bench.directory / "go").touch()
    dumb = screen("run", "hello", TERM="dumb")
    assert dumb.end() == 0
    assert b"\x1b" not in dumb.raw
    assert dumb.lines == ["I wait.", "> slow {}", "  ok 0.0 s: (no output)", "The answer is 42."]
    plain = screen("run", "hello", NO_COLOR="1")
    assert plain.end() == 0
    colours = [piece for piece in plain.raw.split(b"\x1b[")[1:] if piece.partition(b"m")[0].startswith((b"3", b"9"))]
    assert colours == []


def test_chat_is_left_by_ctrl_d_and_gone_on_with(bench: Bench, screen: Open) -> None:
    bench.agent(ANSWERS)
    chat = screen("run", "--chat", "--checkpoint", "--name", "r")
    chat.until_input()
    chat.type("hello\r")
    chat.until("Answer 1.")
    chat.until_input()
    chat.type("more\r")
    chat.until("Answer 2.")
    chat.until_input()
    chat.type(UP)
    chat.until("you> more", times=2)
    chat.type("\r")
    chat.until("Answer 3.")
    chat.until_input()
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert chat.text.count("Answer 1.") == chat.text.count("Answer 3.") == 1
    assert chat.lines[-1] == "  fisk-ai run --resume r"
    assert bench.store.info("r").status == "suspended"
    again = screen("run", "-c")
    again.until_input()
    assert again.text.count("Answer 3.") == 1, "the conversation so far, and nothing twice"
    again.type("/end\r")
    assert again.end() == 0
    assert bench.store.info("r").status == "completed"


@pytest.mark.parametrize("how", ["key", "signal"])
def test_chat_at_its_input_is_suspended_by_ctrl_c_with_exit_3(bench: Bench, screen: Open, how: str) -> None:
    bench.agent(ANSWERS)
    chat = screen("run", "--chat", "--checkpoint", "--name", "r", "hello")
    chat.until_input()
    if how == "key":
        chat.type("half a line" + CTRL_C)
    else:
        chat.process.kill(signal.SIGTERM)
    assert chat.end() == 3
    assert chat.lines[-1] == "  fisk-ai run --resume r"
    assert bench.store.load("r").counters.model_calls == 1


@pytest.mark.parametrize("how", ["key", "signal"])
def test_chat_that_is_not_stored_is_aborted_by_ctrl_c_with_exit_130(bench: Bench, screen: Open, how: str) -> None:
    bench.agent(ANSWERS)
    chat = screen("run", "--chat", "hello")
    chat.until_input()
    if how == "key":
        chat.type(CTRL_C)
    else:
        chat.process.kill(signal.SIGTERM)
    assert chat.end() == 130
    assert "nothing of it was stored" in chat.text


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_chat_says_how_it_is_left_before_its_first_line(bench: Bench, screen: Open, term: str) -> None:
    bench.agent(ANSWERS)
    chat = screen("run", "--chat", TERM=term)
    chat.until_input()
    assert chat.lines[-2:] == ["a chat: /end completes it, Ctrl-D leaves it", "you>"]
    chat.type("hello\r")
    chat.until("Answer 1.")
    chat.until_input()
    assert chat.text.count("a chat: ") == 1
    chat.type(CTRL_D)
    assert chat.end() == 0


def test_answer_of_a_run_whose_tools_print_is_seen_once(bench: Bench, screen: Open) -> None:
    bench.agent(WAITING, [])
    (bench.directory / "loud.py").write_text("def slow() -> str:\n    'd'\n    print('printed')\n    return 'done'\n")
    config = json.loads((bench.directory / "agent.yaml").read_text())
    config["tools"] = {"python": ["loud:slow"]}
    (bench.directory / "agent.yaml").write_text(json.dumps(config))
    run = screen("run", "hello")
    assert run.end() == 0
    lines = [re.sub(r"ok \d+\.\d s", "ok 0.0 s", line) for line in run.lines]
    assert lines == ["I wait.", "> slow {}", "printed", "  ok 0.0 s: done", "The answer is 42."]


def test_summary_is_wrapped_between_words(bench: Bench, screen: Open) -> None:
    bench.stored("r", turn("Done."), end("completed"))
    shown = screen("session", "show", "r", columns=40)
    assert shown.end() == 0
    assert "used:     1 model call, 0 tool calls, 15" in shown.lines
    assert "          tokens (input 10, output 5)" in shown.lines


def test_ctrl_c_before_the_first_word_leaves_no_run(bench: Bench, screen: Open) -> None:
    chat = screen("run", "--chat", "--checkpoint")
    chat.until_input()
    chat.type(CTRL_C)
    assert chat.end() == 130
    assert not bench.state.exists()


def test_ctrl_c_during_a_tool_lets_it_end_and_a_second_one_does_not(bench: Bench, screen: Open) -> None:
    bench.agent(WAITING, [SLOW_TOOL])
    run = screen("run", "--checkpoint", "--name", "r", "hello")
    run.until("slow 0:00:0")
    run.type(CTRL_C)
    run.until("SIGINT: stopping as soon as the running step has ended (once more: at once)")
    run.until("slow 0:00:0")
    run.type(CTRL_C)
    assert run.end() == 130
    assert run.lines[-1] == "  fisk-ai run --resume r"
    assert b"\x1b[?25h" in run.raw[run.raw.rindex(b"\x1b[?25l") :], "the cursor is shown again"


def test_chat_at_a_dumb_terminal_prompts_and_reads_plain_lines(bench: Bench, screen: Open) -> None:
    bench.agent(ANSWERS)
    chat = screen("run", "--chat", TERM="dumb")
    chat.until_input()
    chat.type("hello\r")
    chat.until("Answer 1.")
    chat.until_input()
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert b"\x1b" not in chat.raw


def _in_doubt(bench: Bench) -> None:
    bench.agent(
        [{"text": "Go.", "calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "Fine."}],
        [{**NOTE_TOOL, "on_crash": "ask"}],
    )
    bench.stored("r", turn("Go.", "a"))


DECISIONS = [
    *(("rerun", 0, 1), ("r", 0, 1), ("skip", 0, 0), ("s", 0, 0)),
    *(("leave", 5, 0), ("l", 5, 0), ("", 5, 0), (CTRL_C, 130, 0)),
]


@pytest.mark.parametrize(("choice", "code", "ran"), DECISIONS)
def test_operator_decides_about_a_call_in_doubt(bench: Bench, screen: Open, choice: str, code: int, ran: int) -> None:
    _in_doubt(bench)
    before = bench.snapshot()
    asked = screen("run", "--resume", "r")
    asked.until("note (call a) may have run before the crash.")
    asked.until("[leave]")
    assert bench.snapshot() == before
    asked.type(f"{choice}\r")
    assert asked.end() == code
    assert len(bench.effects) == ran
    if choice not in ("rerun", "r", "skip", "s"):
        assert bench.snapshot() == before
    if code == 5:
        assert "--on-crash skip" in asked.text.replace("\n", "")


def test_without_a_terminal_the_decision_is_refused_naming_the_flags(bench: Bench) -> None:
    _in_doubt(bench)
    before = bench.snapshot()
    refused = bench.cli("run", "--resume", "r")
    assert refused.code == 5
    assert "note (call a) may have run before the crash" in refused.err
    assert bench.snapshot() == before
    skipped = bench.cli("run", "--resume", "r", "--on-crash", "skip")
    assert (skipped.code, skipped.out) == (0, b"Fine.\n")
    assert bench.effects == []


def test_listing_fits_the_terminal(bench: Bench, screen: Open) -> None:
    bench.stored("r", end("suspended"), prompt="\u4f60\u597d " * 40)
    for columns in (80, 40, 20):
        listed = screen("session", "ls", columns=columns)
        assert listed.end() == 0
        assert len(listed.lines) == 2, listed.text


def test_run_in_progress_is_shown_as_such(bench: Bench, screen: Open) -> None:
    bench.agent(WAITING, [SLOW_TOOL])
    process = bench.start("run", "--checkpoint", "--name", "r", "hello")
    bench.wait_for("effects")
    shown = bench.cli("session", "show", "r")
    assert "status:   running" in shown.text
    assert "at work:  slow (call call_0_0)" in shown.text
    assert "  slow: no result yet" in shown.text
    assert "--resume" not in shown.text
    assert "may have run" not in shown.text
    process.kill()
    process.wait()
    crashed = bench.cli("session", "show", "r")
    assert "status:   interrupted" in crashed.text
    assert "in doubt: slow (call call_0_0) may have run; its idempotency key is" in crashed.text
    assert crashed.text.endswith("go on with (with the --config it was started with):\n  fisk-ai run --resume r\n")
    Path(bench.directory, "go").touch()
