"""`make bench`, or `python -m bench [--quick]`: prints a table of ratios.

Absolute times are the machine's; the ratio to the floor is the program's. Floor and contestant take turns within one
run, and medians are compared. The data goes to `.bench` beside the package and is removed afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from . import contests
from .timing import Row

DATA = Path(__file__).resolve().parent.parent / ".bench"


def chosen(*, quick: bool) -> list[Callable[[Path], Iterable[Row]]]:
    """Return the measurements, short or thorough."""
    if quick:
        return [
            partial(contests.appends, rounds=20, records=(1, 1000)),
            partial(contests.steps, turns=(1, 50), width=10),
            partial(contests.loading, rounds=3, records=1000),
            partial(contests.listing, rounds=3, runs=10),
            partial(contests.start_up, rounds=2),
        ]
    return [
        partial(contests.appends, rounds=400, records=(1, 10_000)),
        partial(contests.steps, turns=(1, 200, 2000), width=100),
        partial(contests.loading, rounds=11, records=10_000),
        partial(contests.listing, rounds=11, runs=200),
        partial(contests.start_up, rounds=15),
    ]


@contextmanager
def data_directory() -> Iterator[Path]:
    """Give a directory of our own, and take it away."""
    DATA.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=DATA))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's measurement may be in it
            DATA.rmdir()


def line(row: Row) -> str:
    """Return a row as text."""
    if row.unit == "ms":
        floor, ours = f"{row.floor:.3f} ms", f"{row.ours:.3f} ms"
    else:
        floor, ours = f"{row.floor / 1e6:.2f} MB", f"{row.ours / 1e6:.2f} MB"
    return f"{row.what:44} {row.floor_name:26} {floor:>12} {ours:>12} {row.ratio:>7.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what a journal costs.")
    parser.add_argument("--quick", action="store_true", help="a few seconds, and too short to mean much")
    arguments = parser.parse_args()
    print(f"{'what':44} {'floor':26} {'floor':>12} {'fisk-ai':>12} {'ratio':>7}")
    with data_directory() as directory:
        for number, measure in enumerate(chosen(quick=arguments.quick)):
            place = directory / str(number)
            place.mkdir(mode=0o700)
            for row in measure(place):
                print(line(row), flush=True)
            shutil.rmtree(place)
    print(f"\nMedians, Python {sys.version.split()[0]}. Other libraries are not compared: none is in the lock.")


if __name__ == "__main__":
    main()
