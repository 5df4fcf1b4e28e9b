"""A repeat never starts while the first try's process is still alive."""

from __future__ import annotations

import os
import signal
from typing import Literal

import anyio

from fisk_ai.agent.events import OnEvent, OrphanFound
from fisk_ai.errors import OrphanRunning
from fisk_ai.stores.base import Journal, Orphan

OrphanPolicy = Literal["wait", "kill", "ignore"]

KILL_WAIT_S = 5.0
_POLL_S = 0.05


async def settle_orphan(journal: Journal, policy: OrphanPolicy, wait_s: float, on_event: OnEvent) -> None:
    """Return when no process of an earlier call is left, or when it may be ignored.

    Args:
        journal: the run, locked by us.
        policy: wait for it up to `wait_s` seconds, end it, or go on beside it.
        wait_s: the tool's own time limit.
        on_event: told what is waited for.

    Raises:
        OrphanRunning: if it is still alive then, or can't be ended safely.
    """
    orphan = journal.find_orphan()
    if orphan is None:
        return
    on_event(OrphanFound(orphan.tool, orphan.process_group, policy, wait_s))
    if policy == "ignore":
        return
    if policy == "kill":
        _kill(journal, orphan)
        wait_s = KILL_WAIT_S
    with anyio.move_on_after(wait_s):
        while journal.find_orphan() is not None:  # noqa: ASYNC110 - no event tells that another process gave up a lock
            await anyio.sleep(_POLL_S)
        return
    why = ", although it was told to end" if policy == "kill" else f" after a wait of {wait_s:g} s"
    raise OrphanRunning(journal.run_id, orphan.tool, orphan.process_group, why)


def _kill(journal: Journal, orphan: Orphan) -> None:
    if orphan.process_group is None or not orphan.is_same:
        raise OrphanRunning(
            journal.run_id,
            orphan.tool,
            orphan.process_group,
            ", but the process that was started for the call is gone and what it left can't be told from others",
        )
    try:
        os.killpg(orphan.process_group, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself just now
