"""Tools: the seam to them (`base`), Python functions as tools, commands as tools.

Importing this package loads the seam only; pydantic and jsonschema are loaded with the first tool that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fisk_ai.tools.base import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from fisk_ai.tools.command import CommandTool
    from fisk_ai.tools.function import FunctionTool, tool
    from fisk_ai.tools.loading import load_python_tool

__all__ = [
    "CommandTool",
    "FunctionTool",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "load_python_tool",
    "tool",
]

_HOMES = {
    "CommandTool": "fisk_ai.tools.command",
    "FunctionTool": "fisk_ai.tools.function",
    "load_python_tool": "fisk_ai.tools.loading",
    "tool": "fisk_ai.tools.function",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
