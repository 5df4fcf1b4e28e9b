"""Processes of this machine: which of them hold a lock, told apart from later ones with the same number.

Linux shows all of it under /proc. Where that is missing, or shows less, nothing is found, which is never taken for an
answer: the lock itself says whether somebody holds it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence

from fisk_ai.stores.base import Process


def start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's own words; None if it is gone or the system doesn't say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Field 22, counted after the name, which may hold blanks and brackets.
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read().strip().decode()
    except OSError:
        return None
    if fields[0] == b"Z":
        return None  # a zombie runs nothing
    return f"{boot}/{fields[19].decode()}"


def holders(name: str, identity: tuple[int, int]) -> Sequence[Process]:
    """Return the processes that hold a `flock` on a file, but for this one.

    Args:
        name: the file's name without its directory.
        identity: its device and inode.
    """
    holding = (pid for pid in _others() if _holds(pid, name, identity))
    return tuple(Process(pid, started) for pid in holding if (started := start_time(pid)) is not None)


def _others() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid())


def _holds(pid: int, name: str, identity: tuple[int, int]) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False  # gone, or another user's
    return any(_is_lock(f"/proc/{pid}", number, name, identity) for number in descriptors)


def _is_lock(process: str, number: str, name: str, identity: tuple[int, int]) -> bool:
    """Tell whether a descriptor has the lock: who merely reads the file, say for a backup, doesn't."""
    descriptor = f"{process}/fd/{number}"
    try:
        # The name first: to look at a file of any other kind could block.
        if os.path.basename(os.readlink(descriptor)).removesuffix(" (deleted)") != name:
            return False
        found = os.stat(descriptor)
        with open(f"{process}/fdinfo/{number}", "rb") as file:
            return (found.st_dev, found.st_ino) == identity and b"FLOCK" in file.read()
    except OSError:
        return False  # closed meanwhile


def end(process: Process) -> None:
    """Kill a process unless it is gone; a later one with its number is never hit."""
    if sys.platform != "linux":
        return
    # It is gone, or the system doesn't let us signal it: the lock says so.
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if start_time(process.pid) == process.started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
