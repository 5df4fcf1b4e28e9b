"""Bugs in how tools' processes are started and ended."""

from __future__ import annotations

from fisk_ai.stores import processes
from fisk_ai.stores.file import FileStore
from fisk_ai.tools import process
from fisk_ai.tools.command import CommandTool
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_PROCESS = "tests/tools/test_process.py"
_ORPHANS = "tests/stores/test_orphans.py"

BUGS = (
    Planted(
        "guard not inherited",
        "A tool holds nothing that a later resume could see.",
        (
            Edit(
                process._start,
                "pass_fds=() if guard is None else (guard.descriptor,)",
                "pass_fds=planted(())",
            ),
        ),
        caught_by=f"{_PROCESS}::test_only_the_guard_is_inherited",
    ),
    Planted(
        "every descriptor inherited",
        "A tool keeps whatever its runner has open.",
        (
            Edit(
                process._start,
                "pass_fds=() if guard is None else (guard.descriptor,)",
                "close_fds=planted(False)",
            ),
        ),
        caught_by=f"{_PROCESS}::test_only_the_guard_is_inherited",
    ),
    Planted(
        "tool in its runner's group",
        "A signal for the runner ends its tool, and a tool's end takes the runner with it.",
        (Edit(process._start, "start_new_session=True", "start_new_session=planted(False)"),),
        caught_by=f"{_PROCESS}::test_process_leads_a_session_of_its_own",
    ),
    Planted(
        "group not noted",
        "A resume doesn't know which processes are the tool's.",
        (left_out(process.run_process, "guard.started(process.pid)"),),
        caught_by=f"{_PROCESS}::test_guard_learns_the_group",
    ),
    Planted(
        "tool left if its note fails",
        "A tool runs on that nobody waits for.",
        (left_out(process.run_process, "_make_sure_it_ended(process)"),),
        caught_by=f"{_PROCESS}::test_failing_guard_leaves_no_process",
        hangs=True,
    ),
    Planted(
        "only the tool ended, not its group",
        "Children of a tool outlive its time limit.",
        (Edit(process._signal_group, "os.killpg(process.pid, number)", "planted(os.kill(process.pid, number))"),),
        caught_by=f"{_PROCESS}::test_child_that_ignores_sigterm_is_killed_although_its_parent_went",
        hangs=True,
    ),
    Planted(
        "no SIGKILL after the grace",
        "What ignores SIGTERM runs on.",
        (left_out(process._end_group, "_signal_group(process, signal.SIGKILL)"),),
        caught_by=f"{_PROCESS}::test_child_that_ignores_sigterm_is_killed_although_its_parent_went",
        hangs=True,
    ),
    Planted(
        "no grace",
        "A tool is killed before it can put things in order.",
        (left_out(process._end_group, "_signal_group(process, signal.SIGTERM)"),),
        caught_by=f"{_PROCESS}::test_last_words_after_sigterm_are_read",
    ),
    Planted(
        "group not told to end at the time limit",
        "A tool is killed without having been asked.",
        (never(process._wait, "not in_order"),),
        caught_by=f"{_PROCESS}::test_last_words_after_sigterm_are_read",
    ),
    Planted(
        "call started after its cancellation",
        "A tool runs whose result nobody takes.",
        (left_out(process.run_process, "await checkpoint_if_cancelled()"),),
        caught_by=f"{_PROCESS}::test_cancelled_call_starts_nothing",
    ),
    Planted(
        "keys in a tool's environment",
        "A tool is given the model's key.",
        (
            Edit(
                CommandTool._environment,
                "if name in self._pass_env or not (name in self._hidden_env or value in secrets)",
                "if planted(True)",
            ),
        ),
        caught_by="tests/tools/test_command_tool.py::test_environment_has_the_call_and_not_the_keys",
    ),
    Planted(
        "keys in a tool's environment under another name",
        "A tool is given the model's key by a variable that nobody listed.",
        (
            Edit(
                CommandTool._environment,
                "(name in self._hidden_env or value in secrets)",
                "planted(name in self._hidden_env)",
            ),
        ),
        caught_by="tests/tools/test_command_tool.py::test_environment_has_the_call_and_not_the_keys",
    ),
    Planted(
        "run of a living tool removed",
        "Nothing is left that could tell who that tool is.",
        (left_out(FileStore.delete, "self._require_no_tool(directory, run_id)"),),
        caught_by=f"{_ORPHANS}::test_a_run_whose_tool_still_runs_is_not_removed",
    ),
    Planted(
        "process killed by its number alone",
        "A later process with the tool's number is killed.",
        (Edit(processes.end, "if start_time(process.pid) == process.started:", "if planted(True):"),),
        caught_by=f"{_ORPHANS}::test_a_process_is_ended_and_a_later_one_with_its_number_is_not",
    ),
    Planted(
        "lock of another run taken for this one's",
        "The tool of another run is waited for, and killed.",
        (
            Edit(
                processes._is_lock,
                "(found.st_dev, found.st_ino) == identity",
                "planted(True)",
            ),
        ),
        caught_by=f"{_ORPHANS}::test_a_lock_file_of_the_same_name_elsewhere_is_another_one",
    ),
    Planted(
        "reader of a lock file taken for its holder",
        "A backup is waited for, and killed.",
        (Edit(processes._is_lock, 'and b"FLOCK" in file.read()', "and planted(True)"),),
        caught_by=f"{_ORPHANS}::test_who_merely_reads_the_lock_file_is_no_orphan",
    ),
)
