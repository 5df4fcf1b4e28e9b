"""Bugs in what is made with which rights, and in what is taken for a file of ours."""

from __future__ import annotations

from fisk_ai import ids
from fisk_ai.errors import JournalFailed, NotPermitted
from fisk_ai.stores import directory, fork, listing, lock, memory, orphans, whole
from fisk_ai.stores.disk import OsDisk
from fisk_ai.stores.file import FileJournal, FileStore, set_aside
from fisk_ai.stores.journal import Contents, JournalBase
from fisk_ai.stores.memory import MemoryStore
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_SAFETY = "tests/stores/test_file_safety.py"
_ORDER = "tests/stores/test_file_order.py"
_FILES = "tests/stores/test_contract.py::TestFileStore"
_MEMORY = "tests/stores/test_contract.py::TestMemoryStore"
_UMASK = f"{_SAFETY}::test_modes_do_not_depend_on_the_umask"
_NO_JOURNAL = f"{_SAFETY}::test_nothing_else_is_taken_for_a_journal"
_NO_LOCK = f"{_SAFETY}::test_nothing_else_is_taken_for_a_lock"
_PUT_RIGHT = f"{_SAFETY}::test_what_is_too_open_is_put_right_by_writers_only"

BUGS = (
    Planted(
        "O_EXCL left out",
        "Creating takes what stands there, also at the end of a dangling link or of two creators.",
        (Edit(OsDisk.create_file, " | os.O_EXCL | os.O_CLOEXEC", " | planted(os.O_CLOEXEC)"),),
        caught_by=f"{_FILES}::test_a_name_is_taken_once",
    ),
    Planted(
        "O_NOFOLLOW left out",
        "A symbolic link leads a journal to any file of ours.",
        (Edit(OsDisk.open_file, " | os.O_NOFOLLOW | os.O_NONBLOCK", " | planted(os.O_NONBLOCK)"),),
        caught_by=f"{_NO_JOURNAL}[symbolic link]",
    ),
    Planted(
        "O_NOFOLLOW of a directory left out",
        "A symbolic link leads runs to any directory of ours.",
        (
            Edit(
                OsDisk.make_directory,
                "os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW",
                "os.O_DIRECTORY | planted(os.O_CLOEXEC)",
            ),
        ),
        caught_by=f"{_SAFETY}::test_a_link_that_appears_where_a_directory_is_made_is_not_followed",
    ),
    Planted(
        "O_NONBLOCK left out",
        "A fifo in place of a journal blocks whoever looks at it.",
        (Edit(OsDisk.open_file, " | os.O_NONBLOCK", " | planted(0)"),),
        caught_by=f"{_NO_JOURNAL}[fifo]",
        hangs=True,
    ),
    Planted(
        "owner not checked",
        "Another user's file is taken for a run of ours.",
        (never(lock.require_plain_file, "facts.owner != os.geteuid()"),),
        caught_by=f"{_NO_JOURNAL}[another user's file]",
    ),
    Planted(
        "kind of file not checked",
        "A device is read as a journal.",
        (never(lock.require_plain_file, "not facts.is_regular"),),
        caught_by=f"{_NO_LOCK}[device]",
    ),
    Planted(
        "hard links not checked",
        "A file that has another name elsewhere is written to.",
        (never(lock.require_plain_file, "facts.links > 1"),),
        caught_by=f"{_NO_JOURNAL}[hard link]",
    ),
    Planted(
        "journal not checked",
        "Whatever stands at a journal's name is opened.",
        (left_out(FileStore._open_file, "lock.require_plain_file(self.disk, descriptor, path)"),),
        caught_by=f"{_NO_JOURNAL}[hard link]",
    ),
    Planted(
        "lock file not checked",
        "Whatever stands at a lock's name is taken.",
        (left_out(lock._open, "require_plain_file(disk, descriptor, path)"),),
        caught_by=f"{_NO_LOCK}[hard link]",
    ),
    Planted(
        "file of kept bytes not checked",
        "What is cut is written to whatever stands at that name.",
        (left_out(set_aside, "lock.require_plain_file(disk, descriptor, run_id + TORN)"),),
        caught_by=f"{_SAFETY}::test_nothing_else_takes_what_is_cut[hard link]",
    ),
    Planted(
        "tools' lock not checked",
        "Whatever stands at the name of the tools' lock is written to.",
        (left_out(orphans._take, "require_plain_file(disk, descriptor, path)"),),
        caught_by="tests/stores/test_orphans.py::test_nothing_else_is_taken_for_a_tools_lock[hard link]",
    ),
    Planted(
        "makedirs",
        "All but the last directory get the rights that the umask leaves.",
        (
            Edit(
                directory.open_or_make,
                "existing, missing = _deepest_existing(disk, path)",
                "planted(os.makedirs(path, 0o700, exist_ok=True))\n"
                "        existing, missing = _deepest_existing(disk, path)",
            ),
        ),
        caught_by=f"{_UMASK}[0o0-self]",
    ),
    Planted(
        "directory with the umask's rights",
        "A new directory can't be used under a strict umask.",
        (
            Edit(
                OsDisk.make_directory,
                "_with_mode(os.open(name, flags, dir_fd=parent), DIRECTORY_MODE)",
                "planted(os.open(name, flags, dir_fd=parent))",
            ),
        ),
        caught_by=f"{_UMASK}[0o377-self]",
    ),
    Planted(
        "file with the umask's rights",
        "A new file can't be used under a strict umask.",
        (
            Edit(
                OsDisk.create_file,
                "_with_mode(os.open(name, flags, FILE_MODE, dir_fd=directory), FILE_MODE)",
                "planted(os.open(name, flags, FILE_MODE, dir_fd=directory))",
            ),
        ),
        caught_by=f"{_UMASK}[0o377-self]",
    ),
    Planted(
        "file open to all for a moment",
        "A new file gets its rights only after it is there.",
        (Edit(OsDisk.create_file, "os.open(name, flags, FILE_MODE,", "os.open(name, flags, planted(0o666),"),),
        caught_by=f"{_UMASK}[0o0-self]",
    ),
    Planted(
        "directory open to all for a moment",
        "A new directory gets its rights only after it is there.",
        (Edit(OsDisk.make_directory, "os.mkdir(name, DIRECTORY_MODE,", "os.mkdir(name, planted(0o777),"),),
        caught_by=f"{_UMASK}[0o0-self]",
    ),
    Planted(
        "rights of a journal not put right",
        "A journal that others may read is written to.",
        (never(FileJournal._make_whole, "self._disk.facts(self._descriptor).mode != FILE_MODE"),),
        caught_by=_PUT_RIGHT,
    ),
    Planted(
        "rights of the directory not put right",
        "Runs are written where others may look.",
        (left_out(FileJournal._make_whole, "directories.put_modes_right(self._disk, self._directory)"),),
        caught_by=_PUT_RIGHT,
    ),
    Planted(
        "rights of the lock file not put right",
        "Others may hold a run's lock.",
        (left_out(FileJournal._make_whole, "self._lock.put_mode_right()"),),
        caught_by=_PUT_RIGHT,
    ),
    Planted(
        "rights of the tools' lock not put right",
        "Others may read which tools run.",
        (left_out(orphans._take, "disk.set_mode(descriptor, FILE_MODE)"),),
        caught_by=_PUT_RIGHT,
    ),
    Planted(
        "rights of kept bytes not put right",
        "Others may read what was cut.",
        (never(set_aside, "disk.facts(descriptor).mode != FILE_MODE"),),
        caught_by=f"{_SAFETY}::test_a_torn_run_of_another_mode_keeps_its_bytes_private",
    ),
    Planted(
        "rights put right by a reader",
        "Opening a run changes it before anything was decided.",
        (
            Edit(
                FileStore._open_held,
                "self._settle_cache(descriptor, directory, run_id)",
                "self._settle_cache(descriptor, directory, run_id)\n"
                "        planted(directories.put_modes_right(self.disk, directory))",
            ),
        ),
        caught_by=_PUT_RIGHT,
    ),
    Planted(
        "re.match for ids",
        "An id may end in a line break.",
        (
            Edit(
                ids.check_new_run_id,
                "if not _NEW.fullmatch(run_id):",
                "if not planted(re.match(_NEW.pattern + '$', run_id)):",
            ),
            Edit(
                ids.check_stored_run_id,
                "if not _STORED.fullmatch(run_id):",
                "if not planted(re.match(_STORED.pattern + '$', run_id)):",
            ),
        ),
        caught_by=f"{_MEMORY}::test_ids_that_could_lead_elsewhere_are_refused_everywhere",
    ),
    Planted(
        "new id not checked",
        "An id leads out of the directory.",
        (never(ids.check_new_run_id, "not _NEW.fullmatch(run_id)"),),
        caught_by="tests/core/test_ids.py::test_upper_case_is_for_stored_runs_and_a_new_one_gets_advice",
    ),
    Planted(
        "stored id not checked",
        "An id leads out of the directory.",
        (never(ids.check_stored_run_id, "not _STORED.fullmatch(run_id)"),),
        caught_by="tests/core/test_ids.py::test_what_is_allowed_is_a_plain_file_name",
    ),
    Planted(
        "id in meta not compared",
        "A file that was renamed is continued under a name that its keys don't know.",
        (never(Contents.meta, "first.run_id != run_id"),),
        caught_by=f"{_FILES}::test_the_id_in_meta_must_be_the_runs",
    ),
    Planted(
        "id of new meta not compared",
        "A run is created under another name than its own.",
        (never(FileStore.create, "meta.run_id != run_id"),),
        caught_by=f"{_FILES}::test_the_id_in_meta_must_be_the_runs",
    ),
    Planted(
        "memory: id of new meta not compared",
        "The reference store creates a run under another name than its own.",
        (never(MemoryStore.create, "meta.run_id != run_id"),),
        caught_by=f"{_MEMORY}::test_the_id_in_meta_must_be_the_runs",
    ),
    Planted(
        "first record of an opened run needn't be meta",
        "A run is opened of which nobody knows what it is.",
        (
            Edit(
                Contents.meta,
                "if not isinstance(first, MetaRecord):",
                "if planted(False):",
            ),
        ),
        caught_by="tests/core/test_damage.py::test_a_run_that_does_not_begin_with_meta_is_damaged",
        shows=(AttributeError,),
    ),
    Planted(
        "name of a run taken again",
        "Creating a run overwrites one that is there.",
        (
            Edit(
                FileStore._reuse_file,
                "raise RunExists(run_id, self._status(directory, run_id))",
                "planted(self._empty(directory, descriptor, run_id))",
            ),
        ),
        caught_by=f"{_FILES}::test_a_name_is_taken_once",
    ),
    Planted(
        "memory: name of a run taken again",
        "Creating a run in the reference store overwrites one that is there.",
        (
            Edit(
                MemoryStore._require_free,
                "raise RunExists(run_id, self.info(run_id).status)",
                "planted()",
            ),
        ),
        caught_by=f"{_MEMORY}::test_a_name_is_taken_once",
    ),
    Planted(
        "name of a damaged run taken again",
        "Creating a run overwrites one that can't be read.",
        (
            Edit(
                FileStore._reuse_file,
                'raise RunExists(run_id, "unreadable") from None',
                "planted(self._empty(directory, descriptor, run_id))",
            ),
        ),
        caught_by=f"{_FILES}::test_a_damaged_run_keeps_its_name_and_its_bytes",
    ),
    Planted(
        "file without a record opened",
        "A run that never began is continued.",
        (never(FileStore.scan, "not records"),),
        caught_by=f"{_FILES}::test_a_name_under_which_nothing_was_recorded_is_free",
        shows=(AssertionError, IndexError),
    ),
    Planted(
        "absent directory opened",
        "A run that isn't there is looked for in no directory.",
        (never(FileStore._existing_directory, "directory is None"),),
        caught_by=f"{_FILES}::test_absent_runs_are_absent_everywhere",
        shows=(AssertionError, TypeError),
    ),
    Planted(
        "described although it is gone",
        "What vanished while it was looked at is no run, and no error either.",
        (never(FileStore.info, "info is None"),),
        caught_by=f"{_FILES}::test_an_absent_run_is_absent_beside_others",
    ),
    Planted(
        "damage read once",
        "A reader beside a repair takes what it sees for damage.",
        (
            Edit(
                FileStore.read,
                "if unchanged or attempt == _READ_ATTEMPTS - 1:",
                "if planted(True):",
            ),
        ),
        caught_by=f"{_ORDER}::test_what_is_read_while_a_repair_is_at_work_is_not_damage",
    ),
    Planted(
        "anything appended",
        "What is no record gets into a journal.",
        (never(JournalBase.append, "type(record) not in _KINDS"),),
        caught_by=f"{_FILES}::test_what_is_no_record_is_a_type_error_and_does_no_harm",
        shows=(AssertionError, KeyError),
    ),
    Planted(
        "relative state directory",
        "Runs are kept below whatever directory somebody happens to be in.",
        (never(directory.default_directory, "not os.path.isabs(home)"),),
        caught_by=f"{_SAFETY}::test_a_home_that_cannot_be_one_is_an_error_and_nothing_appears",
    ),
    Planted(
        "fork of damage",
        "A fork is made of what stands before the damage, and nobody is told.",
        (never(fork._read, "prefix.damage is not None and (at is None or found < at)"),),
        caught_by="tests/stores/test_fork.py::test_damage_behind_the_point_does_not_matter_and_before_it_does",
    ),
    Planted(
        "fork of nothing",
        "A fork is made of a run that never began.",
        (never(fork._read, "not found"),),
        caught_by="tests/stores/test_fork.py::test_nothing_is_forked_from_a_run_that_never_began",
    ),
    Planted(
        "fork at no record",
        "A fork ends at another record than was asked for.",
        (never(fork._read, "at is not None and not 1 <= at <= found"),),
        caught_by="tests/stores/test_fork.py::test_a_point_that_is_no_record_and_a_name_that_is_taken_are_refused",
    ),
    Planted(
        "O_APPEND left out",
        "What a resume appends overwrites the first record.",
        (Edit(OsDisk.open_file, "os.O_RDWR | os.O_APPEND if writable", "planted(os.O_RDWR) if writable"),),
        caught_by=f"{_FILES}::test_a_run_goes_on_where_it_ended",
    ),
    Planted(
        "listed file not checked",
        "A listing shows what isn't a run of ours.",
        (left_out(listing._read_ends, "require_plain_file(disk, descriptor, name)"),),
        caught_by=f"{_NO_JOURNAL}[hard link]",
    ),
    Planted(
        "tools' lock not checked when it is asked",
        "Whatever stands at the name of the tools' lock says whether a tool lives.",
        (left_out(orphans.find, "require_plain_file(disk, descriptor, path)"),),
        caught_by="tests/stores/test_orphans.py::test_nothing_else_is_taken_for_a_tools_lock[hard link]",
    ),
    Planted(
        "memory: run without a record opened",
        "The reference store continues a run that never began.",
        (never(memory._scan, "not records"),),
        caught_by=f"{_MEMORY}::test_a_name_under_which_nothing_was_recorded_is_free",
        shows=(AssertionError, IndexError),
    ),
    Planted(
        "copy of who died left",
        "A run can't be taken over for ever after one attempt was killed.",
        (
            Edit(
                whole.write_whole,
                "disk.remove(directory, temporary)  # of somebody who died here",
                "planted()",
            ),
        ),
        caught_by=f"{_ORDER}::test_a_copy_that_somebody_died_in_is_begun_anew",
        shows=(AssertionError, NotPermitted, JournalFailed),
    ),
    Planted(
        "copy without its name",
        "A run was taken over, and isn't there.",
        (left_out(whole.write_whole, "disk.rename(directory, temporary, name)"),),
        caught_by=f"{_FILES}::test_adopted_lines_are_there_byte_for_byte_and_go_on",
    ),
)
