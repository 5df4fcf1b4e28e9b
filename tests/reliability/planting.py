"""Plants each bug, runs the test that has to catch it, and says what came of it.

`python -m tests.reliability.planting` prints the table of all of them. A bug must reach nobody else, so each has a
process of its own: forked from one that has imported everything, because a new start for each would take minutes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pytest

from tests.reliability.planted import PLANTED
from tests.reliability.planted.edits import Planted, WrongEdit
from tests.reliability.planted.wrong import WRONG
from tests.reliability.trials import Form, Tally, Trial, require

ROOT = Path(__file__).resolve().parents[2]
ALL: Mapping[str, Planted] = {**PLANTED, **WRONG}
LIMIT_S = 60
HANG_S = 3
"""After which a test is ended whose bug shows in a hang."""

_OPTIONS = (
    "-q",
    "-x",
    "--tb=no",
    "-p",
    "no:xdist",
    "-p",
    "no:unraisableexception",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)

_PR_SET_CHILD_SUBREAPER = 36

Ending = Literal["passed", "failed", "hung", "skipped", "broken"]


@dataclass(slots=True)
class Outcome:
    """How the named test ended with the bug in place."""

    ending: Ending = "broken"
    """`broken`: there is no such test, or it failed outside of its own body."""
    problems: tuple[tuple[str, ...], ...] = ()
    """The classes of each exception that it failed with, most special first."""
    in_product: bool = False
    """True if it was raised by the product's code rather than by the test."""
    message: str = ""
    reached: bool = False


def why_not_caught(planted: Planted, outcome: Outcome) -> str | None:
    """Say why a bug doesn't count as caught; None if it does."""
    test = planted.caught_by
    if outcome.ending == "passed":
        return f"{test} passes with it"
    if outcome.ending != ("hung" if planted.hangs else "failed"):
        return f"{test} ends otherwise: {outcome.ending} {outcome.message}"
    if not outcome.reached:
        return f"{test} fails without coming to the changed place: {outcome.message}"
    if planted.hangs:
        return None
    wanted = {each.__name__ for each in planted.shows} - ({"AssertionError"} if outcome.in_product else set())
    if not any((wanted | {"Failed"}) & set(classes) for classes in outcome.problems):
        return f"{test} breaks instead of noticing it: {outcome.message}"
    return None


class _Watch:
    """Sees how a test ends."""

    def __init__(self) -> None:
        self.outcome = Outcome(message="no such test")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.outcome = _seen(report, call)
        return report


def _seen(report: pytest.TestReport, call: pytest.CallInfo[None]) -> Outcome:
    if call.excinfo is None:
        return Outcome("passed")
    problem = call.excinfo.value
    message = f"{type(problem).__name__}: {problem}"[:500].encode(errors="replace").decode()
    if report.skipped:
        return Outcome("skipped", message=message)
    if report.when != "call":
        return Outcome("broken", message=f"in the set-up: {message}")
    hung = isinstance(problem, pytest.fail.Exception) and str(problem).startswith("Timeout")
    classes = tuple(tuple(each.__name__ for each in type(one).__mro__) for one in _single(problem))
    return Outcome("hung" if hung else "failed", classes, _raised_in_product(problem.__traceback__), message)


def _single(problem: BaseException) -> Iterator[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        for each in problem.exceptions:
            yield from _single(each)
    else:
        yield problem


def _raised_in_product(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "/fisk_ai/" in trace.tb_frame.f_code.co_filename


class Planter:
    """A process that has imported all that is needed, and forks one for each bug."""

    def __enter__(self) -> Planter:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.planting", "serve"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            text=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def outcome(self, name: str) -> Outcome:
        """Plant a bug, run its test and say how that ended; raises `TimeoutError` if it doesn't."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], 2 * LIMIT_S)[0]:
            raise TimeoutError(f"{name!r}: the test that has to catch it comes to no end")
        said = json.loads(self._process.stdout.readline())
        return Outcome(**said | {"problems": tuple(map(tuple, said["problems"]))})


def serve() -> None:
    """Read names, answer with outcomes, a line each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _adopt_what_is_left()
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "w") as devnull:
        with contextlib.redirect_stdout(devnull):
            files = sorted({each.caught_by.partition("::")[0] for each in ALL.values()})
            pytest.main([*_OPTIONS, "--collect-only", *files])
        for number, line in enumerate(sys.stdin):
            outcome = _in_a_fork(ALL[line.rstrip("\n")], Path(scratch, str(number)))
            print(json.dumps(asdict(outcome)), file=answers, flush=True)


def _in_a_fork(planted: Planted, scratch: Path) -> Outcome:
    answer = scratch.with_suffix(".answer")
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            answer.write_text(json.dumps(asdict(_with_it(planted, scratch))))
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as its parent
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):  # what the test started and, failing, left behind
        os.killpg(child, signal.SIGKILL)
    _end_what_is_left()
    if not answer.exists():
        return Outcome(message="its process died")
    said: dict[str, Any] = json.loads(answer.read_text())
    return Outcome(**said)


def _adopt_what_is_left() -> None:
    """Become the parent of processes whose own parent ends: a planted bug may leave tools in groups of their own."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_what_is_left() -> None:
    with contextlib.suppress(ChildProcessError):  # nobody is left
        while True:
            os.waitpid(-1, os.WNOHANG)
            for child in _children():
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)  # its own children are ours now


def _children() -> Iterator[int]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = status.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                yield int(status.parent.name)


def _with_it(planted: Planted, scratch: Path) -> Outcome:
    watch = _Watch()
    limit_s = HANG_S if planted.hangs else LIMIT_S
    arguments = [planted.caught_by, *_OPTIONS, f"--timeout={limit_s}", f"--basetemp={scratch}"]
    with open(scratch.with_suffix(".log"), "w") as log, contextlib.redirect_stdout(log):
        try:
            with planted.plant() as reached:
                pytest.main(arguments, plugins=[watch])
                watch.outcome.reached = bool(reached)
        except WrongEdit as problem:
            return Outcome(message=str(problem))
    return watch.outcome


def table(bugs: Iterable[Planted] = tuple(PLANTED.values())) -> Iterator[str]:
    """Yield the lines of a Markdown table of the bugs."""
    yield "| planted bug | what it does | caught by |"
    yield "|---|---|---|"
    for each in bugs:
        yield f"| {each.name} | {each.does} | `{each.caught_by.removeprefix('tests/')}` |"


def _run(tally: Tally, _form: Form) -> None:
    with Planter() as planter:
        for name, planted in PLANTED.items():
            with tally.case(f"python -m pytest 'tests/reliability/test_planted.py' -k '{name}'"):
                outcome = planter.outcome(name)
                tally.reached[name] += outcome.reached
                why = why_not_caught(planted, outcome)
                require(why is None, why, kind="undetected")


TRIALS: tuple[Trial, ...] = (
    Trial(
        name="planted bugs",
        unit="bugs",
        method="Each bug is put into the product's source; the test that is named for it has to reach it and to fail.",
        promises="P5-P18",
        run=_run,
        target=len(PLANTED),
    ),
)

if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        print(*table(), sep="\n")
