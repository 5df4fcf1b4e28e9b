"""A run for programs: one JSON document at its end (`json`), or one event a line (`stream-json`).

What the fields mean is in `docs/cli.md`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fisk_ai.agent import events
from fisk_ai.cli import terminal
from fisk_ai.cli.json_output import error_data, print_json, print_json_line
from fisk_ai.cli.live import retry_line
from fisk_ai.reports.cost import next_input
from fisk_ai.reports.summary import counters_data


def event_data(event: events.Event) -> dict[str, Any]:
    """Return an event as plain data; `event` is its name in snake case."""
    name = event_name(type(event))
    match event:
        case events.RunEnded():
            return {"event": name, **result_data(event.result)}
        case events.RunResumed():
            state = event.state
            following = next_input(state)
            return {
                "event": name,
                "run_id": event.run_id,
                "records": state.last_seq,
                "counters": counters_data(state.counters),
                "next_input_tokens": None if following is None else following.tokens,
                "forced": list(event.forced),
                "ambiguous": [call.id for call in state.pending.ambiguous] if state.pending else [],
            }
        case _:
            return {"event": name, **msgspec.to_builtins(event)}


def event_name(kind: type[events.Event]) -> str:
    """Return the name that events of a kind have in JSON."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def result_data(result: events.RunResult) -> dict[str, Any]:
    """Return how a run ended as plain data."""
    problem = result.storage_error
    return {
        "run_id": result.run_id,
        "reason": result.reason,
        "answer": result.answer,
        "message": result.message,
        "iterations": result.iterations,
        "counters": counters_data(result.counters),
        "stored": result.stored,
        "resumable": result.resumable,
        "error": None if problem is None else error_data(problem, str(problem)),
    }


class StreamedJson:
    """Writes each event as one line to stdout."""

    def __call__(self, event: events.Event) -> None:
        """Write an event."""
        print_json_line(event_data(event))

    def notice(self, text: str) -> None:
        """Say something that isn't an event, to people."""
        terminal.say(text)

    def close(self) -> None:
        """Do nothing: each line was written at once."""

    def finish(self, result: events.RunResult) -> None:
        """Do nothing: the result was the last event."""


class FinalJson(StreamedJson):
    """Writes the result as one document to stdout, and nothing before."""

    def __call__(self, event: events.Event) -> None:
        """Keep silent, but for what makes somebody wait."""
        if isinstance(event, events.ModelRetried):
            terminal.say(retry_line(event))

    def finish(self, result: events.RunResult) -> None:
        """Write the result."""
        print_json(result_data(result))
