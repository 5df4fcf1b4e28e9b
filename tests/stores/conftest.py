from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fisk_ai.stores import FileStore
from tests.stores.faults import FaultyDisk
from tests.strategies import MOMENT

Spawn = Callable[..., "subprocess.Popen[bytes]"]
ROOT = str(Path(__file__).parents[2])
HOLDER = str(Path(__file__).with_name("holder.py"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the runs of a test are; it does not exist yet."""
    return tmp_path / "state" / "runs"


@pytest.fixture
def disk() -> FaultyDisk:
    """A disk that logs."""
    return FaultyDisk()


@pytest.fixture
def store(directory: Path, disk: FaultyDisk) -> FileStore:
    """A store on that disk."""
    return FileStore(str(directory), disk=disk, clock=lambda: MOMENT)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start `holder.py` with a command; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, HOLDER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))},
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
