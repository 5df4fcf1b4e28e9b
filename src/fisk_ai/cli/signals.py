"""Signals as requests to a run: the first suspends a checkpointed run, the second aborts it."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio

from fisk_ai.agent.control import Control
from fisk_ai.agent.events import RunResult

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def steered(
    run: Callable[[Control], Awaitable[RunResult]], *, stored: bool, say: Callable[[str], None]
) -> RunResult:
    """Drive a run while signals are turned into requests to it.

    A signal that was ignored when the process started (`nohup`, a shell's background job) stays ignored.
    """
    control = Control()
    heard = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    if not heard:
        return await run(control)
    outcome: RunResult | Exception | None = None
    # Outside of the group, which would wrap what this raises: a process may be short of descriptors.
    with anyio.open_signal_receiver(*heard) as received:
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                async for number in received:
                    _react(control, signal.Signals(number), stored=stored, say=say)

            group.start_soon(listen)
            try:
                outcome = await run(control)
            except Exception as problem:  # noqa: BLE001 - raised below, outside of the group, which would wrap it
                outcome = problem
            group.cancel_scope.cancel()
    if isinstance(outcome, RunResult):
        return outcome
    raise outcome or AssertionError("a run ends with a result or an error")


def _react(control: Control, number: signal.Signals, *, stored: bool, say: Callable[[str], None]) -> None:
    if stored and not control.suspend_requested:
        say(f"{number.name}: stopping as soon as the running step has ended (once more: at once)")
        control.suspend()
    else:
        control.abort()
