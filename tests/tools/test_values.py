"""Whatever a function returns becomes a result, and nothing escapes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import uuid
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import BaseModel

from fisk_ai.messages import NO_OUTPUT, ImageBlock, ImageSource, TextBlock
from fisk_ai.tools import ToolOutput
from fisk_ai.tools.values import output_of

from .doubles import said


@dataclasses.dataclass
class Size:
    width: float
    raw: bytes = b""


class Report(BaseModel):
    score: float
    at: dt.date


class Colour(enum.StrEnum):
    RED = "red"


class Shy:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def endless() -> Iterator[int]:
    while True:
        yield 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("x\ud83dy", "x\ufffdy"),
        (None, NO_OUTPUT),
        (True, "true"),
        (3, "3"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (b"abc\xff", "abc\ufffd"),
        (Colour.RED, "red"),
        (decimal.Decimal("1.10"), "1.10"),
        (dt.datetime(2026, 12, 1, tzinfo=dt.UTC), "2026-12-01T00:00:00Z"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/tmp/x"), "/tmp/x"),
    ],
)
def test_single_value_is_plain_text(value: object, text: str) -> None:
    output = output_of(value)
    assert (said(output), output.is_error) == (text, False)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (
            {"score": math.nan, "max": math.inf, "min": [-math.inf]},
            {"score": "NaN", "max": "Infinity", "min": ["-Infinity"]},
        ),
        (
            {1: "a", False: "b", None: "c", 1.5: "d", dt.date(2026, 12, 1): "e"},
            {"1": "a", "false": "b", "null": "c", "1.5": "d", "2026-12-01": "e"},
        ),
        ({"k\ud83d": "v\udc80"}, {"k\ufffd": "v\ufffd"}),
        ({"raw": b"\xff"}, {"raw": "\ufffd"}),
        ([{1}, (2, 3), frozenset()], [[1], [2, 3], []]),
        (Size(math.nan, b"\xff"), {"width": "NaN", "raw": "_w=="}),
        ([Report(score=math.inf, at=dt.date(2026, 12, 1))], [{"score": "Infinity", "at": "2026-12-01"}]),
        (10**30, 10**30),
        ({"u": "\u2028 é"}, {"u": "\u2028 é"}),
    ],
)
def test_structured_value_is_strict_json(value: object, data: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    output = output_of(value)
    assert not output.is_error
    assert json.loads(said(output), parse_constant=refuse) == data


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [Shy(), [Shy()], {Shy(): 1}, nested(100_000), circular(), endless(), 10**5000, TextBlock(Shy()), ImageBlock("x")],  # type: ignore[arg-type]
    ids=["str", "in a list", "as key", "deep", "circular", "endless", "digits", "block", "image"],
)
def test_value_that_cannot_be_shown_is_an_error_result_that_says_that_the_call_ran(value: object) -> None:
    output = output_of(value)
    assert output.is_error
    assert "the call ran to its end" in said(output)


async def coroutine() -> None:
    pass


def test_unawaited_coroutine_is_an_error_result() -> None:
    forgotten = coroutine()
    assert output_of(forgotten).is_error
    forgotten.close()


def test_blocks_and_outputs_are_checked_and_kept() -> None:
    bad = ImageBlock(ImageSource("base64", "image/png", "!"))
    good = ImageBlock(ImageSource("base64", "image/gif", "R0lGODlh"))
    note = TextBlock("[an image was left out: its base64 data is not valid]")
    assert output_of(good).blocks == (good,)
    assert output_of([TextBlock("a\ud83d"), good, bad, "plain", 3]).blocks == (
        TextBlock("a\ufffd"),
        good,
        note,
        TextBlock("plain"),
        TextBlock("3"),
    )
    assert output_of(ToolOutput((bad,), is_error=True)) == ToolOutput((note,), is_error=True)
    assert output_of(ToolOutput(())).blocks == (TextBlock(NO_OUTPUT),)
