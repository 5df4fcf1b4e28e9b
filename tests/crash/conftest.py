"""The process that crashes on command, one for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.commands import started
from tests.crash.crashing import Driver


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """End what a failed test has left running."""
    yield
    while started:
        process = started.pop()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
