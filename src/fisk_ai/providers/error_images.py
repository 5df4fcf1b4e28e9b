"""Images in the results of failed calls, which the Messages API takes behind the results only. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from fisk_ai.messages import ImageBlock, TextBlock, ToolResultBlock, UserBlock, UserMessage, read_user

_ERROR = re.compile(rb'"is_error"\s*:\s*true')
_IMAGE = re.compile(rb'"type"\s*:\s*"image"')
_SHOWN_BELOW = "(an image, shown below)"


def images_behind_results(content: bytes) -> bytes:
    """Return a neutral user message, its bytes as they are unless a failed call's result holds an image."""
    if not _IMAGE.search(content) or not _ERROR.search(content):
        return content
    blocks = read_user(content).blocks
    if not any(_is_odd(block) for block in blocks):
        return content
    results = [_text_only(block) for block in blocks if isinstance(block, ToolResultBlock)]
    others = [block for block in blocks if not isinstance(block, ToolResultBlock)]
    moved = [part for block in blocks for part in _moved(block)]
    return msgspec.json.encode(UserMessage(role="user", content=(*results, *moved, *others)))


def _is_odd(block: UserBlock) -> bool:
    return isinstance(block, ToolResultBlock) and block.is_error and any(map(_is_image, block.blocks))


def _is_image(block: TextBlock | ImageBlock) -> bool:
    return isinstance(block, ImageBlock)


def _text_only(result: ToolResultBlock) -> ToolResultBlock:
    if not _is_odd(result):
        return result
    texts = tuple(block for block in result.blocks if isinstance(block, TextBlock))
    return replace(result, content=texts or (TextBlock(_SHOWN_BELOW),))


def _moved(block: UserBlock) -> Iterator[TextBlock | ImageBlock]:
    if isinstance(block, ToolResultBlock) and _is_odd(block):
        yield TextBlock(f"The result of tool call {block.tool_use_id} has this to show:")
        yield from filter(_is_image, block.blocks)
