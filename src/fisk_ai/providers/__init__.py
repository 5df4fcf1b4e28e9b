"""Models: the seam (`base`), the adapters, and the way to open one. Importing this package imports no adapter."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fisk_ai.errors import ConfigError
from fisk_ai.providers.base import Provider

PROVIDERS = ("anthropic", "openai", "scripted")
"""The providers that `open_provider` knows."""

__all__ = ["PROVIDERS", "open_provider"]


def open_provider(
    name: str,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    script: str | os.PathLike[str] | None = None,
    stream: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Provider:
    """Return the provider called `name`; nothing is sent yet.

    `base_url` is what the official SDK takes: without `/v1` for anthropic, with it for openai. `api_key_env` names
    another variable to take the key from. `script` is the YAML file of the scripted provider.

    Raises:
        ConfigError: for an unknown name, a missing key, an unusable address or script.
    """
    if name == "scripted":
        from fisk_ai.providers.scripted import ScriptedProvider

        if script is None:
            raise ConfigError("the scripted provider needs a script: the path of a YAML list of turns")
        return ScriptedProvider.load(script)
    if name == "anthropic":
        return _open_anthropic(base_url, api_key_env, stream, environ)
    if name == "openai":
        return _open_openai(base_url, api_key_env, stream, environ)
    raise ConfigError(f"unknown provider {name!r}: expected {', '.join(PROVIDERS)}")


def _open_anthropic(
    base_url: str | None, api_key_env: str | None, stream: bool, environ: Mapping[str, str]
) -> Provider:
    from fisk_ai.providers.anthropic import MessagesApi
    from fisk_ai.providers.credentials import Endpoint, find_credential
    from fisk_ai.providers.http import HttpProvider

    url = _base_url(base_url, "ANTHROPIC_BASE_URL", "https://api.anthropic.com", environ)
    variables = {api_key_env: False} if api_key_env else {"ANTHROPIC_API_KEY": False, "ANTHROPIC_AUTH_TOKEN": True}
    credential = find_credential(environ, variables, required=True)
    return HttpProvider(MessagesApi(), Endpoint(url, credential), stream=stream)


def _open_openai(base_url: str | None, api_key_env: str | None, stream: bool, environ: Mapping[str, str]) -> Provider:
    from fisk_ai.providers.credentials import Endpoint, find_credential, is_loopback
    from fisk_ai.providers.http import HttpProvider
    from fisk_ai.providers.openai import ChatApi

    official = "https://api.openai.com/v1"
    url = _base_url(base_url, "OPENAI_BASE_URL", official, environ)
    required = api_key_env is not None or not is_loopback(url)
    credential = find_credential(environ, {api_key_env or "OPENAI_API_KEY": True}, required=required)
    return HttpProvider(ChatApi(official=url == official), Endpoint(url, credential), stream=stream)


def _base_url(given: str | None, variable: str, official: str, environ: Mapping[str, str]) -> str:
    from fisk_ai.providers.credentials import check_base_url

    if given is not None:
        return check_base_url(given, "llm.base_url")
    if environ.get(variable, "").strip():
        return check_base_url(environ[variable], variable)
    return official
