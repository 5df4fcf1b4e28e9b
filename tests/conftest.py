"""What all tests share: inputs that repeat, signals that arrive, and reports that travel between processes."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from fisk_ai.text import wellformed

settings.register_profile("same-every-time", derandomize=True, deadline=None, database=None)
settings.load_profile("same-every-time")

# Whoever starts the tests in the background may have these ignored, and every process that a test starts would
# inherit it: no signal would reach a run.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make captured output valid text: tests log lone surrogates, which no other process could be told."""
    report = yield
    report.sections = [(title, wellformed(text)) for title, text in report.sections]
    return report
