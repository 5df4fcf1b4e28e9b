"""What a stored model turn holds, read by one pure reader for each `format`.

A reader takes the journaled bytes of an assistant message and returns its calls, in order, and its text. It does no
IO and knows nothing of HTTP: the adapter that talks to the provider is in `fisk_ai.providers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fisk_ai.errors import UnsupportedFormat
from fisk_ai.formats import anthropic, openai, pydantic_ai, responses
from fisk_ai.messages import TurnContent

Reader = Callable[[bytes], TurnContent]

DEFAULT_FORMAT = "anthropic"
"""What a record of other origin without `format` means."""

READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "anthropic": anthropic.read_turn,
        "openai": openai.read_turn,
        "openai-responses": responses.read_turn,
        "pydantic-ai": pydantic_ai.read_turn,
    }
)


def reader_for(format_name: str) -> Reader:
    """Return the reader of a format; raises `UnsupportedFormat` if there is none."""
    try:
        return READERS[format_name]
    except KeyError:
        raise UnsupportedFormat(
            f"model turns are stored in the format {format_name!r}, and this fisk-ai reads "
            f"{', '.join(sorted(READERS))}: use the program that wrote them"
        ) from None
