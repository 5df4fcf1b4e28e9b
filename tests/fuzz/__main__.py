"""Fuzz from the command line: `python -m tests.fuzz`; by coverage too, where atheris is installed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SHOWN_BYTES = 600


def main(arguments: Sequence[str] | None = None) -> int:
    """Feed targets; exit 1 if anything was found."""
    options = _parser().parse_args(arguments)
    if options.coverage:
        from tests.fuzz import coverage

        return coverage.fuzz(options.target or ["reader"], options.executions, options.seconds, options.add)
    from tests.fuzz.targets import TARGETS

    names = options.target or list(TARGETS)
    if options.file:
        return _repeat_file(names, Path(options.file))
    if options.only is not None:
        return sum(_feed(name, range(options.only, options.only + 1), None) for name in names)
    seconds = None if options.seconds is None else options.seconds / len(names)
    total = options.executions or (10**12 if seconds else 100_000)
    shares = sum(TARGETS[name].share for name in names)
    found = 0
    for name in names:
        executions = total * TARGETS[name].share // shares
        found += _feed(name, range(options.start, options.start + executions), seconds)
    return int(found > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", metavar="T", help="only this one; may be given several times")
    parser.add_argument("--executions", type=int, metavar="N", help="inputs over all targets (default: 100000)")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after this time")
    parser.add_argument("--start", type=int, default=0, metavar="N", help="number of the first input")
    parser.add_argument("--only", type=int, metavar="N", help="just the input of this number, shown")
    parser.add_argument("--file", metavar="PATH", help="just this input")
    parser.add_argument("--coverage", action="store_true", help="let atheris choose inputs by the code they reach")
    parser.add_argument("--add", metavar="DIR", help="with --coverage: where inputs that reach new code are written")
    return parser


def _feed(name: str, numbers: range, seconds: float | None) -> int:
    from tests.fuzz.engine import fuzz, mutator_of

    began = time.monotonic()
    found = 0
    if len(numbers) == 1:
        print(f"{name} {numbers.start}: {mutator_of(name).make(numbers.start)!r}")
    for number, finding in fuzz(name, numbers, None if seconds is None else began + seconds):
        if finding is None:
            took = time.monotonic() - began
            done = number - numbers.start
            print(
                f"{name}: {done} executions, {found} findings, {took:.1f} s, {done / max(took, 0.001):.0f}/s",
                flush=True,
            )
        else:
            found += 1
            if found <= 5:
                print(f"{name} {number}: {type(finding.problem).__name__}: {str(finding.problem)[:SHOWN_BYTES]}")
                print(f"  input {finding.data[:SHOWN_BYTES]!r}\n  repeat with {finding.how}", flush=True)
    return int(found > 0)


def _repeat_file(names: Sequence[str], path: Path) -> int:
    from tests.fuzz.targets import TARGETS

    for name in names:
        TARGETS[name].run(path.read_bytes())
        print(f"{name}: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
