"""What can happen in a run, as plain frozen data. How records look as bytes is in `codec`.

The payloads are those of `docs/journal-format.md`. Constructing one validates nothing; `codec.encode` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

VERSION = 2
"""The version that new journals have. Versions only ever add records or optional fields."""

Reason = Literal["completed", "suspended", "error", "budget", "max_iterations"]

MAX_COUNT = 2**53
"""Up to here JSON numbers are exact everywhere; sums of more could not be written any more."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A number of tokens; a negative one would stretch a budget."""

MAX_TERMINAL_MESSAGE_BYTES = 4096
MAX_REQUEST_ID_CHARACTERS = 200


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all payloads: frozen, and optional fields at their default are not written."""


def _always_written(value: Any) -> Any:
    """Return an optional field that is written even at its default: msgspec omits plain defaults only."""
    return msgspec.field(default_factory=lambda: value)


class ToolHashes(Payload, frozen=True, kw_only=True):
    """SHA-256 (hex) of what makes a tool what it is, each over canonical JSON."""

    description: str
    parameters: str
    command: str


class Fingerprint(Payload, frozen=True, kw_only=True):
    """The configuration that a run depends on, as hashes and plain values; never the prompt itself."""

    provider: str = _always_written("anthropic")
    model: str
    system_hash: str
    tools_hash: str
    tools: dict[str, ToolHashes] | None = None
    """None in journals of other origin: their tools can't be compared."""
    thinking_mode: str = _always_written("off")
    """`off`, `adaptive` or `budget:<n>` (tokens)."""
    max_tokens: int | None = None
    """Token budget over all turns and all four kinds; None is no limit."""
    max_iterations: int | None = None
    """Budget of model turns; None is no limit."""


class ForkedFrom(Payload, frozen=True, kw_only=True):
    """Where a fork came from."""

    run_id: str
    seq: int


class MetaRecord(Payload, frozen=True, kw_only=True):
    """Always first, at seq 1: who the run is and what it was started with."""

    version: int
    run_id: str
    created: str
    """RFC 3339, UTC."""
    fingerprint: Fingerprint
    prompt: str
    checksums: bool = False
    """True: every record carries a `crc`."""
    interactive: bool = False
    """True for a chat: an answer waits for input instead of ending the run. Version 2."""
    forked_from: ForkedFrom | None = None


class AssistantRecord(Payload, frozen=True, kw_only=True):
    """One model turn, verbatim."""

    iteration: int
    format: str = _always_written("anthropic")
    message: msgspec.Raw
    """The provider's own message."""
    stop_reason: str = _always_written("")
    """In the vocabulary of the Messages API."""
    in_tokens: Count = _always_written(0)
    out_tokens: Count = _always_written(0)
    cache_read_tokens: Count = 0
    cache_create_tokens: Count = 0
    duration_ms: int | None = None
    response_id: str | None = None
    request_id: str | None = None
    """What the API's support asks for; at most 200 characters."""
    parallel: tuple[int, ...] = ()
    """Positions of the calls that are run side by side."""
    unusable: tuple[int, ...] = ()
    """Positions of the calls whose arguments were no object and were replaced by `{}`; they never run."""


class ToolResultRecord(Payload, frozen=True, kw_only=True):
    """The result of one call, written the instant its tool completes."""

    tool_use_id: str
    result: msgspec.Raw
    """A `tool_result` block: text and images, `is_error`."""
    name: str | None = None
    duration_ms: int | None = None
    remote: bool | None = None


class UserRecord(Payload, frozen=True, kw_only=True):
    """An interactive follow-up: only what was newly typed. Version 2."""

    message: msgspec.Raw


class Waiting(Payload, frozen=True, kw_only=True):
    """What a suspended run waits for."""

    kind: Literal["approval", "answer"]
    tool_use_id: str
    name: str


class TerminalRecord(Payload, frozen=True, kw_only=True):
    """The end of a run, for now or for good; counts only while it is last."""

    reason: Reason
    message: str | None = None
    """At most 4 KiB of UTF-8."""
    waiting: Waiting | None = None
    resumed: bool = False
    """True for the resume mark: a clean end is taken back before the resume's first effect."""
    fingerprint: Fingerprint | None = None
    """On the mark of a forced resume: the configuration from here on."""


Record = MetaRecord | AssistantRecord | ToolResultRecord | UserRecord | TerminalRecord


class SequencedRecord(msgspec.Struct, frozen=True):
    """A record with its place in a journal; only what has a seq can be folded."""

    seq: int
    record: Record
    time: str | None = None
    """When it was appended, RFC 3339 UTC; None in journals of other origin."""


def resume_mark(fingerprint: Fingerprint | None = None) -> TerminalRecord:
    """Return the record that takes a clean end back before a resume's first effect."""
    return TerminalRecord(reason="error", resumed=True, fingerprint=fingerprint)


def idempotency_key(run_id: str, created: str, seq: int, position: int) -> str:
    """Return the key of the call at `position` of the turn at `seq`: the same whenever that call is repeated.

    Format page, "idempotency key": the first 32 hex digits of the SHA-256 over the four, joined by newlines.
    """
    text = f"{run_id}\n{created}\n{seq}\n{position}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


PROTOCOLS: Mapping[str, type[Payload]] = {
    "meta": MetaRecord,
    "assistant": AssistantRecord,
    "tool_result": ToolResultRecord,
    "user": UserRecord,
    "terminal": TerminalRecord,
}
"""Payload key of the envelope -> payload; the protocol is `PROTOCOL_PREFIX` and the key."""

PROTOCOL_PREFIX = "io.choria.fisk-ai.v1.session."
