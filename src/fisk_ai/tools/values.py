"""From whatever a Python function returned to a result. Never raises: the call has taken effect already."""

from __future__ import annotations

import inspect
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from fisk_ai.messages import ImageBlock, TextBlock
from fisk_ai.text import wellformed
from fisk_ai.tools.base import ToolOutput
from fisk_ai.tools.output import blocks_output, error_output, text_output

logger = logging.getLogger(__name__)


_ADDRESS = re.compile(r"<.* at 0x[0-9a-fA-F]+>+", re.DOTALL)
"""What Python says of an object whose class says nothing."""


class _NoText(TypeError):
    """The value has no text of its own."""


def output_of(value: object) -> ToolOutput:
    """Return a function's value as a result.

    Text stays as it is; None becomes a note; images, text blocks (or a list with some) and a `ToolOutput` are
    checked; everything else becomes JSON text, in which NaN and Infinity are strings. A value that can't be shown,
    also one whose only text is `<... object at 0x...>`, gives an error result which says that the call ran.
    """
    try:
        return _converted(value)
    except Exception as problem:  # str(), repr() and serializers of a value are code of the tool's author
        logger.debug("a value of type %s can't be shown", type(value).__name__, exc_info=True)
        why = str(problem) if isinstance(problem, _NoText) else type(problem).__name__
        return error_output(
            f"the call ran to its end, but its result (a {type(value).__name__}) can't be shown as text ({why})"
        )


def _converted(value: object) -> ToolOutput:
    match value:
        case None:
            return text_output("")
        case ToolOutput():
            return blocks_output(map(_block, value.blocks), is_error=bool(value.is_error))
        case TextBlock() | ImageBlock():
            return blocks_output([_block(value)])
        case list() | tuple() if any(isinstance(item, TextBlock | ImageBlock) for item in value):
            return blocks_output(map(_block, value))
    text = _text(value)
    if not isinstance(value, str) and _ADDRESS.fullmatch(text):
        raise _NoText("its only text is its address in memory")
    return text_output(text)


def _block(value: object) -> TextBlock | ImageBlock:
    if isinstance(value, ImageBlock):
        return value
    return TextBlock(_text(value.text if isinstance(value, TextBlock) else value))


def _text(value: object) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> Any:
    """Return `value` as plain JSON data that is valid text everywhere, keys included."""
    match value:
        case str():
            return wellformed(str.__str__(value))
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "replace")
        case Mapping():
            return {_key(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
    return _plain(_serialized(value))


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _key(key: object) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _serialized(value: object) -> Any:
    """Let pydantic handle models, dataclasses, dates, decimals, ...; an object that it doesn't know gives its str()."""
    if isinstance(value, Iterator) or inspect.isawaitable(value):
        # Consuming it would run the tool's code outside of its time limit, perhaps without an end.
        raise _NoText("it is not a finished value")
    try:
        return to_jsonable_python(value, fallback=str)
    except UnicodeDecodeError:
        return to_jsonable_python(value, fallback=str, bytes_mode="base64")
