"""The examples run as they are, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(name: str, cwd: Path) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    environment = {**os.environ, "XDG_STATE_HOME": str(cwd / "state")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert list(cwd.iterdir()) == []
    return done.stdout


def test_embedding_example_suspends_and_resumes(tmp_path: Path) -> None:
    output = run_example("embed.py", tmp_path)
    assert "-> suspended, resumable: True" in output
    assert output.endswith("-> completed: Ada has her mail.\n")


def test_own_loop_repeats_only_the_call_in_doubt_with_its_key(tmp_path: Path) -> None:
    output = run_example("own_loop.py", tmp_path)
    keys = [line.rpartition(" ")[2] for line in output.splitlines() if "with key" in line]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert output.count("model call 0") == 1
    assert "in doubt: restart_server" in output
    assert output.endswith("answer: web1 is up again.\n")
