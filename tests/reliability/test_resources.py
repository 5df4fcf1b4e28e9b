"""Too little room, descriptors, memory or rights; failing and slow disks under the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.commands import Workplace
from tests.reliability import injection
from tests.reliability.command_trials import SLOW_SYNCS, STRUCK_COMMANDS
from tests.reliability.resource_trials import FULL_DISKS, NO_DESCRIPTORS, NO_MEMORY, OTHER_USERS, SHORT_WRITES
from tests.reliability.resources import in_private_mounts, small_tmpfs, why_no_hooks, why_no_mounts
from tests.reliability.trials import Trial, tried

pytestmark = pytest.mark.slow


def _unless(reason: str | None, trial: Trial) -> object:
    return pytest.param(trial, id=trial.name, marks=pytest.mark.skipif(reason is not None, reason=reason or ""))


@pytest.mark.parametrize(
    "trial",
    [
        _unless(None, SHORT_WRITES),
        _unless(None, NO_DESCRIPTORS),
        _unless(why_no_hooks(), NO_MEMORY),
        _unless(why_no_mounts(), FULL_DISKS),
        _unless(None if os.geteuid() == 0 else "needs root, to become another user", OTHER_USERS),
        _unless(injection.why_not(), STRUCK_COMMANDS),
        _unless(injection.why_not(), SLOW_SYNCS),
    ],
)
def test_a_run_survives(trial: Trial) -> None:
    tried(trial, "short").check()


@pytest.mark.skipif(why_no_mounts() is not None, reason=why_no_mounts() or "")
def test_a_small_file_system_is_seen_by_nobody_else_and_gone_afterwards(tmp_path: Path) -> None:
    def mounted() -> int:
        with small_tmpfs(tmp_path / "small", "size=8k") as disk:
            disk.fill(100)
            assert not list((tmp_path / "small").parent.glob("small.image"))
            return sum(path.stat().st_size for path in disk.path.iterdir())

    assert in_private_mounts(mounted) == 8092
    assert list((tmp_path / "small").iterdir()) == []


@pytest.mark.parametrize("limit", [5, 7, 9])
def test_a_process_that_is_started_with_few_descriptors_says_so(tmp_path: Path, limit: int) -> None:
    """In a process of its own, where modules that are imported late need descriptors as well."""
    place = Workplace(tmp_path, {"provider": "scripted", "script": "script.yaml"}, [])
    place.scripted([{"text": "All is well."}])
    few = ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
    if subprocess.run([*few, sys.executable, "-c", "import asyncio"], capture_output=True).returncode != 0:
        pytest.skip(f"with {limit} descriptors not even the interpreter starts")
    process = place.begin(through=few)
    code, out = process.finishes()
    assert (code, out) in [(1, ""), (2, ""), (0, "All is well.\n")]
    assert code == 0 or "Too many open files" in process.stderr
    assert code == 0 or process.stderr.count("fisk-ai: ") == 1
    assert "internal error" not in process.stderr
    place.state_dir.mkdir(exist_ok=True)
    assert place.start("again", "--checkpoint", "--name", "another").finishes() == (0, "All is well.\n")
