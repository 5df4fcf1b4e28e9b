"""Items, of which the Responses API's conversations are made: from messages to them, and from a stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fisk_ai.jsontext import splice_array
from fisk_ai.messages import (
    NO_OUTPUT,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    UserMessage,
    read_user,
)
from fisk_ai.providers.wire import read_shape


class _Turn(msgspec.Struct):
    output: msgspec.Raw


_turns = msgspec.json.Decoder(_Turn)


def sent_items(message: Message, *, official: bool) -> list[bytes]:
    """Return the items of one message, encoded; those of a journaled turn as one piece, byte for byte."""
    if message.role == "user":
        return [msgspec.json.encode(item) for item in translate_user(read_user(message.content), official=official)]
    items = bytes(_turns.decode(message.content).output).strip()[1:-1].strip()
    return [items] if items else []


def translate_user(message: UserMessage, *, official: bool) -> list[dict[str, Any]]:
    """Return the items that a neutral message becomes: one for each tool result, then one of the user's.

    Compatible servers take images from the user only, so those of tool results move there, with a note.
    """
    results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
    items: list[dict[str, Any]] = [_output_item(result, official=official) for result in results]
    parts = [] if official else [part for result in results for part in _moved_images(result)]
    parts += [_part(block) for block in message.blocks if not isinstance(block, ToolResultBlock)]
    if parts:
        items.append({"role": "user", "content": _content(parts)})
    return items


def _output_item(result: ToolResultBlock, *, official: bool) -> dict[str, Any]:
    item = {"type": "function_call_output", "call_id": result.tool_use_id}
    has_images = any(isinstance(block, ImageBlock) for block in result.blocks)
    if has_images and official:
        error = [_part(TextBlock("Error:"))] if result.is_error else []
        return item | {"output": [*error, *(_part(block) for block in result.blocks)]}
    text = result.text or ("(an image, shown below)" if has_images else NO_OUTPUT)
    return item | {"output": f"Error: {text}" if result.is_error else text}


def _moved_images(result: ToolResultBlock) -> list[dict[str, Any]]:
    images = [_part(block) for block in result.blocks if isinstance(block, ImageBlock)]
    note = _part(TextBlock(f"The result of tool call {result.tool_use_id} has this to show:"))
    return [note, *images] if images else []


def _part(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "input_text", "text": block.text}
    url = f"data:{block.source.media_type};base64,{block.source.data}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _content(parts: Sequence[dict[str, Any]]) -> Any:
    """Return one text as plain text, which every server takes, and anything else as parts."""
    if len(parts) == 1 and parts[0]["type"] == "input_text":
        return parts[0]["text"]
    return list(parts)


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    encrypted_content: str | None = None


_items = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)


def whole_output(output: bytes, done: Sequence[bytes]) -> bytes:
    """Return the output items of the last event, and from those that came one by one only what it lacks.

    Some servers leave the output of the last event empty, and the encrypted form of reasoning is promised only for
    the events of single items.
    """
    if not done:
        return output
    items = [bytes(item) for item in read_shape(_items.decode, output)] if output != b"null" else []
    if not items:
        return splice_array(done)
    sealed = {item.id: raw for raw in done if (item := read_shape(_item.decode, raw)).id and item.encrypted_content}
    restored = [_restored(raw, sealed) for raw in items]
    return output if restored == items else splice_array(restored)


def _restored(raw: bytes, sealed: Mapping[str, bytes]) -> bytes:
    item = read_shape(_item.decode, raw)
    lacks = item.type == "reasoning" and not item.encrypted_content
    return sealed.get(item.id or "", raw) if lacks else raw
