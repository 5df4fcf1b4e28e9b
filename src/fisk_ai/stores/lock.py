"""The lock of a run: one holder, no staleness, no logic of pids or ages.

The kernel's `flock` decides and drops it when the holder dies. The pid in the lock file is for messages only. A lock
file is removed only under its lock, and who got a lock checks that the file is still the one at its name: otherwise
two could hold two different files.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import dataclass

from fisk_ai.errors import JournalClosed, NotPermitted, RunLocked, StoreError
from fisk_ai.stores.disk import FILE_MODE, Disk

RETRY_S = 0.1
"""How long a lock that nobody announced is tried: a listing without OFD locks holds it for an instant."""

NAMING_S = 2.0
"""How long a holder that has not said who it is yet is waited for: it does so right after it has the lock, but on a
busy machine other processes may come in between."""

_PAUSE_S = 0.005
_held: set[RunLock] = set()
"""The locks of this process, also of journals that nobody closed: their descriptors are open all the same."""

_taking: dict[tuple[int, int], Disk] = {}
"""Descriptors of lock files that may become locks: a forked child would keep the lock that one of them gets."""

_forks_wait = threading.RLock()
"""Held while a lock file is opened or closed: a fork in between would copy a descriptor that is not known here, or find
one known whose number is another file's by now."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as far as the file says."""

    pid: int | None = None
    host: str | None = None


class RunLock:
    """A held lock; `release` or the end of the process gives it up."""

    def __init__(self, disk: Disk, descriptor: int, directory: int, name: str) -> None:
        self._disk = disk
        self._descriptor: int | None = descriptor
        self._directory = directory
        self._name = name
        self._identity = disk.facts(descriptor).identity  # that of an open file never changes
        _held.add(self)

    @property
    def descriptor(self) -> int:
        """The open lock file; raises `JournalClosed` after a release and in a forked child."""
        if self._descriptor is None:
            raise JournalClosed("the lock was given up, or belongs to the parent of this process")
        return self._descriptor

    def still_there(self) -> bool:
        """Tell whether the lock file is still the one at its name; raises as `descriptor` does."""
        _ = self.descriptor
        found = self._disk.find(self._directory, self._name)
        return found is not None and found.identity == self._identity

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up; `remove` takes the file away first, while nobody else can have it."""
        if self._descriptor is None:
            return
        try:
            if remove:
                self._disk.remove(self._directory, self._name)
            else:
                with contextlib.suppress(OSError):  # the note is for messages only; the lock goes with the descriptor
                    self._disk.overwrite(self._descriptor, b"")
        finally:
            _forks_wait.acquire()  # `with` needs memory: without any, the lock would be kept for good
            try:
                self._disk.close(self._descriptor)
                self._descriptor = None
                _held.discard(self)
            finally:
                _forks_wait.release()

    def put_mode_right(self) -> None:
        """Take access to the lock file away from everybody else."""
        if self._disk.facts(self.descriptor).mode != FILE_MODE:
            self._disk.set_mode(self.descriptor, FILE_MODE)

    def leave_to_parent(self) -> None:
        """In a forked child: close the copy. Unlocking would take the parent's lock away."""
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None


def acquire(disk: Disk, directory: int, name: str, run_id: str, path: str) -> RunLock:
    """Take the lock of a run.

    Raises:
        RunLocked: naming the holder where the file does.
        NotPermitted: if the lock file can't be used, or isn't a plain file of ours.
        StoreError: if the file system can't lock; a run never starts without.
    """
    started = time.monotonic()
    while True:
        with _forks_wait:
            descriptor = _open(disk, directory, name, path)
            try:
                taking = id(disk), descriptor
                _taking[taking] = disk
            except BaseException:
                disk.close(descriptor)
                raise
        lock: RunLock | None = None
        try:
            if not disk.lock(descriptor):
                _refuse_if_held(disk, descriptor, run_id, waited_s=time.monotonic() - started)
            elif _is_at(disk, directory, name, descriptor):
                disk.announce(descriptor)
                _note_holder(disk, descriptor)
                with _forks_wait:
                    lock = RunLock(disk, descriptor, directory, name)
                    del _taking[taking]
                return lock
        except OSError as problem:
            raise StoreError(
                f"can't lock {path}: {problem.strerror}. A run isn't started without its lock: keep runs on a file "
                f"system that has locks"
            ) from None
        finally:
            if lock is None:
                with _forks_wait:
                    del _taking[taking]
                    disk.close(descriptor)
        time.sleep(_PAUSE_S)


def _refuse_if_held(disk: Disk, descriptor: int, run_id: str, *, waited_s: float) -> None:
    holder = _read_holder(disk, descriptor)
    is_named = _is_current(holder)
    if waited_s >= (RETRY_S if is_named else NAMING_S) or (is_named and disk.is_announced(descriptor)):
        raise RunLocked(run_id, holder.pid, holder.host)


def _is_at(disk: Disk, directory: int, name: str, descriptor: int) -> bool:
    found = disk.find(directory, name)
    return found is not None and found.identity == disk.facts(descriptor).identity


def _open(disk: Disk, directory: int, name: str, path: str) -> int:
    try:
        while True:
            try:
                descriptor = disk.create_file(directory, name)
            except FileExistsError:
                try:
                    descriptor = disk.open_file(directory, name, writable=True)
                except FileNotFoundError:
                    continue  # removed by its holder between the two
            break
    except OSError as problem:
        raise NotPermitted(path, f"the lock file can't be opened: {problem.strerror}") from None
    try:
        require_plain_file(disk, descriptor, path)
    except BaseException:
        disk.close(descriptor)
        raise
    return descriptor


def require_plain_file(disk: Disk, descriptor: int, path: str) -> None:
    """Raise `NotPermitted` unless an open file is regular, ours and has one name."""
    try:
        facts = disk.facts(descriptor)
    except OSError as problem:
        raise NotPermitted(path, f"it can't be looked at: {problem.strerror}") from None
    if not facts.is_regular:
        raise NotPermitted(path, "it is not a regular file")
    if facts.owner != os.geteuid():
        raise NotPermitted(path, f"it belongs to another user (uid {facts.owner})")
    if facts.links > 1:
        raise NotPermitted(path, "it is a hard link: the same file has another name")


def _note_holder(disk: Disk, descriptor: int) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname()}
    # For messages only: a full disk must not keep a run from being opened and removed.
    with contextlib.suppress(OSError):
        disk.overwrite(descriptor, json.dumps(holder).encode() + b"\n")


def _read_holder(disk: Disk, descriptor: int) -> Holder:
    try:
        found = json.loads(disk.read(descriptor, 4096, 0))
        return Holder(pid=int(found["pid"]), host=str(found["host"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Holder()  # not written yet, or by somebody else: the lock counts, not its text


def _is_current(holder: Holder) -> bool:
    """Tell whether the noted holder may be the real one; a dead one's note is about to be replaced."""
    if holder.pid is None:
        return False
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def is_held(disk: Disk, directory: int, name: str) -> bool:
    """Tell whether somebody holds the lock at a name, without making an honest open fail.

    Where locks can't be asked for, the lock is taken shared for an instant; `acquire` waits longer than that.
    """
    try:
        descriptor = disk.open_file(directory, name)
    except OSError:
        return False  # no lock file, or none that we may look at: a holder's would be ours
    try:
        announced = disk.is_announced(descriptor)
        if announced is None and disk.facts(descriptor).is_regular:
            return not disk.lock(descriptor, shared=True)
        return bool(announced)
    except OSError:
        return False  # no locks on this file system, so nobody could open a run here
    finally:
        disk.close(descriptor)


def _leave_all_to_parent() -> None:
    _forks_wait.release()
    for lock in _held:
        lock.leave_to_parent()
    for (_, descriptor), disk in _taking.items():
        disk.close(descriptor)


os.register_at_fork(
    before=_forks_wait.acquire, after_in_parent=_forks_wait.release, after_in_child=_leave_all_to_parent
)
