"""The pure half of an HTTP adapter: what to send, and what an answer says. No IO.

One `Api` for each API that is spoken; `http.HttpProvider` does the sending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from fisk_ai.errors import InvalidReply, UnsupportedFormat
from fisk_ai.messages import NEUTRAL, Message
from fisk_ai.providers.base import Delta, ModelRequest, Reply

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""An answer above this could not be journaled."""

T = TypeVar("T")


class StreamNotVerbatim(Exception):
    """A stream holds something that can't be put together to the provider's own message.

    The adapter asks again without streaming; no user of a provider sees this.
    """


class Accumulator(Protocol):
    """Puts the events of one stream together to one turn."""

    @property
    def done(self) -> bool:
        """True after the end event; what follows it is not read."""

    def feed(self, event: str, data: str) -> Delta | None:
        """Take one event and return what there is to show of it.

        Raises:
            StreamNotVerbatim: if the event can't be merged.
            ProviderRefused: for an error event.
            InvalidReply: for an event that has not the API's shape.
        """

    def reply(self) -> Reply:
        """Return the turn; raises `InvalidReply` if the stream ended before it was whole."""


class Api(Protocol):
    """One way of speaking to models over HTTP."""

    @property
    def name(self) -> str:
        """The provider's name."""

    @property
    def format(self) -> str:
        """The format of its turns."""

    @property
    def path(self) -> str:
        """Where to post, below the base URL."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What goes with each request, besides the key."""

    def build_request(self, request: ModelRequest, *, stream: bool) -> bytes:
        """Return the body to post; journaled messages are in it byte for byte."""

    def read_reply(self, body: bytes) -> Reply:
        """Read an answer that was not streamed; raises `InvalidReply` or `ProviderRefused`."""

    def accumulator(self) -> Accumulator:
        """Return a fresh one, for one stream."""


@runtime_checkable
class SettlesStop(Protocol):
    """An `Api` that is also spoken by servers whose word for why a turn stopped can be wrong."""

    def settle_stop(self, reply: Reply, request: ModelRequest) -> Reply:
        """Return the turn with the stop reason that it has in view of what was asked for."""


def check_format(message: Message, format_name: str) -> None:
    """Raise `UnsupportedFormat` for a turn that was journaled in another API's shape."""
    if message.format not in (NEUTRAL, format_name):
        raise UnsupportedFormat(
            f"the conversation holds turns in the format {message.format!r}, which can't be sent to an API that "
            f"takes {format_name!r}: use the provider that the run was started with"
        )


def splice_messages(head: object, messages: bytes) -> bytes:
    """Encode `head`, an object, with `messages`, an array that is JSON already, as its last field."""
    return msgspec.json.encode(head)[:-1] + b',"messages":' + messages + b"}"


def one_of(value: str | None, what: str) -> str:
    """Return a text that an answer must have, or raise `InvalidReply` naming it."""
    if not value:
        raise InvalidReply(
            f"the model's answer has no {what}, so it isn't a whole turn",
            retryable=True,
        )
    return value


def ended_early(missing: str) -> InvalidReply:
    """Return the error for a stream that ended before its turn was whole."""
    return InvalidReply(
        f"the stream ended early, without {missing}: what came is not a whole turn and was dropped",
        retryable=True,
    )


def not_an_answer(why: str) -> InvalidReply:
    """Return the error for bytes that are no answer of the API."""
    return InvalidReply(f"the answer isn't one that this API gives: {why}", retryable=True)


def read_shape(decode: Callable[[bytes], T], raw: bytes) -> T:
    """Decode a part of an answer; what has not the shape is an `InvalidReply`."""
    try:
        return decode(raw)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise not_an_answer(str(problem)) from None
