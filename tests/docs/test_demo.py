"""The demo keeps its own promises; here it only has to end well, wherever it is run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = Path("examples", "demo", "demo.py")

pytestmark = pytest.mark.slow


def run_demo(root: Path, cwd: Path) -> str:
    done = subprocess.run([sys.executable, root / DEMO], cwd=cwd, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_demo_holds_its_promises_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    output = run_demo(ROOT, tmp_path)
    assert "All of it held" in output
    assert max(map(len, output.splitlines())) <= 80
    assert list(temporary.iterdir()) == []


def test_demo_lists_files_where_there_is_no_history(tmp_path: Path) -> None:
    for name in ("examples", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "src").mkdir()
    output = run_demo(tmp_path, Path("/"))
    assert "no git history here" in output
    assert "> list_files" in output


def test_demo_fails_loudly_when_a_promise_is_broken(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    publish = tmp_path / "examples" / "demo" / "publish.sh"
    publish.write_text(publish.read_text().replace("$FISK_AI_IDEMPOTENCY_KEY", "$$"))  # a new key each time
    done = subprocess.run([sys.executable, tmp_path / DEMO], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "BROKEN PROMISE: `publish` ran twice, both times with the key" in done.stderr
