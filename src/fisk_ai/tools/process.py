"""One process of a tool: started in a group of its own, read while it runs, and gone, with its group, at the end.

What is run, with which environment, and what its output means is the business of `command`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from fisk_ai.call_guard import CallGuard
from fisk_ai.tools.worker import run_abandonable

GRACE_S = 1.0
"""Between SIGTERM and SIGKILL."""

LEFTOVER_GRACE_S = 0.25
"""How long output is still read when the process has ended but a child of it holds the pipe."""

_KILLED_S = 5.0
_CHUNK = 65536
_LARGEST_PIPE = 1024 * 1024


class NotStarted(Exception):
    """The process can't be started; the text says why. Nothing ran."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended and what it wrote, stdout and stderr in order."""

    status: int
    """Exit status; minus the number of the signal that ended it."""
    timed_out: bool
    output: bytes
    """The start of what it wrote."""
    size_bytes: int
    """All that it wrote."""


async def run_process(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    capture_bytes: int,
    cwd: str | None = None,
    guard: CallGuard | None = None,
    timeout_s: float | None = None,
) -> Ended:
    """Run a process in its own session and wait for its end.

    It inherits stdin from /dev/null, one pipe, and the descriptor of `guard`, nothing else. When it ends by itself,
    children that it left behind are left alone (they get SIGPIPE if they write). At the time limit, and when this
    is cancelled, its whole group gets SIGTERM, and SIGKILL after `GRACE_S`; only then does this return.

    Raises:
        NotStarted: if it can't be started.
    """
    await checkpoint_if_cancelled()
    output = _Output(capture_bytes)
    try:
        process = _start(argv, environment, cwd, guard, output)
        try:
            if guard is not None:
                guard.started(process.pid)
            timed_out = await _run(process, output, timeout_s)
        finally:
            _make_sure_it_ended(process)
    finally:
        output.close()
    return Ended(process.returncode, timed_out, bytes(output.kept), output.size_bytes)


class _Output:
    """The reading end of a pipe: keeps the first bytes, counts the rest."""

    def __init__(self, capture_bytes: int) -> None:
        self._capture_bytes = capture_bytes
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._reading = anyio.CancelScope(shield=True)  # what is being killed may still have something to say
        self.kept = bytearray()
        self.size_bytes = 0
        self.at_end = anyio.Event()

    async def read(self) -> None:
        """Read until no process holds the writing end any more, or until `stop`."""
        with self._reading:
            while True:
                await anyio.wait_readable(self._reader)
                if not self._take():
                    self.at_end.set()
                    return
        with contextlib.suppress(BlockingIOError):
            for _ in range(_LARGEST_PIPE // _CHUNK):  # bounded: somebody may go on writing
                if not self._take():
                    return

    def stop(self) -> None:
        self._reading.cancel()

    def _take(self) -> bool:
        chunk = os.read(self._reader, _CHUNK)
        self.size_bytes += len(chunk)
        self.kept += chunk[: self._capture_bytes - len(self.kept)]
        return bool(chunk)

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        os.close(self._reader)


def _start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | None,
    guard: CallGuard | None,
    output: _Output,
) -> subprocess.Popen[bytes]:
    """Start the process. Synchronous, so that no cancellation comes between its start and its being known."""
    try:
        return subprocess.Popen(  # noqa: S603 - argv comes from the operator's configuration, without a shell
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output.writer,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
            pass_fds=() if guard is None else (guard.descriptor,),
        )
    except (OSError, ValueError) as problem:  # ValueError: NUL or text that the file system's encoding can't hold
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        place = f" (in directory {cwd!r})" if cwd is not None and not os.path.isdir(cwd) else ""
        raise NotStarted(f"{argv[0]!r} can't be started{place}: {why}") from None
    finally:
        output.close_writer()


async def _run(process: subprocess.Popen[bytes], output: _Output, timeout_s: float | None) -> bool:
    """Read and wait until the process has ended; tell whether its time was up."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(output.read)
        try:
            timed_out = await _wait(process, output, timeout_s)
        finally:
            output.stop()
    return timed_out


async def _wait(process: subprocess.Popen[bytes], output: _Output, timeout_s: float | None) -> bool:
    in_order = timed_out = False
    try:
        with anyio.move_on_after(timeout_s) as limit:
            await _exited(process)
        # If this process was stopped meanwhile (Ctrl-Z), it may have ended in time before anybody could look.
        timed_out = limit.cancelled_caught and process.poll() is None
        if not timed_out:
            with anyio.move_on_after(LEFTOVER_GRACE_S):
                await output.at_end.wait()
            in_order = True
    finally:
        if not in_order:
            await _end_group(process, output)
    return timed_out


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the process without polling, and where that is possible without reaping it.

    As long as it is a zombie its number can't be given to another process, so that its group can be signalled safely.
    """
    if process.returncode is not None:
        return
    descriptor = _pidfd(process.pid)
    if descriptor is None:
        await run_abandonable(lambda: process.wait(), "waits for a tool")
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def _pidfd(pid: int) -> int | None:
    if sys.platform == "linux":
        # Old kernels and some sandboxes don't have it.
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


async def _end_group(process: subprocess.Popen[bytes], output: _Output) -> None:
    try:
        with anyio.move_on_after(GRACE_S, shield=True):
            _signal_group(process, signal.SIGTERM)
            await _exited(process)
            await output.at_end.wait()  # children, too, may use their grace
    finally:
        # Also when a cancellation that no shield holds back (asyncio's own) cuts the grace short.
        _signal_group(process, signal.SIGKILL)
    with anyio.move_on_after(_KILLED_S, shield=True):
        await _exited(process)
        with anyio.move_on_after(LEFTOVER_GRACE_S):
            await output.at_end.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # Nobody is left in the group, or only what the operating system doesn't let us signal (set-user-id programs).
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _make_sure_it_ended(process: subprocess.Popen[bytes]) -> None:
    """Reap the process; kill it first if waiting for it was cut short."""
    if process.poll() is None:
        _signal_group(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)
