"""All trials there are."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from tests.reliability.trials import Trial

MODULES = (
    "tests.reliability.crash_trials",
    "tests.reliability.kill_trials",
    "tests.reliability.signal_trials",
    "tests.reliability.injection_trials",
    "tests.reliability.resource_trials",
    "tests.reliability.damage_trials",
    "tests.reliability.lock_trials",
    "tests.fuzz.trials",
    "tests.reliability.request_trials",
    "tests.reliability.planting",
)


def load() -> Sequence[Trial]:
    """Return all trials, in the order of the page."""
    return [trial for name in MODULES for trial in import_module(name).TRIALS]


def find(name: str) -> Trial:
    """Return a trial by its name."""
    found = {trial.name: trial for trial in load()}
    if name not in found:
        raise SystemExit(f"no trial is named {name!r}; there are: {', '.join(found)}")
    return found[name]
