"""Bugs in what is synced, when, and in which order."""

from __future__ import annotations

from fisk_ai.agent.writer import JournalWriter
from fisk_ai.stores import directory, whole
from fisk_ai.stores.disk import OsDisk
from fisk_ai.stores.file import FileJournal, FileStore, set_aside
from fisk_ai.stores.journal import JournalBase
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_ORDER = "tests/stores/test_file_order.py"
_LOOP = "tests/agent/test_order.py"
_ONE_SYNC = f"{_ORDER}::test_an_append_is_one_write_and_one_sync"
_NEW_RUN = f"{_ORDER}::test_a_new_run_is_durable_with_all_its_directories"
_OPENING = f"{_ORDER}::test_open_locks_syncs_forgets_the_cache_and_only_then_reads"
_CUTTING = f"{_ORDER}::test_what_is_cut_is_kept_durably_before_the_cut"
_REUSING = f"{_ORDER}::test_a_name_is_emptied_durably_before_it_is_used_again"
_COPYING = f"{_ORDER}::test_a_copy_is_synced_before_it_has_its_name_and_with_its_name"
_STEPS = f"{_LOOP}::test_each_step_is_written_and_synced_before_the_next_one_starts"

_HELD_BACK = """\
held = planted(vars(self).pop("held", None))
    if held is not None:
        await self.call(lambda: self.journal.append(held))
    if type(record).__name__ == "{kind}":
        vars(self)["held"] = record
        return self.journal.last_seq + 1
    return await self.call(lambda: self.journal.append(record))"""


def _held_back(kind: str) -> Edit:
    """Write records of a kind only with the record after them."""
    call = "return await self.call(lambda: self.journal.append(record))"
    return Edit(JournalWriter.append, call, _HELD_BACK.format(kind=kind))


BUGS = (
    Planted(
        "no sync of the file",
        "A record is acknowledged while only the page cache has it.",
        (left_out(FileJournal._write_durably, "self._disk.sync(self._descriptor)"),),
        caught_by=_ONE_SYNC,
    ),
    Planted(
        "promised before the sync",
        "The file is synced before the record is written to it, so the record isn't.",
        (
            left_out(FileJournal._write_durably, "self._disk.sync(self._descriptor)"),
            Edit(
                FileJournal._write_durably,
                "self._disk.write(self._descriptor, line)",
                "self._disk.sync(self._descriptor)\n    planted(self._disk.write(self._descriptor, line))",
            ),
        ),
        caught_by=_ONE_SYNC,
    ),
    Planted(
        "acknowledged before the sync",
        "The journal counts a record that a failed sync may still take away.",
        (
            Edit(
                JournalBase.append_payload,
                "self._write_durably(line)",
                "self._chain.seq = planted(seq)\n            self._write_durably(line)",
            ),
        ),
        caught_by=f"{_ORDER}::test_a_failed_append_poisons_the_journal[sync-None-5]",
    ),
    Planted(
        "no sync of the directory",
        "A new run is acknowledged while its name may still be lost.",
        (left_out(FileJournal._write_durably, "self._disk.sync(self._directory)"),),
        caught_by=_NEW_RUN,
    ),
    Planted(
        "no sync of a new directory's parent",
        "The directories of a new run may be lost with it.",
        (left_out(directory._make, "disk.sync(parent)"),),
        caught_by=_NEW_RUN,
    ),
    Planted(
        "no sync above the deepest directory that was there",
        "Whoever made that directory may have died before its name was durable.",
        (left_out(directory._sync_parent, "disk.sync(parent)"),),
        caught_by=_NEW_RUN,
    ),
    Planted(
        "sync tried again after EIO",
        "The second sync says ok, and the data is gone.",
        (
            Edit(
                FileJournal._write_durably,
                "self._disk.sync(self._descriptor)",
                "try:\n        self._disk.sync(self._descriptor)\n"
                "    except OSError:\n        planted(self._disk.sync(self._descriptor))",
            ),
        ),
        caught_by=f"{_ORDER}::test_a_failed_append_poisons_the_journal[sync-None-5]",
    ),
    Planted(
        "tool started before its turn is durable",
        "A turn is written only when its first result is.",
        (_held_back("AssistantRecord"),),
        caught_by=f"{_LOOP}::test_a_tool_finds_its_own_call_on_disk_before_it_does_anything",
    ),
    Planted(
        "result of a tool written after the next tool",
        "A result is written only when the next one is.",
        (_held_back("ToolResultRecord"),),
        caught_by=_STEPS,
    ),
    Planted(
        "opened without a sync of the file",
        "A run is continued on bytes that a dead process never synced.",
        (left_out(FileStore._settle_cache, "self.disk.sync(descriptor)"),),
        caught_by=_OPENING,
    ),
    Planted(
        "opened without a sync of the directory",
        "A run is continued whose name a dead process never synced.",
        (left_out(FileStore._settle_cache, "self.disk.sync(directory)"),),
        caught_by=_OPENING,
    ),
    Planted(
        "opened without dropping the cache",
        "A resume reads a record from the page cache that no drive holds.",
        (left_out(FileStore._settle_cache, "self.disk.drop_cache(descriptor)"),),
        caught_by=_OPENING,
    ),
    Planted(
        "read before the cache was dropped",
        "What was read on opening is what a failed sync left in the cache.",
        (
            Edit(
                FileStore._open_held,
                "self._settle_cache(descriptor, directory, run_id)\n        contents = self.scan(descriptor, run_id)",
                "contents = planted(self.scan(descriptor, run_id))\n"
                "        self._settle_cache(descriptor, directory, run_id)",
            ),
        ),
        caught_by=_OPENING,
    ),
    Planted(
        "cut not synced",
        "A torn tail may come back behind the next record.",
        (
            Edit(
                FileJournal._make_whole,
                "= tail.whole_bytes\n        self._disk.sync(self._descriptor)",
                "= tail.whole_bytes\n        planted()",
            ),
        ),
        caught_by=_CUTTING,
    ),
    Planted(
        "supplied newline not synced",
        "The next record may land on the line of the one before.",
        (
            Edit(
                FileJournal._make_whole,
                "self._size_bytes += 1\n        self._disk.sync(self._descriptor)",
                "self._size_bytes += 1\n        planted()",
            ),
        ),
        caught_by=f"{_ORDER}::test_a_missing_newline_is_durable_before_the_next_record",
    ),
    Planted(
        "kept bytes not synced",
        "What is cut may be nowhere after a crash.",
        (left_out(set_aside, "disk.sync(descriptor)"),),
        caught_by=_CUTTING,
    ),
    Planted(
        "name of the kept bytes not synced",
        "The file with what was cut may be gone after a crash.",
        (left_out(set_aside, "disk.sync(directory)"),),
        caught_by=_CUTTING,
    ),
    Planted(
        "name reused before its cut is safe",
        "A crash may keep the new meta record and take the cut before it back.",
        (left_out(FileStore._empty, "self.disk.sync(descriptor)"),),
        caught_by=_REUSING,
    ),
    Planted(
        "name reused without keeping its bytes",
        "What a run that never began left behind is dropped silently.",
        (
            Edit(
                FileStore._empty,
                'set_aside(self.disk, directory, run_id, b"".join(self._chunks(descriptor, run_id)))',
                "planted()",
            ),
        ),
        caught_by="tests/stores/test_contract.py::TestFileStore"
        "::test_a_name_under_which_nothing_was_recorded_is_free[data2]",
    ),
    Planted(
        "name reused without emptying it",
        "Meta lands behind the torn bytes of a run that never began.",
        (left_out(FileStore._empty, "self.disk.truncate(descriptor, 0)"),),
        caught_by="tests/stores/test_contract.py::TestFileStore"
        "::test_a_name_under_which_nothing_was_recorded_is_free[data2]",
    ),
    Planted(
        "deleting not synced",
        "A deleted run may be back after a crash.",
        (left_out(FileStore.delete, "self.disk.sync(directory)"),),
        caught_by=f"{_ORDER}::test_deleting_removes_the_lock_last_and_is_durable",
    ),
    Planted(
        "names synced once for all journals",
        "The first append through a journal doesn't sync its directory, as if somebody had.",
        (never(FileJournal._write_durably, "not self._names_synced"),),
        caught_by=_NEW_RUN,
    ),
    Planted(
        "copy named before it is synced",
        "A crash may leave the name of a run on a part of its content.",
        (left_out(whole.write_whole, "disk.sync(descriptor)"),),
        caught_by=_COPYING,
    ),
    Planted(
        "name of a copy not synced",
        "An adopted run may be gone after a crash.",
        (left_out(whole.write_whole, "disk.sync(directory)"),),
        caught_by=_COPYING,
    ),
    Planted(
        "sync that does nothing",
        "The one place that syncs doesn't ask the system to.",
        (left_out(OsDisk.sync, "os.fsync(descriptor)"),),
        caught_by=f"{_ORDER}::test_the_disk_asks_the_system_for_what_it_promises",
    ),
    Planted(
        "cache that is not dropped",
        "The one place that drops cached pages doesn't ask the system to.",
        (left_out(OsDisk.drop_cache, "os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)"),),
        caught_by=f"{_ORDER}::test_the_disk_asks_the_system_for_what_it_promises",
    ),
    Planted(
        "sync that stops in the drive's cache",
        "Where the system's sync isn't a full one, nothing more is asked for.",
        (never(OsDisk.sync, "_F_FULLFSYNC is not None"),),
        caught_by=f"{_ORDER}::test_a_sync_goes_through_the_drives_cache_where_the_system_knows_how",
    ),
    Planted(
        "short write taken for a whole one",
        "Half a record is acknowledged.",
        (Edit(OsDisk.write, "while written < len(data):", "while planted(False):"),),
        caught_by=f"{_ORDER}::test_what_the_system_takes_in_parts_is_written_whole",
    ),
)
