"""Every operation on files that fisk-ai's durability and safety rest on, behind one small interface.

No other module syncs, locks, truncates, creates or removes a file of a store, so a simulated disk can take this one's
place and a reader can check the promises in one spot. Files are reached by the descriptor of their directory and a
plain name, never by a path that somebody could swap between a check and a use.

What no system can promise: that the drive keeps what it says it has synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
from dataclasses import dataclass
from typing import Protocol

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

_F_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None)
# struct flock of Linux with 64-bit offsets: type, whence, start, length, pid. OFD locks want pid 0.
_FLOCK = struct.Struct("hhqqi4x")


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a file by its descriptor or name."""

    identity: tuple[int, int]
    """Device and inode."""
    mode: int
    """Permission bits."""
    owner: int
    links: int
    size_bytes: int
    is_regular: bool
    is_directory: bool
    modified_ns: int


class Disk(Protocol):
    """File operations by descriptor; each raises `OSError` as the system does."""

    def open_directory(self, path: str) -> int:
        """Open a directory for use with the other methods."""

    def make_directory(self, parent: int, name: str) -> int:
        """Make a directory with mode 0700 whatever the umask, and open it; an existing one is opened as it is."""

    def create_file(self, directory: int, name: str) -> int:
        """Create a file with mode 0600 whatever the umask and open it for writing; it must not exist."""

    def open_file(self, directory: int, name: str, *, writable: bool = False) -> int:
        """Open an existing file; follows no link and never blocks, whatever it is."""

    def facts(self, descriptor: int) -> FileFacts:
        """Describe an open file or directory."""

    def find(self, directory: int, name: str) -> FileFacts | None:
        """Describe what stands at a name now, without following a link; None if nothing does."""

    def find_directory(self, path: str) -> FileFacts | None:
        """Describe the directory that a path leads to now; None if there is none."""

    def names(self, directory: int) -> list[str]:
        """List a directory."""

    def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
        """Read up to `size_bytes` at `offset`; empty at the end."""

    def write(self, descriptor: int, data: bytes) -> None:
        """Append all of `data` at the end of a file; not durable until `sync`."""

    def overwrite(self, descriptor: int, data: bytes) -> None:
        """Make `data` the whole content of a file; not synced, for lock files only."""

    def sync(self, descriptor: int) -> None:
        """Return when all that was written to a file, or all names in a directory, are on the drive."""

    def drop_cache(self, descriptor: int) -> None:
        """Forget cached pages that are clean, so that the next read sees what the drive has."""

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut a file."""

    def set_mode(self, descriptor: int, mode: int) -> None:
        """Set permission bits."""

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        """Take the advisory lock without waiting; False if somebody else has it."""

    def announce(self, descriptor: int) -> bool:
        """Make a held lock visible to `is_announced`; False where the system can't."""

    def is_announced(self, descriptor: int) -> bool | None:
        """Tell whether somebody announced a lock on the file, taking none; None where the system can't tell."""

    def remove(self, directory: int, name: str) -> None:
        """Remove a name; one that isn't there is no error."""

    def rename(self, directory: int, name: str, to: str) -> None:
        """Give a file another name in one step, in place of what may stand there; not durable until `sync`."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor, which it then is in any case; locks go with the last copy of it."""


class OsDisk:
    """The real file system."""

    def open_directory(self, path: str) -> int:
        """Open a directory."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def make_directory(self, parent: int, name: str) -> int:
        """Make (mode 0700) and open a directory."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=parent)
        except FileExistsError:
            return os.open(name, flags, dir_fd=parent)
        return _with_mode(os.open(name, flags, dir_fd=parent), DIRECTORY_MODE)

    def create_file(self, directory: int, name: str) -> int:
        """Create (mode 0600) and open a file."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return _with_mode(os.open(name, flags, FILE_MODE, dir_fd=directory), FILE_MODE)

    def open_file(self, directory: int, name: str, *, writable: bool = False) -> int:
        """Open an existing file."""
        access = os.O_RDWR | os.O_APPEND if writable else os.O_RDONLY
        # Without O_NONBLOCK a fifo in place of a journal would block for ever.
        flags = access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        return os.open(name, flags, dir_fd=directory)

    def facts(self, descriptor: int) -> FileFacts:
        """Describe an open file."""
        return _facts(os.fstat(descriptor))

    def find(self, directory: int, name: str) -> FileFacts | None:
        """Describe what stands at a name."""
        try:
            return _facts(os.stat(name, dir_fd=directory, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def find_directory(self, path: str) -> FileFacts | None:
        """Describe the directory at a path."""
        try:
            return _facts(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, directory: int) -> list[str]:
        """List a directory."""
        return os.listdir(directory)

    def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
        """Read at an offset."""
        return os.pread(descriptor, size_bytes, offset)

    def write(self, descriptor: int, data: bytes) -> None:
        """Append; one system call unless the disk takes only a part, and then the next one says why."""
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])

    def overwrite(self, descriptor: int, data: bytes) -> None:
        """Replace the content."""
        os.ftruncate(descriptor, 0)
        os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Sync; on macOS through the drive's own cache."""
        if _F_FULLFSYNC is not None:
            fcntl.fcntl(descriptor, _F_FULLFSYNC)
        else:
            os.fsync(descriptor)

    def drop_cache(self, descriptor: int) -> None:
        """Drop cached pages where the system has a way to."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut a file."""
        os.ftruncate(descriptor, size_bytes)

    def set_mode(self, descriptor: int, mode: int) -> None:
        """Set permission bits."""
        os.fchmod(descriptor, mode)

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        """Take the flock; only EWOULDBLOCK means that somebody has it."""
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def announce(self, descriptor: int) -> bool:
        """Set an OFD write lock beside the flock: that kind can be asked for without being taken."""
        if _OFD_SETLK is None or sys.platform != "linux":
            return False
        try:
            fcntl.fcntl(descriptor, _OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as problem:
            if problem.errno in (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
                return False
            raise
        return True

    def is_announced(self, descriptor: int) -> bool | None:
        """Ask for an OFD lock that would conflict."""
        if _OFD_GETLK is None or sys.platform != "linux":
            return None
        ask = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            answer = fcntl.fcntl(descriptor, _OFD_GETLK, ask)
        except OSError as problem:
            if problem.errno in (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
                return None
            raise
        kind: int = _FLOCK.unpack(answer)[0]
        return kind != fcntl.F_UNLCK

    def remove(self, directory: int, name: str) -> None:
        """Remove a name."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)

    def rename(self, directory: int, name: str, to: str) -> None:
        """Rename within a directory."""
        os.rename(name, to, src_dir_fd=directory, dst_dir_fd=directory)

    def close(self, descriptor: int) -> None:
        """Close a descriptor; what it reports is no failure: what has to be durable was synced before."""
        try:
            os.close(descriptor)
        except OSError as problem:
            if problem.errno == errno.EBADF:
                raise  # not a report of the disk's, but a mistake of ours


def _with_mode(descriptor: int, mode: int) -> int:
    """Give back permission bits that the umask may have taken away; what can't be given them doesn't stay open."""
    try:
        os.fchmod(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _facts(status: os.stat_result) -> FileFacts:
    return FileFacts(
        identity=(status.st_dev, status.st_ino),
        mode=stat.S_IMODE(status.st_mode),
        owner=status.st_uid,
        links=status.st_nlink,
        size_bytes=status.st_size,
        is_regular=stat.S_ISREG(status.st_mode),
        is_directory=stat.S_ISDIR(status.st_mode),
        modified_ns=status.st_mtime_ns,
    )
