"""Processes that live and die for a check: forked children of this one, with a time limit, and what they noted.

A forked child has everything that the test has made (patches, fixtures, functions defined in a test) and starts in
milliseconds; a fresh interpreter would have none of it and take half a second. Only the thread that forks lives on in
the child, so what needs another thread of the test process doesn't work there.
"""

from __future__ import annotations

import contextvars
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fisk_ai.errors import ConfigError, FiskError
from fisk_ai.testing.points import Note

_OVERDUE_S = 2.0
"""How long a child that can't even say that its time is up is waited for."""
_POLL_S = 0.001
_SHOWN_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Life:
    """One process: how it ended and what it noted."""

    status: int
    """Exit status; minus the number of the signal that ended it."""
    notes: tuple[Mapping[str, Any], ...]
    output: str
    """The end of what was printed in it."""

    def noted(self, kind: str) -> Mapping[str, Any] | None:
        """Return the last note of a kind."""
        return next((note for note in reversed(self.notes) if note["kind"] == kind), None)

    @property
    def killed(self) -> bool:
        """True if it died at its kill point."""
        return self.status == -signal.SIGKILL and self.noted("killed") is not None

    @property
    def hung_at(self) -> str | None:
        """Where it was when its time was up; None if it ended in time."""
        hung = self.noted("hung")
        return None if hung is None else hung["at"]


def live(
    work: Callable[[Note], None],
    *,
    log: Path,
    directory: Path,
    limit_s: float,
    whereabouts: Callable[[], str],
) -> Life:
    """Do `work` in a forked child that works in `directory`, and wait for its end.

    Args:
        work: gets what notes facts in the file `log`.
        log: a file for the notes; what is printed goes into one beside it.
        directory: the working directory.
        limit_s: how long it may take; it is killed then.
        whereabouts: called in the child when its time is up; says where it is.

    Raises:
        ConfigError: where processes can't be forked.
    """
    if not hasattr(os, "fork"):
        raise ConfigError("the crash kit needs os.fork, which this system doesn't have: use Linux or macOS")
    pid = _fork()
    if pid == 0:
        _be_child(work, log, directory, limit_s, whereabouts)
    try:
        status = _wait(pid, limit_s + _OVERDUE_S)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    if status is None:
        _note(log, "hung", at="where can't be told, as its interpreter was blocked")
    return Life(-signal.SIGKILL if status is None else status, _read_notes(log), _read_output(log))


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn where there are other threads, such as those of a test runner. The child needs none of
        # them, and if it should meet a lock that one of them held, the time limit tells.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _wait(pid: int, limit_s: float) -> int | None:
    """Return the exit status of a child, or None if it had to be killed."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _be_child(
    work: Callable[[Note], None], log: Path, directory: Path, limit_s: float, whereabouts: Callable[[], str]
) -> None:
    """Work, and end this process whatever happens: nothing of the test may go on in it."""

    def note(kind: str, **facts: object) -> None:
        _note(log, kind, **facts)

    def time_is_up() -> None:
        note("hung", at=whereabouts())
        os.kill(os.getpid(), signal.SIGKILL)

    code = 70
    try:
        _print_to(_output_of(log))
        os.chdir(directory)
        watch = threading.Timer(limit_s, time_is_up)
        watch.daemon = True
        watch.start()
        contextvars.Context().run(work, note)  # a loop that runs in the test does not run here
        code = 0
    except FiskError as problem:
        note("refused", code=problem.code, text=str(problem))
        code = 1
    except BaseException:  # noqa: BLE001 - told in the test process, whatever it is
        note("failed", text=traceback.format_exc())
    finally:
        sys.stdout.flush()
        os._exit(code)


def _print_to(path: Path) -> None:
    """Let everything that is printed, by subprocesses as well, go into a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):
        # Open for as long as the process lives.
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _note(log: Path, kind: str, **facts: object) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, json.dumps({"kind": kind, **facts}).encode() + b"\n")
    finally:
        os.close(descriptor)


def _read_notes(log: Path) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(line) for line in log.read_bytes().splitlines()) if log.exists() else ()


def _output_of(log: Path) -> Path:
    return log.with_suffix(".output")


def _read_output(log: Path) -> str:
    path = _output_of(log)
    text = path.read_bytes().decode(errors="backslashreplace") if path.exists() else ""
    return text[-_SHOWN_CHARACTERS:]
