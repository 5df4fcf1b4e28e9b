"""A repeat never starts while a process of the first try is still alive."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Literal

import anyio

from fisk_ai.agent.events import OnEvent, OrphanFound
from fisk_ai.stores.base import Journal, Orphan
from fisk_ai.stores.orphans import still_running
from fisk_ai.stores.processes import end

OrphanPolicy = Literal["wait", "kill", "ignore"]

KILL_WAIT_S = 5.0
_POLL_S = 0.05
_SLOWEST_POLL_S = 0.5
"""Looking costs little, but a tool may take hours."""


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
        end_orphans(journal, orphans)
        wait_s = KILL_WAIT_S
    pause_s = _POLL_S
    with anyio.move_on_after(wait_s):
        while orphans := journal.find_orphans():
            if policy == "kill":
                _kill(orphans)
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 1.1, _SLOWEST_POLL_S)
        return
    why = ", although it was told to end" if policy == "kill" else f" after a wait of {wait_s:g} s"
    raise still_running(journal.run_id, orphans, why)


def end_orphans(journal: Journal, orphans: Sequence[Orphan]) -> None:
    """Kill what is left of earlier calls; what escaped its group is found when one looks again.

    Raises:
        OrphanRunning: if it isn't known whom to kill; nobody was.
    """
    for orphan in orphans:
        if not (orphan.is_same or orphan.processes):
            why = ", but the process that was started for the call is gone and what it left can't be told from others"
            raise still_running(journal.run_id, [orphan], why)
    _kill(orphans)


def _kill(orphans: Sequence[Orphan]) -> None:
    for orphan in orphans:
        if orphan.is_same and orphan.process_group is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                os.killpg(orphan.process_group, signal.SIGKILL)
        for process in orphan.processes:
            end(process)
