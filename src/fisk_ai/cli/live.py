"""A run as the operator sees it: lines on stderr while it works, the answer on stdout once it is journaled."""

from __future__ import annotations

import sys
from typing import Any

from fisk_ai.agent import events
from fisk_ai.cli import terminal
from fisk_ai.cli.places import resume_command
from fisk_ai.reports.summary import pending_lines
from fisk_ai.reports.transcript import transcript
from fisk_ai.text import one_line, printable

_ARGUMENTS_WIDTH = 80
_RESULT_WIDTH = 100


class Live:
    """Shows events of one run."""

    def __init__(self, *, chat: bool, config: str, state_dir: str | None) -> None:
        self._chat = chat
        self._config = config
        self._state_dir = state_dir
        self._spinner = Spinner()
        self._rich = terminal.is_rich(sys.stderr)
        self._streamed = ""
        self._mid_line = False
        self._shown_twice = terminal.same_terminal()

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        match event:
            case events.TextStreamed():
                self._stream(event)
            case events.ModelCalled():
                self._streamed = ""
                self._spinner.start("the model works")
            case _:
                self._spinner.stop()
                self._end_line()
                self._line(event)

    def finish(self, result: events.RunResult) -> None:
        """Print the answer of a run that is completed; a chat's answers were printed as they came."""
        if result.reason == "completed" and result.answer is not None and not self._chat:
            self._show_answer(result.answer)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._spinner.stop()
        self._end_line()

    def _stream(self, event: events.TextStreamed) -> None:
        if not self._rich or event.kind != "text":
            return
        self._spinner.stop()
        self._streamed += event.text
        terminal.say(event.text, end="")
        self._mid_line = not event.text.endswith("\n")

    def _end_line(self) -> None:
        if self._mid_line:
            self._mid_line = False
            terminal.say()

    def _line(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._started(event)
            case events.RunResumed():
                self._resumed(event)
            case events.TurnRecorded():
                self._turn(event)
            case events.ToolStarted():
                arguments = one_line(event.arguments, _ARGUMENTS_WIDTH)
                terminal.say(f"> {one_line(event.name, 64)} {arguments}")
                self._spinner.start(event.name)
            case events.ToolFinished():
                self._tool_finished(event)
            case events.RunEnded():
                self._ended(event.result)
            case _:
                if text := _notice(event):
                    terminal.say(text)

    def _started(self, event: events.RunStarted) -> None:
        if event.stored:
            self._chat_hint()
            terminal.say(f"run {event.run_id} (checkpointed)")
            terminal.say(f"resume with: {self._resume(event.run_id)}")

    def _chat_hint(self) -> None:
        if self._chat and sys.stdin.isatty():
            terminal.say("a chat: /end completes it, Ctrl-D suspends it")

    def _resumed(self, event: events.RunResumed) -> None:
        self._chat = event.state.interactive
        terminal.say(f"run {event.run_id} so far:")
        for line in transcript(event.state):
            terminal.say(f"  {line}")
        for line in pending_lines(event.state):
            terminal.say(line)
        for change in event.forced:
            terminal.say(f"forced: {change}")
        terminal.say(f"--- resumed at record {event.state.last_seq} ---")

    def _turn(self, event: events.TurnRecorded) -> None:
        is_answer = not event.calls and event.stop_reason in ("end_turn", "stop_sequence")
        if is_answer and self._chat:
            self._show_answer(event.text)
        elif not is_answer and not self._streamed and event.text.strip():
            terminal.say(event.text.rstrip("\n"))

    def _show_answer(self, text: str) -> None:
        """Print a journaled answer, unless the operator has just read it on this very terminal."""
        seen = self._shown_twice and printable(self._streamed) == printable(text)
        if not seen:
            terminal.answer(text)

    def _tool_finished(self, event: events.ToolFinished) -> None:
        word = "failed" if event.is_error else "ok"
        took = "" if event.duration_ms is None else f" {event.duration_ms / 1000:.1f} s"
        terminal.say(f"  {word}{took}: {one_line(event.text, _RESULT_WIDTH)}")

    def _ended(self, result: events.RunResult) -> None:
        if result.reason == "completed" or result.input_ended:
            return
        if result.reason == "error" and result.answer and not self._streamed:
            terminal.say(result.answer)
        why = f": {result.message}" if result.message else ""
        terminal.say(f"run {result.run_id} ended with {result.reason}{why}")

    def _resume(self, run_id: str) -> str:
        return resume_command(run_id, config=self._config, state_dir=self._state_dir)


def _notice(event: events.Event) -> str | None:
    match event:
        case events.TailRepaired():
            return f"a torn tail of {event.cut_bytes} bytes was cut; it is kept in {event.run_id}.torn"
        case events.CallRepeated():
            return (
                f"{one_line(event.name, 64)} (call {one_line(event.call_id, 64)}) may have run before; it runs again "
                f"with the same idempotency key {event.idempotency_key}"
            )
        case events.ModelRetried():
            return (
                f"model: {one_line(event.error, 300)}; trying again in {event.wait_s:.1f} s (attempt "
                f"{event.attempt + 1}; a turn that broke off may be paid twice)"
            )
        case events.OrphanFound():
            return _orphan(event)
        case events.Noticed():
            return event.text
    return None


def _orphan(event: events.OrphanFound) -> str:
    what = f"{one_line(event.tool, 64)}" if event.tool else "a tool"
    group = f" (process group {event.process_group})" if event.process_group else ""
    action = {
        "wait": f"waiting for it up to {event.wait_s:g} s before its call is repeated",
        "kill": "ending it",
        "ignore": "going on beside it",
    }[event.action]
    return f"{what}{group} is still running from before; {action}"


class Spinner:
    """Shows on a terminal what is waited for, and how long already; nothing elsewhere."""

    def __init__(self) -> None:
        self._enabled = terminal.is_rich(sys.stderr)
        self._progress: Any = None

    def start(self, what: str) -> None:
        """Show `what`, counting from now."""
        self.stop()
        if not self._enabled:
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._progress.add_task(one_line(what, 60), total=None)
        self._progress.start()

    def stop(self) -> None:
        """Clear the line."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
