"""Bugs in what happens to a torn tail, and to a journal whose append failed or was interrupted."""

from __future__ import annotations

from fisk_ai.agent import writer
from fisk_ai.agent.agent import Agent
from fisk_ai.codec import Scanner
from fisk_ai.stores.file import FileJournal, FileStore
from fisk_ai.stores.journal import JournalBase
from fisk_ai.stores.memory import MemoryJournal
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_ORDER = "tests/stores/test_file_order.py"
_FILES = "tests/stores/test_contract.py::TestFileStore"
_MEMORY = "tests/stores/test_contract.py::TestMemoryStore"
_DAMAGE = "tests/core/test_damage.py"
_CUTTING = f"{_ORDER}::test_what_is_cut_is_kept_durably_before_the_cut"
_CUT_FIRST = f"{_FILES}::test_a_torn_tail_is_cut_before_the_next_append"
_POISONED = f"{_ORDER}::test_a_failed_append_poisons_the_journal[sync-None-5]"
_CANCELLED = "tests/agent/test_cancellation.py::test_journal_object_and_file_stay_in_step"

BUGS = (
    Planted(
        "torn tail not cut",
        "The next record is glued to the torn bytes, and both are lost.",
        (never(FileJournal._make_whole, "tail.torn"),),
        caught_by=_CUT_FIRST,
    ),
    Planted(
        "torn tail kept but not cut",
        "The torn bytes are copied, and stay where they are.",
        (left_out(FileJournal._make_whole, "self._disk.truncate(self._descriptor, tail.whole_bytes)"),),
        caught_by=_CUT_FIRST,
    ),
    Planted(
        "missing newline not supplied",
        "The next record is glued to a whole one.",
        (never(FileJournal._make_whole, "tail.missing_newline"),),
        caught_by=f"{_FILES}::test_a_missing_newline_is_supplied_and_the_record_counts",
    ),
    Planted(
        "append without a repair",
        "A record is appended to torn bytes if nobody repaired the run before.",
        (left_out(JournalBase.append_payload, "self.repair()"),),
        caught_by=_CUT_FIRST,
    ),
    Planted(
        "repaired each time",
        "A second repair cuts what was appended after the first.",
        (never(JournalBase.repair, "self._repaired"),),
        caught_by=f"{_FILES}::test_repair_says_what_it_cut_and_does_it_once",
    ),
    Planted(
        "cut without the lock",
        "A reader cuts what another process may be appending.",
        (
            Edit(
                FileStore.read,
                "contents.meta(run_id, self.path(run_id))",
                "planted(os.truncate(self.path(run_id), contents.tail.whole_bytes))\n"
                "                contents.meta(run_id, self.path(run_id))",
            ),
        ),
        caught_by=_CUT_FIRST,
    ),
    Planted(
        "cut of a run that was taken away",
        "A repair doesn't look whether the run is still ours.",
        (
            Edit(
                JournalBase.repair,
                "self._require_held()",
                "planted()",
            ),
        ),
        caught_by=f"{_FILES}::test_a_run_that_was_taken_away_is_not_repaired",
    ),
    Planted(
        "cut before the guard",
        "A resume that is refused has changed the file.",
        (Edit(Agent.resume, "state = folding.state()", "state = folding.state()\n        planted(journal.repair())"),),
        caught_by="tests/agent/test_resume.py::test_a_refusal_leaves_the_file_as_it_was_torn_tail_included",
    ),
    Planted(
        "cut on opening",
        "Opening a run changes it, whatever is decided after that.",
        (
            Edit(
                FileStore.open,
                "return self._open_held(directory, run_id, held)",
                "journal = self._open_held(directory, run_id, held)\n"
                "            planted(journal.repair())\n            return journal",
            ),
        ),
        caught_by=_CUT_FIRST,
    ),
    Planted(
        "cut before it is kept",
        "A crash between the cut and its copy loses the torn bytes.",
        (
            Edit(
                FileJournal._make_whole,
                "set_aside(self._disk, self._directory, self.run_id, tail.torn)",
                "planted()",
            ),
            Edit(
                FileJournal._make_whole,
                "= tail.whole_bytes\n        self._disk.sync(self._descriptor)",
                "= tail.whole_bytes\n        self._disk.sync(self._descriptor)\n"
                "        planted(set_aside(self._disk, self._directory, self.run_id, tail.torn))",
            ),
        ),
        caught_by=_CUTTING,
    ),
    Planted(
        "cut and not kept",
        "The torn bytes are dropped silently.",
        (left_out(FileJournal._make_whole, "set_aside(self._disk, self._directory, self.run_id, tail.torn)"),),
        caught_by=_CUT_FIRST,
    ),
    Planted(
        "any bad last line is torn",
        "A record that was whole once and is damaged now is cut as if it had never been acknowledged.",
        (Edit(Scanner.finish, 'rest or b"\\0" not in line', "planted(rest)"),),
        caught_by=f"{_DAMAGE}::test_every_flipped_bit_is_detected",
    ),
    Planted(
        "any bad line is torn",
        "Everything from the first damaged line on is dropped.",
        (
            Edit(Scanner._take, "raise self._corrupt(self._failed[1])", "return planted(None)"),
            never(Scanner.finish, 'rest or b"\\0" not in line'),
        ),
        caught_by=f"{_DAMAGE}::test_a_lost_line_is_detected_unless_it_was_the_last",
    ),
    Planted(
        "torn line without NULs only",
        "What a power cut leaves, NULs before a newline, is taken for damage.",
        (Edit(Scanner.finish, 'rest or b"\\0" not in line', "planted(True)"),),
        caught_by=f"{_DAMAGE}::test_nuls_at_the_end_are_a_torn_tail",
    ),
    Planted(
        "record without its newline dropped",
        "A whole record is cut because only its newline is missing.",
        (
            Edit(
                Scanner.finish,
                "record = self._take(rest, newline=0)",
                "return [], Tail(whole_bytes, torn=planted(rest))\n    record = None",
            ),
        ),
        caught_by=f"{_DAMAGE}::test_every_prefix_loads_its_whole_records",
    ),
    Planted(
        "poison ignored",
        "A journal takes appends after one of them failed.",
        (never(JournalBase._require_usable, "self._poison is not None"),),
        caught_by=_POISONED,
    ),
    Planted(
        "poison only after a failure",
        "What interrupts an append leaves a journal that is one record behind its file.",
        (left_out(JournalBase._poisoned, 'self._poison = f"{what} was interrupted"'),),
        caught_by=f"{_ORDER}::test_an_interrupt_leaves_the_journal_unusable_and_the_file_fine[after it-sync]",
    ),
    Planted(
        "poison cleared by an open",
        "A run whose sync failed is opened again, and nothing is read back from the drive.",
        (left_out(FileStore._open_held, "self._settle_cache(descriptor, directory, run_id)"),),
        caught_by=f"{_ORDER}::test_an_open_that_cannot_settle_the_cache_is_refused[sync]",
    ),
    Planted(
        "closed journal used",
        "A journal whose lock was given up takes appends.",
        (never(JournalBase._require_usable, "self._closed"),),
        caught_by=f"{_MEMORY}::test_a_closed_journal_takes_nothing",
    ),
    Planted(
        "append not shielded",
        "A cancelled run doesn't wait for the record that is being written.",
        (
            Edit(writer._Job.result, "shield=True", "shield=planted(False)"),
            Edit(writer._Job.result, "cancelled = problem", "raise planted(problem)"),
        ),
        caught_by=f"{_CANCELLED}[anyio]",
    ),
    Planted(
        "append not shielded from asyncio",
        "A cancellation that heeds no shield ends the wait for the record that is being written.",
        (Edit(writer._Job.result, "cancelled = problem", "raise planted(problem)"),),
        caught_by=f"{_CANCELLED}[asyncio]",
    ),
    Planted(
        "cancellation swallowed by an append",
        "A run goes on although its task was cancelled.",
        (never(writer._Job.result, "cancelled is not None"),),
        caught_by=f"{_CANCELLED}[asyncio]",
    ),
    Planted(
        "failure swallowed in the writer's thread",
        "A failed append looks like one that went well.",
        (never(writer._Job.result, "self._error is not None"),),
        caught_by="tests/agent/test_cancellation.py::test_what_fails_in_the_thread_is_raised_where_it_is_awaited",
    ),
    Planted(
        "memory: torn tail not cut",
        "The reference store doesn't do what the others do.",
        (left_out(MemoryJournal._make_whole, "del self._run.data[tail.whole_bytes :]"),),
        caught_by=f"{_MEMORY}::test_a_torn_tail_is_cut_before_the_next_append",
    ),
)
