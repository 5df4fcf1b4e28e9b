"""One execution with a limit of time, and some with a limit of memory."""

from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tests.reliability.trials import BrokenPromise

HANG_S = 1.0
"""An input that takes longer hangs: the slowest of a few kilobytes take milliseconds."""
MEMORY_CONSTANT = 1536 * 1024
"""What no input can be blamed for: buffers, tables of patterns, the checks themselves."""


class Alarm:
    """Raises `TimeoutError` in the main thread when an execution takes too long."""

    def set(self, times: int = 1) -> None:
        """Begin to wait so many times the limit, anew."""
        signal.setitimer(signal.ITIMER_REAL, HANG_S * times)

    def stop(self) -> None:
        """Wait no more."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def ring(self, _number: int, _frame: FrameType | None) -> None:
        """Raise; what takes the signal calls this."""
        raise TimeoutError(f"it took more than {HANG_S} s")


@contextmanager
def alarms() -> Iterator[Alarm]:
    """Take the alarm signal within the block."""
    alarm = Alarm()
    before = signal.signal(signal.SIGALRM, alarm.ring)
    try:
        yield alarm
    finally:
        alarm.stop()
        signal.signal(signal.SIGALRM, before)


def check_memory(run: Callable[[bytes], None], data: bytes, factor: int) -> None:
    """Run a target and hold its peak of memory against the size of its input.

    Raises:
        BrokenPromise: if it took more than it may.
    """
    tracemalloc.start()
    try:
        run(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allowed = factor * len(data) + MEMORY_CONSTANT
    if peak > allowed:
        raise BrokenPromise(f"{peak} bytes of memory for an input of {len(data)}, {allowed} are allowed", "hang")
