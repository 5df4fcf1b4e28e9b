"""The seam to a model: one request in, one whole turn out. Adapters implement it, the agent uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fisk_ai.messages import Message


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What a provider is asked for besides the turn itself; nothing of it is compared on a resume but the tools."""

    cache: bool = True
    """Ask to keep the conversation so far, where the API can be asked."""
    service_tier: str | None = None
    """Handed on as it stands."""
    betas: tuple[str, ...] = ()
    """Beta features, by the names of their header."""
    server_tools: tuple[Mapping[str, Any], ...] = ()
    """Definitions of tools that run on the provider's side, handed on as they stand."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """All that one model call depends on."""

    model: str
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    messages: Sequence[Message]
    """The committed conversation; never empty, and only read."""
    iteration: int
    """Model turns before this one."""
    max_output_tokens: int = 8192
    thinking_mode: str = "off"
    """`off`, `adaptive` or `budget:<n>` (tokens)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole turn, ready to be journaled."""

    format: str
    message: bytes
    """The provider's assistant message, valid on one line (see `jsontext.journalable`)."""
    stop_reason: str
    """In the vocabulary of the Messages API."""
    in_tokens: int = 0
    """Input tokens that were neither read from nor written to a cache."""
    out_tokens: int = 0
    cache_read_tokens: int = 0
    cache_create_tokens: int = 0
    response_id: str | None = None
    request_id: str | None = None
    """What the API's support asks for."""
    stop_note: str | None = None
    """Why the model stopped, in the API's words and on one line, where it says more than the stop reason."""
    unusable: tuple[int, ...] = ()
    """Positions of the calls whose arguments were no object and became `{}`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a turn while it is streamed; for showing only, never journaled."""

    kind: Literal["text", "thinking"]
    text: str


OnDelta = Callable[[Delta], None]


class Provider(Protocol):
    """An API through which a model is reached."""

    @property
    def name(self) -> str:
        """As in agent.yaml and in the fingerprint."""

    @property
    def format(self) -> str:
        """The format in which its turns are journaled; `fisk_ai.formats` has its reader."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one attempt at one turn.

        Cancellation ends the connection. A turn counts only when it is whole: with its stop reason and, in a
        stream, its end event.

        Raises:
            ProviderError: saying whether another attempt may help.
        """

    async def aclose(self) -> None:
        """Give up connections; may be called twice."""
