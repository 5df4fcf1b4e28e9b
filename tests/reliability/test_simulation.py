"""Seeds of the simulation, and bugs that it has to find."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.reliability import simulation
from tests.reliability.crash_trials import TRIALS
from tests.reliability.planted import BUGS
from tests.reliability.simulation import simulate
from tests.reliability.trials import BrokenPromise, tried

_, _, JOURNALS, RUNS = TRIALS
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_journal_keeps_its_promises_under_faults_and_crashes() -> None:
    tally = tried(JOURNALS, "short")
    tally.check()
    assert tally.cases == 5_000


@pytest.mark.slow
def test_an_agents_run_keeps_its_promises_under_faults_and_crashes_and_comes_to_its_end() -> None:
    tally = tried(RUNS, "short")
    tally.check()
    assert tally.cases == 500


@pytest.mark.parametrize(
    "bug",
    [
        "no sync of the file",
        "promised before the sync",
        "no sync of the directory",
        "sync tried again after EIO",
        "torn tail not cut",
        "cut before it is kept",
        "poison ignored",
        "opened without dropping the cache",
    ],
)
def test_a_planted_bug_is_found_by_the_journals_simulation(bug: str) -> None:
    with BUGS[bug](), pytest.raises(BrokenPromise, match=r"--only journal --seed \d+"):
        simulate("journal", range(3000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "seeds"),
    [
        ("no sync of the file", range(500)),
        ("call in doubt not named", range(500)),
        ("clean end not taken back", range(200, 700)),  # takes a suspend in a batch and a crash after that
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_planted_bug_is_found_by_the_agents_simulation(bug: str, seeds: range) -> None:
    with BUGS[bug](), pytest.raises(BrokenPromise, match=r"--only agent --seed \d+"):
        simulate("agent", seeds)


@pytest.mark.parametrize("kind", ["journal", "agent"])
def test_a_seed_is_the_same_in_every_process(kind: str) -> None:
    command = [sys.executable, "-m", "tests.reliability.simulation", "--only", kind, "--seeds", "20-29"]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    here = simulate(kind, range(20, 30))
    assert said.partition(" s: ")[2].strip() == simulation.told(here)


def test_a_failure_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(seed: int, _struck: Counter[str]) -> None:
        if seed == 3:
            raise ValueError("broken")

    monkeypatch.setattr(simulation, "SIMULATIONS", {"journal": fails})
    with pytest.raises(BrokenPromise, match=r"seed 3: ValueError: broken; repeat with .*--only journal --seed 3"):
        simulate("journal", range(10))
