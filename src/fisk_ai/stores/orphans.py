"""The lock that a run's tools inherit on purpose, so that a resume never repeats a call beside itself.

`<id>.tools` is held shared by every process of a running call. The runner's own death does not free it. What a tool
leaves running behind its back (a daemon) keeps it held too. In it is a line of JSON for each call that began since
nobody held it: calls may run side by side, and each of them has to be found again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from fisk_ai.errors import NotPermitted, OrphanRunning
from fisk_ai.stores.base import Orphan
from fisk_ai.stores.disk import FILE_MODE, Disk
from fisk_ai.stores.lock import require_plain_file
from fisk_ai.stores.processes import holders, start_time

_NOTES_BYTES = 64 * 1024
"""The end of the notes that is read: more calls than ever run side by side."""

_NAMED = 5
"""Processes that a refusal names; a tree of them may be large."""

_taking = threading.RLock()
"""Going from an exclusive lock to a shared one is not atomic: meanwhile another thread could have it."""


@dataclass(frozen=True, slots=True)
class ToolsLock:
    """The shared lock of one running call."""

    disk: Disk
    descriptor: int
    tool: str
    call_id: str
    timeout_s: float | None

    def started(self, process_group: int) -> None:
        """Note the group and when its leader started, which together can't be mistaken for a later process."""
        self._note({"pgid": process_group, "started": start_time(process_group)})

    def announce(self) -> None:
        """Note the call before its process exists."""
        self._note({})

    def _note(self, more: dict[str, object]) -> None:
        call = {"tool": self.tool, "tool_use_id": self.call_id, "timeout_s": self.timeout_s}
        # The lock counts, not the note: without one (a full disk) an orphan is still seen, only not named.
        with suppress(OSError):
            self.disk.write(self.descriptor, json.dumps({**call, **more}).encode() + b"\n")


@contextmanager
def hold(disk: Disk, directory: int, name: str, path: str, call: tuple[str, str, float | None]) -> Iterator[ToolsLock]:
    """Hold the shared lock while a call runs; processes that inherited it may keep it longer.

    Raises:
        NotPermitted: if the file can't be used.
    """
    try:
        try:
            descriptor = disk.create_file(directory, name)
        except FileExistsError:
            descriptor = disk.open_file(directory, name, writable=True)
    except OSError as problem:
        raise NotPermitted(path, f"the tools' lock can't be opened: {problem.strerror}") from None
    try:
        _take(disk, descriptor, path)
        lock = ToolsLock(disk, descriptor, *call)
        lock.announce()
        yield lock
    finally:
        disk.close(descriptor)


def _take(disk: Disk, descriptor: int, path: str) -> None:
    require_plain_file(disk, descriptor, path)
    try:
        if disk.facts(descriptor).mode != FILE_MODE:
            disk.set_mode(descriptor, FILE_MODE)
        with _taking:
            if disk.lock(descriptor):
                _forget_notes(disk, descriptor)
            taken = disk.lock(descriptor, shared=True)
    except OSError as problem:
        raise NotPermitted(path, f"the tools' lock can't be taken: {problem.strerror}") from None
    if not taken:
        raise NotPermitted(path, "the tools' lock can't be taken: another process has it for itself")


def _forget_notes(disk: Disk, descriptor: int) -> None:
    """Empty the notes, while nobody else can hold the lock: all calls in them are over."""
    with suppress(OSError):  # notes of calls that are over name no living process
        disk.overwrite(descriptor, b"")


def find(disk: Disk, directory: int, name: str, path: str) -> Sequence[Orphan]:
    """Return who still holds the tools' lock; only the holder of the run's own lock may ask.

    Raises:
        NotPermitted: if the file can't be used.
    """
    try:
        descriptor = disk.open_file(directory, name)
    except FileNotFoundError:
        return ()
    except OSError as problem:
        raise NotPermitted(path, f"the tools' lock can't be opened: {problem.strerror}") from None
    try:
        require_plain_file(disk, descriptor, path)
        return () if disk.lock(descriptor) else _found(disk, descriptor, name)
    except OSError as problem:
        raise NotPermitted(path, f"the tools' lock can't be asked: {problem.strerror}") from None
    finally:
        disk.close(descriptor)


def _found(disk: Disk, descriptor: int, name: str) -> Sequence[Orphan]:
    orphans = _described(_read_notes(disk, descriptor))
    if any(orphan.is_same for orphan in orphans):
        return orphans
    # Nobody is noted who certainly lives, but somebody holds the lock: that is who counts.
    processes = holders(name, disk.facts(descriptor).identity)
    if not processes and disk.lock(descriptor):
        return ()  # it ended just now
    return tuple(replace(orphan, processes=processes) for orphan in orphans)


def _read_notes(disk: Disk, descriptor: int) -> bytes:
    return disk.read(descriptor, _NOTES_BYTES, max(0, disk.facts(descriptor).size_bytes - _NOTES_BYTES))


def _described(notes: bytes) -> Sequence[Orphan]:
    noted = [orphan for line in notes.splitlines() if (orphan := _describe(line)) is not None]
    living = tuple(orphan for orphan in noted if orphan.is_same)
    return living or tuple(noted[-1:]) or (Orphan(None, None, is_same=False),)


def _describe(line: bytes) -> Orphan | None:
    try:
        noted = json.loads(line)
        tool, group, started = noted["tool"], noted.get("pgid"), noted.get("started")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_same = isinstance(group, int) and started is not None and start_time(group) == started
    return Orphan(str(tool), group if isinstance(group, int) else None, is_same)


def still_running(run_id: str, orphans: Sequence[Orphan], why: str, advice: str | None = None) -> OrphanRunning:
    """Return the refusal that names all that is known of living calls, the first of them as its subject."""
    first, *others = orphans
    processes = [str(process.pid) for orphan in orphans for process in orphan.processes]
    alive = f", as process {', '.join(processes[:_NAMED])}" if processes else ""
    beside = "".join(f", beside tool {other.tool!r} (process group {other.process_group})" for other in others)
    return OrphanRunning(run_id, first.tool, first.process_group, alive + beside + why, advice)


# A child that is forked while another thread has it could never take it.
os.register_at_fork(before=_taking.acquire, after_in_parent=_taking.release, after_in_child=_taking.release)
