"""Writing to the operator: only harmless text, and never a crash because nobody reads it.

A run is paid for and its steps are journaled, so what can't be shown is no reason to stop it: writing to stderr never
fails, and stdout remembers that it failed, for the exit code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TextIO

from fisk_ai.text import printable


class Stdout:
    """Standard output, which gets answers and listings and nothing else."""

    def __init__(self) -> None:
        self.failed = False
        """True once something could not be written; a reader that went away has seen enough, and counts as none."""
        self._own: TextIO | None = None

    @property
    def stream(self) -> TextIO:
        """Where answers go."""
        return self._own or sys.stdout

    def reserve(self) -> None:
        """Keep stdout for answers: whatever else writes to `sys.stdout` or descriptor 1 from now on gets stderr.

        For commands that run code which isn't ours: tools print, and so do modules when they are imported.
        """
        if self._own is not None:
            return
        sys.stdout.flush()
        self._own = open(  # noqa: SIM115 - open as long as the process
            os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False
        )
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def release(self) -> None:
        """Give stdout back to everybody, for who runs several commands in one process."""
        if self._own is not None:
            os.dup2(self._own.fileno(), 1)
            os.close(self._own.fileno())
            self._own = None

    def write(self, text: str) -> None:
        """Write as it is; what goes to a terminal has to be harmless already."""
        try:
            _write(self.stream, text)
        except OSError as problem:
            self.give_up(problem)

    def give_up(self, problem: OSError) -> None:
        """Let what is still written vanish, after a write that failed."""
        _silence(self.stream)
        if not isinstance(problem, BrokenPipeError):
            self.failed = True
            complain(f"standard output could not be written: {problem.strerror}")


stdout = Stdout()


def answer(text: str) -> None:
    """Write harmless text to stdout, ending with a newline."""
    shown = printable(text)
    stdout.write(shown if shown.endswith("\n") else shown + "\n")


def say(text: str = "", *, end: str = "\n") -> None:
    """Write harmless text to stderr; if that fails, nobody wants to know."""
    try:
        _write(sys.stderr, printable(text) + end)
    except OSError:  # a closed pipe, a terminal that is gone, a full disk
        _silence(sys.stderr)


def complain(text: str) -> None:
    """Write what went wrong to stderr, each line with the program's name."""
    for line in text.split("\n"):
        say(f"fisk-ai: {line}")


def flush() -> None:
    """Write what is left; afterwards the interpreter finds nothing to stumble over at its end."""
    stdout.write("")
    say(end="")


def supply_missing_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr something in their place.

    Otherwise the next file that is opened, a journal perhaps, gets the free number, and whatever writes to that number
    writes into the journal. A missing stdout stays one that can't be written to.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def can_rewrite(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal on which lines can be rewritten."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def same_terminal() -> bool:
    """Tell whether stdout and stderr show on one terminal."""
    if not (stdout.stream.isatty() and sys.stderr.isatty()):
        return False
    return os.fstat(stdout.stream.fileno()).st_rdev == os.fstat(sys.stderr.fileno()).st_rdev


def columns() -> int | None:
    """Return the width of the terminal that stdout is, or None if it is none."""
    return shutil.get_terminal_size().columns if stdout.stream.isatty() else None


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # raised before anything was written
        encoding = stream.encoding
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _silence(stream: TextIO) -> None:
    """Let everything that is still written to a stream vanish, what it has buffered included."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
