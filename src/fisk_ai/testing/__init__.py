"""For tests of what is built on fisk-ai. Each name is loaded when it is first used."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fisk_ai.testing.crashes import CrashKit
    from fisk_ai.testing.points import KillPoint
    from fisk_ai.testing.report import Crash, CrashReport, NothingProven, Told, Undisturbed

_HOMES = {
    "CrashKit": "fisk_ai.testing.crashes",
    "KillPoint": "fisk_ai.testing.points",
    "Crash": "fisk_ai.testing.report",
    "CrashReport": "fisk_ai.testing.report",
    "NothingProven": "fisk_ai.testing.report",
    "Told": "fisk_ai.testing.report",
    "Undisturbed": "fisk_ai.testing.report",
}

__all__ = ["Crash", "CrashKit", "CrashReport", "KillPoint", "NothingProven", "Told", "Undisturbed"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
