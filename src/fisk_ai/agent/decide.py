"""What comes next in a run: a pure function of its state.

There is no second path for a resume. A pending batch, an answer without its end record, a paused turn, a turn cut off
at the output limit are states like any other, and each has its line here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from fisk_ai.errors import ConfigError
from fisk_ai.folding import CUT_OFF, Counters, Pending, Turn
from fisk_ai.messages import Call
from fisk_ai.records import Reason

MAX_PAUSES = 10
"""Paused turns in a row that are sent back before a run gives up."""

_DEAD_ENDS: Mapping[str, str] = {
    "refusal": "the model refused to go on",
    "content_filter": "the provider's content filter stopped the model",
    "model_context_window_exceeded": "the conversation is longer than the model can read",
    "max_tokens": "the model's turn was cut off at the output-token limit (llm.max_output_tokens)",
}
KNOWN_STOP_REASONS = frozenset({"tool_use", "end_turn", "stop_sequence", "pause_turn", *CUT_OFF})


class View(Protocol):
    """The part of a run's state that the next step depends on; `Folding` and `RunState` both have it."""

    @property
    def interactive(self) -> bool:
        """True for a chat."""

    @property
    def counters(self) -> Counters:
        """Totals so far."""

    @property
    def pending(self) -> Pending | None:
        """The open turn."""

    @property
    def answered(self) -> bool:
        """True if the last word is the model's."""

    @property
    def last_turn(self) -> Turn | None:
        """The last model turn."""

    @property
    def pauses(self) -> int:
        """Paused turns in a row."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits over the whole life of a run, resumes included; None is no limit.

    Raises:
        ConfigError: for a limit that is no positive whole number.
    """

    max_tokens: int | None = 200_000
    """Tokens of all four kinds: input, output, cache read, cache creation."""
    max_iterations: int | None = 50
    """Model turns."""

    def __post_init__(self) -> None:
        limits = {"max_tokens": self.max_tokens, "max_iterations": self.max_iterations}
        if problems := [
            f"budget: {name} is a positive whole number or None (no limit), not {limit!r}"
            for name, limit in limits.items()
            if limit is not None and not (type(limit) is int and limit > 0)
        ]:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model for its next turn."""


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run these calls: one, or a parallel group."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Answer a call without running it."""

    call: Call
    text: str
    is_error: bool = True


@dataclass(frozen=True, slots=True)
class AwaitInput:
    """Wait for the operator's next line."""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run, for now or for good."""

    reason: Reason
    message: str | None = None


Step = CallModel | RunCalls | AnswerCall | AwaitInput | Finish


def decide(
    state: View,
    *,
    tools: Collection[str],
    budget: Budget,
    skip: Mapping[str, str] | None = None,
    suspend: bool = False,
) -> Step:
    """Return the next step.

    Args:
        state: the run so far.
        tools: names of the tools that exist now.
        budget: compared with the counters before each model call, and only there: calls already made are answered
            and an answer always completes.
        skip: call id -> what to tell the model instead of running the call (an outcome that is unknown).
        suspend: the operator asked to stop at the next boundary.
    """
    if state.answered and state.last_turn is not None:
        return _after_answer(state, state.last_turn, budget, suspend=suspend)
    if suspend:
        return Finish("suspended")
    if state.pending is not None:
        return _next_call(state.pending, tools, skip or {})
    return _ask_model(state.counters, budget)


def dead_end(state: View) -> str | None:
    """Say why the model's last turn can't be continued, or None."""
    turn = state.last_turn
    if not state.answered or turn is None:
        return None
    if turn.stop_reason == "pause_turn" and state.pauses > MAX_PAUSES:
        return f"the model paused {state.pauses} times in a row"
    return _DEAD_ENDS.get(turn.stop_reason)


def fitting_record(state: View) -> int | None:
    """Return the last record up to which the conversation fitted the model, or None if nothing was answered yet."""
    turn = state.last_turn
    if turn is None:
        return None
    # A follow-up came after an answer that is worth keeping; results and a paused turn go with their turn.
    return turn.seq if not state.answered and not turn.calls else turn.seq - 1


def _after_answer(state: View, turn: Turn, budget: Budget, *, suspend: bool) -> Step:
    if why := dead_end(state):
        return Finish("error", why)
    if turn.stop_reason == "pause_turn":
        return Finish("suspended") if suspend else _ask_model(state.counters, budget)
    if state.interactive:
        return Finish("suspended") if suspend else AwaitInput()
    return Finish("completed")


def _ask_model(counters: Counters, budget: Budget) -> Step:
    if budget.max_tokens is not None and counters.total_tokens >= budget.max_tokens:
        return Finish("budget", f"{counters.total_tokens} of {budget.max_tokens} tokens are used")
    if budget.max_iterations is not None and counters.model_calls >= budget.max_iterations:
        return Finish("max_iterations", f"{counters.model_calls} of {budget.max_iterations} turns are used")
    return CallModel()


def _next_call(pending: Pending, tools: Collection[str], skip: Mapping[str, str]) -> Step:
    answered = pending.results
    group = next(calls for group in pending.turn.groups() if (calls := tuple(c for c in group if c.id not in answered)))
    for call in group:
        if call.id in skip:
            return AnswerCall(call, skip[call.id], is_error=False)
        if why := _why_not_run(call, pending.turn, tools):
            return AnswerCall(call, why)
    return RunCalls(group)


def _why_not_run(call: Call, turn: Turn, tools: Collection[str]) -> str | None:
    if turn.stop_reason in CUT_OFF:
        return f"Not run: {_DEAD_ENDS[turn.stop_reason]}, so the call may be incomplete. Make it again, shorter."
    if not call.usable:
        return "Not run: the arguments are unusable. They must be one JSON object that fits the tool's schema."
    if call.name not in tools:
        return f"Not run: there is no tool named {call.name!r}. Available: {', '.join(sorted(tools)) or 'none'}."
    return None
