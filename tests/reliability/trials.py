"""What is tried against the promises, how often, and what came of it: the rows of `docs/reliability.md`.

A trial is one way to attack, with a short form that the tests run and a long form for `make reliability`. It counts
each case that it tries and what broke in it, and goes on after a failure, so that one run shows all of them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

Form = Literal["short", "long"]
Kind = Literal["lost", "repeated", "undetected", "hang", "traceback"]
"""How a promise may be broken: what was acknowledged is gone or something was invented, more than the one call was
repeated or a turn paid again, damage was taken for good, a process didn't end, an operator saw a traceback (or an
error escaped that isn't ours)."""

KINDS: tuple[Kind, ...] = get_args(Kind)
TOLD = 20
"""Failures that are told one by one."""


class BrokenPromise(AssertionError):
    """An invariant doesn't hold."""

    kind: Kind

    def __init__(self, message: str, kind: Kind = "lost") -> None:
        super().__init__(message)
        self.kind = kind


def require(condition: object, *what: object, kind: Kind = "lost") -> None:
    """Raise `BrokenPromise` unless a condition holds."""
    if not condition:
        raise BrokenPromise(" ".join(str(each) for each in what), kind)


@dataclass(slots=True)
class Tally:
    """What was tried and what broke."""

    cases: int = 0
    broken: Counter[Kind] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """How to repeat the first of them."""
    reached: Counter[str] = field(default_factory=Counter)
    """How often each fault, point or ending was really met; a trial checks that none was missed."""

    @contextlib.contextmanager
    def case(self, how: str, times: int = 1) -> Iterator[None]:
        """Count what is tried in the block; a failure in it is kept, with how to repeat it, and doesn't end the trial.

        Args:
            how: what to type, or which seed, number or byte it was.
            times: cases that the block stands for.
        """
        self.cases += times
        try:
            yield
        except BrokenPromise as problem:
            self._broke(problem.kind, how, problem)
        except TimeoutError as problem:
            self._broke("hang", how, problem)
        except Exception as problem:  # noqa: BLE001 - whatever escapes is a finding of the trial, and is told
            self._broke("traceback", how, problem)

    def _broke(self, kind: Kind, how: str, problem: Exception) -> None:
        self.broken[kind] += 1
        if len(self.failures) < TOLD:
            self.failures.append(f"{how}: {type(problem).__name__}: {problem}")

    def check(self) -> None:
        """Raise `BrokenPromise` if anything broke or nothing was tried."""
        require(self.cases, "nothing was tried", kind="undetected")
        require(not self.broken, *self.failures)


@dataclass(frozen=True, slots=True)
class Trial:
    """One row of the table."""

    name: str
    """Short and unique: `crash states`."""
    unit: str
    """What is counted: `states`."""
    method: str
    """One sentence for a reader: what is done, and what is checked after it."""
    promises: str
    """Numbers of the promises: `P5 P7 P10`."""
    run: Callable[[Tally, Form], None]
    target: int
    """Cases of the long form, at least; the report fails below it."""


def tried(trial: Trial, form: Form) -> Tally:
    """Run a trial; for the short form, in a test, call `check` on what it returns."""
    tally = Tally()
    trial.run(tally, form)
    return tally
