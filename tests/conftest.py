"""What all tests share: generated inputs are the same in every run, so that a failure repeats."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same-every-time", derandomize=True, deadline=None, database=None)
settings.load_profile("same-every-time")
