"""Where a chat's follow-ups come from: a line editor on a terminal, one line each from a pipe."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import anyio

from fisk_ai.agent.input import EndOfChat, EndOfInput, Input, InputSource, Line
from fisk_ai.cli import terminal

END_OF_CHAT = "/end"
PROMPT = "you> "
_HINT = "a chat: /end completes it, Ctrl-D leaves it"
_ONLY_A_WORD = re.compile(r"/[A-Za-z][A-Za-z0-9_-]*")
_CHUNK_BYTES = 65_536


def operator_input(interrupted: Callable[[], None]) -> InputSource:
    """Return the input of this process: edited lines on a terminal, else plain lines.

    `interrupted` is called for a Ctrl-C that an editor reads as a key; it should cancel the reading.
    """
    if sys.stdin.isatty() and terminal.can_rewrite(sys.stderr):
        return EditedLines(interrupted)
    return PlainLines(sys.stdin.fileno(), prompt=PROMPT if sys.stdin.isatty() else "")


def _as_input(text: str) -> Input:
    """Return what a line means; the rest of it is for the model, with `//` at its start as one slash."""
    word = text.strip()
    if word == END_OF_CHAT:
        return EndOfChat()
    if _ONLY_A_WORD.fullmatch(word):
        terminal.say(f"not sent: {word} is no command here, {END_OF_CHAT} is the only one; /{word} sends {word}")
        return Line("")
    return Line(text.replace("//", "/", 1) if word.startswith("//") else text)


class EditedLines:
    """Lines from prompt_toolkit, with the history of this process."""

    def __init__(self, interrupted: Callable[[], None]) -> None:
        self._interrupted = interrupted
        self._session: Any = None
        self._hint = _HINT

    async def read(self) -> Input:
        """Ask for a line; Ctrl-D ends the input, Ctrl-C is what a signal is."""
        if self._hint:
            terminal.say(self._hint)
            self._hint = ""
        try:
            text: str = await self._editor().prompt_async(PROMPT, handle_sigint=False)
        except EOFError:
            return EndOfInput()
        except KeyboardInterrupt:
            self._interrupted()
            await anyio.lowlevel.checkpoint()  # where the reading is cancelled
            return EndOfInput()
        return _as_input(text)

    def _editor(self) -> Any:
        if self._session is None:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.output import create_output

            # On stderr: stdout gets answers and nothing else.
            self._session = PromptSession(output=create_output(sys.stderr))
        return self._session


class PlainLines:
    """Lines from a pipe or file; a wait for the next one can be left without losing anything."""

    def __init__(self, descriptor: int, *, prompt: str = "") -> None:
        self._descriptor = descriptor
        self._prompt = prompt
        self._hint = _HINT if prompt else ""
        self._buffer = bytearray()
        self._searched = 0
        self._ended = False

    async def read(self) -> Input:
        """Return the next line without its end; the last one needs none."""
        if self._hint:
            terminal.say(self._hint)
            self._hint = ""
        terminal.say(self._prompt, end="")
        while (end := self._buffer.find(b"\n", self._searched)) < 0 and not self._ended:
            self._searched = len(self._buffer)
            chunk = await self._chunk()
            self._buffer += chunk
            self._ended = not chunk
        if not self._buffer:
            return EndOfInput()
        return _as_input(self._take(len(self._buffer) if end < 0 else end))

    def _take(self, length: int) -> str:
        line = bytes(self._buffer[:length])
        del self._buffer[: length + 1]
        self._searched = 0
        return line.decode("utf-8", "replace").removesuffix("\r")

    async def _chunk(self) -> bytes:
        try:
            await anyio.wait_readable(self._descriptor)
        except OSError as problem:
            if problem.errno != errno.EPERM:  # a regular file can't be waited for, and never blocks
                raise
        try:
            return os.read(self._descriptor, _CHUNK_BYTES)
        except OSError as problem:
            # Whatever keeps us from reading more, a terminal that hung up or a directory, is the end of the input.
            terminal.say(f"the input can't be read: {problem.strerror}")
            return b""
