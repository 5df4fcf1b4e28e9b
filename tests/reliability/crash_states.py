"""Every state that a power cut may leave, after each operation of a recorded run.

The model is that of `simulated_disk`, worked out a second time and the other way round: not one outcome drawn from a
seed but all of them. What a failed sync left is followed as a set of possible contents, and narrowed again when the
recorded process looked (`drop_cache`). `test_crash_states` holds the two against each other.

Choices are independent and all combined, with two exceptions to keep their number down: scratch files (locks) vary
one at a time, and long writes are cut at and around block boundaries only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fisk_ai.stores.disk import Disk, FileFacts
from tests.reliability.simulated_disk import Change, Cut, Tree, Write, applied, blocks


@dataclass(frozen=True, slots=True)
class Made:
    """A name for a new file or directory."""

    parent: int
    name: str
    node: int
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """A name taken away."""

    parent: int
    name: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """A name changed in one step; what stood at the new one is gone."""

    parent: int
    name: str
    to: str
    node: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A file's content changed, in the cache."""

    node: int
    change: Change


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A scratch file got a new content."""

    node: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Synced:
    """A file or directory was synced, or that failed."""

    node: int
    succeeded: bool
    size_bytes: int
    """Of the file in the cache."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The cache was dropped, and this was seen."""

    node: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Marked:
    """Something happened outside of the disk: a promise, or an effect."""

    kind: str
    value: str


Operation = Made | Removed | Renamed | Changed | Overwritten | Synced | Dropped | Marked
Nodes = Mapping[str, tuple[int, bytes | None]]
"""Path -> number and content (None for a directory); the root is at ""."""


class RecordingDisk:
    """Any `Disk`, with all that matters for a crash written down."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.base: Nodes = dict(_snapshot(disk, "/"))
        self.operations: list[Operation] = []

    def mark(self, kind: str, value: str) -> None:
        """Note something outside of the disk."""
        self.operations.append(Marked(kind, value))

    def _number(self, descriptor: int) -> int:
        return self.disk.facts(descriptor).identity[1]

    def open_directory(self, path: str) -> int:
        return self.disk.open_directory(path)

    def make_directory(self, parent: int, name: str) -> int:
        is_new = self.disk.find(parent, name) is None
        made = self.disk.make_directory(parent, name)
        if is_new:
            self.operations.append(Made(self._number(parent), name, self._number(made), is_directory=True))
        return made

    def create_file(self, directory: int, name: str) -> int:
        created = self.disk.create_file(directory, name)
        self.operations.append(Made(self._number(directory), name, self._number(created), is_directory=False))
        return created

    def open_file(self, directory: int, name: str, *, writable: bool = False) -> int:
        return self.disk.open_file(directory, name, writable=writable)

    def facts(self, descriptor: int) -> FileFacts:
        return self.disk.facts(descriptor)

    def find(self, directory: int, name: str) -> FileFacts | None:
        return self.disk.find(directory, name)

    def find_directory(self, path: str) -> FileFacts | None:
        return self.disk.find_directory(path)

    def names(self, directory: int) -> list[str]:
        return self.disk.names(directory)

    def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
        return self.disk.read(descriptor, size_bytes, offset)

    def write(self, descriptor: int, data: bytes) -> None:
        before = self.facts(descriptor)
        try:
            self.disk.write(descriptor, data)
        finally:
            written = data[: self.facts(descriptor).size_bytes - before.size_bytes]
            if written:
                self.operations.append(Changed(before.identity[1], Write(before.size_bytes, written)))

    def overwrite(self, descriptor: int, data: bytes) -> None:
        self.disk.overwrite(descriptor, data)
        self.operations.append(Overwritten(self._number(descriptor), data))

    def sync(self, descriptor: int) -> None:
        facts = self.facts(descriptor)
        succeeded = False
        try:
            self.disk.sync(descriptor)
            succeeded = True
        finally:
            self.operations.append(Synced(facts.identity[1], succeeded, facts.size_bytes))

    def drop_cache(self, descriptor: int) -> None:
        self.disk.drop_cache(descriptor)
        facts = self.facts(descriptor)
        self.operations.append(Dropped(facts.identity[1], self.disk.read(descriptor, facts.size_bytes, 0)))

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self.disk.truncate(descriptor, size_bytes)
        self.operations.append(Changed(self._number(descriptor), Cut(size_bytes)))

    def set_mode(self, descriptor: int, mode: int) -> None:
        self.disk.set_mode(descriptor, mode)

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        return self.disk.lock(descriptor, shared=shared)

    def announce(self, descriptor: int) -> bool:
        return self.disk.announce(descriptor)

    def is_announced(self, descriptor: int) -> bool | None:
        return self.disk.is_announced(descriptor)

    def remove(self, directory: int, name: str) -> None:
        was_there = self.disk.find(directory, name) is not None
        self.disk.remove(directory, name)
        if was_there:
            self.operations.append(Removed(self._number(directory), name))

    def rename(self, directory: int, name: str, to: str) -> None:
        found = self.disk.find(directory, name)
        self.disk.rename(directory, name, to)
        assert found is not None
        self.operations.append(Renamed(self._number(directory), name, to, found.identity[1]))

    def close(self, descriptor: int) -> None:
        self.disk.close(descriptor)


def _snapshot(disk: Disk, path: str) -> Iterator[tuple[str, tuple[int, bytes | None]]]:
    directory = disk.open_directory(path)
    yield path.strip("/"), (disk.facts(directory).identity[1], None)
    for name in disk.names(directory):
        facts = disk.find(directory, name)
        assert facts is not None
        below = f"{path.rstrip('/')}/{name}"
        if facts.is_directory:
            yield from _snapshot(disk, below)
        else:
            file = disk.open_file(directory, name)
            yield below.strip("/"), (facts.identity[1], disk.read(file, facts.size_bytes, 0))
            disk.close(file)
    disk.close(directory)


@dataclass(frozen=True, slots=True)
class Model:
    """What is left open by `simulated_disk`'s rules."""

    entry_with_fsync: bool = False
    fills: tuple[bytes, ...] = (b"\0",)
    """What a block that never arrived may hold, one byte each."""
    every_byte_up_to: int = 8192
    """Longer writes are cut around block boundaries and near both ends only."""
    subsets_up_to: int = 4
    """So many changes or blocks: all subsets. More: prefixes, and all but one."""


@dataclass(frozen=True, slots=True)
class State:
    """One possible outcome."""

    tree: Tree
    marks: Sequence[Marked]
    """What had happened outside before the crash."""
    at: int
    """Operations before the crash."""
    why: str
    """The choices that led here."""

    def marked(self, kind: str) -> list[str]:
        """Return the values of the marks of a kind, in order."""
        return [mark.value for mark in self.marks if mark.kind == kind]


@dataclass(slots=True)
class _File:
    possible: dict[bytes, str]
    """What may be on the drive, and how it came about."""
    latest: bytes
    """Scratch only: the content in the cache."""
    unsynced: list[Change] = field(default_factory=list)
    is_scratch: bool = False

    def contents(self, model: Model) -> dict[bytes, str]:
        """Return all contents after a crash, that of a crash which lost nothing first."""
        if self.is_scratch:
            few = {self.latest: "", b"": "emptied", b"\0" * len(self.latest): "all NUL"}
            return few | {content: why or "old" for content, why in self.possible.items() if content not in few}
        if not self.unsynced:
            return self.possible
        found: dict[bytes, str] = {}
        for drive, before in self.possible.items():
            for content, why in _survivors(drive, self.unsynced, model):
                found.setdefault(content, "; ".join(filter(None, (before, why))))
        return found

    def sync(self, operation: Synced, model: Model) -> None:
        if self.is_scratch:
            self.possible = {self.latest: ""} if operation.succeeded else self.contents(model)
        elif operation.succeeded:
            self.possible = {
                applied(drive, self.unsynced).ljust(operation.size_bytes, b"\0"): why
                for drive, why in self.possible.items()
            }
        else:
            self.possible = self.contents(model)
        self.unsynced.clear()

    def look(self, content: bytes) -> None:
        """Keep what agrees with what was seen."""
        self.possible = {
            drive: why
            for drive, why in self.possible.items()
            if applied(drive, self.unsynced).ljust(len(content), b"\0") == content
        }
        assert self.possible, "the recorded process saw what the model excludes"


def _survivors(drive: bytes, changes: Sequence[Change], model: Model) -> Iterator[tuple[bytes, str]]:
    for kept in _choices(len(changes), model, whole_first=True):
        lost = "" if len(kept) == len(changes) else f"{len(changes) - len(kept)} of {len(changes)} changes lost"
        chosen = [changes[i] for i in kept]
        yield applied(drive, chosen), lost
        for torn, change in enumerate(chosen):
            if isinstance(change, Write):
                before = applied(drive, chosen[:torn])
                for content, why in _torn(before, change, model):
                    yield applied(content, chosen[torn + 1 :]), "; ".join(filter(None, (lost, why)))


def _choices(count: int, model: Model, *, whole_first: bool) -> list[tuple[int, ...]]:
    everything = tuple(range(count))
    if count <= model.subsets_up_to:
        sizes = range(count, -1, -1) if whole_first else range(count)
        return [kept for size in sizes for kept in itertools.combinations(everything, size)]
    some = [everything[:size] for size in range(count, -1, -1)]
    some += [everything[:i] + everything[i + 1 :] for i in everything]
    return some if whole_first else [kept for kept in some if kept != everything]


def _torn(content: bytes, write: Write, model: Model) -> Iterator[tuple[bytes, str]]:
    for size in _cuts(write, model):
        yield applied(content, [Write(write.offset, write.data[:size])]), f"cut at byte {size} of {len(write.data)}"
    spans = list(blocks(write))
    for fill, kept in itertools.product(model.fills, _choices(len(spans), model, whole_first=False)):
        size = max(write.offset + len(write.data), len(content))
        torn = content.ljust(write.offset, b"\0").ljust(size, fill)
        for i in kept:
            start, stop = spans[i]
            torn = applied(torn, [Write(start, write.data[start - write.offset : stop - write.offset])])
        yield torn, f"{len(spans) - len(kept)} of {len(spans)} blocks are {fill!r}"


def _cuts(write: Write, model: Model) -> Sequence[int]:
    size = len(write.data)
    if size <= model.every_byte_up_to:
        return range(size)
    near = {stop - write.offset + aside for _, stop in blocks(write) for aside in (-1, 0, 1)}
    near |= {*range(64), *range(size - 64, size)}
    return sorted(cut for cut in near if 0 <= cut < size)


@dataclass(slots=True)
class _NameChange:
    name: str
    node: int | None
    is_safe: bool = False
    replaces: str = ""
    """The name that goes in the same step."""


@dataclass(slots=True)
class _Directory:
    safe: dict[str, int] = field(default_factory=dict)
    unsynced: list[_NameChange] = field(default_factory=list)

    def sync(self, of: int | None = None) -> None:
        for change in self.unsynced:
            change.is_safe = change.is_safe or of is None or change.node == of
        while self.unsynced and self.unsynced[0].is_safe:
            self._apply(self.safe, self.unsynced.pop(0))

    @staticmethod
    def _apply(names: dict[str, int], change: _NameChange) -> None:
        if change.node is None:
            names.pop(change.name, None)
        else:
            names[change.name] = change.node
            names.pop(change.replaces, None)

    def listings(self, model: Model) -> list[tuple[dict[str, int], str]]:
        """Return all that may be in the directory after a crash, a crash that lost nothing first."""
        doubtful = [change for change in self.unsynced if not change.is_safe]
        found: dict[frozenset[tuple[str, int]], tuple[dict[str, int], str]] = {}
        for kept in _choices(len(doubtful), model, whole_first=True):
            names = dict(self.safe)
            chosen = [doubtful[i] for i in kept]
            for change in self.unsynced:
                if change.is_safe or any(change is each for each in chosen):
                    self._apply(names, change)
            lost = [change.name for i, change in enumerate(doubtful) if i not in kept]
            why = f"names lost: {', '.join(lost)}" if lost else ""
            found.setdefault(frozenset(names.items()), (names, why))
        return list(found.values())


class _Drive:
    """What is known of the drive after the operations so far."""

    def __init__(self, base: Nodes, model: Model) -> None:
        self._model = model
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {}
        self._contents: dict[int, dict[bytes, str]] = {}
        for path, (number, content) in base.items():
            self._add(number, content)
            if path:
                parent, _, name = path.rpartition("/")
                self._directories[base[parent][0]].safe[name] = number
        self._root = base[""][0]

    def _add(self, number: int, content: bytes | None) -> None:
        if content is None:
            self._directories[number] = _Directory()
        else:
            self._files[number] = _File({content: ""}, content)

    def take(self, operation: Operation) -> None:
        match operation:
            case Made(parent, name, node, is_directory):
                self._add(node, None if is_directory else b"")
                self._directories[parent].unsynced.append(_NameChange(name, node))
            case Removed(parent, name):
                self._directories[parent].unsynced.append(_NameChange(name, None))
            case Renamed(parent, name, to, node):
                self._directories[parent].unsynced.append(_NameChange(to, node, replaces=name))
            case Synced(node):
                self._sync(node, operation)
            case Marked():
                return
            case Changed(node) | Overwritten(node) | Dropped(node):
                self._touch(self._files[node], operation)
        self._contents.clear()

    def _touch(self, file: _File, operation: Changed | Overwritten | Dropped) -> None:
        match operation:
            case Changed(_, change):
                file.unsynced.append(change)
            case Overwritten(_, content):
                file.is_scratch = True
                file.latest = content
            case Dropped(_, content):
                file.look(content)

    def _sync(self, node: int, operation: Synced) -> None:
        if node in self._files:
            self._files[node].sync(operation, self._model)
        elif operation.succeeded:
            self._directories[node].sync()
        if operation.succeeded and self._model.entry_with_fsync:
            self._keep_name_of(node)

    def _keep_name_of(self, node: int) -> None:
        for number, directory in self._directories.items():
            if any(change.node == node for change in directory.unsynced):
                directory.sync(of=node)
                self._keep_name_of(number)

    def outcomes(self) -> Iterator[tuple[dict[str, bytes | None], str]]:
        for placed, lost in self._placed(self._root, ""):
            tree: dict[str, bytes | None] = {path: None for path, node in placed.items() if node in self._directories}
            files = {path: node for path, node in placed.items() if node in self._files}
            for chosen, why in self._combined(files):
                yield {**tree, **chosen}, "; ".join(filter(None, (lost, why))) or "nothing was lost"

    def _placed(self, directory: int, above: str) -> Iterator[tuple[dict[str, int], str]]:
        """Yield all ways in which names may lead to nodes, from a directory down."""
        for names, why in self._directories[directory].listings(self._model):
            below = [
                list(self._placed(node, f"{above}{name}/")) for name, node in names.items() if node in self._directories
            ]
            for deeper in itertools.product(*below):
                placed = {above + name: node for name, node in names.items()}
                for more, _ in deeper:
                    placed |= more
                yield placed, "; ".join(filter(None, (why, *(each for _, each in deeper))))

    def _combined(self, files: Mapping[str, int]) -> Iterator[tuple[dict[str, bytes], str]]:
        options = {path: list(self._contents_of(node).items()) for path, node in files.items()}
        scratch = {path for path, node in files.items() if self._files[node].is_scratch}
        kept = [path for path in files if path not in scratch]
        first = {path: options[path][0][0] for path in files}
        for combination in itertools.product(*(options[path] for path in kept)):
            chosen = {path: content for path, (content, _) in zip(kept, combination, strict=True)}
            whys = [f"{path}: {why}" for path, (_, why) in zip(kept, combination, strict=True) if why]
            yield first | chosen, "; ".join(whys)
        for path in scratch:
            for content, why in options[path][1:]:
                yield first | {path: content}, f"{path}: {why}"

    def _contents_of(self, node: int) -> dict[bytes, str]:
        if node not in self._contents:
            self._contents[node] = self._files[node].contents(self._model)
        return self._contents[node]


def states(operations: Sequence[Operation], base: Nodes, model: Model | None = None) -> Iterator[State]:
    """Yield every distinct state (what is on disk, what had happened outside) that a crash may leave."""
    drive = _Drive(base, model or Model())
    marks: list[Marked] = []
    seen: set[int] = set()
    for at in range(len(operations) + 1):
        if at:
            operation = operations[at - 1]
            drive.take(operation)
            if isinstance(operation, Marked):
                marks.append(operation)
        for tree, why in drive.outcomes():
            key = hash((frozenset(tree.items()), len(marks)))
            if key not in seen:
                seen.add(key)
                yield State(tree, tuple(marks), at, why)
