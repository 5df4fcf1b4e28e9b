"""Bugs that must not count as caught: to see that the check of the bugs can fail."""

from __future__ import annotations

from collections.abc import Mapping

from fisk_ai.stores.file import FileJournal, FileStore
from tests.reliability.planted.edits import Edit, Planted, left_out

_APPEND = "tests/stores/test_file_order.py::test_an_append_is_one_write_and_one_sync"
_NO_SYNC = left_out(FileJournal._write_durably, "self._disk.sync(self._descriptor)")

WRONG: Mapping[str, Planted] = {
    each.name: each
    for each in (
        Planted(
            "harmless",
            "It changes nothing.",
            (
                Edit(
                    FileJournal._write_durably,
                    "self._disk.sync(self._descriptor)",
                    "self._disk.sync(planted(self._descriptor))",
                ),
            ),
            caught_by=_APPEND,
        ),
        Planted(
            "breaks",
            "The test ends in an error that has nothing to do with what it checks.",
            (
                Edit(
                    FileJournal._write_durably,
                    "self._disk.sync(self._descriptor)",
                    "len(planted(self._disk.sync(self._descriptor)))",
                ),
            ),
            caught_by=_APPEND,
        ),
        Planted(
            "test of something else",
            "The named test never comes near.",
            (left_out(FileStore.delete, "self.disk.sync(directory)"),),
            caught_by=_APPEND,
        ),
        Planted(
            "no such source",
            "The product has changed, and the bug with it has become none.",
            (left_out(FileJournal._write_durably, "self._disk.flush()"),),
            caught_by=_APPEND,
        ),
        Planted(
            "no such test",
            "The named test does not exist.",
            (_NO_SYNC,),
            caught_by="tests/stores/test_file_order.py::test_that_nobody_wrote",
        ),
    )
}
