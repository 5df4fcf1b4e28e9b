"""A repeat never starts while a process of the first try is still alive."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Literal

import anyio

from fisk_ai.agent.events import OnEvent, OrphanFound
from fisk_ai.errors import OrphanRunning
from fisk_ai.stores.base import Journal, Orphan

OrphanPolicy = Literal["wait", "kill", "ignore"]

KILL_WAIT_S = 5.0
_POLL_S = 0.05


async def settle_orphans(journal: Journal, policy: OrphanPolicy, wait_s: float, on_event: OnEvent) -> None:
    """Return when no process of an earlier call is left, or when it may be ignored.

    Args:
        journal: the run, locked by us.
        policy: wait for them up to `wait_s` seconds, end them, or go on beside them.
        wait_s: the tools' own time limit.
        on_event: told what is waited for, a call at a time.

    Raises:
        OrphanRunning: if one is still alive then, or can't be ended safely.
    """
    orphans = journal.find_orphans()
    for orphan in orphans:
        on_event(OrphanFound(orphan.tool, orphan.process_group, policy, wait_s))
    if not orphans or policy == "ignore":
        return
    if policy == "kill":
        _kill(journal, orphans)
        wait_s = KILL_WAIT_S
    with anyio.move_on_after(wait_s):
        while orphans := journal.find_orphans():  # noqa: ASYNC110 - no event tells that a lock was given up
            await anyio.sleep(_POLL_S)
        return
    why = ", although it was told to end" if policy == "kill" else f" after a wait of {wait_s:g} s"
    raise _still_running(journal, orphans, why)


def _kill(journal: Journal, orphans: Sequence[Orphan]) -> None:
    for orphan in orphans:
        if orphan.process_group is None or not orphan.is_same:
            why = ", but the process that was started for the call is gone and what it left can't be told from others"
            raise _still_running(journal, [orphan], why)
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            os.killpg(orphan.process_group, signal.SIGKILL)


def _still_running(journal: Journal, orphans: Sequence[Orphan], why: str) -> OrphanRunning:
    first, *others = orphans
    beside = "".join(f", beside tool {other.tool!r} (process group {other.process_group})" for other in others)
    return OrphanRunning(journal.run_id, first.tool, first.process_group, beside + why)
