"""Reader of turns that went through pydantic-ai: its own `ModelResponse`, as its type adapter writes it.

Only `text` and `tool-call` parts mean something here; every other part (thinking, files, tools that ran on the
provider's side, kinds that don't exist yet) is carried along unread. pydantic-ai isn't needed for reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from fisk_ai.formats.anthropic import is_usable
from fisk_ai.formats.openai import is_json_object
from fisk_ai.messages import Call, TurnContent, is_blank

_NO_ARGUMENTS = b"{}"
_NULL = msgspec.Raw(b"null")


class _Part(msgspec.Struct):
    part_kind: str
    content: msgspec.Raw = _NULL
    """Text of a text or thinking part; something else in other kinds."""
    signature: str | None = None
    provider_details: Mapping[str, msgspec.Raw] | None = None
    tool_name: str = ""
    tool_call_id: str = ""
    args: msgspec.Raw = _NULL


class _Turn(msgspec.Struct):
    parts: list[_Part]


_turns = msgspec.json.Decoder(_Turn)
_texts = msgspec.json.Decoder(str)


def read_turn(message: bytes) -> TurnContent:
    """Read an assistant message; raises `msgspec.DecodeError` if it has not this shape."""
    parts = _turns.decode(message).parts
    made = [part for part in parts if part.part_kind == "tool-call"]
    calls = tuple(_call(position, part) for position, part in enumerate(made))
    return TurnContent(calls, _text(parts), empty=not any(map(_says_something, parts)))


def _text(parts: Sequence[_Part]) -> str:
    """Join neighbours as they are, and texts with something between them by an empty line, as pydantic-ai does."""
    runs = groupby(parts, key=lambda part: part.part_kind)
    texts = ["".join(_texts.decode(part.content) for part in run) for kind, run in runs if kind == "text"]
    return "\n\n".join(text for text in texts if not is_blank(text))


def _says_something(part: _Part) -> bool:
    """Tell whether a turn with this part can be sent back: plain thinking alone makes no message for most APIs."""
    match part.part_kind:
        case "text":
            return bool(part.provider_details) or not is_blank(_texts.decode(part.content))
        case "thinking":
            return bool(part.signature or part.provider_details)
    return True


def _call(position: int, part: _Part) -> Call:
    arguments = bytes(part.args)
    if arguments.startswith(b'"'):
        text = _texts.decode(arguments).encode()
        return _made(position, part, text if text.strip() else _NO_ARGUMENTS, is_json_object(text) or not text.strip())
    if arguments == b"null":
        return _made(position, part, _NO_ARGUMENTS, usable=True)
    return _made(position, part, arguments, is_usable(arguments))


def _made(position: int, part: _Part, arguments: bytes, usable: bool) -> Call:
    return Call(position, part.tool_call_id, part.tool_name, arguments, usable)
