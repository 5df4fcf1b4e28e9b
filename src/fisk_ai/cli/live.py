"""A run as the operator sees it: lines on stderr while it works, the answer on stdout once it is journaled."""

from __future__ import annotations

import sys

from fisk_ai.agent import events
from fisk_ai.agent.decide import KNOWN_STOP_REASONS
from fisk_ai.cli import terminal
from fisk_ai.cli.places import Place
from fisk_ai.cli.spinner import Spinner
from fisk_ai.messages import is_blank
from fisk_ai.reports.cost import next_input, next_input_text
from fisk_ai.reports.summary import pending_lines
from fisk_ai.reports.transcript import (
    NAME_WIDTH,
    call_line,
    entries_of_state,
    not_run,
    open_lines,
    outcome,
    transcript,
)
from fisk_ai.text import one_line, printable

_RESULT_WIDTH = 100

_NO_ANSWER = KNOWN_STOP_REASONS - {"end_turn", "stop_sequence", "tool_use"}
"""Stop reasons of a turn without calls that isn't an answer: paused, refused, cut off."""


class Live:
    """Shows events of one run."""

    def __init__(self, place: Place, *, chat: bool) -> None:
        self._place = place
        self._chat = chat
        self._spinner = Spinner()
        self._streams = terminal.can_rewrite(sys.stderr)
        self._one_terminal = terminal.same_terminal()
        self._streamed = ""
        self._mid_line = False
        self._at_work: dict[str, str] = {}
        self._side_by_side = False

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        match event:
            case events.TextStreamed():
                self._stream(event)
            case events.ModelCalled():
                self._streamed = ""
                self._spinner.start("the model works" + (f" (attempt {event.attempt})" if event.attempt > 1 else ""))
            case _:
                self._spinner.stop()
                self._end_line()
                self._show(event)

    def notice(self, text: str) -> None:
        """Say something that isn't an event."""
        self._end_line()
        self._spinner.interrupt(text)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._spinner.stop()
        self._end_line()

    def finish(self, result: events.RunResult) -> None:
        """Print the answer of a run that is completed; a chat's answers were printed as they came."""
        if result.reason == "completed" and result.answer is not None and not self._chat:
            self._answer(result.answer)

    def _stream(self, event: events.TextStreamed) -> None:
        if not self._streams or event.kind != "text":
            return
        self._spinner.stop()
        self._streamed += event.text
        terminal.say(event.text, end="")
        self._mid_line = not self._streamed.endswith("\n")

    def _end_line(self) -> None:
        if self._mid_line:
            self._mid_line = False
            terminal.say()

    def _show(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._started(event)
            case events.RunResumed():
                self._resumed(event)
            case events.TurnRecorded():
                self._turn(event)
            case events.ModelRetried():
                self._streamed = ""
                terminal.say(retry_line(event))
                self._spinner.start(f"attempt {event.attempt + 1} in {event.wait_s:.1f} s: {event.error}")
            case events.ToolStarted():
                self._tool_started(event)
            case events.ToolFinished():
                self._tool_finished(event)
            case _:
                if text := _notice(event):
                    terminal.say(text)

    def _started(self, event: events.RunStarted) -> None:
        if event.stored:
            terminal.say(f"run {event.run_id} is journaled; whatever stops it, this goes on with it:")
            terminal.say(f"  {self._place.run_command('--resume', event.run_id)}")

    def _resumed(self, event: events.RunResumed) -> None:
        state = event.state
        self._chat = state.interactive
        terminal.say(f"run {event.run_id} so far:")
        for line in (*transcript(entries_of_state(state)), *open_lines(state.pending)):
            terminal.say(f"  {line}" if line else "")
        for line in pending_lines(state):
            terminal.say(line)
        for change in event.forced:
            terminal.say(f"forced:   {one_line(change, 1000)}")
        if (following := next_input(state)) is not None:
            terminal.say(f"next:     the model is sent {next_input_text(following)}")
        terminal.say(f"--- goes on after record {state.last_seq} ---")
        if state.answered and state.last_turn is not None:
            self._streamed = state.last_turn.text  # it was shown just now

    def _turn(self, event: events.TurnRecorded) -> None:
        is_answer = not event.calls and event.stop_reason not in _NO_ANSWER
        if is_answer:
            if self._chat:
                self._answer(event.text)
        elif not self._streamed and not is_blank(event.text):
            terminal.say(event.text.rstrip("\n"))

    def _answer(self, text: str) -> None:
        """Print a journaled answer, unless the operator has just read it on this very terminal."""
        if is_blank(text):
            terminal.say("the model's answer is empty")
        elif not (self._one_terminal and printable(self._streamed) == printable(text)):
            terminal.answer(text)

    def _tool_started(self, event: events.ToolStarted) -> None:
        terminal.say(call_line(event.name, event.arguments))
        self._at_work[event.call_id] = event.name
        self._side_by_side = len(self._at_work) > 1  # until the next one starts alone
        self._spinner.start(event.name)

    def _tool_finished(self, event: events.ToolFinished) -> None:
        if event.duration_ms is None:
            how, why = not_run(event.text, is_error=event.is_error)
            terminal.say(f"> {_named(event.name)} ({how}): {one_line(why, _RESULT_WIDTH)}")
            return
        which = f"{_named(event.name)} " if self._side_by_side else ""
        how = outcome(is_error=event.is_error, duration_ms=event.duration_ms)
        terminal.say(f"  {which}{how}: {one_line(event.text, _RESULT_WIDTH)}")
        self._at_work.pop(event.call_id, None)
        if self._at_work:
            self._spinner.start(next(iter(self._at_work.values())))


def _named(name: str) -> str:
    return one_line(name, NAME_WIDTH)


def retry_line(event: events.ModelRetried) -> str:
    """Return what went wrong with a model call, and what is waited for now."""
    paid = " (a turn that broke off may be paid for twice)" if event.may_be_paid else ""
    return f"model: {one_line(event.error, 300)}; attempt {event.attempt + 1} follows in {event.wait_s:.1f} s{paid}"


def _notice(event: events.Event) -> str | None:
    match event:
        case events.TailRepaired():
            return f"a torn tail of {event.cut_bytes} bytes was cut; it is kept in {event.run_id}.torn"
        case events.CallRepeated():
            return (
                f"{_named(event.name)} (call {_named(event.call_id)}) may have run before; it runs again, with the "
                f"same idempotency key {event.idempotency_key}"
            )
        case events.OrphanFound():
            return _orphan(event)
        case events.Noticed():
            return one_line(event.text, 1000)
    return None


def _orphan(event: events.OrphanFound) -> str:
    what = _named(event.tool) if event.tool else "a tool"
    group = f" (process group {event.process_group})" if event.process_group else ""
    action = {
        "wait": f"waiting for it, at most {event.wait_s:g} s, before the run goes on",
        "kill": "ending it",
        "ignore": "going on beside it",
    }[event.action]
    return f"{what}{group} still runs from before; {action}"
