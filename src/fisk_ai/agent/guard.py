"""Whether a stored run may go on under the current configuration. Pure; a refusal has changed no byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fisk_ai.agent.decide import dead_end
from fisk_ai.errors import AlreadyCompleted, ConfigurationChanged, DeadEnd, DecisionNeeded, UnsupportedFormat
from fisk_ai.fingerprint import diff
from fisk_ai.folding import RunState
from fisk_ai.messages import Call
from fisk_ai.records import VERSION, Fingerprint, TerminalRecord, resume_mark
from fisk_ai.tools.base import OnCrash, Tool

OUTCOME_UNKNOWN = (
    "The outcome of this call is unknown: its runner stopped while the call was running, and it was not repeated. "
    "It may have taken effect fully, partly or not at all. Check before you make it again."
)


_VERSION_1_PROVIDERS = frozenset({"anthropic", "scripted"})
"""Whose turns have the one format that a journal of version 1 can hold."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A resume that may go on, and what it has to leave in the journal before its first effect."""

    mark: TerminalRecord | None
    forced: tuple[str, ...]
    """What changed, when the resume was forced."""
    doubt: Mapping[str, str | None]
    """Calls that may have run: call id -> what the model is told instead, or None to run the call again."""


def check_resume(
    state: RunState,
    fingerprint: Fingerprint,
    tools: Mapping[str, Tool],
    *,
    force: bool = False,
    on_crash: OnCrash | None = None,
) -> Passage:
    """Let a resume pass or say why not.

    Args:
        state: the run as it was found, under its lock.
        fingerprint: of the current configuration.
        tools: the current tools.
        force: go on although the configuration changed; never to another provider.
        on_crash: overrides what the tools say of calls that may have run.

    Raises:
        AlreadyCompleted, ConfigurationChanged, UnsupportedFormat, DeadEnd, DecisionNeeded.
    """
    if state.terminal is not None and state.terminal.reason == "completed":
        raise AlreadyCompleted(state.run_id)
    forced = _check_fingerprint(state, fingerprint, force=force)
    _check_version(state)
    if (why := dead_end(state)) and not state.interrupted:
        raise DeadEnd(state.run_id, why)  # an interrupted one first gets the end that the crash kept from it
    doubt = _settle_ambiguous(state, fingerprint, tools, on_crash)
    return Passage(_mark(state, fingerprint if forced else None), forced, doubt)


def _check_fingerprint(state: RunState, current: Fingerprint, *, force: bool) -> tuple[str, ...]:
    changes = diff(state.fingerprint, current)
    texts = tuple(change.text for change in changes)
    forcible = all(change.field != "provider" for change in changes)
    if changes and not (force and forcible):
        fields = [change.field for change in changes]
        raise ConfigurationChanged(state.run_id, fields, texts, forcible=forcible)
    return texts


def _check_version(state: RunState) -> None:
    if state.version >= VERSION:
        return
    provider = state.fingerprint.provider
    held_back = "a chat" if state.interactive else None
    if provider not in _VERSION_1_PROVIDERS:
        held_back = f"turns of provider {provider!r}"
    if held_back:
        raise UnsupportedFormat(
            f"run {state.run_id!r} has a journal of version {state.version}, which can't hold {held_back}: "
            f"`fisk-ai session fork {state.run_id}` makes a copy of version {VERSION} that can"
        )


def _settle_ambiguous(
    state: RunState, current: Fingerprint, tools: Mapping[str, Tool], override: OnCrash | None
) -> dict[str, str | None]:
    pending = state.pending
    ambiguous = pending.ambiguous if pending else ()
    ambiguous = tuple(call for call in ambiguous if not _was_refused(call, state, current, tools))
    # Without its tool a call can't be repeated, and "there is no such tool" would say that it never ran.
    policies = {call: override or tools[call.name].on_crash if call.name in tools else "skip" for call in ambiguous}
    if undecided := [call for call, policy in policies.items() if policy == "ask"]:
        raise DecisionNeeded(state.run_id, [describe_call(call) for call in undecided])
    return {call.id: OUTCOME_UNKNOWN if policy == "skip" else None for call, policy in policies.items()}


def _was_refused(call: Call, state: RunState, current: Fingerprint, tools: Mapping[str, Tool]) -> bool:
    """Tell whether the dead runner can't have run the call: it had no such tool, or none that takes its arguments."""
    stored, turn = state.fingerprint, state.last_turn
    if turn is None or state.fingerprint_seq > turn.seq or stored.tools is None or current.tools is None:
        return False  # under which tools the call may have run is not known
    if call.name not in stored.tools:
        return True
    if current.tools.get(call.name) != stored.tools[call.name]:
        return False
    # What is in the fingerprint and no tool of ours runs on the provider's side.
    return call.name not in tools or tools[call.name].problem_with(call.parsed()) is not None


def describe_call(call: Call) -> str:
    """Name a call for an operator."""
    return f"{call.name} (call {call.id})"


def _mark(state: RunState, changed: Fingerprint | None) -> TerminalRecord | None:
    """Return the resume mark that is due: after a clean end, or to carry a forced fingerprint."""
    ended_cleanly = state.terminal is not None and not state.terminal.resumed
    return resume_mark(changed) if ended_cleanly or changed is not None else None
