"""The conversation as plain data: messages, tool calls, tool results. No IO, and no provider's types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from fisk_ai.text import wellformed

Role = Literal["user", "assistant"]

NEUTRAL = "neutral"
"""The format of user messages: text and tool results in fisk-ai's own shape, translated by each adapter."""

NO_OUTPUT = "(no output)"
"""What stands for an empty result; providers refuse empty text."""

NOTHING_TYPED = "(nothing was typed)"
"""What stands for a blank text of the user's, in journals of other origin."""

MAX_INPUT_NESTING = 190
"""Levels that a call's arguments may have, so that the record around them stays under its limit of 200."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the committed conversation."""

    role: Role
    format: str
    """`neutral` for user messages, else the format of the assistant record (`anthropic`, `openai`, ...)."""
    content: bytes
    """The whole message as JSON; for an assistant message the journaled bytes, verbatim."""
    seq: int | None = field(default=None, compare=False)
    """Of the record that an assistant message was journaled in, where there is one."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a turn."""

    position: int
    """Place among the turn's calls, from 0."""
    id: str
    """Unique within its turn only."""
    name: str
    arguments: bytes
    """The arguments as JSON, spelled as the model sent them."""
    usable: bool = True
    """False if the arguments were not an object; such a call is answered with an error and never run."""

    def parsed(self) -> dict[str, Any]:
        """Return the arguments of a usable call."""
        value: dict[str, Any] = msgspec.json.decode(self.arguments)
        return value


@dataclass(frozen=True, slots=True)
class TurnContent:
    """What a reader finds in the bytes of one assistant message."""

    calls: tuple[Call, ...]
    text: str
    """The text blocks, joined."""
    empty: bool
    """True if nothing in it may be sent back; such a turn is left out of requests."""


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text in a neutral message."""

    text: str


class ImageSource(msgspec.Struct, frozen=True):
    """An image as base64 data."""

    type: Literal["base64"]
    media_type: str
    data: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    """An image in a neutral message."""

    source: ImageSource


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True):
    """The result of one call, neutral; `content` is never empty."""

    tool_use_id: str
    content: tuple[TextBlock | ImageBlock, ...] | str = ()
    is_error: bool = False

    @property
    def blocks(self) -> tuple[TextBlock | ImageBlock, ...]:
        """The content as blocks; journals of other origin may hold a bare string."""
        return (TextBlock(self.content),) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """The text of the result, joined."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))


UserBlock = TextBlock | ImageBlock | ToolResultBlock


class UserMessage(msgspec.Struct, frozen=True):
    """A neutral user message: what was typed, results of tools, or both."""

    role: Literal["user"]
    content: tuple[UserBlock, ...] | str

    @property
    def blocks(self) -> tuple[UserBlock, ...]:
        """The content as blocks; journals of other origin may hold a bare string."""
        return (TextBlock(self.content),) if isinstance(self.content, str) else self.content


_user_decoder = msgspec.json.Decoder(UserMessage)
_result_decoder = msgspec.json.Decoder(ToolResultBlock)
_block_decoder: msgspec.json.Decoder[UserBlock] = msgspec.json.Decoder(UserBlock)


def read_user(raw: bytes) -> UserMessage:
    """Read a neutral user message; raises `msgspec.DecodeError` on anything else."""
    return _user_decoder.decode(raw)


def read_result(raw: bytes) -> ToolResultBlock:
    """Read a neutral tool result; raises `msgspec.DecodeError` on anything else."""
    return _result_decoder.decode(raw)


def user_text(text: str) -> bytes:
    """Encode a user message of one piece of text, made valid."""
    return msgspec.json.encode(UserMessage(role="user", content=(TextBlock(wellformed(text)),)))


def is_blank(text: str) -> bool:
    """Tell whether nothing would be left to read: white space and zero-width characters only."""
    return not text.strip("\u200b\u200c\u200d\u2060\ufeff \t\r\n\v\f\u0085\u00a0\u2028\u2029\u3000").strip()


def tool_result(call_id: str, text: str, *, is_error: bool = False) -> bytes:
    """Encode a text result for `call_id`; empty text becomes a note, invalid text is made valid."""
    text = wellformed(text)
    return encode_result(call_id, [TextBlock(NO_OUTPUT if is_blank(text) else text)], is_error=is_error)


def encode_result(call_id: str, blocks: Sequence[TextBlock | ImageBlock], *, is_error: bool = False) -> bytes:
    """Encode a result of text and images, which must be valid already."""
    content = tuple(blocks) or (TextBlock(NO_OUTPUT),)
    return msgspec.json.encode(ToolResultBlock(call_id, content, is_error))


def sendable_result(raw: bytes) -> bytes:
    """Return a neutral tool result as APIs take it: without blank text, which only journals of other origin hold.

    Raises:
        msgspec.DecodeError: if it is no tool result.
    """
    result = read_result(raw)
    kept = [block for block in result.blocks if not _says_nothing(block)]
    if kept and len(kept) == len(result.blocks):
        return raw
    return encode_result(result.tool_use_id, kept, is_error=result.is_error)


def sendable_typed(content: bytes) -> list[bytes]:
    """Return the blocks of what was typed, as APIs take them; `content` is text or blocks, as JSON.

    Raises:
        msgspec.DecodeError: if it is neither.
    """
    if content.lstrip().startswith(b'"'):
        blocks = [msgspec.json.encode(TextBlock(msgspec.json.decode(content, type=str)))]
    else:
        blocks = [bytes(block) for block in msgspec.json.decode(content, type=list[msgspec.Raw])]
    kept = [block for block in blocks if not _says_nothing(_block_decoder.decode(block))]
    return kept or [msgspec.json.encode(TextBlock(NOTHING_TYPED))]


def _says_nothing(block: UserBlock) -> bool:
    return isinstance(block, TextBlock) and is_blank(block.text)
