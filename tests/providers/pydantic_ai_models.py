"""Models of pydantic-ai's that need no network: scripts of whole responses, and streams that end properly."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    CompactionPart,
    FinishReason,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    WebCitationSource,
)
from pydantic_ai.messages import FilePart as PictureOrFile
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

AT = datetime(2026, 12, 1, 3, 21, 2, 120003, tzinfo=UTC)
USAGE = RequestUsage(
    input_tokens=100, cache_read_tokens=40, cache_write_tokens=7, output_tokens=12, details={"reasoning_tokens": 3}
)


def all_parts() -> list[ModelResponsePart]:
    """Return a part of each kind that a response may have, with what makes each hard to keep."""
    return [
        ThinkingPart("First, look.", signature="sig==", provider_name="google"),
        ThinkingPart("", id="redacted_thinking", signature="ZW5j", provider_name="anthropic"),
        TextPart(
            "Look\u2028ing \u00e9 \U0001f600.",
            provider_name="google",
            provider_details={"thought_signature": "AAA_", "when": AT, "raw": b"\xff\x00"},
            citations=[Citation([WebCitationSource(url="https://example.test/a", title="A")])],
        ),
        NativeToolCallPart("web_search", {"query": "x"}, tool_call_id="srv_1", provider_name="google"),
        NativeToolReturnPart(
            "web_search", {"hits": [{"url": "https://example.test"}]}, "srv_1", timestamp=AT, provider_name="google"
        ),
        PictureOrFile(
            BinaryContent(b"\x89PNG\xff\xfe\x00", media_type="image/png"),
            provider_name="google",
            provider_details={"thought_signature": "BBB_"},
        ),
        CompactionPart("So far: nothing.", provider_name="anthropic"),
        ToolCallPart("a", {"n": 1e3, "big": 10**30, "deep": [{"x": None}]}, tool_call_id="c1"),
        ToolCallPart("b", '{"n": 1e3,  "m":1.10}', tool_call_id="functions.b:1", provider_details={"sig": "C"}),
        ToolCallPart("c", None, tool_call_id="c3"),
    ]


def response(
    *parts: ModelResponsePart, finish: FinishReason | None = None, usage: RequestUsage = USAGE, **more: Any
) -> ModelResponse:
    """Return a whole response, the same whenever it is made."""
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    reason = finish or ("tool_call" if calls else "stop")
    return ModelResponse(list(parts), usage=usage, timestamp=AT, finish_reason=reason, provider_name="google", **more)


Asked = Callable[[list[ModelMessage], AgentInfo], None]


def scripted(make: Callable[[int], ModelResponse], asked: Asked | None = None) -> FunctionModel:
    """Return a model that plays turns by how many the conversation holds."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if asked is not None:
            asked(messages, info)
        return make(sum(isinstance(message, ModelResponse) for message in messages))

    return FunctionModel(answer, model_name="scripted")


def saying(*responses: ModelResponse) -> FunctionModel:
    """Return a model that says these in order."""
    return scripted(lambda place: responses[place])


class Streaming(FunctionModel):
    """Streams what a function yields, then stops for `finish`."""

    def __init__(self, pieces: Sequence[Any], finish: FinishReason | None = "stop", **details: Any) -> None:
        async def play(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncGenerator[Any]:
            for piece in pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece

        super().__init__(stream_function=play, model_name="streaming")
        self._finish = finish
        self._details = details

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Say at its end why the stream stopped, which a function model doesn't."""
        async with super().request_stream(messages, model_settings, model_request_parameters, run_context) as stream:
            stream.finish_reason = self._finish
            stream.provider_details = self._details or None
            yield stream
