"""What may be changed in a turn before it is journaled, and nothing else. Pure.

Format page, "verbatim": text that isn't valid, white space that holds line breaks, call ids that are missing or
doubled within the turn, arguments that are no usable object; and what an API sends now and then but refuses to take
back: blank text blocks beside other blocks, ids and names of tools with characters that it doesn't allow, an empty list
of calls, calls of a kind that nobody offered, reasoning that nothing follows. Every other byte stays as the provider
sent it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fisk_ai.errors import InvalidReply
from fisk_ai.formats import anthropic, openai, responses
from fisk_ai.jsontext import MAX_NESTING, BadJson, journalable, splice_array
from fisk_ai.messages import TurnContent, is_blank
from fisk_ai.providers.wire import not_an_answer, read_shape

T = TypeVar("T")
Fields = dict[str, msgspec.Raw]
Items = list[tuple[bytes, Fields]]

_TOO_DEEP = b'"\\u0000nested too deeply\\u0000"'
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_NO_ARGUMENTS = b"{}"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_LENGTH = 64

_items = msgspec.json.Decoder(list[msgspec.Raw])
_fields = msgspec.json.Decoder(Fields)


@dataclass(frozen=True, slots=True)
class Settled:
    """A message as it is journaled."""

    message: bytes
    unusable: tuple[int, ...]
    """Positions of the calls whose arguments became `{}`."""
    turn: TurnContent


def decode_answer(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode an answer, repairing its text and cutting what is nested too deeply only if it needs that.

    Raises:
        InvalidReply: if it has not the shape even then.
    """
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError):
        return read_shape(decode, _readable(body))


def _readable(body: bytes) -> bytes:
    try:
        return journalable(body)
    except BadJson as problem:
        shallow = _clipped(body)
        if shallow == body:
            raise not_an_answer(str(problem)) from None
    try:
        return journalable(shallow)
    except BadJson as problem:
        raise not_an_answer(str(problem)) from None


def _clipped(raw: bytes) -> bytes:
    """Return JSON with a mark in place of each value that lies deeper than a journal line may go.

    Arguments that held one are unusable and become `{}`; a mark anywhere else makes the turn invalid.
    """
    kept, at, depth = [], 0, 0
    for token in _STRING_OR_BRACKET.finditer(raw):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == MAX_NESTING + 1:
                kept.append(raw[at : token.start()])
        elif token[0] in (b"]", b"}"):
            if depth == MAX_NESTING + 1:
                kept.append(_TOO_DEEP)
                at = token.end()
            depth -= 1
    return b"".join(kept) + raw[at:]


def settle_anthropic(content: bytes) -> Settled:
    """Settle the content array of a Messages API answer.

    Raises:
        InvalidReply: if it is no list of blocks that can be journaled and sent back.
    """
    blocks = [bytes(block) for block in read_shape(_items.decode, content)]
    objects = [read_shape(_fields.decode, block) for block in blocks]
    uses = [fields for fields in objects if _text(fields, "type") == "tool_use"]
    ids = iter(unique_ids([_text(fields, "id") for fields in uses]))
    unusable: list[int] = []
    settled: list[bytes] = []
    position = 0
    for block, fields in zip(blocks, objects, strict=True):
        kind = _text(fields, "type")
        changes: dict[str, bytes] = {}
        if kind.endswith("tool_use") and not _is_usable(fields.get("input")):
            changes["input"] = _NO_ARGUMENTS
        if kind == "tool_use":
            unusable += [position] if changes else []
            changes |= _name_change(fields) | _id_change(fields, next(ids))
            position += 1
        settled.append(_changed(block, fields, changes))
    kept = [block for block, fields in zip(settled, objects, strict=True) if not _is_blank_text(fields)]
    array = splice_array(kept) if 0 < len(kept) < len(settled) else _respliced(content, blocks, settled)
    message = b'{"role":"assistant","content":' + array + b"}"
    return _checked(message, unusable, anthropic.read_turn)


def _is_blank_text(fields: Fields) -> bool:
    return _text(fields, "type") == "text" and is_blank(_text(fields, "text"))


def settle_openai(message: bytes) -> Settled:
    """Settle a Chat Completions assistant message.

    Raises:
        InvalidReply: if it can't be journaled and sent back.
    """
    fields = read_shape(_fields.decode, message)
    changes: dict[str, bytes] = {}
    if _text(fields, "role") != "assistant":
        changes["role"] = b'"assistant"'
    unusable: list[int] = []
    calls = bytes(fields.get("tool_calls", b"null"))
    if calls != b"null" and not read_shape(_items.decode, calls):
        message = _without(fields, "tool_calls")
        fields = read_shape(_fields.decode, message)
    elif calls != b"null":
        settled, unusable = _settled_calls(calls)
        if settled != calls:
            changes["tool_calls"] = settled
    return _checked(_changed(message, fields, changes), unusable, openai.read_turn)


def _without(fields: Fields, name: str) -> bytes:
    return b"{" + b",".join(_quoted(key) + b":" + bytes(raw) for key, raw in fields.items() if key != name) + b"}"


def _settled_calls(raw: bytes) -> tuple[bytes, list[int]]:
    calls = [bytes(call) for call in read_shape(_items.decode, raw)]
    objects = [read_shape(_fields.decode, call) for call in calls]
    ids = unique_ids([_text(fields, "id") for fields in objects])
    unusable: list[int] = []
    settled: list[bytes] = []
    for position, fields in enumerate(objects):
        if not bytes(fields.get("function", b"null")).startswith(b"{"):
            unusable.append(position)
            settled.append(_foreign_call(ids[position], fields))
            continue
        changes = _id_change(fields, ids[position])
        function, usable = _settled_function(bytes(fields["function"]))
        if function is not None:
            changes["function"] = function
        unusable += [] if usable else [position]
        settled.append(_changed(calls[position], fields, changes))
    return _respliced(raw, calls, settled), unusable


def _foreign_call(call_id: str, fields: Fields) -> bytes:
    """Return a call of a kind that was never offered as one of a function, to be answered with an error."""
    kind = _text(fields, "type") or "unnamed"
    return msgspec.json.encode(
        {"id": call_id, "type": "function", "function": {"name": sendable_name(kind), "arguments": "{}"}}
    )


def _settled_function(raw: bytes) -> tuple[bytes | None, bool]:
    """Return what must stand instead (None: nothing), and whether the arguments are usable."""
    fields = read_shape(_fields.decode, raw)
    changed, usable = _arguments_change(fields)
    changes = _name_change(fields) | changed
    return (_changed(raw, fields, changes) if changes else None), usable


def _arguments_change(fields: Fields) -> tuple[dict[str, bytes], bool]:
    """Return how arguments that should be the text of an object change, and whether they are usable."""
    arguments = bytes(fields.get("arguments", b"null"))
    if arguments.startswith(b"{") and openai.is_json_object(arguments):
        # Some servers send the object itself; the API takes it back only as text.
        return {"arguments": _quoted(arguments.decode())}, True
    if arguments.startswith(b'"'):
        text = _text(fields, "arguments")
        if openai.is_json_object(text.encode()):
            return {}, True
    return {"arguments": _quoted("{}")}, False


_CLIENT_CALLS = frozenset({"custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"})
"""Kinds of Responses API items that wait for an output of the caller's, as function calls do."""


def settle_responses(output: bytes, *, sealed_only: bool) -> Settled:
    """Settle the output items of a Responses API answer.

    `sealed_only` says that the API keeps nothing and takes reasoning back only in its encrypted form.

    Raises:
        InvalidReply: if it is no list of items that can be journaled and sent back.
    """
    given = [bytes(item) for item in read_shape(_items.decode, output)]
    items = [(item, read_shape(_fields.decode, item)) for item in given]
    kept = _sendable_items(items, sealed_only=sealed_only)
    answered = {_text(fields, "call_id") for _, fields in kept if _text(fields, "type").endswith("_output")} - {""}
    waiting = [_waits(fields, answered) for _, fields in kept]
    calls = [fields for (_, fields), waits in zip(kept, waiting, strict=True) if waits]
    ids = iter(enumerate(unique_ids([_text(fields, "call_id") for fields in calls])))
    unusable: list[int] = []
    settled: list[bytes] = []
    for (item, fields), waits in zip(kept, waiting, strict=True):
        if waits:
            position, call_id = next(ids)
            item, usable = _settled_call_item(item, fields, call_id)
            unusable += [] if usable else [position]
        settled.append(item)
    array = splice_array(settled) if len(kept) < len(given) else _respliced(output, given, settled)
    return _checked(b'{"role":"assistant","output":' + array + b"}", unusable, responses.read_turn)


def _sendable_items(items: Items, *, sealed_only: bool) -> Items:
    """Return the items without reasoning that the API refuses to take back; all of them if nothing else is left."""
    kept = [pair for pair in items if not (sealed_only and _is_unsealed(pair[1]))]
    while kept and _text(kept[-1][1], "type") == "reasoning":
        kept.pop()  # what the turn was cut off at; the API wants the item that followed
    return kept or items


def _is_unsealed(fields: Fields) -> bool:
    return _text(fields, "type") == "reasoning" and not _text(fields, "encrypted_content")


def _waits(fields: Fields, answered: Container[str]) -> bool:
    """Tell whether an item is a call that the caller must answer."""
    kind = _text(fields, "type")
    return (kind == "function_call" or kind in _CLIENT_CALLS) and _text(fields, "call_id") not in answered


def _settled_call_item(item: bytes, fields: Fields, call_id: str) -> tuple[bytes, bool]:
    """Return a call as it is journaled, and whether its arguments are usable."""
    if _text(fields, "type") != "function_call":
        name = sendable_name(_text(fields, "name") or _text(fields, "type"))
        call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}
        return msgspec.json.encode(call), False
    changes, usable = _arguments_change(fields)
    return _changed(item, fields, changes | _name_change(fields) | _id_change(fields, call_id, "call_id")), usable


def sendable_name(name: str) -> str:
    """Return a tool's name as both APIs take it back; a model may call what nobody offered, named as it likes."""
    return _NOT_IN_NAMES.sub("_", name)[:_NAME_LENGTH] or "unnamed"


def sendable_id(call_id: str) -> str:
    """Return a call's id as both APIs take it back."""
    return _NOT_IN_NAMES.sub("_", call_id)


def unique_ids(ids: Sequence[str]) -> list[str]:
    """Return `ids` that can be sent, with a new one for each that is empty or stood before; always the same ones."""
    ids = [sendable_id(given) for given in ids]
    taken = set(ids) - {""}
    seen: set[str] = set()
    result = []
    for position, given in enumerate(ids):
        chosen = given if given and given not in seen else _free_id(position, taken)
        taken.add(chosen)
        seen.add(chosen)
        result.append(chosen)
    return result


def _free_id(position: int, taken: set[str]) -> str:
    chosen, attempt = f"call_{position}", 0
    while chosen in taken:
        attempt += 1
        chosen = f"call_{position}_{attempt}"
    return chosen


def _id_change(fields: Fields, settled: str, name: str = "id") -> dict[str, bytes]:
    return {} if settled == _text(fields, name) else {name: _quoted(settled)}


def _is_usable(arguments: msgspec.Raw | None) -> bool:
    if arguments is None or not anthropic.is_usable(bytes(arguments)):
        return False
    try:
        journalable(bytes(arguments))
    except BadJson:
        return False
    return True


def _name_change(fields: Fields) -> dict[str, bytes]:
    name = _text(fields, "name")
    if not name:
        raise InvalidReply("the model called a tool without naming it; the turn was dropped", retryable=True)
    settled = sendable_name(name)
    return {} if settled == name else {"name": _quoted(settled)}


def _text(fields: Mapping[str, msgspec.Raw], name: str) -> str:
    """Return a field that should be text; anything else counts as missing."""
    raw = bytes(fields.get(name, b""))
    value = msgspec.json.decode(raw.decode("utf-8", "replace")) if raw.startswith(b'"') else ""
    return value if isinstance(value, str) else ""


def _quoted(text: str) -> bytes:
    return msgspec.json.encode(text)


def _changed(raw: bytes, fields: Fields, changes: Mapping[str, bytes]) -> bytes:
    """Return the object `raw`, whose `fields` were read, with some values replaced or added."""
    if not changes:
        return raw
    values = {**{name: bytes(value) for name, value in fields.items()}, **changes}
    return b"{" + b",".join(_quoted(name) + b":" + value for name, value in values.items()) + b"}"


def _respliced(array: bytes, old: Sequence[bytes], new: Sequence[bytes]) -> bytes:
    """Return `array` with its items `old` replaced by `new`; the bytes between them stay."""
    pieces, at = [], 0
    for before, after in zip(old, new, strict=True):
        found = array.index(before, at)
        pieces += [array[at:found], after]
        at = found + len(before)
    return b"".join(pieces) + array[at:]


def _checked(message: bytes, unusable: Sequence[int], read_turn: Callable[[bytes], TurnContent]) -> Settled:
    try:
        message = journalable(message)
    except BadJson as problem:
        raise not_an_answer(str(problem)) from None
    if _TOO_DEEP in message:
        raise not_an_answer("nested too deeply")
    return Settled(message, tuple(unusable), read_shape(read_turn, message))
