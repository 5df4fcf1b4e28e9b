"""A run for programs: one JSON document at its end (`json`), or one event a line (`stream-json`)."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fisk_ai.agent import events
from fisk_ai.cli import terminal
from fisk_ai.errors import FiskError


def event_data(event: events.Event) -> dict[str, Any]:
    """Return an event as plain data; `event` is its name in snake case."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    match event:
        case events.RunEnded():
            return {"event": name, **result_data(event.result)}
        case events.RunResumed():
            state = event.state
            return {
                "event": name,
                "run_id": event.run_id,
                "records": state.last_seq,
                "counters": msgspec.to_builtins(state.counters),
                "forced": list(event.forced),
                "ambiguous": [call.id for call in state.pending.ambiguous] if state.pending else [],
            }
        case _:
            return {"event": name, **msgspec.to_builtins(event)}


def result_data(result: events.RunResult) -> dict[str, Any]:
    """Return how a run ended as plain data."""
    return {
        "run_id": result.run_id,
        "reason": result.reason,
        "answer": result.answer,
        "message": result.message,
        "iterations": result.iterations,
        "counters": {**msgspec.to_builtins(result.counters), "total_tokens": result.counters.total_tokens},
        "stored": result.stored,
        "resumable": result.resumable,
        "error": None if result.storage_error is None else error_data(result.storage_error),
    }


def error_data(problem: FiskError) -> dict[str, Any]:
    """Return an error as plain data: a stable `code`, and the text that people see."""
    return {"code": problem.code, "message": str(problem)}


class StreamedJson:
    """Writes each event as one line to stdout."""

    def __call__(self, event: events.Event) -> None:
        """Write an event."""
        terminal.answer_json(event_data(event))

    def close(self) -> None:
        """Nothing is left to do."""


class FinalJson:
    """Writes the result as one document to stdout, and nothing before."""

    def __call__(self, event: events.Event) -> None:
        """Write the result when the run has ended."""
        if isinstance(event, events.RunEnded):
            terminal.answer_json(result_data(event.result))

    def close(self) -> None:
        """Nothing is left to do."""
