"""What comes next, rule by rule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fisk_ai.agent.decide import (
    MAX_PAUSES,
    AnswerCall,
    AwaitInput,
    Budget,
    CallModel,
    Finish,
    RunCalls,
    Step,
    dead_end,
    decide,
)
from fisk_ai.errors import ConfigError
from fisk_ai.folding import Counters, Pending, Turn
from fisk_ai.messages import Call, Message

NO_LIMIT = Budget(None, None)


@dataclass
class State:
    """A run's state, made by hand."""

    interactive: bool = False
    counters: Counters = field(default_factory=Counters)
    pending: Pending | None = None
    answered: bool = False
    last_turn: Turn | None = None
    pauses: int = 0


def call(position: int, name: str = "a", *, usable: bool = True) -> Call:
    return Call(position, f"call_{position}", name, b"{}", usable)


def turn(stop_reason: str, *calls: Call, parallel: tuple[int, ...] = ()) -> Turn:
    return Turn(2, 0, stop_reason, "Hello", calls, parallel)


def open_turn(*calls: Call, answered: int = 0, stop_reason: str = "tool_use", parallel: tuple[int, ...] = ()) -> State:
    """A state whose first `answered` calls have results."""
    opened = turn(stop_reason, *calls, parallel=parallel)
    results = {each.id: b"{}" for each in calls[:answered]}
    message = Message("assistant", "anthropic", b"{}")
    pending = Pending(opened, message, results, calls[answered:], calls[answered : answered + 1])
    return State(pending=pending, last_turn=opened)


def answered(stop_reason: str, **more: object) -> State:
    return State(answered=True, last_turn=turn(stop_reason), **more)  # type: ignore[arg-type]


def after(state: State, *, suspend: bool = False, budget: Budget = NO_LIMIT, **more: object) -> Step:
    return decide(state, tools=["a", "b"], budget=budget, suspend=suspend, **more)  # type: ignore[arg-type]


def test_a_message_of_the_users_is_answered_by_the_model() -> None:
    assert after(State()) == CallModel()


def test_calls_run_one_by_one_in_their_order() -> None:
    first, second = call(0), call(1, "b")
    assert after(open_turn(first, second)) == RunCalls((first,))
    assert after(open_turn(first, second, answered=1)) == RunCalls((second,))


def test_a_parallel_group_runs_together_where_its_first_member_stands() -> None:
    calls = [call(position) for position in range(4)]
    assert after(open_turn(*calls, parallel=(1, 3))) == RunCalls((calls[0],))
    assert after(open_turn(*calls, answered=1, parallel=(1, 3))) == RunCalls((calls[1], calls[3]))
    assert after(open_turn(*calls, answered=2, parallel=(1, 3))) == RunCalls((calls[3],))


def test_a_call_without_its_tool_is_answered_and_never_run() -> None:
    step = after(open_turn(call(0, "gone"), call(1)))
    assert isinstance(step, AnswerCall)
    assert step.is_error
    assert "no tool named 'gone'" in step.text
    assert "a, b" in step.text


def test_a_call_with_unusable_arguments_is_answered_and_never_run() -> None:
    step = after(open_turn(call(0, usable=False)))
    assert isinstance(step, AnswerCall)
    assert step.is_error
    assert "unusable" in step.text


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "content_filter", "model_context_window_exceeded"])
def test_calls_of_a_turn_that_was_cut_off_are_answered_and_never_run(reason: str) -> None:
    step = after(open_turn(call(0), call(1), answered=1, stop_reason=reason))
    assert isinstance(step, AnswerCall)
    assert (step.call.id, step.is_error) == ("call_1", True)
    assert step.text.startswith("Not run")


@pytest.mark.parametrize("reason", ["tool_use", "end_turn", "stop_sequence", "pause_turn", "something_new"])
def test_calls_of_every_other_turn_run(reason: str) -> None:
    assert after(open_turn(call(0), stop_reason=reason)) == RunCalls((call(0),))


def test_a_call_that_is_skipped_is_answered_with_an_outcome_that_is_no_error() -> None:
    step = after(open_turn(call(0), call(1)), skip={"call_0": "unknown"})
    assert step == AnswerCall(call(0), "unknown", is_error=False)


def test_a_skipped_member_of_a_parallel_group_is_answered_before_the_rest_runs() -> None:
    state = open_turn(call(0), call(1), parallel=(0, 1))
    assert after(state, skip={"call_1": "unknown"}) == AnswerCall(call(1), "unknown", is_error=False)


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "tool_use", "something_new"])
def test_an_answer_completes(reason: str) -> None:
    assert after(answered(reason)) == Finish("completed")


def test_an_answer_completes_although_a_suspend_was_asked_for_and_no_budget_is_left() -> None:
    spent = answered("end_turn", counters=Counters(model_calls=1, in_tokens=1))
    assert after(spent, suspend=True, budget=Budget(1, 1)) == Finish("completed")


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "content_filter", "model_context_window_exceeded"])
def test_a_dead_end_is_an_error_that_says_why(reason: str) -> None:
    for interactive in (False, True):
        step = after(answered(reason, interactive=interactive))
        assert isinstance(step, Finish)
        assert step.reason == "error"
        assert step.message == dead_end(answered(reason))


def test_a_chat_waits_for_input_after_an_answer() -> None:
    assert after(answered("end_turn", interactive=True)) == AwaitInput()
    assert after(answered("end_turn", interactive=True), suspend=True) == Finish("suspended")


def test_a_paused_turn_is_sent_back_at_most_ten_times_in_a_row() -> None:
    assert MAX_PAUSES == 10
    assert after(answered("pause_turn", pauses=10)) == CallModel()
    step = after(answered("pause_turn", pauses=11))
    assert isinstance(step, Finish)
    assert step.reason == "error"
    assert step.message is not None
    assert "11 times" in step.message


def test_a_paused_turn_can_be_suspended_and_costs_budget() -> None:
    assert after(answered("pause_turn", pauses=1), suspend=True) == Finish("suspended")
    spent = answered("pause_turn", pauses=1, counters=Counters(model_calls=3))
    step = after(spent, budget=Budget(None, 3))
    assert isinstance(step, Finish)
    assert step.reason == "max_iterations"


def test_a_suspend_stops_before_the_next_call_and_before_the_model() -> None:
    assert after(State(), suspend=True) == Finish("suspended")
    assert after(open_turn(call(0)), suspend=True) == Finish("suspended")


def test_all_four_kinds_of_tokens_count_against_the_budget() -> None:
    state = State(counters=Counters(1, 0, 1, 2, 4, 8))
    assert after(state, budget=Budget(16, None)) == CallModel()
    assert after(state, budget=Budget(15, None)) == Finish("budget", "15 of 15 tokens are used")


def test_iterations_count_against_the_budget() -> None:
    state = State(counters=Counters(model_calls=2))
    assert after(state, budget=Budget(None, 3)) == CallModel()
    assert after(state, budget=Budget(None, 2)) == Finish("max_iterations", "2 of 2 turns are used")


def test_a_used_up_budget_leaves_no_call_unanswered() -> None:
    spent = replace(open_turn(call(0)), counters=Counters(model_calls=1, in_tokens=1))
    assert after(spent, budget=Budget(1, 1)) == RunCalls((call(0),))


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "9"])
def test_a_limit_is_a_positive_whole_number(limit: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        Budget(limit, limit)
    assert len(refused.value.problems) == 2
    assert repr(limit) in refused.value.problems[0]


def test_a_dead_end_is_one_only_while_it_is_the_last_word() -> None:
    assert dead_end(State(answered=False, last_turn=turn("refusal"))) is None
    assert dead_end(State()) is None
    assert dead_end(answered("pause_turn", pauses=10)) is None
