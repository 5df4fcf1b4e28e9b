"""What a run tells its caller while it happens. Events are notices: they are never stored, and nothing waits for them.

An event about a record comes after the record is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from fisk_ai.errors import ProviderError, StoreError
from fisk_ai.folding import Counters, RunState
from fisk_ai.records import Reason


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A new run exists; `stored` says whether it will outlive the process."""

    run_id: str
    stored: bool


@dataclass(frozen=True, slots=True)
class RunResumed:
    """A stored run passed the guard and goes on."""

    run_id: str
    state: RunState
    """As it was found."""
    forced: tuple[str, ...] = ()
    """What changed in the configuration, when the resume was forced."""


@dataclass(frozen=True, slots=True)
class TailRepaired:
    """A torn tail was cut; its bytes are kept beside the journal."""

    run_id: str
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class OrphanFound:
    """A tool of the dead runner still lives; the run waits for it or ends it."""

    tool: str | None
    process_group: int | None
    action: Literal["wait", "kill", "ignore"]
    wait_s: float


@dataclass(frozen=True, slots=True)
class CallRepeated:
    """A call that may have run before the crash runs again, with the same idempotency key."""

    call_id: str
    name: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """An attempt at a model call begins."""

    iteration: int
    attempt: int = 1
    """Above 1 after a `ModelRetried` and its pause."""


@dataclass(frozen=True, slots=True)
class TextStreamed:
    """A piece of a turn that isn't journaled yet."""

    kind: Literal["text", "thinking"]
    text: str


@dataclass(frozen=True, slots=True)
class ModelRetried:
    """A model call failed and is tried again after a pause; what was streamed of it is void."""

    attempt: int
    error: str
    wait_s: float
    may_be_paid: bool = True
    """False if the request can't have arrived or was turned away, so that the attempt cost nothing."""


@dataclass(frozen=True, slots=True)
class TurnRecorded:
    """A model turn is durable."""

    seq: int
    iteration: int
    text: str
    calls: tuple[str, ...]
    """Names of the called tools, in order."""
    stop_reason: str
    in_tokens: int
    out_tokens: int


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call begins."""

    call_id: str
    name: str
    arguments: str
    """As JSON."""
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A call's result is durable."""

    seq: int
    call_id: str
    name: str
    text: str
    is_error: bool
    duration_ms: int | None
    """None for a call that was answered without being run."""


@dataclass(frozen=True, slots=True)
class InputAwaited:
    """A chat waits for the operator."""


@dataclass(frozen=True, slots=True)
class InputRecorded:
    """A follow-up is durable."""

    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something an operator should know and need not act on."""

    text: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    run_id: str
    reason: Reason
    answer: str | None
    """The model's last text, if the run completed or a chat has an answer."""
    message: str | None
    """Why it ended, where `reason` doesn't say it all."""
    counters: Counters
    iterations: int
    stored: bool
    """True if the run can be found in a store."""
    input_ended: bool = False
    """True for a chat that was left by the end of its input."""
    storage_error: StoreError | None = field(default=None, compare=False)
    """Set if the end itself could not be stored; all before it is."""
    provider_error: ProviderError | None = field(default=None, compare=False)
    """Set if a model call that failed is what ended or suspended the run."""

    @property
    def resumable(self) -> bool:
        """True if the run can go on from its journal."""
        return self.stored and self.reason != "completed"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event of a run."""

    result: RunResult


Event = (
    RunStarted
    | RunResumed
    | TailRepaired
    | OrphanFound
    | CallRepeated
    | ModelCalled
    | TextStreamed
    | ModelRetried
    | TurnRecorded
    | ToolStarted
    | ToolFinished
    | InputAwaited
    | InputRecorded
    | Noticed
    | RunEnded
)

OnEvent = Callable[[Event], None]
