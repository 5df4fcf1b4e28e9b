"""A run's conversation as readable lines, harmless on a terminal, and as plain data.

The lines that show calls and results are the same here and while a run works. They are made from records where there
are any, which gives each its seq, else from a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fisk_ai.folding import Pending, RunState
from fisk_ai.formats import reader_for
from fisk_ai.messages import Call, Message, TextBlock, ToolResultBlock, read_result, read_user
from fisk_ai.records import (
    AssistantRecord,
    MetaRecord,
    SequencedRecord,
    TerminalRecord,
    ToolResultRecord,
    UserRecord,
)
from fisk_ai.text import one_line, printable

ARGUMENTS_WIDTH = 80
NAME_WIDTH = 64
RESULT_LINES = 12
"""Lines of a tool result that are shown unless all are asked for."""
RESULT_WIDTH = 2000
"""Characters of each of these lines."""
_MARGIN = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of a conversation."""

    seq: int | None
    """Of its record; None where only the state is known."""
    role: Literal["user", "assistant", "tool", "end"]
    text: str
    calls: tuple[Call, ...] = ()
    """Of the model's turn."""
    answers: str | None = None
    """The id of the call that a tool's result answers."""
    name: str | None = None
    """Its tool, where it has to be told from others of the same turn."""
    is_error: bool = False
    ran: bool = True
    """False if the call was answered without being run."""
    duration_ms: int | None = None
    images: int = 0


def entries_of_records(records: Iterable[SequencedRecord]) -> Iterator[Entry]:
    """Yield what the records of a run say, in their order."""
    names: Mapping[str, str] = {}
    for item in records:
        match item.record:
            case MetaRecord() as meta:
                yield Entry(item.seq, "user", meta.prompt)
            case UserRecord() as user:
                yield from _user_entries(item.seq, bytes(user.message), {})
            case AssistantRecord() as turn:
                entry = _assistant_entry(item.seq, turn.format, bytes(turn.message))
                names = _names(entry.calls)
                yield entry
            case ToolResultRecord() as result:
                # Ours have a name and, if the call was run, a duration; those of other origin may have neither.
                ran = result.duration_ms is not None or result.name is None
                block = read_result(bytes(result.result))
                yield _result_entry(item.seq, block, names, ran=ran, duration_ms=result.duration_ms)
            case TerminalRecord() as end:
                yield Entry(item.seq, "end", _end_text(end))


def entries_of_state(state: RunState) -> Iterator[Entry]:
    """Yield the conversation of a state, the open turn included."""
    names: Mapping[str, str] = {}
    for message in state.messages:
        if message.role == "user":
            yield from _user_entries(None, message.content, names)
        else:
            entry = _assistant_entry(None, message.format, message.content)
            names = _names(entry.calls)
            yield entry
    if state.pending is not None:
        yield from _open_entries(state.pending)


def _open_entries(pending: Pending) -> Iterator[Entry]:
    message: Message = pending.message
    yield _assistant_entry(None, message.format, message.content)
    names = _names(pending.turn.calls)
    for call in pending.turn.calls:
        if call.id in pending.results:
            yield _result_entry(None, read_result(pending.results[call.id]), names)


def _user_entries(seq: int | None, message: bytes, names: Mapping[str, str]) -> Iterator[Entry]:
    try:
        blocks = read_user(message).blocks
    except msgspec.MsgspecError:
        yield Entry(seq, "user", "(a message that can't be shown)")
        return
    for block in blocks:
        match block:
            case TextBlock():
                yield Entry(seq, "user", block.text)
            case ToolResultBlock():
                yield _result_entry(seq, block, names)
            case _:
                yield Entry(seq, "user", "(an image)")


def _assistant_entry(seq: int | None, format_name: str, message: bytes) -> Entry:
    content = reader_for(format_name)(message)
    return Entry(seq, "assistant", content.text, content.calls)


def _result_entry(
    seq: int | None,
    block: ToolResultBlock,
    names: Mapping[str, str],
    *,
    ran: bool = True,
    duration_ms: int | None = None,
) -> Entry:
    return Entry(
        seq,
        "tool",
        block.text,
        answers=block.tool_use_id,
        name=names.get(block.tool_use_id),
        is_error=block.is_error,
        ran=ran,
        duration_ms=duration_ms,
        images=sum(not isinstance(part, TextBlock) for part in block.blocks),
    )


def _names(calls: tuple[Call, ...]) -> Mapping[str, str]:
    """Return the names of calls by id if there are several; the result of a single one needs none."""
    return {call.id: call.name for call in calls} if len(calls) > 1 else {}


def _end_text(end: TerminalRecord) -> str:
    if end.resumed:
        return "resumed with another configuration" if end.fingerprint is not None else "resumed"
    return end.reason


def messages_data(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return a conversation as `session show --json` has it."""
    return [
        {
            "seq": entry.seq,
            "role": entry.role,
            "text": entry.text,
            "calls": [{"id": call.id, "name": call.name, "arguments": _arguments(call)} for call in entry.calls],
            "tool_use_id": entry.answers,
            "is_error": entry.is_error,
        }
        for entry in entries
        if entry.role != "end"
    ]


def transcript(entries: Iterable[Entry], *, full: bool = False, margin: bool = False) -> Iterator[str]:
    """Yield the lines of a conversation: who said what, which tools were called, what they answered.

    `full` shows tool results of any length. `margin` puts the seq of each record before its first line.
    """
    for entry in entries:
        seq = "" if entry.seq is None else str(entry.seq)
        for line in _lines(entry, full=full):
            yield f"{seq:>{_MARGIN}} {line}".rstrip() if margin else line
            seq = ""


def _lines(entry: Entry, *, full: bool) -> Iterator[str]:
    match entry.role:
        case "user":
            yield from _labelled("you", entry.text)
        case "assistant":
            if entry.text.strip() or not entry.calls:
                yield from _labelled("model", entry.text if entry.text.strip() else "(nothing)")
            for call in entry.calls:
                yield call_line(call.name, _arguments(call))
        case "tool":
            yield from _result_lines(entry, full=full)
        case "end":
            yield f"--- {entry.text} ---"


def _arguments(call: Call) -> str:
    return call.arguments.decode("utf-8", "replace")


def call_line(name: str, arguments: str) -> str:
    """Return one line that shows a call and its arguments."""
    return f"> {one_line(name, NAME_WIDTH)} {one_line(arguments, ARGUMENTS_WIDTH)}"


def outcome(*, is_error: bool, duration_ms: int | None) -> str:
    """Return how a call that was run went, and how long it took where that is known."""
    took = "" if duration_ms is None else f" {duration_ms / 1000:.1f} s"
    return f"{'failed' if is_error else 'ok'}{took}"


def not_run(text: str, *, is_error: bool) -> tuple[str, str]:
    """Return how to call it that a call was answered without being run, and why, from what the model is told."""
    again = text.removeprefix("Not run again: ")
    if again != text or not is_error:
        return "not repeated", again
    return "not started", text.removeprefix("Not run: ")


def _result_lines(entry: Entry, *, full: bool) -> Iterator[str]:
    how, text = outcome(is_error=entry.is_error, duration_ms=entry.duration_ms), entry.text
    if not entry.ran:
        how, text = not_run(text, is_error=entry.is_error)
    which = f"{one_line(entry.name, NAME_WIDTH)} " if entry.name else ""
    lines = printable(text).rstrip("\n").split("\n")
    hidden = len(lines) - RESULT_LINES
    shown = lines if full or hidden <= 0 else lines[:RESULT_LINES]
    first, *others = shown if full else map(_shortened, shown)
    yield f"  {which}{how}: {first}"
    yield from (f"    {line}" for line in others)
    if shown is not lines:
        yield f"    ... {hidden} more lines"
    if entry.images:
        yield f"    ({entry.images} image{'s' if entry.images > 1 else ''})"


def _shortened(line: str) -> str:
    more = len(line) - RESULT_WIDTH
    return line if more <= 0 else f"{line[:RESULT_WIDTH]}... {more} more characters"


def open_lines(pending: Pending | None, *, running: bool = False, margin: bool = False) -> Iterator[str]:
    """Yield the calls of an open turn that have no result.

    `running` says that somebody works on the run, so that nothing is in doubt.
    """
    indent = " " * (_MARGIN + 1) if margin else ""
    for call in pending.unanswered if pending else ():
        state = "not started"
        if pending and call in pending.ambiguous:
            state = "no result yet" if running else "no result; it may have run"
        yield f"{indent}  {one_line(call.name, NAME_WIDTH)}: {state}"


def _labelled(label: str, text: str) -> Iterator[str]:
    lines = printable(text).rstrip("\n").split("\n")
    yield f"{label}: {lines[0]}"
    indent = " " * (len(label) + 2)
    yield from (f"{indent}{line}" if line else "" for line in lines[1:])
