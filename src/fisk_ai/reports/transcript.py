"""A run's conversation as readable lines, harmless on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fisk_ai.folding import Pending, RunState
from fisk_ai.formats import reader_for
from fisk_ai.messages import Call, Message, TextBlock, ToolResultBlock, read_result, read_user
from fisk_ai.text import one_line, printable

ARGUMENTS_WIDTH = 100
RESULT_LINES = 12
"""Lines of a tool result that are shown unless all are asked for."""


def transcript(state: RunState, *, full: bool = False, running: bool = False) -> Iterator[str]:
    """Yield the lines of a conversation: who said what, which tools were called, what they answered.

    `full` shows tool results of any length. `running` says that somebody works on the run, so that nothing is in doubt.
    """
    names: dict[str, str] = {}
    for message in state.messages:
        if message.role == "user":
            yield from _user_lines(message, names, full=full)
        else:
            names = {}
            yield from _assistant_lines(message, names)
    if state.pending is not None:
        yield from _pending_lines(state.pending, full=full, running=running)


def _user_lines(message: Message, names: dict[str, str], *, full: bool) -> Iterator[str]:
    try:
        blocks = read_user(message.content).blocks
    except msgspec.MsgspecError:
        yield "you: (a message that can't be shown)"
        return
    for block in blocks:
        match block:
            case TextBlock():
                yield from _labelled("you", block.text)
            case ToolResultBlock():
                yield from _result_lines(names.get(block.tool_use_id, block.tool_use_id), block, full=full)
            case _:
                yield "you: (an image)"


def _assistant_lines(message: Message, names: dict[str, str]) -> Iterator[str]:
    content = reader_for(message.format)(message.content)
    if content.text.strip():
        yield from _labelled("model", content.text)
    for call in content.calls:
        names[call.id] = call.name
        yield call_line(call)


def call_line(call: Call) -> str:
    """Return one line that shows a call and its arguments."""
    arguments = call.arguments.decode("utf-8", "replace")
    return f"call: {one_line(call.name, 64)} {one_line(arguments, ARGUMENTS_WIDTH)}"


def _result_lines(name: str, block: ToolResultBlock, *, full: bool) -> Iterator[str]:
    images = sum(not isinstance(part, TextBlock) for part in block.blocks)
    label = f"{one_line(name, 64)}{' failed' if block.is_error else ''}"
    lines = printable(block.text).rstrip("\n").split("\n")
    hidden = len(lines) - RESULT_LINES
    shown = lines if full or hidden <= 0 else lines[:RESULT_LINES]
    yield f"  {label}: {shown[0]}"
    yield from (f"    {line}" for line in shown[1:])
    if shown is not lines:
        yield f"    ... {hidden} more lines"
    if images:
        yield f"    ({images} image{'s' if images > 1 else ''})"


def _pending_lines(pending: Pending, *, full: bool, running: bool) -> Iterator[str]:
    yield from _assistant_lines(pending.message, {})
    for call in pending.turn.calls:
        if call.id in pending.results:
            yield from _result_lines(call.name, read_result(pending.results[call.id]), full=full)
        elif call in pending.ambiguous:
            doubt = "no result yet" if running else "no result; it may have run"
            yield f"  {one_line(call.name, 64)}: {doubt}"
        else:
            yield f"  {one_line(call.name, 64)}: not started"


def _labelled(label: str, text: str) -> Iterator[str]:
    lines: Sequence[str] = printable(text).rstrip("\n").split("\n")
    yield f"{label}: {lines[0]}"
    indent = " " * (len(label) + 2)
    yield from (f"{indent}{line}" if line else "" for line in lines[1:])
