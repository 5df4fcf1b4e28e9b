"""What a check found, for assertions and for people."""

from __future__ import annotations

import difflib
import pprint
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fisk_ai.testing.points import KillPoint
from fisk_ai.text import one_line
from fisk_ai.tools.base import OnCrash

Left = Literal["untouched", "done", "halfway"]
"""How a kill left the world: as before the call, as after an undisturbed one, or neither."""

_GOOD: Mapping[OnCrash, str] = {
    "rerun": "as undisturbed",
    "ask": "not repeated, an operator is asked",
    "skip": "not repeated, the model is told that the outcome is unknown",
}
_DIFF_LINES = 24
_DIFFS = 4
_TEXT_CHARACTERS = 200


class NothingProven(AssertionError):
    """A check that could not have found anything: the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the model was told about the call."""

    text: str
    is_error: bool

    def __str__(self) -> str:
        return ("error: " if self.is_error else "") + repr(one_line(self.text, _TEXT_CHARACTERS))


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The call without a kill."""

    before: object
    """The world before the call."""
    world: object
    """The world after it."""
    told: Told
    steps: int
    """Lines of the tool that were reached."""
    duration_s: float
    """Of the call, not followed line by line."""


@dataclass(frozen=True, slots=True)
class Crash:
    """One kill and the resume after it."""

    point: KillPoint
    killed: bool
    """True if the process died there, by SIGKILL. If not, nothing was tried."""
    left: Left
    """How the world was after the kill."""
    outlived: bool
    """True if a process of the tool lived on; it was waited for."""
    world_after_kill: object
    world: object
    """After the resume."""
    keys: tuple[str, ...]
    """The idempotency key of each time that the call began."""
    ended: str
    """How the resumed run ended: `completed`, another reason, or the code of the error that refused it; empty if
    nothing was resumed."""
    told: Told | None
    """What the model was told in the resumed run; None if it was told nothing."""
    problem: str | None
    """Why the resume did harm, or why the process was not killed; None if all is well."""

    @property
    def harmless(self) -> bool:
        """True if the process was killed and the resume did no harm."""
        return self.killed and self.problem is None


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What came of killing a call at each of its kill points. `str()` is a readable table."""

    tool: str
    on_crash: OnCrash
    """What the resumes did with the call."""
    declared: OnCrash
    """What the tool says itself."""
    undisturbed: Undisturbed
    crashes: tuple[Crash, ...]
    untried: int
    """Lines that were reached and not tried, because there were more than `most`."""

    @property
    def harmless(self) -> bool:
        """True if no kill did harm, and none was missed."""
        return bool(self.crashes) and all(crash.harmless for crash in self.crashes)

    @property
    def harmful(self) -> list[Crash]:
        """The kills after which the resume did harm."""
        return [crash for crash in self.crashes if crash.killed and crash.problem is not None]

    @property
    def missed(self) -> list[Crash]:
        """The kills that did not happen."""
        return [crash for crash in self.crashes if not crash.killed]

    @property
    def advised(self) -> OnCrash | None:
        """What the tool should declare as it is: `rerun` or `ask`; None if this check can't say."""
        if self.on_crash != "rerun" or self.missed:
            return None
        return "rerun" if self.harmless else "ask"

    @property
    def advice(self) -> str:
        """What to do, in a sentence or two."""
        if self.missed:
            return "Not all kills happened, so nothing is advised: let the call take the same way each time."
        if self.on_crash != "rerun":
            halfway = sum(crash.left == "halfway" for crash in self.crashes)
            left = f", and {halfway} of the kills left the call halfway" if halfway else ""
            return f"Nothing was repeated{left}. Whether a repeat is harmless is checked with on_crash='rerun'."
        if self.harmless and self.declared == "rerun":
            return "A repeat is harmless, so on_crash: rerun is right."
        if self.harmless:
            return f"A repeat is harmless: on_crash: rerun would do. The tool declares on_crash: {self.declared}."
        if self.declared != "rerun":
            return f"A repeat does harm. The tool declares on_crash: {self.declared}, so none happens by itself."
        return (
            "A repeat does harm, and the tool declares on_crash: rerun. Hand the idempotency key\n"
            "(ToolContext.idempotency_key, $FISK_AI_IDEMPOTENCY_KEY) to what the tool changes and recognise a repeat\n"
            "by it, or declare on_crash: ask (an operator decides) or skip (the model is told that the outcome is\n"
            "unknown)."
        )

    def assert_harmless(self) -> None:
        """Raise `AssertionError` with the whole report unless each kill happened and did no harm."""
        __tracebackhide__ = True
        if not self.harmless:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._table(), *self._differences(), "", self.advice])

    def _headline(self) -> str:
        count = f"{len(self.crashes)} kills"
        good = "harmless" if self.on_crash == "rerun" else "as it should be"
        verdict = f"{good}, {count}" if self.harmless else f"HARMFUL after {len(self.harmful)} of {count}"
        if self.missed:
            verdict = f"NOT PROVEN: {len(self.missed)} of {count} did not happen"
        what = f"a repeat of {self.tool}" if self.on_crash == "rerun" else f"on_crash: {self.on_crash} of {self.tool}"
        return f"{what} is {verdict}\nundisturbed, the model was told {self.undisturbed.told}"

    def _table(self) -> Iterator[str]:
        wheres = [one_line(f"{crash.point}  {crash.point.source}".rstrip(), 60) for crash in self.crashes]
        width = max(map(len, [*wheres, "killed"]))
        yield f"\n  {'killed':{width}}  {'left it':9}  resumed"
        for where, crash in zip(wheres, self.crashes, strict=True):
            yield f"  {where:{width}}  {crash.left if crash.killed else '-':9}  {self._verdict(crash)}"
        if self.undisturbed.steps == 0:
            yield "  (no line of Python code of it was seen, so it was killed from outside only)"
        if self.untried:
            yield f"  ({self.untried} more lines were reached and not tried: raise `most` to try them)"

    def _verdict(self, crash: Crash) -> str:
        if not crash.killed:
            return f"NOT KILLED: {crash.problem}"
        if crash.problem is not None:
            return f"HARMFUL: {crash.problem}"
        beside = " (its process lived on and was waited for)" if crash.outlived else ""
        return _GOOD[self.on_crash] + beside

    def _differences(self) -> Iterator[str]:
        shown: dict[str, list[str]] = {}
        for crash in self.harmful:
            expected = self.undisturbed.world if self.on_crash == "rerun" else crash.world_after_kill
            if difference := _difference(expected, crash.world):
                shown.setdefault(difference, []).append(str(crash.point))
        for difference, points in [*shown.items()][:_DIFFS]:
            yield f"\nkilled {one_line(', '.join(points), _TEXT_CHARACTERS)}; the world (- expected, + found):"
            yield difference
        if len(shown) > _DIFFS:
            yield f"\n... and {len(shown) - _DIFFS} more worlds that differ"


def _difference(expected: object, found: object) -> str:
    lines = [
        line
        for line in difflib.ndiff(pprint.pformat(expected).splitlines(), pprint.pformat(found).splitlines())
        if not line.startswith("?")
    ]
    if not any(line.startswith(("+", "-")) for line in lines):
        return ""
    more = [f"  ... {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
    return "\n".join(f"  {line}" for line in lines[:_DIFF_LINES] + more)
