"""What came of the trials: kept as JSON beside the page, and shown on the page as a table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.reliability import planting
from tests.reliability.catalogue import load
from tests.reliability.trials import KINDS, Form, Kind, Tally, Trial

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "reliability.md"
RESULTS = DOCS / "reliability.json"
PLANTED_PAGE = DOCS / "planted-bugs.md"
BEGIN, END = "<!-- written by `make reliability`: begin -->", "<!-- written by `make reliability`: end -->"
HEADINGS: Mapping[Kind, str] = {
    "lost": "lost or invented",
    "repeated": "repeated beyond one",
    "undetected": "undetected",
    "hang": "hangs",
    "traceback": "tracebacks",
}


class Result(msgspec.Struct, frozen=True):
    """What came of one trial."""

    name: str
    form: Form
    date: str
    seconds: int
    unit: str
    cases: int
    target: int
    broken: dict[Kind, int] = {}
    failures: list[str] = []
    reached: dict[str, int] = {}
    fell: str | None = None
    """Why there is no result: the trial itself failed, or wasn't possible here."""

    @property
    def problems(self) -> list[str]:
        """What keeps the report from being whole."""
        found = [self.fell] if self.fell else []
        found += self.failures
        if self.form == "long" and self.cases < self.target and not self.fell:
            found.append(f"only {self.cases} of {self.target} {self.unit}")
        return found


def now() -> float:
    """Return a moment to measure from, in seconds."""
    return time.monotonic()


def result_of(trial: Trial, tally: Tally, form: Form, began: float) -> Result:
    """Sum a trial up."""
    return Result(
        name=trial.name,
        form=form,
        date=_today(),
        seconds=round(time.monotonic() - began),
        unit=trial.unit,
        cases=tally.cases,
        target=trial.target,
        broken=dict(tally.broken),
        failures=tally.failures,
        reached=dict(sorted(tally.reached.items())),
    )


def fallen(trial: Trial, form: Form, code: int) -> Result:
    """Describe a trial that came to no result; its own words went to stderr."""
    return Result(trial.name, form, _today(), 0, trial.unit, 0, trial.target, fell=f"it ended with code {code}")


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def encoded(result: Result) -> str:
    """Return a line of JSON."""
    return msgspec.json.encode(result).decode()


def decoded(line: bytes) -> Result:
    """Read a line of JSON."""
    return msgspec.json.decode(line, type=Result)


def line(result: Result) -> str:
    """Say what came of a trial, for a terminal."""
    head = f"{result.name}: {result.cases} {result.unit}, {sum(result.broken.values())} broken, {result.seconds} s"
    return "\n  ".join([head, *result.problems])


def kept() -> dict[str, Result]:
    """Return the results that are beside the page, by trial."""
    if not RESULTS.exists():
        return {}
    return {result.name: result for result in msgspec.json.decode(RESULTS.read_bytes(), type=list[Result])}


def keep(result: Result) -> None:
    """Put a result beside the page, in place of an earlier one of the same trial; a short one only if there is none."""
    results = kept()
    if result.form == "short" and result.name in results and results[result.name].form == "long":
        return
    results[result.name] = result
    order = [trial.name for trial in load()]
    known = sorted((each for each in results.values() if each.name in order), key=lambda each: order.index(each.name))
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")


def table(trials: Sequence[Trial], results: Mapping[str, Result]) -> Iterable[str]:
    """Yield the table of the page, a line each."""
    yield (
        "| trial | what is done, and checked after it | promises | tried | "
        + " | ".join(HEADINGS[kind] for kind in KINDS)
        + " | form, when |"
    )
    yield "|---" * (len(KINDS) + 5) + "|"
    for trial in trials:
        result = results.get(trial.name)
        if result is None or result.fell:
            yield f"| {trial.name} | {trial.method} | {trial.promises} | not run |" + " |" * (len(KINDS) + 1)
            continue
        counts = " | ".join(str(result.broken.get(kind, 0)) for kind in KINDS)
        cells = (trial.name, trial.method, trial.promises, f"{result.cases:,} {trial.unit}", counts)
        yield f"| {' | '.join(cells)} | {result.form}, {result.date} |"


def page(text: str, lines: Iterable[str]) -> str:
    """Return a page's text with a table in its place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table, between {BEGIN} and {END}")
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after


def write_page() -> None:
    """Write what is kept into the page of the trials, and the registry into that of the planted bugs."""
    _write(PAGE, table(load(), kept()))
    _write(PLANTED_PAGE, planting.table())


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text(page(path.read_text(encoding="utf-8"), lines), encoding="utf-8")
