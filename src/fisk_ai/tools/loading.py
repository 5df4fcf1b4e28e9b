"""Python tools that a configuration names as `module:name`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from importlib.machinery import PathFinder
from operator import attrgetter
from types import ModuleType
from typing import Any

from fisk_ai.errors import ToolSetupError
from fisk_ai.tools.base import Tool
from fisk_ai.tools.function import FunctionTool


def load_python_tool(spec: str, search_path: str) -> Tool:
    """Import `module:name` and return it as a tool; a plain function becomes one.

    `search_path` is put first on `sys.path`, as Python does for a script's directory, and stays there for what the
    module imports later.

    Raises:
        ToolSetupError: naming `spec` and the cause.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ToolSetupError(f"python tool {spec!r} can't be loaded: write it as module:function")
    directory = os.path.abspath(search_path)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    module = _imported(spec, module_name)
    _refuse_namesake(spec, module_name.partition(".")[0], directory)
    try:
        found = attrgetter(name)(module)
    except AttributeError:
        raise ToolSetupError(f"python tool {spec!r} can't be loaded: {module_name} has no {name!r}") from None
    return _as_tool(spec, found)


def _imported(spec: str, module_name: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ToolSetupError as problem:  # by a decorator in it: says all there is to say
        raise ToolSetupError(f"python tool {spec!r} can't be loaded: {problem}") from None
    except (Exception, SystemExit) as problem:  # importing runs code of the tool's author
        why = f"{type(problem).__name__}: {problem}"
        raise ToolSetupError(
            f"python tool {spec!r} can't be loaded: importing {module_name} failed ({why})"
        ) from problem


def _refuse_namesake(spec: str, name: str, directory: str) -> None:
    """Refuse a module of `directory` in whose place one of the same name was imported before."""
    meant, loaded = PathFinder.find_spec(name, [directory]), sys.modules[name].__spec__
    if meant is not None and loaded is not None and meant.origin != loaded.origin:
        raise ToolSetupError(
            f"python tool {spec!r} can't be loaded: another module {name!r} is in use already ({loaded.origin}); "
            f"rename {meant.origin}"
        )


def _as_tool(spec: str, found: Any) -> Tool:
    if isinstance(found, FunctionTool):
        return found
    if not inspect.isroutine(found):
        raise ToolSetupError(f"python tool {spec!r} can't be used: it is a {type(found).__name__}, not a function")
    try:
        return FunctionTool(found)
    except ToolSetupError as problem:
        raise ToolSetupError(f"python tool {spec!r} can't be used: {problem}") from None
