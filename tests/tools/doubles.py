"""Doubles that work, and what tests ask of results."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import anyio.to_thread

from fisk_ai.messages import TextBlock
from fisk_ai.tools import ToolOutput


class FileGuard:
    """A call guard on a file: a shared lock that lives as long as any process of the call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.groups: list[int] = []
        self.ready: Signpost | None = None
        """Where the tool says that it is ready; the time limit of a call begins only then."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def started(self, process_group: int) -> None:
        self.groups.append(process_group)
        if self.ready is not None:
            self.ready.path.read_text()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def wait_until_nobody_holds_it(self) -> None:
        """Return when all processes of the call are gone; a living one makes the test time out."""
        self.close()
        with self.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def is_held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Signpost:
    """A fifo into which a tool writes when it has come somewhere."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "signpost"
        os.mkfifo(self.path)

    async def reached(self) -> str:
        return (await anyio.to_thread.run_sync(self.path.read_text, abandon_on_cancel=True)).strip()


def said(output: ToolOutput) -> str:
    """The text of a result that holds nothing else."""
    assert all(isinstance(block, TextBlock) for block in output.blocks)
    return "\n".join(block.text for block in output.blocks if isinstance(block, TextBlock))
