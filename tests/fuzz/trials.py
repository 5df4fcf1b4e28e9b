"""Fuzzing as a row of the table; the numbers are the same in every run, so a failure repeats."""

from __future__ import annotations

from tests.fuzz.engine import Finding, fuzz
from tests.fuzz.targets import TARGETS
from tests.reliability.trials import Form, Tally, Trial, require

EXECUTIONS = {"short": 30_000, "long": 5_000_000}


def run(tally: Tally, form: Form) -> None:
    """Feed each target its share."""
    for name, target in TARGETS.items():
        executions = EXECUTIONS[form] * target.share // 1000
        for number, finding in fuzz(name, range(executions)):
            if finding is None:
                tally.cases += number
                tally.reached[name] = number
            else:
                with tally.case(finding.how, times=0):
                    _fail(finding)
    require(set(tally.reached) == set(TARGETS), "a target was never fed:", tally.reached, kind="undetected")


def _fail(finding: Finding) -> None:
    raise finding.problem


FUZZ = Trial(
    name="fuzzing",
    unit="executions",
    method="Reader, fold, stores, message readers, configuration and text cleaner are fed with kept inputs that were "
    "changed as what they are, numbers and checksums made right again: each comes to a documented outcome that doesn't "
    "contradict itself, within a second and 20 bytes of memory for each of its own.",
    promises="P3 P4 P11 P18 P19",
    run=run,
    target=EXECUTIONS["long"],
)
TRIALS: tuple[Trial, ...] = (FUZZ,)
