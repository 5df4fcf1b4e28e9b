"""What is waited for, and how long already: on a terminal, nothing elsewhere."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from fisk_ai.cli import terminal
from fisk_ai.text import one_line

_WIDTH = 60
_BESIDES = 14
"""Columns for the wheel and the clock."""


class Spinner:
    """A line on stderr that moves while something is waited for."""

    def __init__(self) -> None:
        self._enabled = terminal.can_rewrite(sys.stderr)
        self._progress: Any = None
        self._what = ""

    def start(self, what: str) -> None:
        """Show `what`, counting from now."""
        self.stop()
        if not self._enabled:
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = shutil.get_terminal_size().columns
        self._what = one_line(what, min(_WIDTH, max(columns - _BESIDES, 1)))
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._progress.add_task(self._what, total=None)
        self._progress.start()

    def stop(self) -> None:
        """Clear the line."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def interrupt(self, text: str) -> None:
        """Say something above the line."""
        moving = self._progress is not None
        self.stop()
        terminal.say(text)
        if moving:
            self.start(self._what)
