"""Reader of the Responses API's turns: an assistant message that holds the response's output items.

Only `message` and `function_call` items mean something here; every other item (reasoning, tools that ran on the
provider's side, kinds that don't exist yet) is carried along unread.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fisk_ai.formats.openai import is_json_object
from fisk_ai.messages import Call, TurnContent, is_blank


class _Kind(msgspec.Struct):
    type: str


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _Said(msgspec.Struct):
    content: str | list[_Part]


class _FunctionCall(msgspec.Struct):
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Result(msgspec.Struct):
    call_id: str | None = None
    """Unlike that of a call, None if there is none: such an output answers nothing."""


class _Turn(msgspec.Struct):
    output: list[msgspec.Raw]


_turns = msgspec.json.Decoder(_Turn)
_kinds = msgspec.json.Decoder(_Kind)
_said = msgspec.json.Decoder(_Said)
_calls = msgspec.json.Decoder(_FunctionCall)
_results = msgspec.json.Decoder(_Result)

_SAYS_NOTHING = frozenset({"message", "reasoning"})
"""Kinds of items that are worth nothing without text: the API takes no reasoning that nothing follows."""


def read_turn(message: bytes) -> TurnContent:
    """Read an assistant message; raises `msgspec.DecodeError` if it has not this shape."""
    items = _items(message)
    parts = _parts(items)
    # A refusal counts as text only where nothing else was said, as in Chat Completions.
    text = _joined(parts, "text") or _joined(parts, "refusal")
    answered = {_results.decode(item).call_id for kind, item in items if kind == "function_call_output"}
    made = [_calls.decode(item) for kind, item in items if kind == "function_call"]
    unanswered = [call for call in made if call.call_id not in answered]
    calls = tuple(_call(position, call) for position, call in enumerate(unanswered))
    empty = is_blank(text) and all(kind in _SAYS_NOTHING for kind, _ in items)
    return TurnContent(calls, text, empty)


def is_refusal(message: bytes) -> bool:
    """Tell whether the model did nothing but refuse."""
    items = _items(message)
    parts = _parts(items)
    if is_blank(_joined(parts, "refusal")) or not is_blank(_joined(parts, "text")):
        return False
    return not any(kind == "function_call" for kind, _ in items)


def _items(message: bytes) -> list[tuple[str, msgspec.Raw]]:
    """Return the items with their types."""
    return [(_kinds.decode(item).type, item) for item in _turns.decode(message).output]


def _parts(items: Sequence[tuple[str, msgspec.Raw]]) -> list[list[_Part]]:
    """Return what each message says."""
    said = [_said.decode(item).content for kind, item in items if kind == "message"]
    return [[_Part("output_text", content)] if isinstance(content, str) else content for content in said]


def _joined(messages: Sequence[Sequence[_Part]], field: str) -> str:
    """Join the texts of a message as they are, and messages, which are paragraphs of their own, by an empty line."""
    texts = ("".join(getattr(part, field) for part in parts) for parts in messages)
    return "\n\n".join(text for text in texts if not is_blank(text))


def _call(position: int, call: _FunctionCall) -> Call:
    arguments = call.arguments.encode()
    return Call(position, call.call_id, call.name, arguments, is_json_object(arguments))
