"""What a resume does about processes of a call that outlived its runner."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fisk_ai.agent.orphan import settle_orphans
from fisk_ai.errors import OrphanRunning
from fisk_ai.stores import MemoryStore
from fisk_ai.stores.base import Orphan
from fisk_ai.stores.memory import MemoryJournal
from tests.strategies import RUN_ID, meta

pytestmark = pytest.mark.anyio


@pytest.fixture
def journal() -> Iterator[MemoryJournal]:
    with MemoryStore().create(RUN_ID, meta()) as opened:
        yield opened


@pytest.fixture
def tool() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def found(monkeypatch: pytest.MonkeyPatch, *looks: Sequence[Orphan]) -> list[Sequence[Orphan]]:
    """Let each look find what is given for it, and all later ones what is given last; returns those to come."""
    left = list(looks)
    monkeypatch.setattr(MemoryJournal, "find_orphans", lambda _self: left.pop(0) if len(left) > 1 else left[0])
    return left


def ignore(_event: object) -> None:
    """Take an event."""


async def test_a_living_tool_is_waited_for(journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    living = [Orphan("du", 1, is_same=True)]
    left = found(monkeypatch, living, living, living, [])
    await settle_orphans(journal, "wait", 60, ignore)
    assert left == [[]]


async def test_a_tool_that_outlasts_the_wait_is_named(journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, [Orphan("du", 71, is_same=True)])
    with pytest.raises(OrphanRunning, match=r"'du'.*process group 71.*after a wait of 0\.01 s"):
        await settle_orphans(journal, "wait", 0.01, ignore)


async def test_a_tool_that_may_be_ignored_is_told_of_all_the_same(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, [Orphan("du", 71, is_same=True)])
    told: list[Any] = []
    started = time.monotonic()
    await settle_orphans(journal, "ignore", 60, told.append)
    assert time.monotonic() - started < 30
    assert [event.process_group for event in told] == [71]


async def test_what_can_not_be_told_from_others_is_not_killed(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch, tool: subprocess.Popen[bytes]
) -> None:
    found(monkeypatch, [Orphan("du", tool.pid, is_same=False)], [])
    with pytest.raises(OrphanRunning, match="can't be told from others"):
        await settle_orphans(journal, "kill", 60, ignore)
    assert tool.poll() is None


async def test_what_is_still_the_tool_is_killed(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch, tool: subprocess.Popen[bytes]
) -> None:
    living = [Orphan("du", tool.pid, is_same=True)]
    monkeypatch.setattr(MemoryJournal, "find_orphans", lambda _self: living if tool.poll() is None else [])
    await settle_orphans(journal, "kill", 60, ignore)
    assert tool.poll() is not None
