"""Chat Completions, as OpenAI and compatible servers speak it: what to send, and what answers and streams say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fisk_ai.errors import ProviderRefused
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
from fisk_ai.providers.base import Delta, ModelRequest, Reply
from fisk_ai.providers.refusals import reported_refusal
from fisk_ai.providers.settle import decode_answer, settle_openai
from fisk_ai.providers.wire import (
    StreamNotVerbatim,
    check_format,
    ended_early,
    not_an_answer,
    one_of,
    splice_messages,
)

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
"""The API's word -> the Messages API's; words that aren't here stay as they are."""

_NULL = msgspec.Raw(b"null")


class ChatApi:
    """Chat Completions, as `wire.Api`. `official` is false for compatible servers."""

    name = "openai"
    format = "openai"
    path = "/chat/completions"
    headers: Mapping[str, str] = {}

    def __init__(self, *, official: bool) -> None:
        self._official = official

    def build_request(self, request: ModelRequest, *, stream: bool) -> bytes:
        """Return the body to post."""
        return build_request(request, stream=stream, official=self._official)

    def read_reply(self, body: bytes) -> Reply:
        """Read an answer that was not streamed."""
        return read_reply(body)

    def accumulator(self) -> Accumulator:
        """Return a fresh one, for one stream."""
        return Accumulator()


def build_request(request: ModelRequest, *, stream: bool, official: bool) -> bytes:
    """Return the body to post.

    Raises:
        ProviderRefused: for a thinking budget, which this API has no word for.
    """
    if request.thinking_mode.startswith("budget:"):
        raise ProviderRefused("the openai provider takes no thinking budget: set thinking off or adaptive")
    limit = "max_completion_tokens" if official else "max_tokens"  # the official API calls the latter outdated
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
    if stream:
        head |= {"stream": True, "stream_options": {"include_usage": True}}
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


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None

    @property
    def cached(self) -> int:
        details = self.prompt_tokens_details
        return details.cached_tokens or 0 if details else 0


class _Choice(msgspec.Struct):
    index: int = 0
    message: msgspec.Raw = _NULL
    delta: msgspec.Raw = _NULL
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or one chunk of a stream."""

    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NULL


_answers = msgspec.json.Decoder(_Answer)
_objects = msgspec.json.Decoder(dict[str, Any])


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
    if bytes(answer.error) != b"null":
        raise reported_refusal(ChatApi.name, body)
    return answer


def _reply(answer_id: str | None, message: bytes, finish_reason: str | None, usage: _Usage) -> Reply:
    finish_reason = one_of(finish_reason, "finish reason")
    settled = settle_openai(message)
    prompt_tokens = usage.prompt_tokens or 0
    return Reply(
        format=ChatApi.format,
        message=settled.message,
        stop_reason=_stop_reason(finish_reason, has_calls=bool(settled.turn.calls)),
        in_tokens=max(prompt_tokens - usage.cached, 0),
        out_tokens=usage.completion_tokens or 0,
        cache_read_tokens=usage.cached,
        response_id=answer_id,
        unusable=settled.unusable,
    )


def _stop_reason(finish_reason: str, *, has_calls: bool) -> str:
    if finish_reason == "stop" and has_calls:
        return "tool_use"  # what some servers say after calls
    return _STOP_REASONS.get(finish_reason, finish_reason)


class Accumulator:
    """Puts the chunks of one stream together to one turn, as `wire.Accumulator`."""

    def __init__(self) -> None:
        self.done = False
        self._id: str | None = None
        self._usage = _Usage()
        self._finish_reason: str | None = None
        self._message: dict[str, Any] = {}

    def feed(self, event: str, data: str) -> Delta | None:
        """Take one event and return what there is to show of it."""
        if data.strip() == "[DONE]":
            self.done = True
            return None
        if event == "error":
            raise reported_refusal(ChatApi.name, data.encode())
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
        merge(self._message, delta)
        return _shown(delta)

    def reply(self) -> Reply:
        """Return the turn."""
        if self._finish_reason is None:
            raise ended_early("a finish reason")
        message = {"role": "assistant"} | self._message
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            call.pop("index", None)  # the place among the deltas; the message is a list
            if "function" in call:
                call.setdefault("type", "function")
        return _reply(self._id, msgspec.json.encode(message), self._finish_reason, self._usage)


def _shown(delta: Mapping[str, Any]) -> Delta | None:
    if (text := delta.get("content")) and isinstance(text, str):
        return Delta("text", text)
    thinking = delta.get("reasoning_content") or delta.get("reasoning")
    return Delta("thinking", thinking) if thinking and isinstance(thinking, str) else None


_GROWING = frozenset(
    {"content", "refusal", "reasoning_content", "reasoning", "thinking", "arguments", "text", "summary"}
)
"""Fields whose pieces are joined; every other text must stay what it was at first."""


def merge(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Merge one delta into what came before it.

    Raises:
        StreamNotVerbatim: if it contradicts what came before, or can't be merged by a known rule.
    """
    for name, new in delta.items():
        old = whole.get(name)
        if old in (None, ""):
            if new is not None or name not in whole:
                whole[name] = _fresh(new)
        elif new in (None, ""):
            continue  # some servers repeat every field, empty
        elif isinstance(old, str) and isinstance(new, str) and name in _GROWING:
            whole[name] = old + new
        elif isinstance(old, dict) and isinstance(new, dict):
            merge(old, new)
        elif isinstance(old, list) and isinstance(new, list):
            _merge_items(old, new)
        elif old != new:
            raise StreamNotVerbatim(f"a delta of {name!r} that can't be merged")


def _fresh(value: Any) -> Any:
    if isinstance(value, list):
        items: list[Any] = []
        _merge_items(items, value)
        return items
    return value


def _merge_items(items: list[Any], deltas: Sequence[Any]) -> None:
    """Merge deltas of list items, which say by `index` where they belong; it must grow by one."""
    for delta in deltas:
        index = delta.get("index") if isinstance(delta, dict) else None
        if not isinstance(index, int) or not 0 <= index <= len(items):
            raise StreamNotVerbatim("a delta of a list without a usable index")
        if index == len(items):
            items.append({})
        merge(items[index], delta)
