"""What may be changed in pydantic-ai's own JSON before it is journaled. Pure, on plain data, without pydantic-ai.

The same as for other formats: text that isn't valid, call ids that are missing or doubled within the turn, arguments
that are no usable object, blank text beside other parts. Besides, parts that claim to be text and have none, which is
how blocks of an unknown kind come out of pydantic-ai: it can't read them back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from fisk_ai.errors import InvalidReply
from fisk_ai.formats.anthropic import is_usable
from fisk_ai.formats.openai import is_json_object
from fisk_ai.jsontext import BadJson, check_strict
from fisk_ai.messages import is_blank
from fisk_ai.providers.settle import sendable_name
from fisk_ai.text import wellformed

Part = dict[str, Any]

_PLAIN_ID = re.compile(r"[!-~]{1,256}")
"""Ids that stay as they are: some models are confused by others than they chose, such as `functions.lookup:0`."""


def settle_response(response: dict[str, Any]) -> tuple[bytes, tuple[int, ...]]:
    """Return a response as it may be journaled, and the positions of the calls whose arguments became `{}`.

    Raises:
        InvalidReply: if it can't be made valid.
    """
    mended = _wellformed(response)
    parts = _sendable_parts(mended["parts"])
    calls = [part for part in parts if part["part_kind"] == "tool-call"]
    for call, call_id in zip(calls, _unique([call["tool_call_id"] or "" for call in calls]), strict=True):
        call["tool_call_id"] = call_id
        call["tool_name"] = _name(call["tool_name"])
    unusable = tuple(position for position, call in enumerate(calls) if not _usable(call["args"]))
    for position in unusable:
        calls[position]["args"] = {}
    return json.dumps(mended | {"parts": parts}, ensure_ascii=False).encode(), unusable


def _wellformed(value: Any) -> Any:
    match value:
        case str():
            return wellformed(value)
        case list():
            return [_wellformed(item) for item in value]
        case dict():
            return {wellformed(str(name)): _wellformed(item) for name, item in value.items()}
    return value


def _sendable_parts(parts: Sequence[Part]) -> list[Part]:
    known = [part for part in parts if not (part["part_kind"] == "text" and not isinstance(part["content"], str))]
    worth_it = [part for part in known if not _is_blank_text(part)]
    return worth_it or known


def _is_blank_text(part: Part) -> bool:
    """Tell whether a part is blank and carries nothing else; Gemini signs its thoughts on empty text."""
    return part["part_kind"] == "text" and is_blank(part["content"]) and not (part["provider_details"] or part["id"])


def _unique(ids: Sequence[str]) -> list[str]:
    """Return ids of which none is missing, doubled or unprintable; good ones keep their spelling."""
    taken, seen = set(ids), set[str]()
    result = []
    for position, given in enumerate(ids):
        chosen = given
        if given in seen or not _PLAIN_ID.fullmatch(given):
            chosen = next(free for free in _new_ids(position) if free not in taken)
        taken.add(chosen)
        seen.add(chosen)
        result.append(chosen)
    return result


def _new_ids(position: int) -> Iterator[str]:
    yield f"call_{position}"
    yield from (f"call_{position}_{attempt}" for attempt in count(1))


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidReply("the model called a tool without naming it; the turn was dropped", retryable=True)
    return sendable_name(name)


def _usable(arguments: Any) -> bool:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return True  # how some models spell a call without arguments
    if isinstance(arguments, str):
        return is_json_object(arguments.encode())
    if not isinstance(arguments, dict):
        return False
    encoded = json.dumps(arguments, ensure_ascii=False).encode()
    try:
        check_strict(encoded)
    except BadJson:
        return False
    return is_usable(encoded)
