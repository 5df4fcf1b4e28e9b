"""Bugs that journals have had, one at a time put into the product, to see that the tests find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from fisk_ai.codec import Tail
from fisk_ai.errors import JournalClosed
from fisk_ai.folding import Folding
from fisk_ai.stores.file import FileJournal, FileStore, set_aside
from fisk_ai.stores.journal import JournalBase


def _no_file_sync(self: FileJournal, line: bytes) -> None:
    self._disk.write(self._descriptor, line)
    self._disk.sync(self._directory)


def _promised_before_the_sync(self: FileJournal, line: bytes) -> None:
    self._disk.sync(self._descriptor)
    self._disk.write(self._descriptor, line)
    self._disk.sync(self._directory)


def _no_directory_sync(self: FileJournal, line: bytes) -> None:
    self._disk.write(self._descriptor, line)
    self._disk.sync(self._descriptor)


def _tried_again(self: FileJournal, line: bytes) -> None:
    self._disk.write(self._descriptor, line)
    try:
        self._disk.sync(self._descriptor)
    except OSError:
        self._disk.sync(self._descriptor)
    self._disk.sync(self._directory)


def _no_cut(_self: FileJournal, _tail: Tail) -> None:
    """Leave the tail as it is."""


def _cut_before_it_is_kept(self: FileJournal, tail: Tail) -> None:
    if tail.torn:
        self._disk.truncate(self._descriptor, tail.whole_bytes)
        self._disk.sync(self._descriptor)
        set_aside(self._disk, self._directory, self.run_id, tail.torn)
    elif tail.missing_newline:
        self._disk.write(self._descriptor, b"\n")
        self._disk.sync(self._descriptor)


def _emptied_without_sync(self: FileStore, directory: int, descriptor: int, run_id: str) -> None:
    set_aside(self.disk, directory, run_id, b"".join(self._chunks(descriptor, run_id)))
    self.disk.truncate(descriptor, 0)


def _never_poisoned(self: JournalBase) -> None:
    if self._closed:
        raise JournalClosed("closed")


def _cache_kept(self: FileStore, descriptor: int, directory: int, _run_id: str) -> None:
    self.disk.sync(descriptor)
    self.disk.sync(directory)


def _nothing_ambiguous(*_arguments: Any) -> tuple[()]:
    return ()


def _no_mark(*_arguments: Any) -> None:
    return None


def _put(owner: type, name: str, replacement: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, replacement)


BUGS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "no sync of the file": _put(FileJournal, "_write_durably", _no_file_sync),
    "promised before the sync": _put(FileJournal, "_write_durably", _promised_before_the_sync),
    "no sync of the directory": _put(FileJournal, "_write_durably", _no_directory_sync),
    "sync tried again after EIO": _put(FileJournal, "_write_durably", _tried_again),
    "torn tail not cut": _put(FileJournal, "_make_whole", _no_cut),
    "cut before it is kept": _put(FileJournal, "_make_whole", _cut_before_it_is_kept),
    "name reused before its cut is safe": _put(FileStore, "_empty", _emptied_without_sync),
    "poison ignored": _put(JournalBase, "_require_usable", _never_poisoned),
    "opened without dropping the cache": _put(FileStore, "_settle_cache", _cache_kept),
    "call in doubt not named": _put(Folding, "_ambiguous", _nothing_ambiguous),
    "clean end not taken back": lambda: mock.patch("fisk_ai.agent.guard._mark", _no_mark),
}
