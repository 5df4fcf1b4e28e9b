"""Exit codes, as the contract gives them; errors carry their own (`FiskError.exit_code`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fisk_ai.records import Reason

COMPLETED = 0
FAILED = 1
CONFIGURATION = 2
SUSPENDED = 3
BUDGET = 4
REFUSED = 5
LOCKED = 6
CORRUPT = 7
ABORTED = 130

OF_REASON: Mapping[Reason, int] = {
    "completed": COMPLETED,
    "suspended": SUSPENDED,
    "budget": BUDGET,
    "max_iterations": BUDGET,
    "error": FAILED,
}
