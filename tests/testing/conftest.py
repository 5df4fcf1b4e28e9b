"""The plugin's fixture, also where the package was installed before it had a plugin."""

from __future__ import annotations

from fisk_ai.testing.plugin import crash_kit

__all__ = ["crash_kit"]
