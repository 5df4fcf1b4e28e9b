"""Bugs in what follows from the records: contradictions that pass, doubt that is lost, budgets that are forgotten."""

from __future__ import annotations

from fisk_ai.agent.agent import Agent
from fisk_ai.folding import Folding, RunState
from tests.reliability.planted.edits import Edit, Planted, never

_FOLD = "tests/core/test_fold.py"
_LOOP = "tests/agent/test_order.py"
_RESUME = "tests/agent/test_resume.py"

BUGS = (
    Planted(
        "seq not checked when folded",
        "Records of two runs, or of one with a gap, become one state.",
        (never(Folding.apply, "record.seq != self.last_seq + 1"),),
        caught_by=f"{_FOLD}::test_numbers_must_follow_each_other",
    ),
    Planted(
        "first record needn't be meta",
        "A run is resumed of which nobody knows what it is.",
        (
            Edit(
                Folding.apply,
                "elif self.meta is None:",
                "elif planted(False):",
            ),
        ),
        caught_by=f"{_FOLD}::test_the_first_record_must_be_meta",
    ),
    Planted(
        "record after completed",
        "A completed run goes on.",
        (
            Edit(
                Folding.apply,
                'elif self.terminal is not None and self.terminal.reason == "completed":',
                "elif planted(False):",
            ),
        ),
        caught_by=f"{_FOLD}::test_nothing_follows_after_completed",
    ),
    Planted(
        "second meta",
        "A run changes its identity on the way.",
        (never(Folding._meta, "self.meta is not None"),),
        caught_by=f"{_FOLD}::test_a_second_meta_is_damage",
    ),
    Planted(
        "turn while calls are unanswered",
        "Calls are lost without an answer.",
        (never(Folding._assistant, "self._open is not None"),),
        caught_by=f"{_FOLD}::test_a_new_turn_while_calls_are_unanswered_is_damage",
    ),
    Planted(
        "doubled call ids",
        "One result answers two calls.",
        (never(Folding._read_turn, '"" in ids or len(set(ids)) != len(ids)'),),
        caught_by=f"{_FOLD}::test_call_ids_that_are_missing_or_doubled_are_damage",
    ),
    Planted(
        "result without a turn",
        "A result belongs to nothing.",
        (
            Edit(
                Folding._tool_result,
                'raise self._corrupt(f"a result for {call_id!r}, but no call is open", seq)',
                "return planted()",
            ),
        ),
        caught_by=f"{_FOLD}::test_a_result_without_an_open_turn_is_damage",
    ),
    Planted(
        "result for a call that nobody made",
        "A result that the open turn didn't ask for is dropped silently.",
        (
            Edit(
                Folding._tool_result,
                'raise self._corrupt(f"a result for {call_id!r}, which the open turn did not call", seq)',
                "return planted()",
            ),
        ),
        caught_by=f"{_FOLD}::test_a_result_for_a_call_that_nobody_made_is_damage_that_names_it",
    ),
    Planted(
        "second result for a call",
        "The later of two results wins.",
        (never(Folding._tool_result, "call_id in self._results"),),
        caught_by=f"{_FOLD}::test_a_second_result_is_damage_whether_the_turn_is_open_or_not",
    ),
    Planted(
        "result labelled for another call",
        "The model is given a result under a wrong name.",
        (never(Folding._require_result_for, "block.tool_use_id != call_id"),),
        caught_by=f"{_FOLD}::test_a_result_that_is_labelled_for_another_call_is_damage",
    ),
    Planted(
        "follow-up while calls are unanswered",
        "The conversation has calls without results.",
        (never(Folding._user, "self._open is not None"),),
        caught_by=f"{_FOLD}::test_a_follow_up_while_calls_are_unanswered_is_damage",
    ),
    Planted(
        "no record is a run",
        "A run of which there is nothing has a state.",
        (never(Folding.state, "self.meta is None or self.fingerprint is None"),),
        caught_by=f"{_FOLD}::test_no_record_at_all_is_no_run",
        shows=(AttributeError,),
    ),
    Planted(
        "call in doubt not named",
        "A call that may have run is repeated without a word.",
        (
            Edit(
                Folding._ambiguous,
                "return () if any(self.last_turn.never_runs(call) for call in started) else started",
                "return planted(())",
            ),
        ),
        caught_by=f"{_LOOP}::test_a_crash_in_a_batch_repeats_only_the_call_in_flight",
    ),
    Planted(
        "wrong call in doubt named",
        "The last unanswered call is named, the first one may have run.",
        (Edit(Folding._ambiguous, "in self.last_turn.groups()", "in planted(self.last_turn.groups()[::-1])"),),
        caught_by=f"{_LOOP}::test_a_crash_in_a_batch_repeats_only_the_call_in_flight",
    ),
    Planted(
        "call in doubt after a clean end",
        "A call that never started is treated as if it had.",
        (never(Folding._ambiguous, 'self.terminal is not None and self.terminal.reason != "error"'),),
        caught_by=f"{_FOLD}::test_the_first_unanswered_call_is_ambiguous_unless_the_end_was_clean",
    ),
    Planted(
        "call that never runs in doubt",
        "A call of a turn that was cut off is asked about.",
        (
            Edit(
                Folding._ambiguous,
                "() if any(self.last_turn.never_runs(call) for call in started) else started",
                "planted(started)",
            ),
        ),
        caught_by=f"{_FOLD}::test_a_call_that_never_runs_is_not_in_doubt_and_nothing_behind_it_started",
    ),
    Planted(
        "crash not told from a clean end",
        "A run whose end was taken back counts as ended.",
        (Edit(RunState.interrupted, "or self.terminal.resumed", "or planted(False)"),),
        caught_by=f"{_FOLD}::test_a_resume_mark_takes_the_clean_end_back",
    ),
    Planted(
        "key differs on the repeat",
        "A tool can't tell the repeat from a new call.",
        (Edit(Folding.key_of, "call.position)", "call.position + planted(id(self)))"),),
        caught_by=f"{_LOOP}::test_a_repeated_call_has_its_first_key_and_all_other_keys_differ",
    ),
    Planted(
        "one key for all calls of a turn",
        "A tool takes the next call for a repeat.",
        (Edit(Folding.key_of, "call.position)", "planted(0))"),),
        caught_by=f"{_LOOP}::test_a_repeated_call_has_its_first_key_and_all_other_keys_differ",
    ),
    Planted(
        "budget not carried over",
        "A resume starts with a full budget.",
        (
            Edit(
                Agent.resume,
                "state = folding.state()",
                "state = folding.state()\n        folding._tally[:] = planted([0] * 6)",
            ),
        ),
        caught_by=f"{_RESUME}::test_a_budget_counts_over_resumes_and_a_resume_with_nothing_left_appends_nothing",
    ),
)
