"""Processes that a call left behind although its group was ended: those that moved into a session of their own."""

from __future__ import annotations

import contextlib
import os


def find_leftovers(name: str, value: str) -> list[int]:
    """Return the processes that have a variable in the environment that they were started with.

    Only Linux shows that, and only of one's own processes; elsewhere nothing is found.
    """
    entry = f"{name}={value}".encode()
    found = []
    with contextlib.suppress(OSError):
        found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _has(pid, entry)]
    return sorted(found)


def _has(pid: str, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:
        return False  # gone, or another user's
