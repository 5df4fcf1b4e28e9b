"""Images in tool results: only what every provider accepts gets through, because a bad one can't be taken back."""

from __future__ import annotations

import base64
import binascii

from fisk_ai.messages import ImageBlock, ImageSource, TextBlock
from fisk_ai.text import one_line

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Bytes of base64 text of one image: that, not the decoded image, is what APIs count."""


_MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def checked_image(block: ImageBlock) -> ImageBlock | TextBlock:
    """Return the image unchanged, or a text that says why it was left out. It is never cut."""
    problem = _problem(block.source)
    if problem is not None:
        return TextBlock(f"[an image was left out: {problem}]")
    # Built anew: its type validates nothing, so that a tool's block can hold anything in the third field.
    return ImageBlock(ImageSource("base64", block.source.media_type, block.source.data))


def _problem(source: ImageSource) -> str | None:
    if source.media_type not in _MEDIA_TYPES:
        return f"media type {one_line(source.media_type, 40)!r} is not PNG, JPEG, GIF or WebP"
    if len(source.data) > MAX_IMAGE_BYTES:
        return f"its {len(source.data)} bytes of base64 are more than {MAX_IMAGE_BYTES}"
    try:
        image = base64.b64decode(source.data, validate=True)
    except (binascii.Error, ValueError):
        return "its base64 data is not valid"
    if base64.b64encode(image).decode() != source.data:
        return "its base64 data is not canonical"
    if _media_type(image) != source.media_type:
        return f"its data is not {source.media_type}"
    return None


def _media_type(image: bytes) -> str | None:
    """Tell what an image is by its first bytes."""
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if image.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if image.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if image.startswith(b"RIFF") and image[8:12] == b"WEBP":
        return "image/webp"
    return None
