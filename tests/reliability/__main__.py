"""`python -m tests.reliability`: run the trials in their long form and write their figures into docs/reliability.md.

A short form (`--form short`) is kept where there is no long one yet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.reliability import report
from tests.reliability.catalogue import find, load
from tests.reliability.trials import Form, Trial, tried

ROOT = Path(__file__).resolve().parents[2]
JOBS = 2


def _one(name: str, form: Form) -> int:
    """Run one trial in this process and print its result as JSON."""
    trial = find(name)
    began = report.now()
    print(report.encoded(report.result_of(trial, tried(trial, form), form, began)))
    return 0


def _run(trial: Trial, form: Form) -> report.Result:
    """Run one trial in a process of its own: none sees what another left behind."""
    command = [sys.executable, "-m", "tests.reliability", "--one", trial.name, "--form", form]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return report.fallen(trial, form, done.returncode)
    return report.decoded(done.stdout.splitlines()[-1])


def _all(trials: Sequence[Trial], form: Form, jobs: int) -> int:
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(_run, trial, form) for trial in trials]):
            result = done.result()
            print(report.line(result), flush=True)
            failed += [result.name] if result.problems else []
            if not result.fell:
                report.keep(result)
    report.write_page()
    print(f"{len(trials)} trials, {len(failed)} failed{': ' if failed else ''}{', '.join(sorted(failed))}")
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run trials from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--form", choices=["short", "long"], default="long")
    parser.add_argument("--only", action="append", metavar="TRIAL", help="one of: " + ", ".join(t.name for t in load()))
    parser.add_argument("--jobs", type=int, default=JOBS, help="trials at the same time")
    parser.add_argument("--pages", action="store_true", help="only write the pages, from the results that are there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.pages:
        report.write_page()
        return 0
    if options.one:
        return _one(options.one, options.form)
    trials = [find(name) for name in options.only] if options.only else load()
    return _all(trials, options.form, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
