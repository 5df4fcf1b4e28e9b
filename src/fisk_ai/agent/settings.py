"""What an `Agent` may be told, checked when it is made: a mistake costs no model call and leaves no run behind."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fisk_ai.errors import ConfigError, ToolSetupError
from fisk_ai.jsontext import canonical
from fisk_ai.providers import PROVIDERS
from fisk_ai.tools.base import Tool
from fisk_ai.tools.function import FunctionTool

_THINKING_MODE = re.compile(r"off|adaptive|budget:[1-9][0-9]*", re.ASCII)


def check_settings(
    *, model: str, provider: str | None, max_output_tokens: int, thinking_mode: str, call_timeout_s: float
) -> None:
    """Raise `ConfigError` with all mistakes; `provider` is a name to look up, None where it needs no looking up."""
    problems = []
    if not model.strip():
        problems.append("model is empty: name the model as its provider knows it")
    if provider is not None and provider not in PROVIDERS:
        problems.append(
            f"unknown provider {provider!r}: expected {', '.join(PROVIDERS)}, or a Provider of your own, opened"
        )
    if type(max_output_tokens) is not int or max_output_tokens <= 0:
        problems.append(f"max_output_tokens is a positive whole number, not {max_output_tokens!r}")
    if not _THINKING_MODE.fullmatch(thinking_mode):
        problems.append(f"thinking_mode is off, adaptive or budget:<n> (tokens), not {thinking_mode!r}")
    if not (call_timeout_s > 0 and math.isfinite(call_timeout_s)):
        problems.append(f"call_timeout_s is a positive number of seconds, not {call_timeout_s!r}")
    if problems:
        raise ConfigError(problems)


def tools_by_name(tools: Iterable[Tool | Callable[..., object]]) -> Mapping[str, Tool]:
    """Return the tools by their names, plain functions made into tools; raises `ToolSetupError`."""
    found: dict[str, Tool] = {}
    for item in tools:
        tool = _as_tool(item)
        if tool.name in found:
            raise ToolSetupError(f"two tools are named {tool.name!r}: give one of them another name")
        found[tool.name] = tool
    return found


def server_tools_by_name(
    definitions: Iterable[Mapping[str, Any]], tools: Mapping[str, Tool]
) -> Mapping[str, Mapping[str, Any]]:
    """Return tools of the provider's side by their names, or by their types where they have none.

    Raises:
        ConfigError: for a definition that can't be sent, or a name that is taken twice.
    """
    found: dict[str, Mapping[str, Any]] = {}
    problems = []
    for definition in definitions:
        kind, name = definition.get("type"), definition.get("name")
        if not isinstance(kind, str) or not kind.strip() or not _is_json(definition):
            problems.append("a server tool is a mapping of plain JSON values with at least `type`, a text")
        elif name is not None and (name in tools or name in found):
            problems.append(f"server tool {name!r} has the name of another tool: give one of them another name")
        else:
            found[str(name) if name is not None else _numbered(kind, found)] = definition
    if problems:
        raise ConfigError(problems)
    return found


def _is_json(value: object) -> bool:
    try:
        canonical(value)
    except (TypeError, ValueError):
        return False
    return True


def _numbered(kind: str, taken: Mapping[str, object]) -> str:
    """Return the type, with a number if there are more of it: some kinds have no name of their own."""
    names = (kind if number == 1 else f"{kind} {number}" for number in itertools.count(1))
    return next(name for name in names if name not in taken)


def _as_tool(item: Tool | Callable[..., object]) -> Tool:
    if isinstance(item, Tool):
        return item
    if not callable(item):
        raise ToolSetupError(f"a tool is a function or a Tool (such as CommandTool), not {_shown(item)}")
    return FunctionTool(item)


def _shown(item: object) -> str:
    return f"the text {item!r:.60}" if isinstance(item, str) else f"an object of type {type(item).__name__}"
