"""Between the journal and pydantic-ai's messages: a turn as its own JSON, and a conversation as it takes one."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace

import pydantic
import pydantic_core
from pydantic_ai import __version__ as installed
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from fisk_ai.errors import InvalidReply, UnsupportedFormat
from fisk_ai.formats.pydantic_ai import read_turn
from fisk_ai.jsontext import BadJson, journalable
from fisk_ai.messages import ImageBlock, Message, TextBlock, ToolResultBlock, is_blank, read_user
from fisk_ai.providers import base
from fisk_ai.providers.pydantic_ai.settle import settle_response
from fisk_ai.providers.settle import Settled
from fisk_ai.providers.wire import MAX_REPLY_BYTES, check_format, not_an_answer, read_shape

FORMAT = "pydantic-ai"

_NOT_JSON = "not JSON"


def settle(response: ModelResponse) -> Settled:
    """Return a response as it is journaled.

    What is journaled is read back and written again before it counts: it has to come out the same, or the
    conversation could not be sent with what the journal holds.

    Raises:
        InvalidReply: if it can't be journaled and sent back.
    """
    whole = replace(response, parts=[_with_plain_arguments(part) for part in response.parts])
    try:
        [plain] = ModelMessagesTypeAdapter.dump_python([whole], mode="json", warnings=False)
        given, unusable = settle_response(plain)
        message = dump(_load(given))
        again = dump(_load(message))
    except (pydantic_core.PydanticSerializationError, pydantic.ValidationError, RecursionError) as problem:
        raise not_an_answer(f"pydantic-ai can't store it ({type(problem).__name__})") from None
    if again != message:
        raise InvalidReply("pydantic-ai doesn't read this turn as it writes it, so it could not be sent back")
    if len(message) > MAX_REPLY_BYTES:
        raise InvalidReply(f"the model's answer is larger than {MAX_REPLY_BYTES >> 20} MiB and was dropped")
    try:
        message = journalable(message)
    except BadJson as problem:
        raise not_an_answer(str(problem)) from None
    return Settled(message, unusable, read_shape(read_turn, message))


def _with_plain_arguments(part: ModelResponsePart) -> ModelResponsePart:
    """Return a call with a mark for arguments that JSON hasn't, which pydantic-ai would write as something else."""
    if not isinstance(part, ToolCallPart) or not isinstance(part.args, dict):
        return part
    try:
        json.dumps(part.args, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return replace(part, args=_NOT_JSON)
    return part


def dump(response: ModelResponse) -> bytes:
    """Write a response as the journal keeps it."""
    return ModelMessagesTypeAdapter.dump_json([response])[1:-1]


def _load(message: bytes) -> ModelResponse:
    [response] = ModelMessagesTypeAdapter.validate_json(b"[" + message + b"]")
    assert isinstance(response, ModelResponse)
    return response


def load(message: bytes) -> ModelResponse:
    """Read a journaled response.

    Raises:
        UnsupportedFormat: if the pydantic-ai that is installed can't.
    """
    try:
        return _load(message)
    except (pydantic.ValidationError, ValueError, AssertionError):
        raise UnsupportedFormat(
            f"the conversation holds a turn that pydantic-ai {installed} can't read: use the version that the run was "
            f"started with, or a newer one"
        ) from None


def sent_messages(request: base.ModelRequest) -> list[ModelMessage]:
    """Return the conversation as pydantic-ai takes it; journaled turns are what their bytes say, and nothing else."""
    instructions = None if is_blank(request.system_prompt) else request.system_prompt
    names: dict[str, str] = {}
    sent: list[ModelMessage] = []
    for message in request.messages:
        check_format(message, FORMAT)
        if message.role == "assistant":
            response = load(message.content)
            names |= {part.tool_call_id: part.tool_name for part in response.tool_calls}
            sent.append(response)
        else:
            sent.append(ModelRequest(_parts(message, names), instructions=instructions))
    return sent


def _parts(message: Message, names: Mapping[str, str]) -> list[ModelRequestPart]:
    """Return what a neutral message says: tool results first, then what the user typed."""
    blocks = read_user(message.content).blocks
    parts: list[ModelRequestPart] = [
        _tool_return(block, names[block.tool_use_id]) for block in blocks if isinstance(block, ToolResultBlock)
    ]
    typed = [_content(block) for block in blocks if not isinstance(block, ToolResultBlock)]
    if typed:
        parts.append(UserPromptPart(typed[0] if len(typed) == 1 and isinstance(typed[0], str) else typed))
    return parts


def _tool_return(block: ToolResultBlock, name: str) -> ToolReturnPart:
    has_images = any(isinstance(part, ImageBlock) for part in block.blocks)
    return ToolReturnPart(
        tool_name=name,
        content=[_content(part) for part in block.blocks] if has_images else block.text,
        tool_call_id=block.tool_use_id,
        outcome="failed" if block.is_error else "success",
    )


def _content(block: TextBlock | ImageBlock) -> UserContent:
    if isinstance(block, TextBlock):
        return block.text
    return BinaryContent(base64.b64decode(block.source.data), media_type=block.source.media_type)
