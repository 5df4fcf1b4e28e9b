"""Models: the seam (`base`), the adapters, and the way to open one. Importing this package imports no adapter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fisk_ai.errors import ConfigError
from fisk_ai.providers.base import ModelOptions, Provider

PROVIDERS = ("anthropic", "openai", "pydantic-ai", "scripted")
"""The providers that `open_provider` knows."""

_NO_OPTIONS = ModelOptions()

__all__ = ["PROVIDERS", "open_provider"]


def open_provider(
    name: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    script: str | os.PathLike[str] | None = None,
    stream: bool = True,
    api: Literal["chat", "responses"] = "chat",
    options: ModelOptions = _NO_OPTIONS,
    environ: Mapping[str, str] = os.environ,
) -> Provider:
    """Return the provider called `name`; nothing is sent yet.

    `base_url` is what the official SDK takes: without `/v1` for anthropic, with it for openai. `api_key_env` names
    another variable to take the key from. `script` is the YAML file of the scripted provider. `api` is openai's:
    Chat Completions or the Responses API. `model` is for pydantic-ai, whose models' names say who is asked.

    Raises:
        ConfigError: for an unknown name, a missing key, an unusable address or script, options that don't fit.
    """
    _check_fit(name, api, options)
    access = _Access(base_url, api_key_env, stream, environ)
    match name:
        case "anthropic":
            return _open_anthropic(access, options)
        case "openai":
            return _open_openai(access, api, options)
        case "pydantic-ai":
            return _open_pydantic_ai(access, model, options)
        case "scripted":
            return _open_scripted(script)
        case _:
            raise ConfigError(f"unknown provider {name!r}: expected {', '.join(PROVIDERS)}")


def _check_fit(name: str, api: str, options: ModelOptions) -> None:
    """Raise `ConfigError` for what the provider would have to leave out."""
    problems = []
    if api not in ("chat", "responses"):
        problems.append(f"unknown api {api!r}: expected chat or responses")
    if api == "responses" and name != "openai":
        problems.append(f"api responses goes with provider openai only, not with {name}")
    if options.betas and name != "anthropic":
        problems.append(f"betas go with provider anthropic only, not with {name}")
    if options.server_tools and name != "anthropic" and (name, api) != ("openai", "responses"):
        problems.append(f"server_tools go with provider anthropic, or openai with api responses, not with {name} {api}")
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class _Access:
    """How a server is reached, as it was asked for."""

    base_url: str | None
    api_key_env: str | None
    stream: bool
    environ: Mapping[str, str]

    def url(self, variable: str, official: str) -> str:
        """Return the address that was given, or that of the variable, or the official one."""
        from fisk_ai.providers.credentials import check_base_url

        if self.base_url is not None:
            return check_base_url(self.base_url, "llm.base_url")
        if self.environ.get(variable, "").strip():
            return check_base_url(self.environ[variable], variable)
        return official


def _open_scripted(script: str | os.PathLike[str] | None) -> Provider:
    from fisk_ai.providers.scripted import ScriptedProvider

    if script is None:
        raise ConfigError("the scripted provider needs a script: the path of a YAML list of turns")
    return ScriptedProvider.load(script)


def _open_anthropic(access: _Access, options: ModelOptions) -> Provider:
    from fisk_ai.providers.anthropic import MessagesApi
    from fisk_ai.providers.credentials import Endpoint, find_credential
    from fisk_ai.providers.http import HttpProvider

    url = access.url("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
    named = access.api_key_env
    variables = {named: False} if named else {"ANTHROPIC_API_KEY": False, "ANTHROPIC_AUTH_TOKEN": True}
    credential = find_credential(access.environ, variables, required=True)
    return HttpProvider(MessagesApi(options), Endpoint(url, credential), stream=access.stream)


def _open_openai(access: _Access, api: str, options: ModelOptions) -> Provider:
    from fisk_ai.providers.credentials import Endpoint, find_credential, is_loopback
    from fisk_ai.providers.http import HttpProvider
    from fisk_ai.providers.wire import Api

    official = "https://api.openai.com/v1"
    url = access.url("OPENAI_BASE_URL", official)
    required = access.api_key_env is not None or not is_loopback(url)
    credential = find_credential(access.environ, {access.api_key_env or "OPENAI_API_KEY": True}, required=required)
    spoken: Api
    if api == "responses":
        from fisk_ai.providers.responses import ResponsesApi

        spoken = ResponsesApi(official=url == official, options=options)
    else:
        from fisk_ai.providers.openai import ChatApi

        spoken = ChatApi(official=url == official, options=options)
    return HttpProvider(spoken, Endpoint(url, credential), stream=access.stream)


def _open_pydantic_ai(access: _Access, model: str | None, options: ModelOptions) -> Provider:
    if access.base_url is not None or access.api_key_env is not None:
        raise ConfigError(
            "base_url and api_key_env don't go with provider pydantic-ai: it takes both from the environment, by the "
            "variables that the model's own provider names"
        )
    if model is None:
        raise ConfigError("provider pydantic-ai needs the model's name when it is opened, such as google:gemini-3-pro")
    from fisk_ai.providers.pydantic_ai import open_pydantic_ai

    return open_pydantic_ai(model=model, options=options, environ=access.environ, stream=access.stream)
