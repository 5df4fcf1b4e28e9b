"""Contests: a floor and a contestant take turns, so that both meet the same machine at the same time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    floor_name: str
    floor: float
    ours: float
    unit: str

    @property
    def ratio(self) -> float:
        """How many times the floor."""
        return self.ours / self.floor


def timed_ms(work: Callable[[], object]) -> float:
    """Return how long `work` took, in milliseconds."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def contest(what: str, floor_name: str, floor: Callable[[], object], ours: Callable[[], object], rounds: int) -> Row:
    """Let floor and contestant take turns, and compare their medians."""
    floor_ms, ours_ms = [], []
    for number in range(rounds):
        first_ms = timed_ms(ours) if number % 2 else None  # neither always profits from what the other warmed up
        floor_ms.append(timed_ms(floor))
        ours_ms.append(timed_ms(ours) if first_ms is None else first_ms)
    return Row(what, floor_name, statistics.median(floor_ms), statistics.median(ours_ms), "ms")
