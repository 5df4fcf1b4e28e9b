"""The Responses API: what to send, and what its answers and streams say. Pure.

Nothing is kept on the provider's side (`store: false`). The conversation is sent as items, and those that the API gave
go back byte for byte, its reasoning in encrypted form among them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from fisk_ai.errors import ConfigError, ProviderRefused
from fisk_ai.formats.responses import is_refusal
from fisk_ai.jsontext import splice_array
from fisk_ai.messages import is_blank
from fisk_ai.providers.base import Delta, ModelOptions, ModelRequest, Reply
from fisk_ai.providers.concessions import Concessions
from fisk_ai.providers.items import sent_items, whole_output
from fisk_ai.providers.refusals import reported_refusal
from fisk_ai.providers.settle import decode_answer, settle_responses
from fisk_ai.providers.wire import check_format, ended_early, not_an_answer, one_of, read_shape

_NO_OPTIONS = ModelOptions()
_NULL = msgspec.Raw(b"null")
_SEALED = "reasoning.encrypted_content"

_CLIENT_SIDE = frozenset({"function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview"})
"""Kinds of tools whose calls the caller has to answer."""

_REFUSALS: Mapping[str, str] = {
    "include": r"encrypted content is not supported|param\\*\"\s*:\s*\\*\"include",
    "summary": r"reasoning[._]summary|reasoning summar|param\\*\"\s*:\s*\\*\"reasoning\\*\"",
    "effort": r"reasoning[._]effort|param\\*\"\s*:\s*\\*\"reasoning\\*\"",
}
"""What only some models take -> errors about it."""


class ResponsesApi:
    """The Responses API, as `wire.Api`. `official` is false for compatible servers."""

    name = "openai"
    format = "openai-responses"
    path = "/responses"
    headers: Mapping[str, str] = {}

    def __init__(self, *, official: bool, options: ModelOptions = _NO_OPTIONS) -> None:
        """Raise `ConfigError` for a server tool that would not run on the provider's side."""
        _check_server_tools(options.server_tools)
        self._official = official
        self._options = options
        self.concessions = Concessions(_REFUSALS)

    def build_request(self, request: ModelRequest, *, stream: bool) -> bytes:
        """Return the body to post."""
        return build_request(
            request, stream=stream, official=self._official, options=self._options, without=self.concessions
        )

    def read_reply(self, body: bytes) -> Reply:
        """Read an answer that was not streamed."""
        return read_reply(body, official=self._official)

    def accumulator(self) -> Accumulator:
        """Return a fresh one, for one stream."""
        return Accumulator(official=self._official)

    def settle_stop(self, reply: Reply, request: ModelRequest) -> Reply:
        """Return a turn as cut off that came to the output limit; llama.cpp calls every turn completed."""
        may_be_cut = reply.stop_reason == "end_turn" or (reply.stop_reason == "tool_use" and reply.unusable)
        if self._official or not may_be_cut or reply.out_tokens < request.max_output_tokens:
            return reply
        return replace(reply, stop_reason="max_tokens")


def _check_server_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    problems = [
        f"llm.server_tools: a tool of the type {tool.get('type')!r} doesn't run on the provider's side; "
        "declare it under tools, as a command or in Python"
        for tool in tools
        if tool.get("type") in _CLIENT_SIDE
    ]
    problems += [
        f"llm.server_tools: nobody could approve the calls of mcp server {tool.get('server_label')!r}: "
        "set its require_approval to never"
        for tool in tools
        if tool.get("type") == "mcp" and tool.get("require_approval") != "never"
    ]
    if problems:
        raise ConfigError(problems)


def build_request(
    request: ModelRequest,
    *,
    stream: bool,
    official: bool,
    options: ModelOptions = _NO_OPTIONS,
    without: Container[str] = (),
) -> bytes:
    """Return the body to post, without the parts that were given up.

    Raises:
        ProviderRefused: for a thinking budget, which this API has no word for.
    """
    head: dict[str, Any] = {"model": request.model, "max_output_tokens": request.max_output_tokens, "store": False}
    if not is_blank(request.system_prompt):
        head["instructions"] = request.system_prompt
    if tools := _tools(request, options):
        head["tools"] = tools
    if "include" not in without:
        head["include"] = [_SEALED]
    if reasoning := _reasoning(request.thinking_mode, official, without):
        head["reasoning"] = reasoning
    if options.service_tier is not None:
        head["service_tier"] = options.service_tier
    if stream:
        head["stream"] = True
    for message in request.messages:
        check_format(message, ResponsesApi.format)
    sent = [item for message in request.messages for item in sent_items(message, official=official)]
    return msgspec.json.encode(head)[:-1] + b',"input":' + splice_array(sent) + b"}"


def _tools(request: ModelRequest, options: ModelOptions) -> list[Mapping[str, Any]]:
    own = [
        # Without `strict` the API would make every parameter a required one.
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,
        }
        for tool in request.tools
    ]
    return [*own, *options.server_tools]


def _reasoning(mode: str, official: bool, without: Container[str]) -> dict[str, str]:
    """Return what is asked for: models have defaults of their own, which are neither off nor on for all.

    Only the official API is told to leave it: a compatible server that doesn't know the word may refuse it in words
    that nobody recognizes.
    """
    if mode.startswith("budget:"):
        raise ProviderRefused("the openai provider takes no thinking budget: set thinking off or adaptive")
    wanted = {"effort": "none"} if official else {}
    if mode == "adaptive":
        wanted = {"effort": "medium", "summary": "auto"}
    return {name: value for name, value in wanted.items() if name not in without}


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Answer(msgspec.Struct):
    id: str | None = None
    status: str | None = None
    output: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None


_answers = msgspec.json.Decoder(_Answer)


def read_reply(body: bytes, *, official: bool) -> Reply:
    """Read an answer that was not streamed.

    Raises:
        InvalidReply: if it isn't a whole turn.
        ProviderRefused: if it reports an error in spite of its status.
    """
    return _reply(decode_answer(_answers.decode, body), (), official=official)


_FINAL_CODES = frozenset(
    {"invalid_prompt", "data_residency_mismatch", "bio_policy", "misalignment_policy_violation"}
    | {"invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url", "invalid_image_mode"}
    | {"image_too_large", "image_too_small", "image_parse_error", "image_content_policy_violation"}
    | {"image_file_too_large", "unsupported_image_media_type", "empty_image_file", "image_file_not_found"}
)
"""Errors that the same conversation meets again."""


def _failure(body: bytes) -> ProviderRefused:
    problem = reported_refusal(ResponsesApi.name, body)
    problem.retryable = problem.retryable and problem.kind not in _FINAL_CODES
    return problem


def _reply(answer: _Answer, done: Sequence[bytes], *, official: bool) -> Reply:
    """Return the turn of a whole answer; `done` are its items as they came one by one, if they did."""
    status = answer.status
    if status == "failed" or bytes(answer.error) != b"null":
        raise _failure(b'{"error":' + bytes(answer.error) + b"}")
    if one_of(status, "status") not in ("completed", "incomplete"):
        raise not_an_answer(f"its status is {status!r}")
    settled = settle_responses(whole_output(bytes(answer.output), done), sealed_only=official)
    usage = answer.usage or _Usage()
    details = usage.input_tokens_details or _InputDetails()
    cached, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    return Reply(
        format=ResponsesApi.format,
        message=settled.message,
        stop_reason=_stop_reason(answer, settled.message, has_calls=bool(settled.turn.calls)),
        in_tokens=max((usage.input_tokens or 0) - cached - written, 0),
        out_tokens=usage.output_tokens or 0,
        cache_read_tokens=cached,
        cache_create_tokens=written,
        response_id=answer.id,
        unusable=settled.unusable,
    )


def _stop_reason(answer: _Answer, message: bytes, *, has_calls: bool) -> str:
    if answer.status == "incomplete":
        reason = (answer.incomplete_details or _Incomplete()).reason
        return "max_tokens" if reason in ("max_output_tokens", None) else reason
    if has_calls:
        return "tool_use"
    return "refusal" if is_refusal(message) else "end_turn"


class _Event(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = _NULL
    item: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    output_index: int = 0
    summary_index: int = 0
    delta: msgspec.Raw = _NULL


_events = msgspec.json.Decoder(_Event)
_texts = msgspec.json.Decoder(str)

_SHOWN: Mapping[str, Literal["text", "thinking"]] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
}


class Accumulator:
    """Takes the turn from the last event of a stream, as `wire.Accumulator`; what comes before is for showing."""

    def __init__(self, *, official: bool) -> None:
        self.done = False
        self._official = official
        self._items: list[tuple[int, bytes]] = []
        self._answer: _Answer | None = None
        self._paragraphs: dict[str, tuple[int, int]] = {}

    def feed(self, event: str, data: str) -> Delta | None:
        """Take one event and return what there is to show of it."""
        if data.strip() in ("", "[DONE]"):
            self.done = bool(data.strip())
            return None
        raw = data.encode()
        parsed = decode_answer(_events.decode, raw)
        if bytes(parsed.error) != b"null":
            raise _failure(raw)
        match parsed.type or event:
            case "response.output_item.done":
                self._items.append((parsed.output_index, bytes(parsed.item)))
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                self._answer = read_shape(_answers.decode, bytes(parsed.response))
                self._answer.status = self._answer.status or kind.removeprefix("response.")
                self.done = True
            case "error":
                raise _failure(raw)
            case kind if kind in _SHOWN:
                return self._show(_SHOWN[kind], parsed)
        return None

    def _show(self, kind: Literal["text", "thinking"], event: _Event) -> Delta:
        """Return a piece of text, set off from that of another message or part of a summary."""
        text = read_shape(_texts.decode, bytes(event.delta))
        place = (event.output_index, event.summary_index)
        is_new = self._paragraphs.setdefault(kind, place) != place
        self._paragraphs[kind] = place
        return Delta(kind, f"\n\n{text}" if is_new else text)

    def reply(self) -> Reply:
        """Return the turn."""
        if self._answer is None:
            raise ended_early("its end event")
        done = [item for _, item in sorted(self._items, key=lambda placed: placed[0])]
        return _reply(self._answer, done, official=self._official)
