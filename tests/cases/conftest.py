"""Fixtures of the tests of reported failures: an agent within this process, and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.bench import Library, Shell, library
from tests.cli.conftest import Inline
from tests.cli.conftest import inline as inline

__all__ = ["inline"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def lib(tmp_path: Path) -> Library:
    """Agents over one file store, with an empty script."""
    return library(tmp_path)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def shell(bench: Shell, inline: Inline) -> Shell:
    """The command line in a directory with an agent.yaml, within this process or as one of its own."""
    bench.fast = inline
    return bench
