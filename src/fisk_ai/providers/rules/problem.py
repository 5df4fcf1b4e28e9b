"""A rule that a request breaks: where, which, and what of the run stands there."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fisk_ai.jsontext import BadJson, decode_strict

Part = Literal["settings", "user", "result", "turn"]
"""What of a run it is: its configuration, what was typed, a tool's result, or a turn of the model's."""

Body = bytes | Mapping[str, Any]
"""A request as it is sent, or what it parses to."""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule."""

    place: str
    """In the request: `messages.4.content.0`."""
    rule: str
    part: Part = "settings"
    turns: int = 0
    """Turns of the model's that stand before the place."""

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}"

    @property
    def source(self) -> str:
        """What of the run it is, in words."""
        match self.part:
            case "settings":
                return "the configuration"
            case "turn":
                return f"the model's turn {self.turns + 1} of those that are sent"
            case "result":
                return f"a tool's result after the model's turn {self.turns}"
            case "user":
                return f"what was typed after the model's turn {self.turns}" if self.turns else "the prompt"


@dataclass(slots=True)
class Findings:
    """The problems of one request, while it is gone through from its start; `part` and `turns` are where that is."""

    problems: list[Problem] = field(default_factory=list)
    part: Part = "settings"
    turns: int = 0

    def need(self, condition: object, place: str, rule: str, *, back: int = 0) -> bool:
        """Note a problem unless a condition holds; tells whether it does. `back`: so many turns before this one."""
        if not condition:
            self.problems.append(Problem(place, rule, self.part, self.turns - back))
        return bool(condition)

    def fields(self, value: object, place: str) -> Mapping[str, Any]:
        """Return the fields of an object; of anything else, a problem, there are none."""
        if isinstance(value, Mapping):
            return value
        self.need(False, place, "this must be an object")
        return {}

    def known(self, fields: Mapping[str, Any], names: frozenset[str], place: str, rule: str) -> None:
        """Note the fields that an object may not have."""
        if unknown := sorted(fields.keys() - names):
            self.need(False, place, f"{rule}: {', '.join(unknown)}")

    def one_of(self, value: object, allowed: Sequence[str], place: str) -> None:
        """Note a value that isn't one of a few."""
        self.need(value in allowed, place, f"unexpected value; one of {', '.join(allowed)} is")

    def image(self, media_type: object, data: object, place: str) -> None:
        """Note what is wrong with an image."""
        known = isinstance(media_type, str) and media_type in IMAGE_TYPES
        self.need(known, place, "image media_type: none that is taken")
        self.need(_is_base64(data), place, "image data: not base64, or empty")

    def data_url(self, url: object, place: str) -> None:
        """Note what is wrong with an image that stands in a URL."""
        found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
        self.image(found and found[1], found and found[2], place)


def read_body(found: Findings, body: Body) -> Mapping[str, Any]:
    """Return a request's fields; what is no JSON object is a problem and has none."""
    if not isinstance(body, bytes):
        return found.fields(body, "body")
    try:
        return found.fields(decode_strict(body), "body")
    except BadJson as problem:
        found.need(False, "body", f"the body is not JSON: {problem}")
        return {}


def listed(value: object) -> Sequence[Any]:
    """Return a list, or an empty one for anything else."""
    return value if isinstance(value, list) else ()


def is_blank(text: object) -> bool:
    """Tell whether an API takes `text` for empty."""
    return not isinstance(text, str) or not text.strip()


def is_count(value: object, least: int = 1) -> bool:
    """Tell whether `value` is a whole number, and not below the least."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_object_text(text: object) -> bool:
    """Tell whether `text` is JSON, and an object."""
    try:
        return isinstance(text, str) and isinstance(decode_strict(text.encode("utf-8", "replace")), dict)
    except BadJson:
        return False


def matches(pattern: re.Pattern[str], value: object) -> bool:
    """Tell whether a whole text fits a pattern."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def doubled(names: Sequence[object]) -> list[str]:
    """Return what stands more than once."""
    texts = [name for name in names if isinstance(name, str)]
    return sorted({name for name in texts if texts.count(name) > 1})


def _is_base64(data: object) -> bool:
    if not isinstance(data, str):
        return False
    try:
        return bool(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return False
