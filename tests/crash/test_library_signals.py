"""Signals to programs that embed the library: Ctrl-C under `run_sync`, and the suspend that docs/api.md shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fisk_ai.stores import FileStore
from tests.docs.blocks import read_blocks

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
LIMIT_S = 20

PROGRAM = """
import sys
import anyio
from suspendable import agent, run_suspendably

try:
    if sys.argv[1] == "suspendably":
        result = anyio.run(run_suspendably, "r7")
    elif sys.argv[1] == "run":
        result = agent.run_sync("Work.", checkpoint=True, name="r7")
    else:
        result = agent.resume_sync("r7")
except KeyboardInterrupt:
    print("interrupted")
else:
    print(result.reason, result.answer)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The page's program, whose tool takes as long as `seconds` in its script says."""
    [block] = [block for block in read_blocks(PAGE) if block.marks.get("file") == "suspendable.py"]
    (tmp_path / "suspendable.py").write_text(block.text)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def patiently(directory: Path) -> None:
    """Make the tool take longer than any test."""
    program = directory / "suspendable.py"
    text = program.read_text()
    assert '"seconds": 0.3' in text
    program.write_text(text.replace('"seconds": 0.3', '"seconds": 600'))


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    return subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def signalled(process: subprocess.Popen[str], *numbers: signal.Signals) -> str:
    """Signal a process once its tool works, and return what it said after that."""
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    for number in numbers:
        process.send_signal(number)
    return process.communicate(timeout=LIMIT_S)[0]


def finished(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    return said


def status(directory: Path) -> str:
    return FileStore(str(directory / "runs")).info("r7").status


def test_ctrl_c_under_run_sync_interrupts_the_run_and_a_resume_goes_on(directory: Path) -> None:
    whole = (directory / "suspendable.py").read_text()
    patiently(directory)
    assert signalled(start(directory, "program.py", "run"), signal.SIGINT) == "interrupted\n"
    assert status(directory) == "interrupted"
    assert signalled(start(directory, "program.py", "resume"), signal.SIGINT) == "interrupted\n"
    (directory / "suspendable.py").write_text(whole)
    state = FileStore(str(directory / "runs")).load("r7")
    assert state.pending is not None
    assert [call.name for call in state.pending.ambiguous] == ["slow"]
    # The script's tool call is in the journal as it was: let it be skipped rather than wait ten minutes.
    program = PROGRAM.replace('resume_sync("r7")', 'resume_sync("r7", ResumeOptions(on_crash="skip"))')
    (directory / "program.py").write_text("from fisk_ai import ResumeOptions\n" + program)
    assert finished(start(directory, "program.py", "resume")) == "completed All is well.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_suspend_of_the_page_lets_the_tool_end(directory: Path, number: signal.Signals) -> None:
    assert signalled(start(directory, "program.py", "suspendably"), number) == "suspended None\n"
    assert status(directory) == "suspended"
    assert FileStore(str(directory / "runs")).load("r7").counters.tool_calls == 1
    assert finished(start(directory, "program.py", "resume")) == "completed All is well.\n"


def test_the_program_of_the_page_ends_by_itself(directory: Path) -> None:
    assert finished(start(directory, "suspendable.py", "r7")) == "working\ncompleted False\n"


def test_a_second_signal_to_the_program_of_the_page_aborts(directory: Path) -> None:
    patiently(directory)
    process = start(directory, "suspendable.py", "r7")
    said = signalled(process, signal.SIGINT, signal.SIGTERM)
    assert process.returncode != 0
    assert "RunAborted" in said
    assert status(directory) == "interrupted"
