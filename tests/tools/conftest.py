"""What the tests of tools share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fisk_ai.tools import ToolContext

from .doubles import FileGuard


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def context() -> ToolContext:
    return ToolContext(run_id="orders-report", call_id="toolu_1", idempotency_key="k" * 32)


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[FileGuard]:
    guard = FileGuard(tmp_path / "tools.lock")
    yield guard
    guard.close()
