"""Bugs in what a run does next, in what must be durable before it, and in what a resume is refused for."""

from __future__ import annotations

from fisk_ai.agent import decide, guard, orphan
from fisk_ai.agent.agent import Agent
from fisk_ai.agent.calls import CallRunner
from fisk_ai.agent.loop import Loop
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_ORDER = "tests/agent/test_order.py"
_RESUME = "tests/agent/test_resume.py"
_FAULTS = "tests/agent/test_faults.py"
_CONTROL = "tests/agent/test_control.py"
_GUARD = "tests/agent/test_guard.py"
_DECIDE = "tests/agent/test_decide.py"
_ORPHAN = "tests/agent/test_orphan.py"
_MARK_FIRST = f"{_RESUME}::test_a_resume_mark_is_durable_before_the_first_effect_of_a_resume"
_ONE_MARK = f"{_RESUME}::test_the_journal_grows_by_one_mark_however_often_a_suspended_run_is_killed"

BUGS = (
    Planted(
        "answer paid again",
        "A run that died before its end record asks the model once more.",
        (Edit(decide.decide, "if state.answered and state.last_turn is not None:", "if planted(False):"),),
        caught_by=f"{_RESUME}::test_an_answer_without_its_end_record_is_never_paid_for_again",
    ),
    Planted(
        "clean end not taken back",
        "A crash after the resume of a suspended run leaves no doubt about the call in flight.",
        (
            Edit(
                guard._mark,
                "return resume_mark(changed) if ended_cleanly or changed is not None else None",
                "return planted(None)",
            ),
        ),
        caught_by=_MARK_FIRST,
    ),
    Planted(
        "clean end taken back each time",
        "Each killed resume leaves another mark.",
        (Edit(guard._mark, "if ended_cleanly or changed is not None else None", "if planted(True) else None"),),
        caught_by=_ONE_MARK,
    ),
    Planted(
        "mark after the effect",
        "The end is taken back only with the first record, after a tool has run.",
        (left_out(Loop._before_effect, "await self._take_end_back()"),),
        caught_by=_MARK_FIRST,
    ),
    Planted(
        "mark left out before a record",
        "A resume that only records leaves the clean end in place.",
        (left_out(Loop._record, "await self._take_end_back()"),),
        caught_by=f"{_RESUME}::test_a_call_that_is_answered_without_running_is_answered_behind_the_mark",
    ),
    Planted(
        "effect without a repair",
        "A tool runs while its run ends in torn bytes.",
        (left_out(Loop._take_end_back, "await self._repair()"),),
        caught_by=f"{_ORDER}::test_a_torn_tail_is_cut_before_the_first_effect",
    ),
    Planted(
        "end written without a repair",
        "Nobody is told that a torn tail was cut.",
        (left_out(Loop._append_end, "await self._repair()"),),
        caught_by=f"{_RESUME}::test_a_torn_end_is_cut_and_told_though_nothing_is_left_to_do",
    ),
    Planted(
        "effect of a run that is no longer ours",
        "A tool runs for a run that was taken away.",
        (left_out(Loop._before_effect, "self.writer.journal.ensure_held()"),),
        caught_by=f"{_FAULTS}::test_a_run_that_was_taken_away_stops_before_its_next_effect",
    ),
    Planted(
        "step after an abort",
        "A run that was told to end does one thing more.",
        (left_out(Loop._steps, "await checkpoint_if_cancelled()"),),
        caught_by=f"{_CONTROL}::test_after_an_abort_nothing_is_appended[RunResumed]",
    ),
    Planted(
        "tool started after an abort",
        "A run that was told to end while its mark was written starts its call.",
        (left_out(Loop._before_effect, "await checkpoint_if_cancelled()"),),
        caught_by=f"{_CONTROL}::test_an_abort_while_the_end_is_taken_back_starts_no_call",
    ),
    Planted(
        "calls without what must be before them",
        "A tool runs although nothing was asked or made durable before it.",
        (left_out(CallRunner.run, "await self.before_effect()"),),
        caught_by=_MARK_FIRST,
    ),
    Planted(
        "model asked without what must be before it",
        "A turn is paid for in a run that is no longer ours.",
        (left_out(Loop._call_model, "await self._before_effect()"),),
        caught_by=f"{_FAULTS}::test_the_model_is_not_asked_for_a_run_that_was_taken_away",
    ),
    Planted(
        "model asked again without what must be before it",
        "An attempt after a pause is paid for in a run that is no longer ours.",
        (left_out(Loop._complete, "await self._before_effect()"),),
        caught_by="tests/agent/test_failures.py::test_no_attempt_is_made_once_the_journal_is_lost",
        shows=(AssertionError, FileNotFoundError),  # the test takes the lock file away, and can't do so twice
    ),
    Planted(
        "state ahead of the journal",
        "A record counts that could not be written.",
        (
            Edit(
                Loop._append,
                "seq = await self.writer.append(record)",
                "self.folding.apply(SequencedRecord(planted(self.folding.last_seq + 1), record))\n"
                "    seq = await self.writer.append(record)\n    self._appended = True\n    return seq",
            ),
        ),
        caught_by=f"{_FAULTS}::test_a_turn_that_may_not_be_kept_ends_the_run_with_an_error",
    ),
    Planted(
        "failure in a parallel group forgotten",
        "A call that may not start is tried again for ever.",
        (never(CallRunner.run, "failures"),),
        caught_by=f"{_FAULTS}::test_a_parallel_call_that_may_not_start_stops_the_run",
    ),
    Planted(
        "failure in a parallel group not kept",
        "The calls beside it are ended, and nobody is told why.",
        (left_out(CallRunner.run, "failures.append(problem)"),),
        caught_by=f"{_FAULTS}::test_a_parallel_call_that_may_not_start_stops_the_run",
    ),
    Planted(
        "answer lost if its end can't be stored",
        "An answer that was paid for and journaled isn't shown.",
        (
            Edit(
                Loop._finish,
                "problem = failed",
                "raise planted(failed)",
            ),
        ),
        caught_by=f"{_FAULTS}::test_nothing_happens_after_a_failed_append_wherever_it_fails",
        shows=(AssertionError,),
    ),
    Planted(
        "suspend takes a doubt back",
        "A suspend before a doubtful call is settled makes it look as if it had never run.",
        (never(Loop._is_already_said, 'step.reason == "suspended" and self.doubt'),),
        caught_by=f"{_RESUME}::test_a_suspend_before_a_doubtful_call_is_settled_does_not_take_its_doubt_back",
    ),
    Planted(
        "doubt kept after it is settled",
        "A later call with the same id is skipped.",
        (left_out(CallRunner._record_answer, "self.doubt.pop(call.id, None)"),),
        caught_by=f"{_ORDER}::test_a_skipped_call_does_not_skip_a_later_one_of_the_same_id",
    ),
    Planted(
        "result that can't be kept dropped",
        "A call whose result is too large is repeated for ever.",
        (Edit(CallRunner._record_result, "except RecordRefused as problem:", "except planted(()) as problem:"),),
        caught_by=f"{_FAULTS}::test_a_result_that_may_not_be_kept_is_replaced_by_a_note_so_that_its_call_is_not_repeated",
    ),
    Planted(
        "turn with doubled ids journaled",
        "A turn is journaled that no reader accepts.",
        (never(Loop._assistant_record, '"" in ids or len(set(ids)) != len(ids)'),),
        caught_by=f"{_FAULTS}::test_a_turn_that_is_not_valid_is_never_journaled[doubled]",
    ),
    Planted(
        "call with wrong arguments run",
        "A tool gets arguments that it doesn't take.",
        (never(CallRunner._run_call, "problem := tool.problem_with(arguments)"),),
        caught_by=f"{_RESUME}::test_a_doubtful_call_whose_arguments_no_longer_fit_is_not_said_to_have_never_run",
    ),
    Planted(
        "call of a turn that was cut off run",
        "A tool runs with arguments that may be half of what was meant.",
        (never(decide._why_not_run, "turn.stop_reason in CUT_OFF"),),
        caught_by=f"{_DECIDE}::test_calls_of_a_turn_that_was_cut_off_are_answered_and_never_run",
    ),
    Planted(
        "call with unusable arguments run",
        "A tool runs with arguments that nobody gave.",
        (never(decide._why_not_run, "not call.usable"),),
        caught_by=f"{_DECIDE}::test_a_call_with_unusable_arguments_is_answered_and_never_run",
    ),
    Planted(
        "call without its tool run",
        "A run ends in a traceback because a tool is gone.",
        (never(decide._why_not_run, "call.name not in tools"),),
        caught_by=f"{_DECIDE}::test_a_call_without_its_tool_is_answered_and_never_run",
    ),
    Planted(
        "answered call run again",
        "A resume runs all calls of the open turn.",
        (Edit(decide._next_call, "answered = pending.results", "answered = planted({})"),),
        caught_by=f"{_DECIDE}::test_calls_run_one_by_one_in_their_order",
    ),
    Planted(
        "skipped call run",
        "A call is repeated although its tool says that it must not be.",
        (never(decide._next_call, "call.id in skip"),),
        caught_by=f"{_DECIDE}::test_a_call_that_is_skipped_is_answered_with_an_outcome_that_is_no_error",
    ),
    Planted(
        "token budget ignored",
        "A run costs more than it may.",
        (
            never(
                decide._ask_model,
                "budget.max_tokens is not None and counters.total_tokens >= budget.max_tokens",
            ),
        ),
        caught_by=f"{_DECIDE}::test_all_four_kinds_of_tokens_count_against_the_budget",
    ),
    Planted(
        "iteration budget ignored",
        "A run goes on for ever.",
        (
            never(
                decide._ask_model,
                "budget.max_iterations is not None and counters.model_calls >= budget.max_iterations",
            ),
        ),
        caught_by=f"{_DECIDE}::test_iterations_count_against_the_budget",
    ),
    Planted(
        "budget of any kind",
        "A budget that is none is taken, and never reached.",
        (Edit(decide.Budget.__post_init__, "if limit is not None and not", "if planted(False) and not"),),
        caught_by=f"{_DECIDE}::test_a_limit_is_a_positive_whole_number",
    ),
    Planted(
        "completed run resumed",
        "A run that is done begins again.",
        (never(guard.check_resume, 'state.terminal is not None and state.terminal.reason == "completed"'),),
        caught_by=f"{_GUARD}::test_a_completed_run_is_refused_whatever_else_changed",
    ),
    Planted(
        "changed configuration resumed",
        "A run goes on with another model, prompt or tool, and nobody is told.",
        (never(guard._check_fingerprint, "changes and not (force and forcible)"),),
        caught_by=f"{_GUARD}::test_each_changed_field_is_refused_and_named_alone",
    ),
    Planted(
        "forced to another provider",
        "A run is continued with turns that the provider can't read.",
        (Edit(guard._check_fingerprint, "(force and forcible)", "planted(force)"),),
        caught_by=f"{_GUARD}::test_force_never_moves_a_run_to_another_provider",
    ),
    Planted(
        "version 1 continued with what it can't hold",
        "A resume finds out in the middle that its journal can't hold the run.",
        (never(guard._check_version, "held_back"),),
        caught_by=f"{_GUARD}::test_a_journal_of_version_1_can_not_go_on_with_another_format",
    ),
    Planted(
        "dead end resumed",
        "A refused conversation is sent once more.",
        (never(guard.check_resume, "(why := dead_end(state)) and not state.interrupted"),),
        caught_by=f"{_GUARD}::test_a_dead_end_is_refused_and_names_the_way_out",
    ),
    Planted(
        "doubtful call repeated unasked",
        "A call whose tool wants a decision is repeated without one.",
        (
            never(
                guard._settle_ambiguous, 'undecided := [call for call, policy in policies.items() if policy == "ask"]'
            ),
        ),
        caught_by=f"{_GUARD}::test_a_tool_that_asks_stops_the_resume_with_the_commands_that_decide",
    ),
    Planted(
        "doubtful call of a gone tool forgotten",
        "The model is told that a call never ran that may have.",
        (Edit(guard._settle_ambiguous, 'else "skip" for call', 'else planted("rerun") for call'),),
        caught_by=f"{_GUARD}::test_a_call_whose_tool_is_gone_is_not_said_to_have_never_run",
    ),
    Planted(
        "unknown outcome called a failure",
        "A skipped call is told to the model as an error.",
        (Edit(decide._next_call, "is_error=False", "is_error=planted(True)"),),
        caught_by=f"{_DECIDE}::test_a_call_that_is_skipped_is_answered_with_an_outcome_that_is_no_error",
    ),
    Planted(
        "living tool not waited for",
        "A call is repeated beside itself.",
        (
            left_out(
                Agent.resume, "await settle_orphans(journal, options.orphan, _time_limit(state, self.tools), tell)"
            ),
        ),
        caught_by=f"{_CONTROL}::test_the_wait_for_a_tool_of_the_dead_runner_is_left_at_once",
    ),
    Planted(
        "living tool waited for once",
        "A call is repeated beside itself if the tool doesn't end at once.",
        (Edit(orphan.settle_orphans, "while orphans := journal.find_orphans():", "while planted(()):"),),
        caught_by=f"{_ORPHAN}::test_a_living_tool_is_waited_for",
    ),
    Planted(
        "tool that outlasts the wait ignored",
        "A call is repeated beside itself after a while.",
        (
            Edit(
                orphan.settle_orphans,
                "raise still_running(journal.run_id, orphans, why)",
                "planted()",
            ),
        ),
        caught_by=f"{_ORPHAN}::test_a_tool_that_outlasts_the_wait_is_named",
    ),
    Planted(
        "whoever has the number killed",
        "A process is killed that only has the number of the tool.",
        (
            never(orphan.end_orphans, "not (orphan.is_same or orphan.processes)"),
            Edit(
                orphan._kill,
                "if orphan.is_same and orphan.process_group is not None:",
                "if planted(orphan.process_group):",
            ),
        ),
        caught_by=f"{_ORPHAN}::test_what_can_not_be_told_from_others_is_not_killed",
    ),
    Planted(
        "abort that is none",
        "A run that was ended at once looks like one that went well.",
        (Edit(Loop.run, "raise RunAborted(self._run_id, stored=self.stored)", "return planted()"),),
        caught_by=f"{_CONTROL}::test_an_abort_before_the_start_does_nothing_at_all",
    ),
    Planted(
        "suspend in a retry pause",
        "A suspend makes the next attempt come sooner, and nothing else.",
        (left_out(Loop._pause, "raise _SuspendedWhileWaiting"),),
        caught_by=f"{_CONTROL}::test_a_suspend_leaves_a_retry_pause_at_once",
    ),
)
