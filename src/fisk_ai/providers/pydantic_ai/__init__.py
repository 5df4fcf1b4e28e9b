"""Models that no adapter here speaks to, through pydantic-ai, an extra. Importing this imports nothing of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from fisk_ai.errors import ConfigError
from fisk_ai.providers.base import ModelOptions, Provider
from fisk_ai.providers.credentials import CREDENTIAL_NAMES
from fisk_ai.text import one_line

EXTRA = 'pip install "fisk-ai[pydantic-ai]"'
SERVICE_TIERS = ("auto", "default", "flex", "priority")
"""The words that pydantic-ai has for all of its providers."""

_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(_ID)?$")
_SHORTEST_SECRET = 8


def open_pydantic_ai(
    *,
    model: str,
    options: ModelOptions,
    environ: Mapping[str, str] = os.environ,
    stream: bool = True,
) -> Provider:
    """Return the provider of a model such as `google:gemini-3-pro`; nothing is sent yet.

    Raises:
        ConfigError: if pydantic-ai, or the part of it for this model, isn't installed; for an unknown model or a
            missing key; for options that it can't pass on.
    """
    _check(options, environ)
    try:
        from fisk_ai.providers.pydantic_ai.provider import PydanticAIProvider, infer
    except ImportError as problem:
        raise _not_installed(problem) from None
    return PydanticAIProvider(infer(model), name=model, options=options, stream=stream, secrets=secrets_of(environ))


def _check(options: ModelOptions, environ: Mapping[str, str]) -> None:
    problems = []
    if environ is not os.environ:
        problems.append(
            "provider pydantic-ai reads the environment of the process itself, so it can't be given another"
        )
    if options.service_tier not in (None, *SERVICE_TIERS):
        problems.append(
            f"service_tier {options.service_tier!r} isn't one that pydantic-ai passes on: expected "
            f"{', '.join(SERVICE_TIERS)}"
        )
    if problems:
        raise ConfigError(problems)


def _not_installed(problem: ImportError) -> ConfigError:
    if problem.name == "pydantic_ai" and isinstance(problem, ModuleNotFoundError):
        return ConfigError(f"provider pydantic-ai needs an extra that isn't installed: {EXTRA}")
    return ConfigError(f"the pydantic-ai that is installed can't be used ({one_line(str(problem), 200)}): {EXTRA}")


def secrets_of(environ: Mapping[str, str]) -> frozenset[str]:
    """Return what must never be shown: whatever in the environment is a key by its name.

    Which key a model's own provider takes is its business, so this errs on the side of silence.
    """
    named = (value.strip() for name, value in environ.items() if name in CREDENTIAL_NAMES or _SECRET_NAME.search(name))
    return frozenset(value for value in named if len(value) >= _SHORTEST_SECRET)
