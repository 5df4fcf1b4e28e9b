"""JSON on stdout: what would drive a terminal is escaped, so that it round-trips and still does no harm."""

from __future__ import annotations

from typing import Any

import msgspec

from fisk_ai.cli import terminal
from fisk_ai.errors import FiskError
from fisk_ai.text import printable, wellformed


def print_json(value: Any) -> None:
    """Write one JSON document to stdout: indented for a person at a terminal, else on one line."""
    terminal.stdout.write(encode(value, pretty=terminal.stdout.stream.isatty()) + "\n")


def print_json_line(value: Any) -> None:
    """Write one of several JSON documents to stdout, each on a line of its own."""
    terminal.stdout.write(encode(value) + "\n")


def encode(value: Any, *, pretty: bool = False) -> str:
    """Return plain data as JSON whose characters are all harmless on a terminal."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a file name that isn't UTF-8
        encoded = msgspec.json.encode(_wellformed(value))
    if pretty:
        encoded = msgspec.json.format(encoded, indent=2)
    return encoded.decode().translate(_ESCAPES)


def error_data(problem: FiskError, text: str) -> dict[str, Any]:
    """Return an error as plain data: a stable `code`, the text that people see, the run where one is concerned."""
    return {"code": problem.code, "message": text, "run_id": getattr(problem, "run_id", None)}


def _wellformed(value: Any) -> Any:
    match value:
        case str():
            return wellformed(value)
        case dict():
            return {_wellformed(key): _wellformed(item) for key, item in value.items()}
        case list() | tuple():
            return [_wellformed(item) for item in value]
    return value


class _Escapes(dict[int, str]):
    """Escapes what `printable` would drop; everything else stays. JSON itself has escaped what is below U+0020."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        harmless = code < 0x7F or printable(character) == character
        units = character.encode("utf-16-be")
        escaped = "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
        self[code] = character if harmless else escaped
        return self[code]


_ESCAPES = _Escapes()
