"""The Messages API: what to send, and what its answers and streams say. Pure.

Journaled turns go into a request byte for byte. Only in a journal of other origin may a turn still hold blank text
blocks beside others (ours are settled before they are written); the API refuses them, so they are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fisk_ai.jsontext import splice_array
from fisk_ai.messages import Message, is_blank
from fisk_ai.providers.base import Delta, ModelOptions, ModelRequest, Reply
from fisk_ai.providers.blocks import OpenBlock
from fisk_ai.providers.error_images import images_behind_results
from fisk_ai.providers.refusals import reported_refusal
from fisk_ai.providers.settle import decode_answer, settle_anthropic
from fisk_ai.providers.wire import (
    StreamNotVerbatim,
    check_format,
    ended_early,
    not_an_answer,
    one_of,
    read_shape,
    splice_messages,
)
from fisk_ai.text import one_line

VERSION = "2026-10-21"
"""Of the API; pinned, so that what comes back doesn't change by itself."""

_NO_OPTIONS = ModelOptions()
_NULL = msgspec.Raw(b"null")
_MAYBE_BLANK = re.compile(rb'"text"\s*:\s*"(?:[\s\x7f-\xff]|\\u[0-9a-fA-F]{4}|\\[bfnrt])*"')


class MessagesApi:
    """The Messages API, as `wire.Api`."""

    name = "anthropic"
    format = "anthropic"
    path = "/v1/messages"

    def __init__(self, options: ModelOptions = _NO_OPTIONS) -> None:
        self._options = options
        betas = {"anthropic-beta": ",".join(options.betas)} if options.betas else {}
        self.headers: Mapping[str, str] = {"anthropic-version": VERSION, **betas}

    def build_request(self, request: ModelRequest, *, stream: bool) -> bytes:
        """Return the body to post."""
        return build_request(request, stream=stream, options=self._options)

    def read_reply(self, body: bytes) -> Reply:
        """Read an answer that was not streamed."""
        return read_reply(body)

    def accumulator(self) -> Accumulator:
        """Return a fresh one, for one stream."""
        return Accumulator()


def build_request(request: ModelRequest, *, stream: bool, options: ModelOptions = _NO_OPTIONS) -> bytes:
    """Return the body to post."""
    head: dict[str, Any] = {"model": request.model, "max_tokens": request.max_output_tokens}
    if not is_blank(request.system_prompt):
        head["system"] = request.system_prompt
    if tools := _tools(request, options):
        head["tools"] = tools
    if (thinking := _thinking(request.thinking_mode)) is not None:
        head["thinking"] = thinking
    if options.cache:
        # Beside the messages and not in one: the API puts the breakpoint on the last block, journaled bytes stay.
        head["cache_control"] = {"type": "ephemeral"}
    if options.service_tier is not None:
        head["service_tier"] = options.service_tier
    if stream:
        head["stream"] = True
    return splice_messages(head, splice_array([_sent(message) for message in request.messages]))


def _tools(request: ModelRequest, options: ModelOptions) -> list[Mapping[str, Any]]:
    own = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    return [*own, *options.server_tools]


def _thinking(mode: str) -> dict[str, Any] | None:
    if mode == "off":
        return None
    if mode == "adaptive":
        return {"type": "adaptive"}
    return {"type": "enabled", "budget_tokens": int(mode.removeprefix("budget:"))}


def _sent(message: Message) -> bytes:
    check_format(message, MessagesApi.format)
    if message.role == "user":
        return images_behind_results(message.content)
    if not _MAYBE_BLANK.search(message.content):
        return message.content
    return _without_blank_text(message.content)


class _Content(msgspec.Struct):
    content: list[msgspec.Raw] | str


class _TextBlock(msgspec.Struct):
    type: str
    text: str = ""


def _without_blank_text(message: bytes) -> bytes:
    content = msgspec.json.decode(message, type=_Content).content
    if isinstance(content, str):
        return message
    kept = [bytes(block) for block in content if not _is_blank_text(block)]
    if not kept or len(kept) == len(content):
        return message
    return b'{"role":"assistant","content":' + splice_array(kept) + b"}"


def _is_blank_text(raw: msgspec.Raw) -> bool:
    block = msgspec.json.decode(raw, type=_TextBlock)
    return block.type == "text" and is_blank(block.text)


class _Usage(msgspec.Struct):
    """Token counts; in a stream they are totals so far, and what is absent keeps its value."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def update(self, newer: _Usage | None) -> None:
        for name in self.__struct_fields__:
            if newer is not None and (value := getattr(newer, name)) is not None:
                setattr(self, name, value)


class _Answer(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: msgspec.Raw = _NULL
    stop_reason: str | None = None
    stop_details: Any = None
    usage: _Usage | None = None


_answers = msgspec.json.Decoder(_Answer)


def read_reply(body: bytes) -> Reply:
    """Read an answer that was not streamed.

    Raises:
        InvalidReply: if it isn't a whole turn.
        ProviderRefused: if it reports an error in spite of its status.
    """
    answer = decode_answer(_answers.decode, body)
    if answer.type == "error":
        raise reported_refusal(MessagesApi.name, body)
    if answer.role not in (None, "assistant"):
        raise not_an_answer("its role is not `assistant`")
    stop = _Stop(answer.stop_reason, answer.stop_details)
    return _reply(answer.id, bytes(answer.content), stop, answer.usage or _Usage())


def _reply(answer_id: str | None, content: bytes, stop: _Stop, usage: _Usage) -> Reply:
    stop_reason = one_of(stop.stop_reason, "stop reason")
    settled = settle_anthropic(content)
    return Reply(
        format=MessagesApi.format,
        message=settled.message,
        stop_reason=stop_reason,
        in_tokens=usage.input_tokens or 0,
        out_tokens=usage.output_tokens or 0,
        cache_read_tokens=usage.cache_read_input_tokens or 0,
        cache_create_tokens=usage.cache_creation_input_tokens or 0,
        response_id=answer_id,
        stop_note=_stop_note(stop.stop_details),
        unusable=settled.unusable,
    )


def _stop_note(details: Any) -> str | None:
    """Return what the API says of a refusal: its category, its explanation, or both."""
    if not isinstance(details, dict):
        return None
    said = [details.get(name) for name in ("category", "explanation")]
    return ": ".join(one_line(text, 300) for text in said if isinstance(text, str) and not is_blank(text)) or None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = -1
    message: msgspec.Raw = _NULL
    content_block: msgspec.Raw = _NULL
    delta: msgspec.Raw = _NULL
    usage: _Usage | None = None


class _Stop(msgspec.Struct):
    stop_reason: str | None = None
    stop_details: Any = None


_events = msgspec.json.Decoder(_Event)
_stops = msgspec.json.Decoder(_Stop)


class Accumulator:
    """Puts the events of one stream together to one turn, as `wire.Accumulator`."""

    def __init__(self) -> None:
        self.done = False
        self._started = False
        self._id: str | None = None
        self._usage = _Usage()
        self._stop = _Stop()
        self._blocks: list[OpenBlock] = []

    def feed(self, event: str, data: str) -> Delta | None:
        """Take one event and return what there is to show of it."""
        raw = data.encode()
        parsed = decode_answer(_events.decode, raw)
        match parsed.type or event:
            case "message_start":
                self._start(parsed)
            case "content_block_start":
                self._open_block(parsed)
            case "content_block_delta":
                return self._open(parsed.index).extend(bytes(parsed.delta))
            case "content_block_stop":
                self._open(parsed.index).closed = True
            case "message_delta":
                self._usage.update(parsed.usage)
                stop = read_shape(_stops.decode, bytes(parsed.delta))
                self._stop = stop if stop.stop_reason else self._stop
            case "message_stop":
                self.done = True
            case "error":
                raise reported_refusal(MessagesApi.name, raw)
        return None

    def _start(self, event: _Event) -> None:
        start = read_shape(_answers.decode, bytes(event.message))
        if bytes(start.content).strip() not in (b"null", b"[]"):
            raise StreamNotVerbatim("a message that starts with content")
        self._started = True
        self._id = start.id
        self._usage.update(start.usage)

    def _open_block(self, event: _Event) -> None:
        if event.index != len(self._blocks):
            raise not_an_answer("content blocks out of order")
        self._blocks.append(OpenBlock.start(bytes(event.content_block)))

    def _open(self, index: int) -> OpenBlock:
        if not 0 <= index < len(self._blocks) or self._blocks[index].closed:
            raise not_an_answer("an event for a content block that isn't open")
        return self._blocks[index]

    def reply(self) -> Reply:
        """Return the turn."""
        if not self._started or not self.done or not all(block.closed for block in self._blocks):
            raise ended_early("its end event")
        if self._stop.stop_reason is None:
            raise ended_early("a stop reason")
        content = splice_array([block.encode() for block in self._blocks])
        return _reply(self._id, content, self._stop, self._usage)
