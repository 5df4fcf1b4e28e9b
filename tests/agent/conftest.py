"""What the tests of the loop share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.bench import Effects


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")
