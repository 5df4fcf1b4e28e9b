"""The pytest plugin: the fixture `crash_kit`. What it needs is loaded when a test asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fisk_ai.testing.crashes import CrashKit


@pytest.fixture
def crash_kit(tmp_path: Path) -> CrashKit:
    """Kill a tool's call at each of its moments, resume it, and report whether the repeat is harmless."""
    from fisk_ai.testing.crashes import CrashKit

    return CrashKit(tmp_path / "crash-kit")
