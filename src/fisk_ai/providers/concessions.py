"""Parts of a request that some servers refuse, and that are then left out. Pure.

A part is given up when a server's refusal is about it, and stays given up as long as the provider lives: what a server
doesn't know now it won't know at the next turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

_ABOUT_THE_REQUEST = frozenset({400, 422})


@runtime_checkable
class Conceding(Protocol):
    """An `Api` that can do without some parts of its requests."""

    @property
    def concessions(self) -> Concessions:
        """What it has given up so far."""


class Concessions:
    """What a server has refused so far."""

    def __init__(self, refusals: Mapping[str, str]) -> None:
        """`refusals` maps each part that can be given up to a pattern of the error bodies that are about it."""
        self._refusals = {part: re.compile(pattern.encode(), re.IGNORECASE) for part, pattern in refusals.items()}
        self._made: set[str] = set()

    def __contains__(self, part: object) -> bool:
        """Tell whether a part was given up."""
        return part in self._made

    def make(self, status: int, body: bytes) -> bool:
        """Give up the part that an error is about; False if there is none, or none that is still asked for."""
        if status not in _ABOUT_THE_REQUEST:
            return False
        for part, refusal in self._refusals.items():
            if part not in self._made and refusal.search(body):
                self._made.add(part)
                return True
        return False
