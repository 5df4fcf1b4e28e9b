"""One attempt at one turn through pydantic-ai: its own retries off, its stream watched, its answer settled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from typing import Any, cast

from pydantic_ai import direct
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from fisk_ai.errors import ConfigError, ProviderError, ProviderRefused
from fisk_ai.providers.base import Delta, ModelOptions, ModelRequest, OnDelta, Reply
from fisk_ai.providers.pydantic_ai.answer import is_cut, read_response
from fisk_ai.providers.pydantic_ai.conversation import FORMAT, sent_messages
from fisk_ai.providers.pydantic_ai.failures import provider_errors
from fisk_ai.text import one_line

_NO_OPTIONS = ModelOptions()
_LONGEST_READ_S = 24 * 3600.0
"""The SDKs' own limits are lifted: the time limit of a call is the retry policy's."""
_HIDDEN = "[key]"


def infer(name: str) -> Model:
    """Return the model of that name, with the key that its provider finds in the environment.

    Raises:
        ConfigError: for an unknown name, a missing key, an SDK that isn't installed.
    """
    try:
        return infer_model(name)
    except ImportError as problem:
        group = name.partition(":")[0]
        raise ConfigError(
            f"{name} needs a part of pydantic-ai that isn't installed ({one_line(str(problem), 300)}): "
            f'pip install "pydantic-ai-slim[{group}]"'
        ) from None
    except (UserError, ValueError) as problem:
        raise ConfigError(f"pydantic-ai can't use {name}: {one_line(str(problem), 300)}") from None


class PydanticAIProvider:
    """A model that pydantic-ai speaks to.

    Turns are kept as pydantic-ai's own messages: they go back as it wrote them down, which is not always byte for byte
    what the API behind it sent.
    """

    name = "pydantic-ai"
    format = FORMAT

    def __init__(
        self,
        model: Model,
        *,
        name: str | None = None,
        options: ModelOptions = _NO_OPTIONS,
        stream: bool = True,
        secrets: Collection[str] = (),
    ) -> None:
        """Use a model of pydantic-ai's; `secrets` are texts that no error may show.

        `name` is what requests have to call it; None lets them call it as they like.
        """
        self._model = model
        self._asked_for = name
        self._options = options
        self._stream = stream
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._entered: AsyncExitStack | None = None

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one attempt at one turn.

        Raises:
            ProviderError: saying whether another attempt may help; never with a key in it.
        """
        try:
            return await self._complete(request, on_delta)
        except ProviderError as problem:
            raise self._without_secrets(problem) from None

    async def _complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self._check(request)
        asked = _Asked(request, self._options, self._model)
        await self._enter()
        response, cut = await self._ask(asked, on_delta)
        return read_response(response, cut=cut)

    def _check(self, request: ModelRequest) -> None:
        if self._asked_for not in (None, request.model):
            raise ProviderRefused(f"the provider was opened for {self._asked_for}, not for {request.model}")
        if request.thinking_mode.startswith("budget:"):
            raise ProviderRefused(
                "pydantic-ai has no thinking budget for all of its models: set thinking off or adaptive"
            )

    async def _enter(self) -> None:
        """Hold the model's connections open from the first call until `aclose`."""
        if self._entered is None:
            self._entered = AsyncExitStack()
            await self._entered.enter_async_context(self._model)

    async def _ask(self, asked: _Asked, on_delta: OnDelta) -> tuple[ModelResponse, bool]:
        """Return the response, and whether its stream was cut off without saying so."""
        if not self._stream:
            with provider_errors(asked.model):
                response = await direct.model_request(self._model, asked.messages, **asked.how)
            _show_whole(response, on_delta)
            return response, False
        async with AsyncExitStack() as stack:
            with provider_errors(asked.model):
                streamed = direct.model_request_stream(self._model, asked.messages, **asked.how)
                stream = await stack.enter_async_context(streamed)
            events = aiter(stream)
            while (event := await _next(events, asked.model)) is not None:
                if (delta := _shown(event)) is not None:
                    on_delta(delta)
            response = stream.get()
            return response, is_cut(stream, response)

    def _without_secrets(self, problem: ProviderError) -> ProviderError:
        """Take keys out of all that an error says: some servers repeat what they were sent."""
        for secret in self._secrets:
            problem.args = tuple(str(said).replace(secret, _HIDDEN) for said in problem.args)
            if isinstance(problem, ProviderRefused) and problem.kind is not None:
                problem.kind = problem.kind.replace(secret, _HIDDEN)
        return problem

    async def aclose(self) -> None:
        """Give up connections; may be called twice."""
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.aclose()


class _Asked:
    """A request in pydantic-ai's terms."""

    def __init__(self, request: ModelRequest, options: ModelOptions, model: Model) -> None:
        self.model = request.model
        self.messages = sent_messages(request)
        self.how: dict[str, Any] = {
            "model_settings": _settings(request, options, model),
            "model_request_parameters": ModelRequestParameters(
                function_tools=[
                    ToolDefinition(
                        name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
                    )
                    for tool in request.tools
                ]
            ),
        }


def _settings(request: ModelRequest, options: ModelOptions, model: Model) -> ModelSettings:
    """Return what is asked for, without what the model's class would only warn about."""
    settings: dict[str, Any] = {
        "max_tokens": request.max_output_tokens,
        "max_retries": 0,
        "timeout": _LONGEST_READ_S,
        "thinking": request.thinking_mode != "off",
        "cache": options.cache,
    }
    if options.service_tier is not None:
        settings["service_tier"] = options.service_tier
    taken = {name: value for name, value in settings.items() if name not in model.unsupported_settings}
    return cast("ModelSettings", taken)


async def _next(events: AsyncIterator[ModelResponseStreamEvent], model: str) -> ModelResponseStreamEvent | None:
    with provider_errors(model):
        return await anext(events, None)


def _shown(event: ModelResponseStreamEvent) -> Delta | None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return Delta("text", text) if text else None
        case (
            PartStartEvent(part=ThinkingPart(content=text))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
        ):
            return Delta("thinking", text) if text else None
    return None


def _show_whole(response: ModelResponse, on_delta: OnDelta) -> None:
    for index, part in enumerate(response.parts):
        if (delta := _shown(PartStartEvent(index=index, part=part))) is not None:
            on_delta(delta)
