"""What a tool says, brought into the shape and size that may be journaled and sent. No IO.

Values of Python functions are turned into text in `values`, images are checked in `images`.
"""

from __future__ import annotations

from collections.abc import Iterable

from fisk_ai.messages import NO_OUTPUT, ImageBlock, TextBlock, is_blank
from fisk_ai.text import shorten, wellformed
from fisk_ai.tools.base import ToolOutput
from fisk_ai.tools.images import checked_image

MAX_TEXT_BYTES = 1024 * 1024
"""UTF-8 bytes of text in one result."""

MAX_RESULT_BYTES = 20 * 1024 * 1024
"""Text and base64 data in one result; a journal record holds 64 MiB, and APIs take requests of about 30 MB."""

MAX_BLOCKS = 100
"""Blocks in one result; APIs take no more than 100 images."""

SPARE_BYTES = 4
"""How many more raw bytes than the limit `decode_output` needs: the longest UTF-8 sequence may be cut at its end."""


def text_output(text: str, *, is_error: bool = False) -> ToolOutput:
    """Return `text` as a result: made valid, shortened to `MAX_TEXT_BYTES`, a note if it is blank."""
    return blocks_output([TextBlock(text)], is_error=is_error)


def error_output(text: str) -> ToolOutput:
    """Return `text` as the result of a call that failed."""
    return text_output(text, is_error=True)


def blocks_output(blocks: Iterable[TextBlock | ImageBlock], *, is_error: bool = False) -> ToolOutput:
    """Return blocks as a result: text made valid and shortened, bad or too large images replaced by a note."""
    given = list(blocks)
    kept: list[TextBlock | ImageBlock] = []
    text_room, room = MAX_TEXT_BYTES, MAX_RESULT_BYTES
    for block in given[:MAX_BLOCKS]:
        checked = _fitted(block, min(text_room, room), room)
        size = _size(checked)
        room = max(room - size, 0)
        if isinstance(checked, TextBlock):
            text_room = max(text_room - size, 0)
        if size:
            kept.append(checked)
    if len(given) > MAX_BLOCKS:
        kept.append(TextBlock(f"[{len(given) - MAX_BLOCKS} more blocks were left out]"))
    return ToolOutput(tuple(kept) or (TextBlock(NO_OUTPUT),), is_error)


def _fitted(block: TextBlock | ImageBlock, text_room: int, room: int) -> TextBlock | ImageBlock:
    """Return the block as it may be stored; blank text, which APIs refuse, becomes empty text."""
    checked = checked_image(block) if isinstance(block, ImageBlock) else block
    if isinstance(checked, ImageBlock):
        return checked if _size(checked) <= room else TextBlock("[an image was left out: the result is too large]")
    text = wellformed(checked.text)
    return TextBlock("" if is_blank(text) else shorten(text, text_room))


def _size(block: TextBlock | ImageBlock) -> int:
    return len(block.text.encode()) if isinstance(block, TextBlock) else len(block.source.data)


def decode_output(raw: bytes, size_bytes: int, limit_bytes: int) -> str:
    """Decode the output of a process, invalid bytes as U+FFFD, shortened to `limit_bytes` of UTF-8.

    `raw` is the start of it, `size_bytes` how much it was in all. If it isn't whole, `raw` holds `SPARE_BYTES` more
    than the limit: invalid bytes only ever grow when they are replaced, so that what the cut at the end of `raw`
    damages is beyond the limit.
    """
    text = raw.decode("utf-8", "replace")
    return shorten(text, limit_bytes, size_bytes=None if size_bytes <= len(raw) else size_bytes)
