"""The seam to a tool: checked arguments in, text or images out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from fisk_ai.call_guard import CallGuard
from fisk_ai.messages import ImageBlock, TextBlock

OnCrash = Literal["rerun", "ask", "skip"]
"""What to do with a call that may have run when its runner died."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call knows about itself."""

    run_id: str
    call_id: str
    """Unique within the turn only."""
    idempotency_key: str
    """The same whenever this call is repeated, and different for every other call: pass it to what you change."""
    guard: CallGuard | None = None
    """For tools that start processes; None where runs are not stored."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool says to the model, valid and within limits."""

    blocks: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False


@runtime_checkable
class Tool(Protocol):
    """Something that the model can call."""

    @property
    def name(self) -> str:
        """1-64 of `a-z A-Z 0-9 _ -`."""

    @property
    def description(self) -> str:
        """For the model."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments, an object."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What runs (argv or qualified name) and `parallel`, for the fingerprint; plain JSON."""

    @property
    def on_crash(self) -> OnCrash:
        """What a resume does with a call that may have run."""

    @property
    def parallel(self) -> bool:
        """True if calls of one turn may run side by side and are harmless to repeat."""

    @property
    def timeout_s(self) -> float | None:
        """Time limit of a call in seconds; None for no limit."""

    @property
    def starts_processes(self) -> bool:
        """True if calls run in processes that could outlive the runner."""

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, for the model, or None."""

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run once, within the time limit.

        A failing tool returns an output with `is_error`; an exception means that the machinery failed.
        Cancellation ends what the call started, process groups included, before it returns.
        """
