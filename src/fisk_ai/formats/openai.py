"""Reader of Chat Completions assistant messages, as OpenAI and compatible servers send them."""

from __future__ import annotations

import msgspec

from fisk_ai.formats.anthropic import is_usable
from fisk_ai.jsontext import BadJson, check_strict
from fisk_ai.messages import Call, TurnContent, is_blank


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    id: str = ""
    function: _Function = msgspec.field(default_factory=_Function)


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Turn(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


_decoder = msgspec.json.Decoder(_Turn)


def read_turn(message: bytes) -> TurnContent:
    """Read an assistant message; raises `msgspec.DecodeError` if it has not this shape."""
    turn = _decoder.decode(message)
    text = _content(turn) or turn.refusal or ""
    calls = tuple(_call(position, call) for position, call in enumerate(turn.tool_calls or ()))
    return TurnContent(calls, text, empty=not calls and is_blank(text))


def is_refusal(message: bytes) -> bool:
    """Tell whether the model did nothing but refuse."""
    turn = _decoder.decode(message)
    return not is_blank(turn.refusal or "") and is_blank(_content(turn)) and not turn.tool_calls


def _content(turn: _Turn) -> str:
    if isinstance(turn.content, list):
        return "".join(part.text for part in turn.content if part.type == "text")
    return turn.content or ""


def _call(position: int, call: _ToolCall) -> Call:
    arguments = call.function.arguments.encode()
    return Call(position, call.id, call.function.name, arguments, is_json_object(arguments))


def is_json_object(arguments: bytes) -> bool:
    """Tell whether arguments, which arrive as text here, are strict JSON and an object."""
    try:
        check_strict(arguments)
    except BadJson:
        return False
    return is_usable(arguments)
