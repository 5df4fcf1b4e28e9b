"""The benchmark runs and prints its table. Times are the machine's business and are not looked at."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_benchmark_prints_a_ratio_for_each_measurement() -> None:
    command = [sys.executable, "-m", "bench", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    head, *rows = done.stdout.split("\n\n")[0].splitlines()
    assert head.split() == ["what", "floor", "floor", "fisk-ai", "ratio"]
    assert [re.sub(r"[\d,]+", "N", row[:44]).split()[0] for row in rows] == [
        "append", "append", "agent", "agent", "bytes", "load", "list", "process",
    ]  # fmt: skip
    assert all(float(row.split()[-1]) > 0 for row in rows)
