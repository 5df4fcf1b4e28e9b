"""Runs as plain data for programs (`--json`), and as the lines and tables that people read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from fisk_ai.fold import RunState
from fisk_ai.messages import Call
from fisk_ai.stores.base import RunInfo
from fisk_ai.text import one_line

_COLUMNS = ("RUN", "STATUS", "AGE", "RECORDS", "MODEL", "PROMPT")
_RIGHT = frozenset({"AGE", "RECORDS"})
_PROMPT_WIDTH = 60
_MODEL_WIDTH = 28


def info_data(info: RunInfo) -> dict[str, Any]:
    """Return a row of `session ls --json`."""
    data: dict[str, Any] = msgspec.to_builtins(info)
    return data


def show_data(info: RunInfo, state: RunState) -> dict[str, Any]:
    """Return what `session show --json` prints: the row, and what the records add up to."""
    pending = state.pending
    return {
        **info_data(info),
        "records": state.last_seq,
        "version": state.version,
        "fingerprint": msgspec.to_builtins(state.fingerprint),
        "forked_from": msgspec.to_builtins(state.forked_from),
        "counters": {**msgspec.to_builtins(state.counters), "total_tokens": state.counters.total_tokens},
        "next_iteration": state.next_iteration,
        "pending": None
        if pending is None
        else {
            "answered": [_call_data(call) for call in pending.turn.calls if call.id in pending.results],
            "unanswered": [_call_data(call) for call in pending.unanswered],
            "ambiguous": [{**_call_data(call), "idempotency_key": state.key_of(call)} for call in pending.ambiguous],
        },
        "terminal": msgspec.to_builtins(state.terminal),
    }


def _call_data(call: Call) -> dict[str, str]:
    return {"id": call.id, "name": call.name}


def table(infos: Sequence[RunInfo], now: datetime, width: int | None = None) -> Iterator[str]:
    """Yield the lines of a listing; `width` cuts them to a terminal's columns, None leaves them whole."""
    rows = [_COLUMNS, *(_row(info, now) for info in infos)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS) - 1)]
    for row in rows:
        cells = [
            cell.rjust(size) if name in _RIGHT else cell.ljust(size)
            for name, cell, size in zip(_COLUMNS, row, widths, strict=False)
        ]
        line = "  ".join([*cells, row[-1]]).rstrip()
        yield line if width is None or len(line) <= width else line[: max(width - 1, 1)] + "…"


def _row(info: RunInfo, now: datetime) -> tuple[str, ...]:
    about = info.reason if info.reason else info.prompt or ""
    if info.waiting is not None:
        about = f"[waits for {info.waiting.kind}: {info.waiting.name}] {about}"
    return (
        info.run_id,
        info.status,
        age(info.updated or info.created, now),
        "-" if info.records is None else str(info.records),
        one_line(info.model or "-", _MODEL_WIDTH),
        one_line(about, _PROMPT_WIDTH),
    )


def age(moment: str | None, now: datetime) -> str:
    """Return how long ago an RFC 3339 time was, in one unit; `-` if it isn't known."""
    if moment is None:
        return "-"
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return "-"
    seconds = int((now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def summary_lines(info: RunInfo, state: RunState) -> Iterator[str]:
    """Yield the head of `session show`: where the run stands and what it used."""
    counters = state.counters
    yield f"run:      {state.run_id}"
    yield f"status:   {info.status}{_why(state)}"
    yield f"model:    {one_line(state.fingerprint.model, 60)} ({one_line(state.fingerprint.provider, 40)})"
    yield f"created:  {one_line(state.created, 40)}   records: {state.last_seq}   version: {state.version}"
    if state.forked_from is not None:
        yield f"fork of:  {one_line(state.forked_from.run_id, 100)} at record {state.forked_from.seq}"
    yield (
        f"used:     {counters.model_calls} model calls, {counters.tool_calls} tool calls, "
        f"{counters.total_tokens} tokens (input {counters.in_tokens}, output {counters.out_tokens}, "
        f"cache read {counters.cache_read_tokens}, cache created {counters.cache_create_tokens})"
    )
    if state.pending is not None:
        yield from pending_lines(state)


def pending_lines(state: RunState) -> Iterator[str]:
    """Yield what is open in a batch: which call may have run, which never started."""
    pending = state.pending
    if pending is None:
        return
    for call in pending.ambiguous:
        yield (
            f"in doubt: {one_line(call.name, 64)} (call {one_line(call.id, 64)}) may have run; its idempotency key is "
            f"{state.key_of(call)}"
        )
    if waiting := [one_line(call.name, 64) for call in pending.unanswered if call not in pending.ambiguous]:
        yield f"to do:    {', '.join(waiting)} (not started)"


def _why(state: RunState) -> str:
    if state.terminal is None or not state.terminal.message:
        return ""
    return f" ({one_line(state.terminal.message, 300)})"
