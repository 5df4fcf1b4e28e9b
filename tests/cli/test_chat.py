"""A chat through a pipe; `test_terminal` has those at a terminal."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import termios
from typing import IO

import msgspec
import pytest

from fisk_ai.messages import read_user
from fisk_ai.records import UserRecord

from .bench import Bench, command_in, end, turn
from .conftest import Inline

ANSWERS = [{"text": f"Answer {number}."} for number in (1, 2, 3, 4)]


def _follow_ups(bench: Bench, run_id: str) -> list[str]:
    records = [item.record for item in bench.store.read(run_id).records]
    users = [read_user(bytes(record.message)) for record in records if isinstance(record, UserRecord)]
    return ["".join(getattr(block, "text", "") for block in user.blocks) for user in users]


def _status(bench: Bench, run_id: str) -> str:
    return bench.store.info(run_id).status


def test_each_line_is_a_follow_up_and_the_end_of_input_suspends(bench: Bench) -> None:
    bench.agent(ANSWERS)
    left = bench.cli("run", "--chat", "--checkpoint", "--name", "r", "hello", stdin=b"one\n\n  \n\xe2\x80\x8b\ntwo\r\n")
    assert (left.code, left.out) == (0, b"Answer 1.\nAnswer 2.\nAnswer 3.\n")
    assert _follow_ups(bench, "r") == ["one", "two"], "blank lines are neither recorded nor sent"
    assert _status(bench, "r") == "suspended"
    assert "run r is suspended; go on with:" in left.err
    done = bench.paste(command_in(left.err), stdin=b"three\n /end \nnever read\n")
    assert (done.code, done.out) == (0, b"Answer 4.\n")
    assert _follow_ups(bench, "r") == ["one", "two", "three"]
    assert _status(bench, "r") == "completed"


def test_prompt_is_the_first_line_and_a_last_line_needs_no_end(bench: Bench) -> None:
    bench.agent(ANSWERS)
    done = bench.cli("run", "--chat", "--checkpoint", "--name", "r", stdin=b"\n \nhello\none")
    assert (done.code, done.out) == (0, b"Answer 1.\nAnswer 2.\n")
    assert bench.store.load("r").prompt == "hello"
    assert _follow_ups(bench, "r") == ["one"]


def test_input_that_ends_before_anything_was_said_starts_no_run(bench: Bench) -> None:
    nothing = bench.cli("run", "--chat", "--checkpoint", stdin=b"\n\n")
    assert nothing.code == 2
    assert "the input ended before anything was said: no run was started" in nothing.err
    assert not bench.state.exists()


def test_chat_without_a_checkpoint_writes_nothing_and_promises_nothing(bench: Bench) -> None:
    bench.agent(ANSWERS)
    done = bench.cli("run", "--chat", stdin=b"hello\none\n")
    assert (done.code, done.out) == (0, b"Answer 1.\nAnswer 2.\n")
    assert done.err == "the chat is over; nothing of it was stored\n"
    assert not bench.state.exists()


def test_lines_of_a_regular_file_and_of_invalid_bytes_are_follow_ups_too(bench: Bench) -> None:
    bench.agent(ANSWERS)
    (bench.directory / "lines").write_bytes(b"hello\n\xff\xfe\n" + "\u2028still one line".encode())
    with (bench.directory / "lines").open("rb") as lines:
        process = bench.start("run", "--chat", "--checkpoint", "--name", "r", stdin=lines.fileno())
        done = bench.wait(process)
    assert (done.code, done.out) == (0, b"Answer 1.\nAnswer 2.\nAnswer 3.\n")
    assert _follow_ups(bench, "r") == ["\ufffd\ufffd", "\u2028still one line"]


def test_meta_decides_whether_a_resume_is_a_chat(bench: Bench, inline: Inline) -> None:
    bench.agent(ANSWERS)
    bench.stored("chat", turn("Answer 1."), end("suspended"), interactive=True)
    resumed = bench.cli("run", "--resume", "chat", stdin=b"one\n")
    assert (resumed.code, resumed.out) == (0, b"Answer 2.\n")
    bench.stored("plain", end("suspended"), prompt="x" * 70_000)
    before = bench.snapshot()
    refused = inline("run", "--resume", "plain", "--chat")
    assert refused.code == 2
    assert "run 'plain' is not a chat: `fisk-ai session fork plain --chat` makes one of it" in refused.err
    assert bench.snapshot() == before
    forked = bench.paste("fisk-ai session fork plain --chat")
    talked = bench.paste(command_in(forked.err), stdin=b"one\n")
    assert (talked.code, talked.out) == (0, b"Answer 1.\nAnswer 2.\n")
    assert _status(bench, forked.text.strip()) == "suspended"


def test_signal_at_the_input_suspends_at_once_and_the_resume_appends_only_what_is_new(bench: Bench) -> None:
    bench.agent(ANSWERS)
    process = bench.start("run", "--chat", "--checkpoint", "--name", "r", "hello", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"Answer 1.\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 3
    assert _status(bench, "r") == "suspended"
    before = bench.snapshot()
    again = bench.cli("run", "--resume", "r")
    assert again.code == 0
    assert bench.snapshot() == before, "a chat that was left without a word has no new record"


def test_signal_before_the_first_line_leaves_no_run(bench: Bench) -> None:
    process = bench.start("run", "--chat", "--checkpoint", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    while _unread(process.stdin):
        signal.sigtimedwait((), 0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 130
    assert "suspended" not in bench.wait(process).err
    assert not bench.state.exists()


def _unread(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_answer_with_an_unknown_stop_reason_is_an_answer(bench: Bench) -> None:
    bench.agent([{"text": "Odd.", "stop_reason": "tired"}])
    done = bench.cli("run", "--chat", stdin=b"hello\n")
    assert (done.code, done.out) == (0, b"Odd.\n")
    assert "'tired'" in done.err


@pytest.mark.parametrize("output", ["json", "stream-json"])
def test_chat_for_programs_ends_with_its_result(bench: Bench, inline: Inline, output: str) -> None:
    bench.agent(ANSWERS)
    done = bench.cli("run", "--chat", "--checkpoint", "--name", "r", "--output", output, stdin=b"hello\none\n")
    assert done.code == 0
    last = msgspec.json.decode(done.out.splitlines()[-1])
    assert (last["reason"], last["answer"]) == ("suspended", "Answer 2.")
    assert done.last_line == "  fisk-ai run --resume r"
