"""The loop around a target: so many inputs, each with a limit of time and some with one of memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fuzz import limits
from tests.fuzz.corpus import kept
from tests.fuzz.limits import Alarm, alarms, check_memory
from tests.fuzz.mutator import Mutator
from tests.fuzz.targets import TARGETS, Target

MEMORY_EVERY = 1999
"""Each so many inputs the memory is measured, which takes several times as long."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that came to no documented outcome."""

    target: str
    number: int
    data: bytes
    problem: Exception

    @property
    def how(self) -> str:
        """How to repeat it."""
        return f"python -m tests.fuzz --target {self.target} --only {self.number}"


def mutator_of(target: str) -> Mutator:
    """Return what makes the inputs of a target, more of them from sound ones, which come further."""
    corpus = kept(TARGETS[target].corpus)
    sound = [data for name, data in corpus.items() if name.startswith(("run-", "foreign-"))]
    return Mutator(TARGETS[target].shape, [*corpus.values(), *sound * 12])


def fuzz(target: str, numbers: range, until: float | None = None) -> Iterator[tuple[int, Finding | None]]:
    """Yield the number of each finding with it, and at the end the number after the last one that was tried.

    Args:
        target: what is fed.
        numbers: which inputs.
        until: when to stop, on the clock of `time.monotonic`.
    """
    mutator, number = mutator_of(target), numbers.start
    with alarms() as alarm:
        for number in numbers:
            if until is not None and not number % 256 and time.monotonic() > until:
                break
            is_measured = number % MEMORY_EVERY == MEMORY_EVERY - 1 and TARGETS[target].memory_factor > 0
            data = mutator.make_large(number) if is_measured else mutator.make(number)
            try:
                if is_measured:
                    alarm.stop()
                    check_memory(TARGETS[target].run, data, TARGETS[target].memory_factor)
                else:
                    attempt(TARGETS[target], data, alarm)
            except Exception as problem:  # noqa: BLE001 - whatever escapes a target is what is looked for
                yield number, Finding(target, number, data, problem)
        else:
            number = numbers.stop
    yield number, None


def attempt(target: Target, data: bytes, alarm: Alarm) -> None:
    """Run a target once, within the limit of time.

    What takes too long gets a second try by the time that it works, because the machine may be busy.
    """
    alarm.set()
    try:
        target.run(data)
    except TimeoutError:
        began = time.process_time()
        alarm.set(10)
        target.run(data)
        if time.process_time() - began > limits.HANG_S:
            raise
