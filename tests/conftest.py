"""What all tests share: generated inputs that repeat, and reports that travel between processes."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import settings

from fisk_ai.text import wellformed

settings.register_profile("same-every-time", derandomize=True, deadline=None, database=None)
settings.load_profile("same-every-time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make captured output valid text: tests log lone surrogates, which no other process could be told."""
    report = yield
    report.sections = [(title, wellformed(text)) for title, text in report.sections]
    return report
