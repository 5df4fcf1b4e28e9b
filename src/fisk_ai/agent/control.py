"""Stopping a run from outside: at the next boundary, or at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anyio import RunFinishedError, from_thread
from anyio.lowlevel import EventLoopToken, current_token


class Control:
    """Asks a run to suspend or to abort; usable from any thread and before the run starts.

    `suspend` lets the model call or tool that is running finish; a retry pause and the input line are left at once.
    `abort` ends everything at once and writes nothing more. Call them from the event loop or from another thread, not
    from a raw signal handler (anyio's `open_signal_receiver` brings signals into the loop).
    """

    def __init__(self) -> None:
        self.suspend_requested = False
        self.abort_requested = False
        self._mutex = threading.Lock()
        self._listener: tuple[Callable[[], None], EventLoopToken, int] | None = None

    def suspend(self) -> None:
        """Stop at the next boundary."""
        self.suspend_requested = True
        self._notify()

    def abort(self) -> None:
        """Stop at once."""
        self.abort_requested = True
        self._notify()

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` in this event loop whenever something is asked, and at once if it was before."""
        with self._mutex:
            if self._listener is not None:
                raise RuntimeError("a Control steers one run at a time: make one for each run")
            self._listener = listener, current_token(), threading.get_ident()
        try:
            if self.suspend_requested or self.abort_requested:
                listener()
            yield
        finally:
            with self._mutex:
                self._listener = None

    def _notify(self) -> None:
        with self._mutex:
            found = self._listener
        if found is None:
            return
        listener, token, thread = found
        if thread == threading.get_ident():
            listener()
        else:
            with contextlib.suppress(RunFinishedError):  # the run has ended meanwhile
                from_thread.run_sync(listener, token=token)
