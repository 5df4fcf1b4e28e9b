"""The entry point: the frame around a command. The commands are in `commands`, which is loaded inside of that frame."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from fisk_ai.cli.exits import ABORTED, FAILED


def main() -> NoReturn:
    """Run the command line and exit with the code that the contract gives."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until a run listens there is nothing to save: no traceback out of whatever is being imported.
        signal.signal(signal.SIGINT, _leave_at_once)
    if not os.environ.get("FISK_AI_DEBUG"):
        sys.unraisablehook = _say_nothing
    from fisk_ai.cli import terminal

    terminal.supply_missing_streams()
    from fisk_ai.cli.commands import run_command_line

    code = run_command_line()
    terminal.flush()
    if code == ABORTED:
        # At once: a tool's thread that hangs must not hold up an abort.
        os._exit(code)
    sys.exit(code or (FAILED if terminal.stdout.failed else 0))


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(ABORTED)


def _say_nothing(_problem: sys.UnraisableHookArgs, /) -> None:
    """Spare an operator the tracebacks of objects that fail while they are destroyed: they stop nothing.

    The standard library's event loop does that when there were too few descriptors to make it.
    """
