"""A disk in memory that knows what would survive a power cut, and forgets the rest when there is one.

The model, as strict as POSIX leaves it open:

* File contents are safe once the file was synced, names once their directory was (`entry_with_fsync`: syncing a file
  keeps its name, too, as common file systems do).
* Of what was not synced a crash keeps anything: some changes and not others, a write cut at any byte, a write without
  some of its 512-byte blocks (NULs stand there). At most one write of a file is torn.
* A failed sync decides what of the unsynced changes reached the drive, and tells nobody: the cache still shows all of
  it, the next sync says ok, and only `drop_cache` (or a crash) shows the truth. Names are different: a failed sync of
  a directory leaves its changes unsynced, because file systems stop rather than forget a part of their own structure.
* A file that was ever overwritten (a lock file) is scratch: a crash leaves its old content, its new one, or nothing.
* Modes are safe at once. Links and other users don't exist.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fisk_ai.stores.disk import DIRECTORY_MODE, FILE_MODE, FileFacts

BLOCK_BYTES = 512

Tree = Mapping[str, bytes | None]
"""Path without leading slash -> content; None for a directory."""


class PowerCut(BaseException):
    """The machine stopped: nothing catches this, and the disk does nothing more."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put at an offset."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A file made this long."""

    size_bytes: int


Change = Write | Cut


def applied(content: bytes, changes: Iterable[Change]) -> bytes:
    """Return a content after changes; what lies between its end and a write beyond that is NUL."""
    for change in changes:
        if isinstance(change, Cut):
            content = content[: change.size_bytes].ljust(change.size_bytes, b"\0")
        else:
            end = change.offset + len(change.data)
            content = content[: change.offset].ljust(change.offset, b"\0") + change.data + content[end:]
    return content


@dataclass
class Faults:
    """What goes wrong and when, from one seed. Odds are per operation of a kind."""

    rng: random.Random
    sync_fails: float = 0.0
    """EIO; what was unsynced is then in doubt for ever."""
    disk_is_full: float = 0.0
    """ENOSPC: a part of the write is there, perhaps all of it but a byte, perhaps nothing."""
    no_descriptors: float = 0.0
    """EMFILE when something is opened."""
    cut_fails: float = 0.0
    """EIO when a file is to be cut; it isn't."""
    power_cut_at: int | None = None
    """The number of the operation (from 1) that is never reached."""
    struck: Counter[str] = field(default_factory=Counter)
    """How often each fault happened; a test that wants a fault has to look here."""
    _operations: int = 0

    def passes(self) -> None:
        """Count an operation; at the chosen one the power is cut."""
        self._operations += 1
        if self._operations == self.power_cut_at:
            self.struck["power cut"] += 1
            raise PowerCut

    def strikes(self, what: str, odds: float) -> bool:
        """Draw whether a fault happens; draws nothing where it can't, so that one fault more shifts no other."""
        if odds and self.rng.random() < odds:
            self.struck[what] += 1
            return True
        return False


@dataclass(eq=False, slots=True)
class _File:
    number: int
    mode: int = FILE_MODE
    cached: bytes = b""
    """What every process sees."""
    drive: bytes = b""
    """What a crash can't take."""
    unsynced: list[Change] = field(default_factory=list)
    is_scratch: bool = False
    modified: int = 0
    holders: dict[int, bool] = field(default_factory=dict)
    """Descriptor -> whether its lock is shared."""
    announcer: int | None = None

    def change(self, *changes: Change) -> None:
        self.cached = applied(self.cached, changes)
        self.unsynced += changes
        self.modified += 1

    def sync(self) -> None:
        self.drive = applied(self.drive, self.unsynced).ljust(len(self.cached), b"\0")
        self.unsynced.clear()

    def lose(self, rng: random.Random) -> None:
        """Let a sync fail."""
        self.drive = self.survived(rng)
        self.unsynced.clear()

    @property
    def truth(self) -> bytes:
        """What the cache would show if it were dropped."""
        return applied(self.drive, self.unsynced).ljust(len(self.cached), b"\0")

    def forget_cache(self) -> None:
        self.cached = self.truth
        self.modified += 1

    def survived(self, rng: random.Random) -> bytes:
        """Draw what a crash leaves."""
        if self.is_scratch:  # one draw whatever its length, which depends on the process and the host
            return rng.choice((self.drive, self.cached, b"", b"\0" * len(self.cached)))
        if not self.unsynced:
            return self.drive
        kept = [change for change in self.unsynced if rng.random() < 0.6]
        writes = [change for change in kept if isinstance(change, Write) and change.data]
        torn = rng.choice(writes) if writes and rng.random() < 0.7 else None
        content = self.drive
        for change in kept:
            content = _torn(content, change, rng) if change is torn else applied(content, [change])
        return content


def _torn(content: bytes, change: Change, rng: random.Random) -> bytes:
    assert isinstance(change, Write)
    if rng.random() < 0.5:
        return applied(content, [Write(change.offset, change.data[: rng.randrange(len(change.data))])])
    end = change.offset + len(change.data)
    longer = content.ljust(end, b"\0")
    for start, stop in blocks(change):
        if rng.random() < 0.5:
            longer = applied(longer, [Write(start, change.data[start - change.offset : stop - change.offset])])
    return longer


def blocks(write: Write) -> Iterator[tuple[int, int]]:
    """Yield where the blocks of a write begin and end in its file."""
    end = write.offset + len(write.data)
    first = write.offset - write.offset % BLOCK_BYTES + BLOCK_BYTES
    yield from itertools.pairwise([write.offset, *range(first, end, BLOCK_BYTES), end])


@dataclass(slots=True)
class _NameChange:
    name: str
    node: _Node | None
    """None: removed."""
    is_safe: bool = False
    replaces: str = ""
    """The name that goes in the same step."""


@dataclass(eq=False, slots=True)
class _Directory:
    number: int
    mode: int = DIRECTORY_MODE
    entries: dict[str, _Node] = field(default_factory=dict)
    drive: dict[str, _Node] = field(default_factory=dict)
    unsynced: list[_NameChange] = field(default_factory=list)
    modified: int = 0
    holders: dict[int, bool] = field(default_factory=dict)

    def change(self, name: str, node: _Node | None, replaces: str = "") -> None:
        change = _NameChange(name, node, replaces=replaces)
        _set(self.entries, change)
        self.unsynced.append(change)
        self.modified += 1

    def sync(self, of: _Node | None = None) -> None:
        """Make all changes safe, or only the names of one node."""
        for change in self.unsynced:
            change.is_safe = change.is_safe or of is None or change.node is of
        while self.unsynced and self.unsynced[0].is_safe:
            _set(self.drive, self.unsynced.pop(0))

    def survived(self, rng: random.Random) -> dict[str, _Node]:
        """Draw what names a crash leaves."""
        names = dict(self.drive)
        for change in self.unsynced:
            if change.is_safe or rng.random() < 0.5:
                _set(names, change)
        return names


_Node = _File | _Directory


def _set(names: dict[str, _Node], change: _NameChange) -> None:
    if change.node is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.node
        names.pop(change.replaces, None)


@dataclass(slots=True)
class _Open:
    node: _Node
    is_writable: bool


class SimulatedDisk:
    """A `Disk` in memory; one process uses it until it ends, is killed (`restart`) or loses power (`crash`)."""

    def __init__(self, tree: Tree | None = None, *, entry_with_fsync: bool = False) -> None:
        self.faults: Faults | None = None
        self.is_off = False
        self._entry_with_fsync = entry_with_fsync
        self._root = _Directory(1)
        self._numbers = itertools.count(2)
        self._descriptors: dict[int, _Open] = {}
        self._next_descriptor = itertools.count(3)
        for path, content in sorted((tree or {}).items()):
            self._plant(path, content)

    @property
    def tree(self) -> dict[str, bytes | None]:
        """What processes see: path -> content."""
        return dict(_walk(self._root, ""))

    @property
    def modes(self) -> dict[str, int]:
        """Permission bits by path, without the root's."""
        return {path: self._at(path).mode for path in self.tree}

    def on_drive(self, path: str) -> bytes | None:
        """Return what the cache would show of a file if it were dropped; None if there is none."""
        if path not in self.tree:
            return None
        node = self._at(path)
        assert isinstance(node, _File)
        return node.truth

    @property
    def open_descriptors(self) -> int:
        """How many descriptors are open."""
        return len(self._descriptors)

    @contextlib.contextmanager
    def without_faults(self) -> Iterator[None]:
        """Let an observer look, whom no fault hits."""
        faults, self.faults = self.faults, None
        try:
            yield
        finally:
            self.faults = faults

    def crash(self, rng: random.Random) -> SimulatedDisk:
        """Cut the power; return the disk that the next boot finds."""
        self.is_off = True
        after = SimulatedDisk(entry_with_fsync=self._entry_with_fsync)
        after._root = after._reborn(self._root, rng)
        return after

    def restart(self) -> SimulatedDisk:
        """Kill the process; return the disk that the next one finds: same cache, same doubts, no lock."""
        self.is_off = True
        after = SimulatedDisk(entry_with_fsync=self._entry_with_fsync)
        after._root = self._root
        after._numbers = self._numbers
        for opened in self._descriptors.values():
            opened.node.holders.clear()
            if isinstance(opened.node, _File):
                opened.node.announcer = None
        return after

    def _reborn(self, directory: _Directory, rng: random.Random) -> _Directory:
        new = _Directory(directory.number if directory.number == 1 else next(self._numbers), directory.mode)
        for name, node in directory.survived(rng).items():
            if isinstance(node, _Directory):
                new.entries[name] = self._reborn(node, rng)
            else:
                content = node.survived(rng)
                new.entries[name] = _File(next(self._numbers), node.mode, content, content)
        new.drive = dict(new.entries)
        return new

    def _plant(self, path: str, content: bytes | None) -> None:
        parent, _, name = path.rpartition("/")
        directory = self._at(parent)
        assert isinstance(directory, _Directory)
        number = next(self._numbers)
        node = _Directory(number) if content is None else _File(number, cached=content, drive=content)
        directory.entries[name] = directory.drive[name] = node

    def _at(self, path: str) -> _Node:
        node: _Node = self._root
        for name in filter(None, path.split("/")):
            if not isinstance(node, _Directory):
                raise _problem(errno.ENOTDIR)
            if name not in node.entries:
                raise _problem(errno.ENOENT)
            node = node.entries[name]
        return node

    def _node(self, descriptor: int) -> _Node:
        if self.is_off:
            raise PowerCut
        if descriptor not in self._descriptors:
            raise _problem(errno.EBADF)
        return self._descriptors[descriptor].node

    def _file(self, descriptor: int, *, writable: bool = False) -> _File:
        node = self._node(descriptor)
        if not isinstance(node, _File):
            raise _problem(errno.EISDIR)
        if writable and not self._descriptors[descriptor].is_writable:
            raise _problem(errno.EBADF)
        return node

    def _directory(self, descriptor: int) -> _Directory:
        node = self._node(descriptor)
        if not isinstance(node, _Directory):
            raise _problem(errno.ENOTDIR)
        return node

    def _opened(self, node: _Node, *, is_writable: bool = False) -> int:
        descriptor = next(self._next_descriptor)
        self._descriptors[descriptor] = _Open(node, is_writable)
        return descriptor

    def _passes(self) -> None:
        if self.is_off:
            raise PowerCut
        if self.faults is not None:
            try:
                self.faults.passes()
            except PowerCut:
                self.is_off = True
                raise

    def _may_open(self) -> None:
        self._passes()
        if self.faults and self.faults.strikes("no descriptors", self.faults.no_descriptors):
            raise _problem(errno.EMFILE)

    def open_directory(self, path: str) -> int:
        self._may_open()
        node = self._at(path)
        if not isinstance(node, _Directory):
            raise _problem(errno.ENOTDIR)
        return self._opened(node)

    def make_directory(self, parent: int, name: str) -> int:
        self._may_open()
        directory = self._directory(parent)
        if name not in directory.entries:
            directory.change(name, _Directory(next(self._numbers)))
        return self._opened(directory.entries[name])

    def create_file(self, directory: int, name: str) -> int:
        self._may_open()
        found = self._directory(directory)
        if name in found.entries:
            raise _problem(errno.EEXIST)
        node = _File(next(self._numbers))
        found.change(name, node)
        return self._opened(node, is_writable=True)

    def open_file(self, directory: int, name: str, *, writable: bool = False) -> int:
        self._may_open()
        entries = self._directory(directory).entries
        if name not in entries:
            raise _problem(errno.ENOENT)
        return self._opened(entries[name], is_writable=writable)

    def facts(self, descriptor: int) -> FileFacts:
        return _facts(self._node(descriptor))

    def find(self, directory: int, name: str) -> FileFacts | None:
        node = self._directory(directory).entries.get(name)
        return None if node is None else _facts(node)

    def find_directory(self, path: str) -> FileFacts | None:
        if self.is_off:
            raise PowerCut
        try:
            return _facts(self._at(path))
        except OSError:
            return None

    def names(self, directory: int) -> list[str]:
        return list(self._directory(directory).entries)

    def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
        return self._file(descriptor).cached[offset : offset + size_bytes]

    def write(self, descriptor: int, data: bytes) -> None:
        self._passes()
        file = self._file(descriptor, writable=True)
        if self.faults and self.faults.strikes("disk is full", self.faults.disk_is_full):
            if fitted := data[: self.faults.rng.randrange(len(data))]:
                file.change(Write(len(file.cached), fitted))
            raise _problem(errno.ENOSPC)
        file.change(Write(len(file.cached), data))

    def overwrite(self, descriptor: int, data: bytes) -> None:
        self._passes()
        file = self._file(descriptor, writable=True)
        file.is_scratch = True
        file.change(Cut(0))
        if self.faults and self.faults.strikes("disk is full", self.faults.disk_is_full):
            raise _problem(errno.ENOSPC)
        file.change(Write(0, data))

    def sync(self, descriptor: int) -> None:
        self._passes()
        node = self._node(descriptor)
        if self.faults and self.faults.strikes("sync failed", self.faults.sync_fails):
            if isinstance(node, _File):
                node.lose(self.faults.rng)
            raise _problem(errno.EIO)
        node.sync()
        if self._entry_with_fsync:
            self._keep_name_of(node)

    def _keep_name_of(self, node: _Node) -> None:
        for directory in list(_directories(self._root)):
            if any(change.node is node for change in directory.unsynced):
                directory.sync(of=node)
                self._keep_name_of(directory)

    def drop_cache(self, descriptor: int) -> None:
        self._passes()
        self._file(descriptor).forget_cache()

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._passes()
        file = self._file(descriptor, writable=True)
        if self.faults and self.faults.strikes("cut failed", self.faults.cut_fails):
            raise _problem(errno.EIO)
        file.change(Cut(size_bytes))

    def set_mode(self, descriptor: int, mode: int) -> None:
        self._passes()
        self._node(descriptor).mode = mode

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        self._passes()
        holders = self._node(descriptor).holders
        others = [is_shared for holder, is_shared in holders.items() if holder != descriptor]
        if others and not (shared and all(others)):
            return False
        holders[descriptor] = shared
        return True

    def announce(self, descriptor: int) -> bool:
        self._passes()
        self._file(descriptor).announcer = descriptor
        return True

    def is_announced(self, descriptor: int) -> bool | None:
        return self._file(descriptor).announcer not in (None, descriptor)

    def remove(self, directory: int, name: str) -> None:
        self._passes()
        found = self._directory(directory)
        if name in found.entries:
            found.change(name, None)

    def rename(self, directory: int, name: str, to: str) -> None:
        self._passes()
        found = self._directory(directory)
        if name not in found.entries:
            raise _problem(errno.ENOENT)
        found.change(to, found.entries[name], replaces=name)

    def close(self, descriptor: int) -> None:
        if self.is_off:
            return  # a dead process closes nothing, but its `finally` blocks run in this one
        node = self._node(descriptor)
        node.holders.pop(descriptor, None)
        if isinstance(node, _File) and node.announcer == descriptor:
            node.announcer = None
        del self._descriptors[descriptor]


def _problem(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _facts(node: _Node) -> FileFacts:
    is_directory = isinstance(node, _Directory)
    return FileFacts(
        identity=(1, node.number),
        mode=node.mode,
        owner=os.geteuid(),
        links=1,
        size_bytes=len(node.cached) if isinstance(node, _File) else 0,
        is_regular=not is_directory,
        is_directory=is_directory,
        modified_ns=node.modified,
    )


def _walk(directory: _Directory, above: str) -> Iterator[tuple[str, bytes | None]]:
    for name, node in directory.entries.items():
        yield above + name, node.cached if isinstance(node, _File) else None
        if isinstance(node, _Directory):
            yield from _walk(node, f"{above}{name}/")


def _directories(directory: _Directory) -> Iterator[_Directory]:
    yield directory
    for node in directory.entries.values():
        if isinstance(node, _Directory):
            yield from _directories(node)
