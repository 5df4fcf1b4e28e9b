"""What passes from a journal, which sees orphans, to a tool, whose processes may become some."""

from __future__ import annotations

from typing import Protocol


class CallGuard(Protocol):
    """A lock that the processes of a call inherit, so that a later resume can see that they still live."""

    @property
    def descriptor(self) -> int:
        """The file descriptor to pass on; the lock lives as long as any process holds it."""

    def started(self, process_group: int) -> None:
        """Note the group of the call's process, for whoever finds the lock held."""
