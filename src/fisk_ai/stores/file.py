"""Runs as files: one append-only journal a run, in one private directory.

A run owns `<id>.json` (the journal), `<id>.lock`, and where needed `<id>.torn` (what repairs cut) and `<id>.tools`
(held by the processes of a running tool) and `<id>.part` (a copy that is being made). The order of a resume is

    lock, sync, drop cached pages, read, check      `FileStore.open`; changes nothing
    fold, guard                                     the caller; may refuse, and no byte has changed
    repair                                          `FileJournal.repair`; the tail made whole, modes right
    effect, append                                  each append one write and one sync

State is never taken from before the lock. Readers (`load`, `list`, `info`) don't lock and never write.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import msgspec

from fisk_ai.call_guard import CallGuard
from fisk_ai.codec import Chain, Scanner, Tail, encode_payload, payload_key
from fisk_ai.errors import (
    JournalCorrupt,
    JournalFailed,
    JournalLost,
    NewerVersion,
    NothingRecorded,
    NotPermitted,
    RunExists,
    RunLocked,
    RunNotFound,
)
from fisk_ai.folding import RunState, fold
from fisk_ai.ids import check_new_run_id, check_stored_run_id, is_stored_run_id
from fisk_ai.records import MetaRecord, SequencedRecord
from fisk_ai.stores import directory as directories
from fisk_ai.stores import listing, lock, orphans
from fisk_ai.stores.base import Clock, Orphan, RunInfo, utc_now
from fisk_ai.stores.disk import FILE_MODE, Disk, OsDisk
from fisk_ai.stores.journal import Contents, JournalBase
from fisk_ai.stores.whole import write_whole

JOURNAL = ".json"
LOCK = ".lock"
TORN = ".torn"
TOOLS = ".tools"
PART = ".part"

_CHUNK_BYTES = 1 << 20
_READ_ATTEMPTS = 5


class FileStore:
    """Journals in one directory; `directory` None is the XDG state directory."""

    def __init__(self, directory: str | None = None, *, disk: Disk | None = None, clock: Clock = utc_now) -> None:
        chosen = directories.default_directory() if directory is None else directory
        self.directory = os.path.abspath(chosen)
        self.disk = disk or OsDisk()
        self.clock = clock

    @property
    def location(self) -> str:
        """The directory."""
        return self.directory

    def create(self, run_id: str, meta: MetaRecord) -> FileJournal:
        """Begin a run; see `Store.create`.

        1. make the directory, private and durable  2. lock  3. create the file, exclusively
        4. append meta: write, sync, sync the directory
        """
        check_new_run_id(run_id)
        if meta.run_id != run_id:
            raise ValueError(f"meta is of run {meta.run_id!r}, not {run_id!r}")
        payload = encode_payload(msgspec.structs.replace(meta, checksums=True))
        directory = directories.open_or_make(self.disk, self.directory)
        # Not an ExitStack: what it takes to note that something is to be closed may itself fail (no memory), and a
        # lock that nobody gives up refuses the run to this process for as long as it lives.
        try:
            held = self._lock_for_create(directory, run_id)
            try:
                return self._begin(directory, run_id, held, meta, payload)
            except BaseException:
                held.release()
                raise
        except BaseException:
            self.disk.close(directory)
            raise

    def adopt(self, run_id: str, lines: Sequence[bytes]) -> None:
        """Take a run's lines over; see `Store.adopt`.

        1. make the directory  2. lock  3. the name must be free  4. write and sync under another name, then rename
        """
        check_stored_run_id(run_id)
        directory = directories.open_or_make(self.disk, self.directory)
        with contextlib.ExitStack() as undo:
            undo.callback(self.disk.close, directory)
            undo.callback(self._lock_for_create(directory, run_id).release)
            self._require_free(directory, run_id)
            try:
                write_whole(self.disk, directory, run_id + JOURNAL, run_id + PART, lines)
            except OSError as problem:
                way = "Put the cause right and try again"
                raise JournalFailed(self.path(run_id), f"{problem.strerror}", way) from None

    def open(self, run_id: str) -> FileJournal:
        """Open a run for append; see `Store.open`. Changes nothing but the lock.

        1. lock  2. sync and drop cached pages  3. read and check
        """
        check_stored_run_id(run_id)
        directory = self._existing_directory(run_id)
        try:
            self._require_file(directory, run_id)  # an absent run leaves no lock file behind
            held = lock.acquire(self.disk, directory, run_id + LOCK, run_id, self.path(run_id, LOCK))
            try:
                return self._open_held(directory, run_id, held)
            except BaseException:
                held.release()
                raise
        except BaseException:
            self.disk.close(directory)
            raise

    def load(self, run_id: str) -> RunState:
        """Fold a run without locking; see `Store.load`."""
        try:
            return fold(self.read(run_id).records)
        except JournalCorrupt as problem:
            raise problem.located(self.path(run_id)) from None

    def read(self, run_id: str) -> Contents:
        """Read and check a run without locking; raises as `load` does."""
        with self._reading(run_id) as descriptor:
            for attempt in range(_READ_ATTEMPTS):
                before = self.disk.facts(descriptor)
                try:
                    contents = self.scan(descriptor, run_id)
                    contents.meta(run_id, self.path(run_id))
                    return contents
                except (JournalCorrupt, NothingRecorded):
                    # A repair or an append beside us can look like damage; the same bytes twice can't.
                    after = self.disk.facts(descriptor)
                    unchanged = (before.size_bytes, before.modified_ns) == (
                        after.size_bytes,
                        after.modified_ns,
                    )
                    if unchanged or attempt == _READ_ATTEMPTS - 1:
                        raise
        raise AssertionError("unreachable")

    def read_bytes(self, run_id: str) -> Iterator[bytes]:
        """Yield the stored bytes of a run in pieces; see `Store.read_bytes`."""
        with self._reading(run_id) as descriptor:
            yield from self._chunks(descriptor, run_id)

    def run_ids(self) -> Sequence[str]:
        """Return the ids of all runs, in no order."""
        directory = directories.open_existing(self.disk, self.directory)
        if directory is None:
            return []
        try:
            return self._run_ids(directory)
        finally:
            self.disk.close(directory)

    def list(self) -> list[RunInfo]:
        """List all runs; see `Store.list`."""
        directory = directories.open_existing(self.disk, self.directory)
        if directory is None:
            return []
        try:
            infos = [self._info(directory, run_id) for run_id in self._run_ids(directory)]
        finally:
            self.disk.close(directory)
        return listing.newest_first(info for info in infos if info is not None)

    def info(self, run_id: str) -> RunInfo:
        """Describe one run as `list` does."""
        check_stored_run_id(run_id)
        directory = self._existing_directory(run_id)
        try:
            info = self._info(directory, run_id)
        finally:
            self.disk.close(directory)
        if info is None:
            raise RunNotFound(run_id, self.directory)
        return info

    def delete(self, run_id: str) -> None:
        """Remove a run and all that belongs to it; see `Store.delete`.

        1. lock  2. no tool of it may run  3. remove what was cut, the tools' lock, the journal: while there is a
        journal, there is a run to delete  4. remove the lock, under the lock  5. sync the directory
        """
        check_stored_run_id(run_id)
        directory = self._existing_directory(run_id)
        try:
            self._require_file(directory, run_id)
            held = lock.acquire(self.disk, directory, run_id + LOCK, run_id, self.path(run_id, LOCK))
            try:
                self._require_not_deleted(directory, run_id, held)
                self._require_no_tool(directory, run_id)
                for suffix in (TORN, TOOLS, PART, JOURNAL):
                    self.disk.remove(directory, run_id + suffix)
                held.release(remove=True)
                self.disk.sync(directory)
            except OSError as problem:
                raise NotPermitted(self.path(run_id), f"it can't be removed: {problem.strerror}") from None
            finally:
                held.release()
        finally:
            self.disk.close(directory)

    def path(self, run_id: str, suffix: str = JOURNAL) -> str:
        """Return the path of a run's file, for messages."""
        return os.path.join(self.directory, run_id + suffix)

    def _begin(self, directory: int, run_id: str, held: lock.RunLock, meta: MetaRecord, payload: bytes) -> FileJournal:
        descriptor = self._create_file(directory, run_id)
        try:
            empty = Contents([], Chain(), Tail(0))
            journal = FileJournal(self, run_id, directory, descriptor, held, empty, meta.version)
            journal.append_payload(payload_key(meta), payload)
        except BaseException:
            self.disk.close(descriptor)
            raise
        return journal

    def _open_held(self, directory: int, run_id: str, held: lock.RunLock) -> FileJournal:
        self._require_not_deleted(directory, run_id, held)
        descriptor = self._open_file(directory, run_id, writable=True)
        try:
            self._settle_cache(descriptor, directory, run_id)
            contents = self.scan(descriptor, run_id)
            meta = contents.meta(run_id, self.path(run_id))
            return FileJournal(self, run_id, directory, descriptor, held, contents, meta.version)
        except BaseException:
            self.disk.close(descriptor)
            raise

    def _lock_for_create(self, directory: int, run_id: str) -> lock.RunLock:
        try:
            return lock.acquire(self.disk, directory, run_id + LOCK, run_id, self.path(run_id, LOCK))
        except RunLocked:
            raise RunExists(run_id, "running") from None

    def _create_file(self, directory: int, run_id: str) -> int:
        try:
            return self.disk.create_file(directory, run_id + JOURNAL)
        except FileExistsError:
            return self._reuse_file(directory, run_id)
        except OSError as problem:
            raise NotPermitted(self.path(run_id), f"{problem.strerror}") from None

    def _require_free(self, directory: int, run_id: str) -> None:
        if self.disk.find(directory, run_id + JOURNAL) is not None:
            self.disk.close(self._reuse_file(directory, run_id))

    def _reuse_file(self, directory: int, run_id: str) -> int:
        """Take the name of a run that never began; what bytes it has are kept in `.torn` first."""
        descriptor = self._open_file(directory, run_id, writable=True)
        with contextlib.ExitStack() as undo:
            undo.callback(self.disk.close, descriptor)
            try:
                self.scan(descriptor, run_id)
            except NothingRecorded:
                self._empty(directory, descriptor, run_id)
            except (JournalCorrupt, NewerVersion):
                raise RunExists(run_id, "unreadable") from None
            else:
                raise RunExists(run_id, self._status(directory, run_id))
            undo.pop_all()
        return descriptor

    def _status(self, directory: int, run_id: str) -> str:
        found = listing.describe(self.disk, directory, run_id, JOURNAL, held=False)
        return "unreadable" if found is None else found.status

    def _empty(self, directory: int, descriptor: int, run_id: str) -> None:
        try:
            set_aside(self.disk, directory, run_id, b"".join(self._chunks(descriptor, run_id)))
            self.disk.truncate(descriptor, 0)
            self.disk.sync(descriptor)  # before meta is written: a crash could keep that and take the cut back
            self.disk.set_mode(descriptor, FILE_MODE)
        except OSError as problem:
            raise JournalFailed(self.path(run_id), f"its name could not be reused: {problem.strerror}") from None

    def _existing_directory(self, run_id: str) -> int:
        directory = directories.open_existing(self.disk, self.directory)
        if directory is None:
            raise RunNotFound(run_id, self.directory)
        return directory

    def _require_file(self, directory: int, run_id: str) -> None:
        try:
            found = self.disk.find(directory, run_id + JOURNAL)
        except OSError as problem:
            raise NotPermitted(self.path(run_id), f"{problem.strerror}") from None
        if found is None:
            raise RunNotFound(run_id, self.directory)

    def _require_not_deleted(self, directory: int, run_id: str, held: lock.RunLock) -> None:
        """Look again under the lock: whoever held it before may have deleted the run, and our lock file is new."""
        try:
            self._require_file(directory, run_id)
        except RunNotFound:
            held.release(remove=True)
            raise

    def _require_no_tool(self, directory: int, run_id: str) -> None:
        """Refuse to forget a run that still changes the world; what is no lock keeps nobody from removing it."""
        with contextlib.suppress(NotPermitted):
            if found := orphans.find(self.disk, directory, run_id + TOOLS, self.path(run_id, TOOLS)):
                raise orphans.still_running(run_id, found, "", "Remove the run when it has ended, or end it first")

    def _open_file(self, directory: int, run_id: str, *, writable: bool = False) -> int:
        path = self.path(run_id)
        try:
            descriptor = self.disk.open_file(directory, run_id + JOURNAL, writable=writable)
        except FileNotFoundError:
            raise RunNotFound(run_id, self.directory) from None
        except OSError as problem:
            raise NotPermitted(path, listing.why_not_opened(problem)) from None
        try:
            lock.require_plain_file(self.disk, descriptor, path)
        except BaseException:
            self.disk.close(descriptor)
            raise
        return descriptor

    @contextlib.contextmanager
    def _reading(self, run_id: str) -> Iterator[int]:
        check_stored_run_id(run_id)
        directory = self._existing_directory(run_id)
        try:
            descriptor = self._open_file(directory, run_id)
        finally:
            self.disk.close(directory)
        try:
            yield descriptor
        finally:
            self.disk.close(descriptor)

    def _settle_cache(self, descriptor: int, directory: int, run_id: str) -> None:
        """See what the drive has.

        After a failed sync the page cache holds bytes that will be gone after a reboot, and a second sync says ok.
        So: sync (an error refuses), forget the cached pages, read anew. The directory too, because the process that
        created the run may have died before its name was durable.
        """
        try:
            self.disk.sync(descriptor)
            self.disk.sync(directory)
            self.disk.drop_cache(descriptor)
        except OSError as problem:
            raise JournalFailed(self.path(run_id), f"it could not be synced on opening: {problem.strerror}") from None

    def scan(self, descriptor: int, run_id: str) -> Contents:
        """Read and check an open journal file from its first byte."""
        scanner = Scanner(self.path(run_id))
        records: list[SequencedRecord] = []
        for chunk in self._chunks(descriptor, run_id):
            records += scanner.feed(chunk)
        more, tail = scanner.finish()
        records += more
        if not records:
            raise NothingRecorded(run_id)
        return Contents(records, scanner.chain, tail)

    def _chunks(self, descriptor: int, run_id: str) -> Iterator[bytes]:
        offset = 0
        while chunk := self._chunk(descriptor, run_id, offset):
            offset += len(chunk)
            yield chunk

    def _chunk(self, descriptor: int, run_id: str, offset: int) -> bytes:
        try:
            return self.disk.read(descriptor, _CHUNK_BYTES, offset)
        except OSError as problem:
            raise NotPermitted(self.path(run_id), f"it can't be read: {problem.strerror}") from None

    def _run_ids(self, directory: int) -> Sequence[str]:
        try:
            names = self.disk.names(directory)
        except OSError as problem:
            raise NotPermitted(self.directory, f"it can't be listed: {problem.strerror}") from None
        ids = (name.removesuffix(JOURNAL) for name in names if name.endswith(JOURNAL))
        return [run_id for run_id in ids if is_stored_run_id(run_id)]

    def _info(self, directory: int, run_id: str) -> RunInfo | None:
        held = lock.is_held(self.disk, directory, run_id + LOCK)
        return listing.describe(self.disk, directory, run_id, JOURNAL, held=held)


class FileJournal(JournalBase):
    """One run's file, open for append under its lock."""

    def __init__(
        self,
        store: FileStore,
        run_id: str,
        directory: int,
        descriptor: int,
        held: lock.RunLock,
        contents: Contents,
        version: int,
    ) -> None:
        super().__init__(run_id, store.path(run_id), contents, version, store.clock)
        self._store = store
        self._disk = store.disk
        self._directory = directory
        self._descriptor = descriptor
        self._lock = held
        self._names_synced = False
        # Those of open files never change; asking for them before each append would cost as much as the rest.
        try:
            self._directory_identity = self._disk.facts(directory).identity
            facts = self._disk.facts(descriptor)
        except OSError as problem:
            raise NotPermitted(self.where, f"it can't be looked at: {problem.strerror}") from None
        self._identity = facts.identity
        self._size_bytes = facts.size_bytes

    def _require_held(self) -> None:
        try:
            self._require_in_place()
        except OSError as problem:
            raise JournalLost(self.where, f"it can't be looked at: {problem.strerror}") from None

    def _require_in_place(self) -> None:
        """Raise `JournalLost` if lock file, journal or directory was taken away or replaced, or the journal changed."""
        lock_is_there = self._lock.still_there()  # raises in a forked child and after a release
        at_path = self._disk.find_directory(self._store.directory)
        if at_path is None or at_path.identity != self._directory_identity:
            raise JournalLost(self.where, "its directory was removed or replaced")
        found = self._disk.find(self._directory, self.run_id + JOURNAL)
        if found is None or found.identity != self._identity:
            raise JournalLost(self.where, "the file was removed or replaced")
        if not lock_is_there:
            raise JournalLost(self.where, "its lock file was removed or replaced")
        if found.size_bytes != self._size_bytes:
            raise JournalLost(self.where, "another program wrote to the file or cut it")

    def _write_durably(self, line: bytes) -> None:
        self._disk.write(self._descriptor, line)
        self._size_bytes += len(line)
        self._disk.sync(self._descriptor)
        if not self._names_synced:
            # A new file is there after a power cut only if its directory was synced as well.
            self._disk.sync(self._directory)
            self._names_synced = True

    def _make_whole(self, tail: Tail) -> None:
        directories.put_modes_right(self._disk, self._directory)
        if self._disk.facts(self._descriptor).mode != FILE_MODE:
            self._disk.set_mode(self._descriptor, FILE_MODE)
        self._lock.put_mode_right()
        if tail.torn:
            # Kept durably before it is cut: nothing is dropped silently, not even by a crash in between.
            set_aside(self._disk, self._directory, self.run_id, tail.torn)
            self._disk.truncate(self._descriptor, tail.whole_bytes)
            self._size_bytes = tail.whole_bytes
            self._disk.sync(self._descriptor)
        elif tail.missing_newline:
            self._disk.write(self._descriptor, b"\n")
            self._size_bytes += 1
            self._disk.sync(self._descriptor)

    def _reread(self) -> Sequence[SequencedRecord]:
        return self._store.scan(self._descriptor, self.run_id).records

    def _release(self) -> None:
        try:
            self._lock.release()
        finally:
            self._disk.close(self._descriptor)
            self._disk.close(self._directory)

    def guard_call(self, tool: str, call_id: str, timeout_s: float | None) -> AbstractContextManager[CallGuard | None]:
        """Hold the lock that the processes of a call inherit."""
        name = self.run_id + TOOLS
        path = self._store.path(self.run_id, TOOLS)
        return orphans.hold(self._disk, self._directory, name, path, (tool, call_id, timeout_s))

    def find_orphans(self) -> Sequence[Orphan]:
        """Return the calls of a dead runner that are still alive; see `Journal.find_orphans`."""
        name = self.run_id + TOOLS
        return orphans.find(self._disk, self._directory, name, self._store.path(self.run_id, TOOLS))


def set_aside(disk: Disk, directory: int, run_id: str, torn: bytes) -> None:
    """Append bytes that are about to be cut to `<id>.torn`, durable on return."""
    if not torn:
        return
    try:
        descriptor = disk.create_file(directory, run_id + TORN)
    except FileExistsError:
        descriptor = disk.open_file(directory, run_id + TORN, writable=True)
    try:
        lock.require_plain_file(disk, descriptor, run_id + TORN)
        if disk.facts(descriptor).mode != FILE_MODE:
            disk.set_mode(descriptor, FILE_MODE)
        disk.write(descriptor, torn)
        disk.sync(descriptor)
        disk.sync(directory)
    finally:
        disk.close(descriptor)
