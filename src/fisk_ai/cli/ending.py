"""What is said of a run that ended without its answer, and the command that goes on with it."""

from __future__ import annotations

from collections.abc import Mapping

from fisk_ai.agent.decide import dead_end, fitting_record
from fisk_ai.agent.events import RunResult
from fisk_ai.cli.places import Place
from fisk_ai.folding import RunState
from fisk_ai.records import Reason
from fisk_ai.stores.base import Store
from fisk_ai.text import one_line

_HOW: Mapping[Reason, str] = {
    "suspended": "is suspended: {why}",
    "error": "failed: {why}",
    "budget": "stopped at its budget: {why}",
    "max_iterations": "stopped at its budget: {why}",
}
_BEFORE_GOING_ON: Mapping[Reason, str] = {
    "budget": ". Raise llm.budget in the configuration",
    "max_iterations": ". Raise llm.budget in the configuration",
}
_WHY_WIDTH = 2000


def ending(result: RunResult, place: Place, store: Store) -> str:
    """Return how a run ended; of a stored one, the last line is the command that goes on with it."""
    how = _how(result)
    if not result.stored:
        return "the chat is over; nothing of it was stored" if result.reason == "suspended" else f"the run {how}"
    if result.reason == "error" and dead_end(state := store.load(result.run_id)):
        return (
            f"run {result.run_id} {how}. It can't go on; this asks again, in a new run:\n  {fork_before(state, place)}"
        )
    if (at := _fitting_record(result, store)) is not None:
        fork = place.session_command("fork", result.run_id, "--at", str(at))
        return f"run {result.run_id} {how}. A resume asks the same again; this makes a new run that fits:\n  {fork}"
    before = _BEFORE_GOING_ON.get(result.reason, "")
    return f"run {result.run_id} {how}{before}; go on with:\n  {resume(result.run_id, result.reason, place)}"


def _how(result: RunResult) -> str:
    if result.reason == "suspended" and not result.message:
        return "is suspended"  # because somebody wanted it
    return _HOW[result.reason].format(why=one_line(result.message or "no reason is known", _WHY_WIDTH))


def _fitting_record(result: RunResult, store: Store) -> int | None:
    """Return where to fork a run whose conversation became too long, or None."""
    problem = result.provider_error
    return fitting_record(store.load(result.run_id)) if problem and problem.is_context_overflow else None


def way_on(state: RunState, place: Place) -> str | None:
    """Return the command that goes on with a stored run, or None if it is completed."""
    if state.terminal is not None and state.terminal.reason == "completed":
        return None
    if dead_end(state):
        return fork_before(state, place)
    return resume(state.run_id, None if state.interrupted or state.terminal is None else state.terminal.reason, place)


def go_on_with(command: str) -> tuple[str, str]:
    """Return the lines that hand over a command made without a configuration; the last one is ready to paste."""
    resumes = command.startswith("fisk-ai run ")
    return f"go on with{' (with the --config it was started with)' if resumes else ''}:", f"  {command}"


def resume(run_id: str, reason: Reason | None, place: Place) -> str:
    """Return the command that resumes a run; what stopped at its budget needs another one, and so `--force`."""
    flags = ["--force"] if reason in _BEFORE_GOING_ON else []
    return place.run_command("--resume", run_id, *flags)


def fork_before(state: RunState, place: Place) -> str:
    """Return the command that forks a run before its last turn."""
    before = state.last_turn.seq - 1 if state.last_turn is not None else state.last_seq
    return place.session_command("fork", state.run_id, "--at", str(before))
