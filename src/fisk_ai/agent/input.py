"""Where a chat's follow-ups come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Line:
    """Something was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """The input is over; the chat is suspended."""


@dataclass(frozen=True, slots=True)
class EndOfChat:
    """The operator says that the chat is done; it is completed."""


Input = Line | EndOfInput | EndOfChat


class InputSource(Protocol):
    """Gives one follow-up at a time; cancelling `read` loses nothing that was not returned."""

    async def read(self) -> Input:
        """Return the next input."""


class NoInput:
    """An input that is over at once: a chat without an operator is suspended after each answer."""

    async def read(self) -> Input:
        """Return the end."""
        return EndOfInput()
