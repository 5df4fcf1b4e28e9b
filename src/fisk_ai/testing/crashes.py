"""The crash kit: is it harmless to repeat a call of a tool? It is killed at each of its moments, and resumed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from fisk_ai.agent.assemble import load_agent
from fisk_ai.errors import ConfigError, ToolSetupError
from fisk_ai.testing.check import Check
from fisk_ai.testing.lives import Lives
from fisk_ai.testing.points import Scope
from fisk_ai.testing.report import CrashReport
from fisk_ai.tools.base import OnCrash, Tool
from fisk_ai.tools.command import CommandTool
from fisk_ai.tools.function import FunctionTool


@dataclass
class CrashKit:
    """Kills and resumes calls of tools, in a directory that is its own.

    Raises:
        ConfigError: for a limit that can't be, or if something is in the way in the directory.
    """

    directory: Path
    limit_s: float = 10.0
    """How long one process may take; what takes longer hangs."""
    most: int = 100
    """The most lines of one call at which it is killed."""
    _checks: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.directory = Path(self.directory).absolute()
        if self.world.exists() and any(self.world.iterdir()):
            raise ConfigError(f"{self.world} is not empty, and a crash kit empties it: give it a directory of its own")
        self.world.mkdir(parents=True, exist_ok=True)

    @property
    def world(self) -> Path:
        """The directory in which the tool works; emptied before each of its lives."""
        return self.directory / "world"

    def command(
        self,
        name: str,
        argv: Sequence[str],
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> CommandTool:
        """Return a command as a tool; `options` are those of `CommandTool`."""
        return CommandTool(name, f"The command {name}", argv, parameters or {}, **options)

    def load(self, path: str | os.PathLike[str], name: str) -> Tool:
        """Return a tool of an agent.yaml; raises as `load_agent` does, and `ConfigError` if there is no such tool."""
        tools = load_agent(os.fspath(path)).tools
        if name not in tools:
            raise ConfigError(f"{path} has no tool {name!r}; there are: {', '.join(sorted(tools)) or 'none'}")
        return tools[name]

    def check(
        self,
        tool: Tool | Callable[..., object],
        arguments: Mapping[str, Any] | None = None,
        *,
        observe: Callable[[], object] | None = None,
        reset: Callable[[], object] | None = None,
        on_crash: OnCrash = "rerun",
        into: Iterable[str | ModuleType] = (),
        slices: int = 0,
        expect_error: bool = False,
        expect_change: bool = True,
    ) -> CrashReport:
        """Kill a call of the tool at each of its moments, resume it, and compare the world with an undisturbed one.

        Args:
            tool: a tool, or a plain function.
            arguments: of the call.
            observe: returns the state of all that the tool changes, as plain data; by default the files in `world`.
                Called in this process, also before the call.
            reset: makes the world new. Called in this process before each life, when `world` is empty.
            on_crash: what the resume does with the call: `rerun` repeats it.
            into: modules in which each line is a kill point too, beside the file that the tool's function is in.
            slices: how many times the call is killed by the clock, evenly spread over its duration; of a command, its
                processes die then, too.
            expect_error: the undisturbed call fails.
            expect_change: the undisturbed call changes the world.

        Raises:
            NothingProven: if the undisturbed call is not as expected, hangs, or differs from one time to the next.
            ConfigError, ToolSetupError: for a tool, arguments or options that can't be.
        """
        checked = tool if isinstance(tool, Tool) else _function_tool(tool)
        called_with = dict(arguments or {})
        self._require_usable(checked, called_with, on_crash, slices)
        self._checks += 1
        return Check(
            lives=Lives(checked, called_with, self.world, self.directory / f"check-{self._checks}", self.limit_s),
            scope=Scope.of(checked, into),
            observe=observe or partial(files_of, self.world),
            reset=reset or _nothing,
            on_crash=on_crash,
            most=self.most,
            slices=slices,
            expect_error=expect_error,
            expect_change=expect_change,
        ).run()

    def _require_usable(self, tool: Tool, arguments: Mapping[str, Any], on_crash: OnCrash, slices: int) -> None:
        problems = []
        if (wrong := tool.problem_with(arguments)) is not None:
            problems.append(f"tool {tool.name!r} doesn't take these arguments: {wrong}")
        if on_crash not in get_args(OnCrash):
            problems.append(f"on_crash is {', '.join(get_args(OnCrash))}, not {on_crash!r}")
        if type(slices) is not int or slices < 0:
            problems.append(f"slices is a whole number from 0, not {slices!r}")
        if type(self.most) is not int or self.most < 1:
            problems.append(f"most is a positive whole number, not {self.most!r}")
        if not (self.limit_s > 0 and math.isfinite(self.limit_s)):
            problems.append(f"limit_s is a positive number of seconds, not {self.limit_s!r}")
        if problems:
            raise ConfigError(problems)


def files_of(directory: Path) -> dict[str, str | bytes | None]:
    """Return what is in a directory by name: text, bytes that are none, or None for a directory."""
    found: dict[str, str | bytes | None] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = _text_of(path.read_bytes()) if path.is_file() else None
    return found


def _text_of(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _function_tool(function: object) -> Tool:
    if not callable(function):
        raise ToolSetupError(f"a tool is a function or a Tool, not an object of type {type(function).__name__}")
    return FunctionTool(function)


def _nothing() -> None:
    """Leave the empty directory as it is."""
