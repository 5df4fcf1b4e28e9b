"""Bugs in who holds a run, and in what its tools' processes keep."""

from __future__ import annotations

from fisk_ai.stores import directory, journal, lock, orphans
from fisk_ai.stores.disk import OsDisk
from fisk_ai.stores.file import FileJournal, FileStore
from fisk_ai.stores.journal import JournalBase
from fisk_ai.stores.lock import RunLock
from fisk_ai.stores.memory import MemoryJournal, MemoryStore
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_LOCK = "tests/stores/test_lock.py"
_ORDER = "tests/stores/test_file_order.py"
_ORPHANS = "tests/stores/test_orphans.py"
_FILES = "tests/stores/test_contract.py::TestFileStore"
_MEMORY = "tests/stores/test_contract.py::TestMemoryStore"
_ONE_HOLDER = f"{_FILES}::test_one_holder_at_a_time"
_TAKEN_AWAY = f"{_ORDER}::test_what_was_taken_away_is_noticed"
_FORKED = f"{_LOCK}::test_a_forked_child_cannot_append_and_takes_nothing_away"
_DELETED_MEANWHILE = f"{_LOCK}::test_opening_what_is_deleted_meanwhile_finds_no_run_and_leaves_none"

BUGS = (
    Planted(
        "lockf for flock",
        "A lock that each open and close of the file in the same process takes away.",
        (
            Edit(OsDisk.lock, "fcntl.flock(", "planted(fcntl.lockf)("),
            Edit(OsDisk.announce, 'if _OFD_SETLK is None or sys.platform != "linux":', "if planted(True):"),
        ),
        caught_by=_ONE_HOLDER,
    ),
    Planted(
        "no lock",
        "Everybody gets a run.",
        (never(lock.acquire, "not disk.lock(descriptor)"),),
        caught_by=_ONE_HOLDER,
    ),
    Planted(
        "lock opened inheritable",
        "A tool keeps the lock of a runner that died.",
        (
            Edit(
                lock._open,
                "require_plain_file(disk, descriptor, path)",
                "require_plain_file(disk, descriptor, path)\n        planted(os.set_inheritable(descriptor, True))",
            ),
        ),
        caught_by=f"{_LOCK}::test_no_descriptor_of_a_run_is_inherited",
    ),
    Planted(
        "lock released by a forked child",
        "A child's end takes the lock away from its parent.",
        (
            Edit(
                RunLock.leave_to_parent,
                "self._disk.close(self._descriptor)",
                'planted(__import__("fcntl").flock(self._descriptor, 8))\n        self._disk.close(self._descriptor)',
            ),
        ),
        caught_by=_FORKED,
    ),
    Planted(
        "lock kept by a forked child",
        "A child appends beside its parent, and keeps the lock when that dies.",
        (never(RunLock.leave_to_parent, "self._descriptor is not None"),),
        caught_by=_FORKED,
    ),
    Planted(
        "lock that was given up used",
        "A forked child takes its parent's lock for its own.",
        (never(RunLock.descriptor.fget, "self._descriptor is None"),),  # type: ignore[attr-defined]
        caught_by=_FORKED,
        shows=(AssertionError, TypeError),
    ),
    Planted(
        "mutex kept by a forked child",
        "A child waits for ever for a thread that only its parent has.",
        (left_out(journal._forget_threads, "journal.forget_threads()"),),
        caught_by=f"{_LOCK}::test_a_fork_in_the_middle_of_an_append_does_not_hang",
        hangs=True,
    ),
    Planted(
        "inode not compared",
        "Who waited for a lock file that was removed meanwhile holds it beside the owner of the new one.",
        (
            Edit(
                lock.acquire,
                "elif _is_at(disk, directory, name, descriptor):",
                "elif planted(True):",
            ),
        ),
        caught_by=f"{_LOCK}::test_a_lock_file_that_was_removed_meanwhile_is_not_the_lock",
    ),
    Planted(
        "lock file removed first",
        "Somebody creates the run again while the rest of it is being removed.",
        (Edit(FileStore.delete, "for suffix in (", "for suffix in (planted(LOCK), "),),
        caught_by=f"{_ORDER}::test_deleting_removes_the_lock_last_and_is_durable",
    ),
    Planted(
        "lock file not removed with its run",
        "A deleted run leaves its lock file behind.",
        (never(RunLock.release, "remove"),),
        caught_by=f"{_ORDER}::test_deleting_that_fails_leaves_a_run_that_can_be_deleted",
    ),
    Planted(
        "deleted without the lock",
        "A run is removed under whoever works on it.",
        (
            Edit(
                FileStore.delete,
                "held = lock.acquire(self.disk, directory, run_id + LOCK, run_id, self.path(run_id, LOCK))",
                "held = planted(lock.RunLock(self.disk, lock._open("
                "self.disk, directory, run_id + LOCK, self.path(run_id)), directory, run_id + LOCK))",
            ),
        ),
        caught_by=_ONE_HOLDER,
    ),
    Planted(
        "opened although deleted meanwhile",
        "Who waited for the lock of a run that is gone gets an error that isn't about that, or leaves a lock file.",
        (left_out(FileStore._open_held, "self._require_not_deleted(directory, run_id, held)"),),
        caught_by=_DELETED_MEANWHILE,
    ),
    Planted(
        "deleted although deleted meanwhile",
        "Deleting a run that is gone says that it did.",
        (left_out(FileStore.delete, "self._require_not_deleted(directory, run_id, held)"),),
        caught_by=_DELETED_MEANWHILE,
    ),
    Planted(
        "lock file of an absent run left",
        "Looking for a run leaves a lock file.",
        (left_out(FileStore._require_not_deleted, "held.release(remove=True)"),),
        caught_by=_DELETED_MEANWHILE,
    ),
    Planted(
        "absent run found",
        "A run that isn't there is deleted, and nobody is told.",
        (never(FileStore._require_file, "found is None"),),
        caught_by=f"{_FILES}::test_an_absent_run_is_absent_beside_others",
    ),
    Planted(
        "held run opened",
        "A lock that somebody has is waited for, and never refused.",
        (
            Edit(
                lock._refuse_if_held,
                "raise RunLocked(run_id, holder.pid, holder.host)",
                "raise RunLocked(run_id, *planted((None, None)))",
            ),
        ),
        caught_by=_ONE_HOLDER,
    ),
    Planted(
        "lock not announced",
        "A listing can't see who works on a run.",
        (left_out(lock.acquire, "disk.announce(descriptor)"),),
        caught_by=_ONE_HOLDER,
    ),
    Planted(
        "listing takes the lock",
        "A look at the runs may make an honest open fail.",
        (
            Edit(
                lock.is_held,
                "announced = disk.is_announced(descriptor)",
                "announced = planted(None)",
            ),
        ),
        caught_by=f"{_LOCK}::test_looking_asks_for_the_lock_and_does_not_take_it",
    ),
    Planted(
        "listing without questions sees no holder",
        "Where a lock can't be asked for a working run is shown as crashed.",
        (Edit(lock.is_held, "not disk.lock(descriptor, shared=True)", "planted(False)"),),
        caught_by=f"{_LOCK}::test_where_locks_cannot_be_asked_for_a_holder_is_seen_all_the_same",
    ),
    Planted(
        "append to a run that is no longer ours",
        "A run that was moved away is written by two.",
        (left_out(JournalBase.append_payload, "self._require_held()"),),
        caught_by=f"{_FILES}::test_a_run_that_was_taken_away_is_noticed_before_anything_is_written",
    ),
    Planted(
        "not asked whether the run is still ours",
        "An effect happens for a run that another process works on.",
        (left_out(JournalBase.ensure_held, "self._require_held()"),),
        caught_by=f"{_FILES}::test_a_run_that_was_taken_away_is_noticed_before_anything_is_written",
    ),
    Planted(
        "directory that was replaced",
        "A run goes on in a directory that nobody sees.",
        (never(FileJournal._require_in_place, "at_path is None or at_path.identity != self._directory_identity"),),
        caught_by=_TAKEN_AWAY,
    ),
    Planted(
        "file that was replaced",
        "A run goes on in a file that nobody sees.",
        (Edit(FileJournal._require_in_place, "found.identity != self._identity", "planted(False)"),),
        caught_by=_TAKEN_AWAY,
    ),
    Planted(
        "file that another program wrote to",
        "A record is appended to bytes that nobody checked.",
        (never(FileJournal._require_in_place, "found.size_bytes != self._size_bytes"),),
        caught_by=_TAKEN_AWAY,
    ),
    Planted(
        "lock file that was replaced",
        "A run goes on although another process may hold it.",
        (never(FileJournal._require_in_place, "not lock_is_there"),),
        caught_by=_TAKEN_AWAY,
    ),
    Planted(
        "tools' lock not shared",
        "A call holds nothing that a later resume could see.",
        (
            Edit(
                orphans._take,
                "taken = disk.lock(descriptor, shared=True)",
                "taken = planted(True)",
            ),
        ),
        caught_by=f"{_ORPHANS}::test_a_tools_lock_that_somebody_has_for_himself_is_not_permitted",
    ),
    Planted(
        "tools' lock taken for granted",
        "A call runs although its lock is somebody else's.",
        (never(orphans._take, "not taken"),),
        caught_by=f"{_ORPHANS}::test_a_tools_lock_that_somebody_has_for_himself_is_not_permitted",
    ),
    Planted(
        "notes of living calls forgotten",
        "A call that begins makes those beside it unknown.",
        (Edit(orphans._take, "if disk.lock(descriptor):", "if planted(True):"),),
        caught_by=f"{_ORPHANS}::test_the_notes_begin_anew_when_nobody_holds_them",
    ),
    Planted(
        "call not noted before it starts",
        "A tool whose runner died at once has no name.",
        (left_out(orphans.hold, "lock.announce()"),),
        caught_by=f"{_ORPHANS}::test_the_notes_say_which_call_it_is",
    ),
    Planted(
        "living tool not seen",
        "A call is repeated beside itself.",
        (Edit(orphans.find, "() if disk.lock(descriptor) else", "() if planted(True) else"),),
        caught_by=f"{_ORPHANS}::test_a_living_tool_is_named_until_it_ends",
    ),
    Planted(
        "later process taken for the tool",
        "A process that has the number of the tool by chance is waited for, and killed.",
        (Edit(orphans._describe, "and start_time(group) == started", "and planted(True)"),),
        caught_by=f"{_ORPHANS}::test_a_note_of_an_earlier_process_with_the_same_number_names_nobody",
    ),
    Planted(
        "memory: second holder",
        "The reference store lets two in.",
        (never(MemoryStore.open, "run.holder is not None"),),
        caught_by=f"{_MEMORY}::test_one_holder_at_a_time",
    ),
    Planted(
        "memory: deleted while held",
        "The reference store removes a run under its holder.",
        (never(MemoryStore.delete, "self._run(run_id).holder is not None"),),
        caught_by=f"{_MEMORY}::test_one_holder_at_a_time",
    ),
    Planted(
        "memory: append to a run that was taken over",
        "The reference store lets a holder go on that lost its run.",
        (never(MemoryJournal._require_held, "self._run.holder is not self"),),
        caught_by=f"{_MEMORY}::test_a_run_that_was_taken_away_is_noticed_before_anything_is_written",
    ),
    Planted(
        "directory of another user",
        "Runs are kept where somebody else may swap them.",
        (never(directory._require_ours, "owner != os.geteuid()"),),
        caught_by="tests/stores/test_file_safety.py::test_a_directory_of_somebody_else_is_refused_by_everyone",
    ),
    Planted(
        "lock tried once",
        "A lock that is held for an instant refuses whoever comes then.",
        (Edit(lock._refuse_if_held, "RETRY_S if is_named else NAMING_S", "planted(0.0)"),),
        caught_by=f"{_LOCK}::test_a_lock_that_is_held_for_an_instant_is_waited_for",
    ),
    Planted(
        "tool that has just ended seen",
        "A resume waits for a tool that ended while it was looked for.",
        (never(orphans._found, "not processes and disk.lock(descriptor)"),),
        caught_by=f"{_ORPHANS}::test_a_tool_that_ends_while_it_is_looked_for_is_no_orphan",
    ),
    Planted(
        "files of a deleted run left",
        "A run that was deleted is there again, or parts of it.",
        (left_out(FileStore.delete, "self.disk.remove(directory, run_id + suffix)"),),
        caught_by=f"{_ORDER}::test_deleting_removes_the_lock_last_and_is_durable",
    ),
    Planted(
        "living tool seen and ignored when a run is deleted",
        "Nothing is left that could tell who that tool is.",
        (
            never(
                FileStore._require_no_tool,
                "found := orphans.find(self.disk, directory, run_id + TOOLS, self.path(run_id, TOOLS))",
            ),
        ),
        caught_by=f"{_ORPHANS}::test_a_run_whose_tool_still_runs_is_not_removed",
    ),
)
