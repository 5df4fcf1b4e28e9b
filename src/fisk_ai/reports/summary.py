"""Runs as plain data for programs (`--json`), and as the lines and tables that people read."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from fisk_ai.agent.decide import dead_end
from fisk_ai.folding import Counters, RunState
from fisk_ai.messages import Call
from fisk_ai.reports.cost import next_input, next_input_text
from fisk_ai.reports.prices import Price, price_data, price_text
from fisk_ai.reports.transcript import Entry, messages_data
from fisk_ai.stores.base import RunInfo
from fisk_ai.text import one_line

_COLUMNS = ("RUN", "STATUS", "AGE", "RECORDS", "TOKENS", "MODEL", "PROMPT")
_RIGHT = frozenset({"AGE", "RECORDS", "TOKENS"})
_LEAST_WIDTH = 80
"""Terminal columns below which a listing leaves out what matters less."""
_WIDE_ONLY = frozenset({"RECORDS", "MODEL"})
_PROMPT_WIDTH = 60
_MODEL_WIDTH = 28
_NAME_WIDTH = 64
_WHY_WIDTH = 2000


def info_data(info: RunInfo) -> dict[str, Any]:
    """Return a row of `session ls --json`."""
    data: dict[str, Any] = msgspec.to_builtins(info)
    return data


def show_data(info: RunInfo, state: RunState, entries: Iterable[Entry], price: Price | None = None) -> dict[str, Any]:
    """Return what `session show --json` prints: the row, and what the records add up to."""
    following = next_input(state)
    return {
        **info_data(info),
        "records": state.last_seq,
        "version": state.version,
        "fingerprint": msgspec.to_builtins(state.fingerprint),
        "forked_from": msgspec.to_builtins(state.forked_from),
        "counters": counters_data(state.counters),
        "price": price_data(price),
        "next_input_tokens": None if following is None else following.tokens,
        "next_iteration": state.next_iteration,
        "pending": _pending_data(state),
        "terminal": msgspec.to_builtins(state.terminal),
        "answer": state.last_turn.text if state.answered and state.last_turn and not dead_end(state) else None,
        "messages": messages_data(entries),
    }


def counters_data(counters: Counters) -> dict[str, int]:
    """Return counters as plain data, with their total."""
    return {**msgspec.to_builtins(counters), "total_tokens": counters.total_tokens}


def _pending_data(state: RunState) -> dict[str, Any] | None:
    pending = state.pending
    if pending is None:
        return None
    return {
        "answered": [_call_data(call) for call in pending.turn.calls if call.id in pending.results],
        "unanswered": [_call_data(call) for call in pending.unanswered],
        "ambiguous": [{**_call_data(call), "idempotency_key": state.key_of(call)} for call in pending.ambiguous],
    }


def _call_data(call: Call) -> dict[str, str]:
    return {"id": call.id, "name": call.name}


def table(
    infos: Sequence[RunInfo],
    now: datetime,
    width: int | None = None,
    used: Mapping[str, Counters | None] | None = None,
) -> Iterator[str]:
    """Yield the lines of a listing.

    Args:
        infos: the runs, in order.
        now: what ages are counted to.
        width: a terminal's columns, which no line is longer than; None leaves everything whole.
        used: counters by run id, for a column of tokens.
    """
    rows = [_row(info, now) for info in infos]
    if used is not None:
        for row, info in zip(rows, infos, strict=True):
            counters = used[info.run_id]
            row["TOKENS"] = "-" if counters is None else str(counters.total_tokens)
    hidden = {"TOKENS"} if used is None else set()
    if width is not None and width < _LEAST_WIDTH:
        hidden |= _WIDE_ONLY
    names = [name for name in _COLUMNS if name not in hidden]
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in names[:-1]}
    for row in [{name: name for name in names}, *rows]:
        cells = [_padded(row[name], name, widths[name]) for name in names[:-1]]
        line = "  ".join([*cells, row[names[-1]]]).rstrip()
        yield line if width is None else _cut(line, width)


def _padded(text: str, name: str, width: int) -> str:
    return text.rjust(width) if name in _RIGHT else text.ljust(width)


def _cut(line: str, width: int) -> str:
    """Cut a line to a terminal's columns; East Asian wide characters and emoji take two."""
    taken = 0
    for at, character in enumerate(line):
        taken += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if taken > width - 1 and (taken > width or at < len(line) - 1):
            return line[:at] + "…"
    return line


def _row(info: RunInfo, now: datetime) -> dict[str, str]:
    about = info.reason if info.reason else info.prompt or ""
    if info.waiting is not None:
        about = f"[waits for {info.waiting.kind}: {info.waiting.name}] {about}"
    return {
        "RUN": info.run_id,
        "STATUS": info.status,
        "AGE": age(info.updated or info.created, now),
        "RECORDS": "-" if info.records is None else str(info.records),
        "MODEL": one_line(info.model or "-", _MODEL_WIDTH),
        "PROMPT": one_line(about, _PROMPT_WIDTH),
    }


def age(moment: str | None, now: datetime) -> str:
    """Return how long ago an RFC 3339 time was, in one unit; `-` if it isn't known, `0s` if it lies ahead."""
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


def summary_lines(info: RunInfo, state: RunState, price: Price | None = None) -> Iterator[str]:
    """Yield the head of `session show`: where the run stands and what it used."""
    counters = state.counters
    yield f"run:      {state.run_id}{' (a chat)' if state.interactive else ''}"
    yield f"status:   {info.status}{_why(state)}"
    if info.waiting is not None:
        yield f"waits:    for {info.waiting.kind}: {one_line(info.waiting.name, _NAME_WIDTH)}"
    yield f"model:    {one_line(state.fingerprint.model, 60)} ({one_line(state.fingerprint.provider, 40)})"
    yield f"created:  {one_line(state.created, 40)}   records: {state.last_seq}   version: {state.version}"
    if state.forked_from is not None:
        yield f"fork of:  {one_line(state.forked_from.run_id, 100)} at record {state.forked_from.seq}"
    yield f"used:     {_used(counters)}"
    if price is not None:
        yield f"cost:     {price_text(price)}"
    if info.status != "running" and (following := next_input(state)) is not None:
        yield f"next:     a resume sends {next_input_text(following)}"
    yield from pending_lines(state, running=info.status == "running")


def pending_lines(state: RunState, *, running: bool = False) -> Iterator[str]:
    """Yield what is open in a batch: which call may have run, which never started.

    `running` says that somebody works on it, so that nothing is in doubt.
    """
    pending = state.pending
    if pending is None:
        return
    for call in pending.ambiguous:
        named = f"{one_line(call.name, _NAME_WIDTH)} (call {one_line(call.id, _NAME_WIDTH)})"
        if running:
            yield f"at work:  {named}"
        else:
            yield f"in doubt: {named} may have run; its idempotency key is {state.key_of(call)}"
    waiting = [one_line(call.name, _NAME_WIDTH) for call in pending.unanswered if call not in pending.ambiguous]
    if waiting:
        yield f"to do:    {', '.join(waiting)} (not started)"


def _used(counters: Counters) -> str:
    kinds = [f"input {counters.in_tokens}", f"output {counters.out_tokens}"]
    if counters.cache_read_tokens:
        kinds.append(f"cache read {counters.cache_read_tokens}")
    if counters.cache_create_tokens:
        kinds.append(f"cache created {counters.cache_create_tokens}")
    numbers = (
        (counters.model_calls, "model call"),
        (counters.tool_calls, "tool call"),
        (counters.total_tokens, "token"),
    )
    return f"{', '.join(_counted(*each) for each in numbers)} ({', '.join(kinds)})"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _why(state: RunState) -> str:
    if state.terminal is None or not state.terminal.message:
        return ""
    return f" ({one_line(state.terminal.message, _WHY_WIDTH)})"
