"""Blocking functions beside the event loop, in threads that nothing has to wait for."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token

T = TypeVar("T")


async def run_abandonable(function: Callable[[], T], name: str) -> T:
    """Run `function` in a thread of its own and return its value; what it raises is raised here.

    A cancellation leaves the thread to itself and does not wait. Other than the workers of `anyio.to_thread` it is a
    daemon thread, so that a function which never returns doesn't keep the process from exiting either.
    """
    token = current_token()
    ended = anyio.Event()
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as problem:  # noqa: BLE001 - handed over to the task that waits, whatever it is
            outcome.set_exception(problem)
        # The loop may have ended, when nobody waits any more.
        with contextlib.suppress(anyio.RunFinishedError, RuntimeError):
            from_thread.run_sync(ended.set, token=token)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    await ended.wait()
    return outcome.result()
