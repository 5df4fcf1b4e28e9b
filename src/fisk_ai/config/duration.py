"""Durations as a person writes them. What a duration limits is decided elsewhere."""

from __future__ import annotations

import re

ACCEPTED = "a duration like 500ms, 120s, 2m or 1h, or a number of seconds, above 0 and at most 8760h"
"""The accepted forms, for messages."""

PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
"""The accepted text; the number form is separate."""

LONGEST_S = 8760 * 3600.0
"""A year, in seconds: longer waits overflow the timers of some platforms."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)", re.ASCII)


def parse_duration(value: object) -> float:
    """Return `value` in seconds.

    Raises:
        ValueError: naming the accepted forms.
    """
    seconds = _seconds(value)
    if seconds is None or not 0 < seconds <= LONGEST_S:
        raise ValueError(f"expected {ACCEPTED}")
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, str):
        found = _TEXT.fullmatch(value)
        return float(found[1]) * _UNITS_S[found[2]] if found else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None
