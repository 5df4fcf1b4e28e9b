"""Results within limits: text, images, and many of both."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fisk_ai.messages import NO_OUTPUT, ImageBlock, ImageSource, TextBlock, encode_result
from fisk_ai.text import shorten
from fisk_ai.tools.images import MAX_IMAGE_BYTES, checked_image
from fisk_ai.tools.output import (
    MAX_BLOCKS,
    MAX_RESULT_BYTES,
    MAX_TEXT_BYTES,
    SPARE_BYTES,
    blocks_output,
    decode_output,
    error_output,
    text_output,
)

from .doubles import said

PNG = b"\x89PNG\r\n\x1a\n"


def image(data: bytes, media_type: str = "image/png") -> ImageBlock:
    return ImageBlock(ImageSource("base64", media_type, base64.b64encode(data).decode()))


def test_text_is_made_valid() -> None:
    assert said(text_output("x\ud83dy\udc80")) == "x\ufffdy\ufffd"


@pytest.mark.parametrize("text", ["", " \n", "\u200b"])
def test_blank_text_becomes_a_note(text: str) -> None:
    assert said(error_output(text)) == NO_OUTPUT


def test_long_text_is_shortened_with_a_mark() -> None:
    text = "é" * MAX_TEXT_BYTES
    assert said(text_output(text)) == shorten(text, MAX_TEXT_BYTES)


def test_all_text_of_a_result_shares_one_limit() -> None:
    output = blocks_output([TextBlock("a" * (MAX_TEXT_BYTES - 1)), TextBlock("bcd"), TextBlock("e")])
    assert [block.text[-34:] for block in output.blocks[1:] if isinstance(block, TextBlock)] == [
        "b\n[shortened: 1 of 3 bytes shown]",
        "\n[shortened: 0 of 1 bytes shown]",
    ]


def test_blank_blocks_go_and_too_many_are_named() -> None:
    assert blocks_output([TextBlock(""), TextBlock("a"), TextBlock(" ")]).blocks == (TextBlock("a"),)
    output = blocks_output([TextBlock("a")] * (MAX_BLOCKS + 7))
    assert output.blocks[-1] == TextBlock("[7 more blocks were left out]")


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG + bytes(2_000_000), "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
    ],
)
def test_good_image_comes_through_unchanged(data: bytes, media_type: str) -> None:
    good = image(data, media_type)
    assert blocks_output([good]).blocks == (good,)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (ImageSource("base64", "image/png", "abc"), "not valid"),
        (ImageSource("base64", "image/png", "iVBORw0KGgo=\n"), "not valid"),
        (ImageSource("base64", "image/png", "é"), "not valid"),
        (ImageSource("base64", "image/png", "iVBORw0KGgp="), "not canonical"),
        (ImageSource("base64", "image/jpeg", base64.b64encode(PNG).decode()), "not image/jpeg"),
        (ImageSource("base64", "image/png", ""), "not image/png"),
        (ImageSource("base64", "image/svg+xml", "abcd"), "not PNG, JPEG"),
        (ImageSource("base64", "image/png", "A" * (MAX_IMAGE_BYTES + 4)), "more than"),
    ],
)
def test_bad_image_becomes_a_note_and_is_never_cut(source: ImageSource, why: str) -> None:
    checked = checked_image(ImageBlock(source))
    assert isinstance(checked, TextBlock)
    assert why in checked.text


def test_images_beyond_the_size_of_a_result_become_notes() -> None:
    large = image(PNG + bytes(3_700_000))
    fitting = MAX_RESULT_BYTES // len(large.source.data)
    output = blocks_output([large] * (fitting + 1))
    assert output.blocks[:fitting] == (large,) * fitting
    assert output.blocks[fitting] == TextBlock("[an image was left out: the result is too large]")
    assert len(encode_result("id", output.blocks)) < 2 * MAX_RESULT_BYTES


def test_mark_of_unkept_output_has_the_words_of_the_other_one() -> None:
    assert decode_output(b"x" * 14, 1000, 10) == shorten("x" * 1000, 10)


@given(raw=st.binary(max_size=40), limit=st.integers(0, 30))
@settings(database=None, derandomize=True, deadline=None)
def test_start_of_the_bytes_is_enough_for_the_start_of_the_text(raw: bytes, limit: int) -> None:
    whole = raw.decode("utf-8", "replace")
    kept = whole.encode()[:limit].decode("utf-8", "ignore")
    shown = decode_output(raw[: limit + SPARE_BYTES], len(raw), limit)
    assert shown == whole if len(whole.encode()) <= limit else shown.startswith(kept + "\n[shortened: ")
