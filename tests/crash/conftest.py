"""The process that crashes on command, one for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.commands import started
from tests.crash.crashing import Driver


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    """End what a test has left running: tools that work as long as a file is there, and runners."""
    yield
    (tmp_path / "hold").unlink(missing_ok=True)
    while started:
        process = started.pop()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
