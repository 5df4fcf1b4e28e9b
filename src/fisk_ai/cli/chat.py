"""Where a chat's follow-ups come from: a line editor on a terminal, one line each from a pipe."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import anyio

from fisk_ai.agent.input import EndOfChat, EndOfInput, Input, InputSource, Line

END_OF_CHAT = "/end"
_CHUNK_BYTES = 65_536


def operator_input() -> InputSource:
    """Return the input of this process: edited lines on a terminal, else plain lines."""
    if sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb":
        return EditedLines()
    return PlainLines(sys.stdin.fileno())


def _as_input(text: str) -> Input:
    return EndOfChat() if text.strip() == END_OF_CHAT else Line(text)


class EditedLines:
    """Lines from prompt_toolkit, with the history of this process."""

    def __init__(self) -> None:
        self._session: Any = None

    async def read(self) -> Input:
        """Ask for a line; Ctrl-D ends the input, Ctrl-C suspends like a signal."""
        try:
            text: str = await self._prompt().prompt_async("you> ", handle_sigint=False)
        except (EOFError, KeyboardInterrupt):
            return EndOfInput()
        return _as_input(text)

    def _prompt(self) -> Any:
        if self._session is None:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.output import create_output

            # On stderr: stdout gets answers and nothing else.
            self._session = PromptSession(output=create_output(sys.stderr))
        return self._session


class PlainLines:
    """Lines from a pipe or file; a wait for the next one can be left without losing anything."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._ended = False

    async def read(self) -> Input:
        """Return the next line without its end; the last one needs none."""
        while b"\n" not in self._buffer and not self._ended:
            await self._wait()
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
            self._buffer += chunk
            self._ended = not chunk
        if not self._buffer:
            return EndOfInput()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _as_input(line.decode("utf-8", "replace").removesuffix("\r"))

    async def _wait(self) -> None:
        try:
            await anyio.wait_readable(self._descriptor)
        except OSError as problem:
            if problem.errno != errno.EPERM:  # a regular file can't be waited for, and never blocks
                raise
