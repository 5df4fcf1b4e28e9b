"""The process that crashes on command, one for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.crashing import Driver


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    with Driver() as driver:
        yield driver
