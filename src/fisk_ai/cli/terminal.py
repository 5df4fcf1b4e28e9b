"""Writing to the operator: only harmless text, and never a crash because nobody reads it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import Any, TextIO

import msgspec

from fisk_ai.text import printable


def say(text: str = "", *, end: str = "\n") -> None:
    """Write to stderr; a reader that went away is no reason to stop a run."""
    with contextlib.suppress(BrokenPipeError):
        _write(sys.stderr, printable(text) + end)


def complain(text: str) -> None:
    """Write an error to stderr, each line with the program's name."""
    for line in text.split("\n"):
        say(f"fisk-ai: {line}")


def answer(text: str) -> None:
    """Write to stdout, which gets answers and listings and nothing else; raises `OSError` if that fails."""
    shown = printable(text)
    _write(sys.stdout, shown if shown.endswith("\n") else shown + "\n")


def answer_json(value: Any, *, pretty: bool = False) -> None:
    """Write one JSON document to stdout, on one line unless `pretty`."""
    encoded = msgspec.json.encode(value)
    if pretty:
        encoded = msgspec.json.format(encoded, indent=2)
    # ASCII escapes keep control characters of a model or tool out of the terminal.
    text = encoded.decode().translate(_ESCAPES)
    _write(sys.stdout, text + "\n")


class _JsonEscapes(dict[int, str]):
    """Escapes what `printable` would drop; everything else stays."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        harmless = code < 0x7F or printable(character) == character
        units = character.encode("utf-16-be")
        escaped = "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
        self[code] = character if harmless else escaped
        return self[code]


_ESCAPES = _JsonEscapes()


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


def is_rich(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal on which lines can be rewritten."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def same_terminal() -> bool:
    """Tell whether stdout and stderr show on one terminal."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return False
    return os.fstat(sys.stdout.fileno()).st_rdev == os.fstat(sys.stderr.fileno()).st_rdev


def columns() -> int | None:
    """Return the width of the terminal that stdout is, or None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
