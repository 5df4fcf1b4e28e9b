"""Children for tests: a fork that runs one function, as another user or under another umask where wanted."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import traceback
from collections.abc import Callable

NOBODY = 65534
LIMIT_S = 40


class Child:
    """A forked process that runs `action`; `result` waits for what it returns, as text."""

    def __init__(self, action: Callable[[], object], *, uid: int | None = None, umask: int | None = None) -> None:
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(answer, action, uid, umask)
        os.close(answer)

    def _run(self, answer: int, action: Callable[[], object], uid: int | None, umask: int | None) -> None:
        text = "child died"
        try:
            os.close(self._answer)
            if umask is not None:
                os.umask(umask)
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            text = f"ok {action()}"
        except BaseException:  # noqa: BLE001 - whatever it is, the parent shows it
            text = traceback.format_exc()
        finally:
            with contextlib.suppress(OSError):
                os.write(answer, text.encode()[:60_000])
            os._exit(0)

    def result(self, limit_s: float = LIMIT_S) -> str:
        """Wait for the end; raises AssertionError with the child's traceback, or if it takes too long."""
        ready, _, _ = select.select([self._answer], [], [], limit_s)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        text = os.read(self._answer, 65536).decode() or f"killed after {limit_s} s"
        os.close(self._answer)
        assert text.startswith("ok "), text
        return text.removeprefix("ok ")


def in_child(action: Callable[[], object], *, uid: int | None = None, umask: int | None = None) -> str:
    """Run a function in a forked process and return what it returns, as text."""
    return Child(action, uid=uid, umask=umask).result()
