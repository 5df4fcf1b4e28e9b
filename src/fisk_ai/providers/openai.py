"""Chat Completions, as OpenAI and compatible servers speak it: what to send, and what answers and streams say. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from fisk_ai.errors import ProviderRefused
from fisk_ai.formats.openai import is_refusal
from fisk_ai.jsontext import splice_array
from fisk_ai.messages import (
    NO_OUTPUT,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    UserMessage,
    is_blank,
    read_user,
)
from fisk_ai.providers.base import Delta, ModelOptions, ModelRequest, Reply
from fisk_ai.providers.chunks import Calls, merge
from fisk_ai.providers.concessions import Concessions
from fisk_ai.providers.refusals import reported_refusal
from fisk_ai.providers.settle import Settled, decode_answer, settle_openai
from fisk_ai.providers.wire import check_format, ended_early, not_an_answer, one_of, splice_messages

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
"""The API's word -> the Messages API's; words that aren't here stay as they are."""

_REFUSALS: Mapping[str, str] = {"stream_options": r"stream_options", "max_tokens": r"max_completion_tokens"}
"""What only some servers take -> errors about it; whose limit is named by the other word wants that one."""

_NO_OPTIONS = ModelOptions()
_NULL = msgspec.Raw(b"null")


class ChatApi:
    """Chat Completions, as `wire.Api`. `official` is false for compatible servers."""

    name = "openai"
    format = "openai"
    path = "/chat/completions"
    headers: Mapping[str, str] = {}

    def __init__(self, *, official: bool, options: ModelOptions = _NO_OPTIONS) -> None:
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
        return read_reply(body)

    def accumulator(self) -> Accumulator:
        """Return a fresh one, for one stream."""
        return Accumulator()


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
    if request.thinking_mode.startswith("budget:"):
        raise ProviderRefused("the openai provider takes no thinking budget: set thinking off or adaptive")
    # The official API calls the latter outdated, and some of its models refuse it wherever they are served.
    limit = "max_completion_tokens" if official or "max_tokens" in without else "max_tokens"
    head: dict[str, Any] = {"model": request.model, limit: request.max_output_tokens}
    if request.tools:
        head["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    if options.service_tier is not None:
        head["service_tier"] = options.service_tier
    if stream:
        head["stream"] = True
        if "stream_options" not in without:
            head["stream_options"] = {"include_usage": True}
    return splice_messages(head, splice_array(_sent_messages(request)))


def _sent_messages(request: ModelRequest) -> list[bytes]:
    sent: list[bytes] = []
    if not is_blank(request.system_prompt):
        sent.append(msgspec.json.encode({"role": "system", "content": request.system_prompt}))
    for message in request.messages:
        sent += _sent(message)
    return sent


def _sent(message: Message) -> list[bytes]:
    check_format(message, ChatApi.format)
    if message.role == "assistant":
        return [message.content]
    return [msgspec.json.encode(translated) for translated in translate_user(read_user(message.content))]


def translate_user(message: UserMessage) -> list[dict[str, Any]]:
    """Return the messages that a neutral one becomes: one for each tool result, then one of the user's.

    This API takes images from the user only, so those of tool results move there, with a note.
    """
    results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
    parts = [part for result in results for part in _moved_images(result)]
    parts += [_part(block) for block in message.blocks if not isinstance(block, ToolResultBlock)]
    translated = [_tool_message(result) for result in results]
    if parts:
        translated.append({"role": "user", "content": _content(parts)})
    return translated


def _tool_message(result: ToolResultBlock) -> dict[str, Any]:
    has_images = any(isinstance(block, ImageBlock) for block in result.blocks)
    text = result.text or ("(an image, shown below)" if has_images else NO_OUTPUT)
    return {
        "role": "tool",
        "tool_call_id": result.tool_use_id,
        "content": f"Error: {text}" if result.is_error else text,
    }


def _moved_images(result: ToolResultBlock) -> list[dict[str, Any]]:
    images = [_part(block) for block in result.blocks if isinstance(block, ImageBlock)]
    note = {"type": "text", "text": f"The result of tool call {result.tool_use_id} has this to show:"}
    return [note, *images] if images else []


def _part(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    url = f"data:{block.source.media_type};base64,{block.source.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _content(parts: Sequence[dict[str, Any]]) -> Any:
    """Return one text as plain text, which every server takes, and anything else as parts."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return list(parts)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: msgspec.Raw = _NULL
    delta: msgspec.Raw = _NULL
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or one chunk of a stream."""

    id: str | None = None
    object: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NULL


_answers = msgspec.json.Decoder(_Answer)
_objects = msgspec.json.Decoder(dict[str, Any])
_anything = msgspec.json.Decoder()


def read_reply(body: bytes) -> Reply:
    """Read an answer that was not streamed.

    Raises:
        InvalidReply: if it isn't a whole turn.
        ProviderRefused: if it reports an error in spite of its status.
    """
    answer = _read_answer(body)
    if not answer.choices or bytes(answer.choices[0].message) == b"null":
        raise not_an_answer("it has no message")
    choice = answer.choices[0]
    return _reply(answer.id, bytes(choice.message), choice.finish_reason, answer.usage or _Usage())


def _read_answer(body: bytes) -> _Answer:
    answer = decode_answer(_answers.decode, body)
    if bytes(answer.error) != b"null" or answer.object == "error":
        raise _reported(body)
    return answer


_WORTH_REPEATING = frozenset({408, 409, 429})


def _reported(body: bytes) -> ProviderRefused:
    """Return the error that a body or an event reports; with some servers its code is a status."""
    problem = reported_refusal(ChatApi.name, body)
    said = decode_answer(_anything.decode, body)
    error = said.get("error", said) if isinstance(said, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500 and code not in _WORTH_REPEATING:
        problem.retryable = False
    return problem


def _reply(answer_id: str | None, message: bytes, finish_reason: str | None, usage: _Usage) -> Reply:
    finish_reason = one_of(finish_reason, "finish reason")
    settled = settle_openai(message)
    details = usage.prompt_tokens_details or _PromptDetails()
    cached, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    return Reply(
        format=ChatApi.format,
        message=settled.message,
        stop_reason=_stop_reason(finish_reason, settled),
        in_tokens=max((usage.prompt_tokens or 0) - cached - written, 0),
        out_tokens=usage.completion_tokens or 0,
        cache_read_tokens=cached,
        cache_create_tokens=written,
        response_id=answer_id,
        unusable=settled.unusable,
    )


def _stop_reason(finish_reason: str, settled: Settled) -> str:
    """Return why the model stopped; of calls, the message knows better than the finish reason."""
    reason = _STOP_REASONS.get(finish_reason, finish_reason)
    if reason in ("end_turn", "tool_use"):
        reason = "tool_use" if settled.turn.calls else "end_turn"
    return "refusal" if reason == "end_turn" and is_refusal(settled.message) else reason


class Accumulator:
    """Puts the chunks of one stream together to one turn, as `wire.Accumulator`."""

    def __init__(self) -> None:
        self.done = False
        self._id: str | None = None
        self._usage = _Usage()
        self._finish_reason: str | None = None
        self._message: dict[str, Any] = {}
        self._calls = Calls()

    def feed(self, event: str, data: str) -> Delta | None:
        """Take one event and return what there is to show of it."""
        if data.strip() in ("", "[DONE]"):
            self.done = bool(data.strip())
            return None
        if event == "error":
            raise _reported(data.encode())
        chunk = _read_answer(data.encode())
        self._id = self._id or chunk.id
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            if choice.index == 0:
                return self._take(choice)
        return None

    def _take(self, choice: _Choice) -> Delta | None:
        self._finish_reason = choice.finish_reason or self._finish_reason
        if bytes(choice.delta) == b"null":
            return None
        delta = decode_answer(_objects.decode, bytes(choice.delta))
        if calls := delta.pop("tool_calls", None):
            self._message["tool_calls"] = self._calls.take(calls)
        merge(self._message, delta)
        return _shown(delta)

    def reply(self) -> Reply:
        """Return the turn."""
        if self._finish_reason is None:
            raise ended_early("a finish reason")
        message = {"role": "assistant"} | self._message
        _complete_calls(message)
        return _reply(self._id, msgspec.json.encode(message), self._finish_reason, self._usage)


def _complete_calls(message: Mapping[str, Any]) -> None:
    """Give calls of whose arguments no piece came those that they have: none, as some servers leave them out."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and function.get("arguments", "") in ("", " "):
            function["arguments"] = "{}"


def _shown(delta: Mapping[str, Any]) -> Delta | None:
    if (text := delta.get("content")) and isinstance(text, str):
        return Delta("text", text)
    thinking = delta.get("reasoning_content") or delta.get("reasoning")
    return Delta("thinking", thinking) if thinking and isinstance(thinking, str) else None
