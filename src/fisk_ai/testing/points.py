"""Where a process is killed: moments of one tool call, each noted in a file before the kill, so that it is proven."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType, ModuleType
from typing import Any, Literal, Protocol

from fisk_ai.call_guard import CallGuard
from fisk_ai.tools.base import OnCrash, Tool, ToolContext, ToolOutput
from fisk_ai.tools.command import CommandTool

Phase = Literal["before", "line", "started", "time", "returned"]
"""Before the tool starts; at a line of its code; when its process has started; after a time; when it has returned
and its result isn't journaled yet."""

_MOST_STEPS = 20_000
"""Lines of one call that are remembered; what comes later is counted only."""


@dataclass(frozen=True, slots=True)
class KillPoint:
    """One moment at which a process dies."""

    phase: Phase
    file: str | None = None
    line: int | None = None
    """Of a `line`: killed before it is executed."""
    visit: int = 1
    """How often the line had been reached then."""
    step: int = 0
    """How many lines of the tool had been reached then, this one included."""
    after_s: float | None = None
    """Of a `time`: counted from the tool's start."""

    @property
    def source(self) -> str:
        """The text of the line, if there is one."""
        return linecache.getline(self.file, self.line).strip() if self.file and self.line else ""

    def __str__(self) -> str:
        match self.phase:
            case "line":
                again = f" (visit {self.visit})" if self.visit > 1 else ""
                return f"{os.path.basename(self.file or '')}:{self.line}{again}"
            case "time":
                return f"{(self.after_s or 0) * 1000:.1f} ms after its start"
            case phase:
                return _PHASES[phase]


_PHASES: Mapping[Phase, str] = {
    "before": "before the tool starts",
    "started": "when its process has started",
    "returned": "after it returned, its result not journaled",
}

Step = tuple[str, int]
"""File and line."""


class Note(Protocol):
    """Keeps a fact about this process where a kill doesn't reach it."""

    def __call__(self, kind: str, **facts: object) -> None:
        """Keep it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The Python code in which each line is a kill point."""

    files: frozenset[str] = frozenset()
    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, tool: Tool, into: Iterable[str | ModuleType]) -> Scope:
        """Return the file that the tool's own code is in, and the modules `into` which is stepped as well."""
        names = tuple(each if isinstance(each, str) else each.__name__ for each in into)
        function = inspect.unwrap(tool) if callable(tool) else type(tool).call
        code = getattr(function, "__code__", None)
        own = () if code is None or isinstance(tool, CommandTool) else (code.co_filename,)
        return cls(frozenset(own), names)

    def covers(self, frame: FrameType) -> bool:
        """Tell whether a frame runs code of the scope."""
        if frame.f_code.co_filename in self.files:
            return True
        module = frame.f_globals.get("__name__", "")
        return any(module == name or module.startswith(f"{name}.") for name in self.modules)


class Moments:
    """The moments of one call in this process, at one of which it may die."""

    def __init__(self, note: Note, point: KillPoint | None) -> None:
        self._note = note
        self._point = point
        self._began = 0.0
        self._group: int | None = None

    def reach(self, phase: Phase, step: int = 0) -> None:
        """Die if this is the moment."""
        if self._point is not None and (self._point.phase, self._point.step) == (phase, step):
            self._die()

    def begin(self, group: int | None = None) -> None:
        """Begin to count time; `group` is that of the tool's process."""
        self._began, self._group = time.monotonic(), group
        if group is not None:
            self._note("process", group=group)
            self.reach("started")
        if self._point is not None and self._point.after_s is not None:
            timer = threading.Timer(self._point.after_s, self._die)
            timer.daemon = True
            timer.start()

    def end(self, steps: Sequence[Step], total: int) -> None:
        """Note what the call was like; its last moment, also for a kill whose time has not come yet."""
        self._note("ended", duration_s=time.monotonic() - self._began, steps=steps, total=total)
        self.reach("returned")
        self.reach("time")

    def _die(self) -> None:
        self._note("killed", point=str(self._point))
        if self._group is not None and self._point is not None and self._point.phase == "time":
            # As a reboot or a container's end does. What only takes the runner is the point `started`.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class Steps:
    """Follows the lines of a scope, in every thread that starts meanwhile and in this one."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.reached: Callable[[int], None] = lambda step: None
        """Called before each line, with how many lines there were, that one included."""
        self.first: list[Step] = []
        self.last: Step | None = None
        self.total = 0

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follow what is run in the block."""
        if self._scope == Scope():
            yield
            return
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def whereabouts(self) -> str:
        """Say at which line of the scope this process is."""
        # A coroutine that waits is in no thread: for it, the last line that was reached.
        steps = [*self._steps_of_threads(), *([] if self.last is None else [self.last])]
        return f"at {os.path.basename(steps[0][0])}:{steps[0][1]}" if steps else "outside of its code"

    def _steps_of_threads(self) -> Iterator[Step]:
        for innermost in sys._current_frames().values():  # noqa: SLF001 - the documented way to see other threads
            frame: FrameType | None = innermost
            while frame is not None:
                if self._scope.covers(frame):
                    yield frame.f_code.co_filename, frame.f_lineno
                    break
                frame = frame.f_back

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._step if self._scope.covers(frame) else None

    def _step(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            self.total += 1
            self.last = frame.f_code.co_filename, frame.f_lineno
            if self.total <= _MOST_STEPS:
                self.first.append(self.last)
            self.reached(self.total)
        return self._step


class WatchedTool:
    """A tool as the agent knows it, that dies at one moment of its call."""

    def __init__(self, tool: Tool, steps: Steps, note: Note, point: KillPoint | None) -> None:
        self._tool = tool
        self._moments = Moments(note, point)
        self._steps = steps
        steps.reached = lambda step: self._moments.reach("line", step)
        self.name = tool.name
        self.description = tool.description
        self.parameters: Mapping[str, Any] = tool.parameters
        self.identity: Mapping[str, Any] = tool.identity
        self.on_crash: OnCrash = tool.on_crash
        self.parallel = tool.parallel
        self.timeout_s = tool.timeout_s
        self.starts_processes = tool.starts_processes

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        """Ask the tool."""
        return self._tool.problem_with(arguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the tool, and perhaps die."""
        self._moments.reach("before")
        if context.guard is not None:
            context = replace(context, guard=_WatchedGuard(context.guard, self._moments))
        else:
            self._moments.begin()
        try:
            with self._steps.followed():
                return await self._tool.call(arguments, context)
        finally:
            self._moments.end(self._steps.first, self._steps.total)


@dataclass(frozen=True, slots=True)
class _WatchedGuard:
    """Sees when the tool's process has started."""

    guard: CallGuard
    moments: Moments

    @property
    def descriptor(self) -> int:
        return self.guard.descriptor

    def started(self, process_group: int) -> None:
        self.guard.started(process_group)
        self.moments.begin(process_group)


def line_points(steps: Sequence[Step], most: int) -> list[KillPoint]:
    """Return a point for each line that was reached, or for `most` of them.

    Where there are too many (a loop), the first and the last visit of each line come first, then steps evenly spread.
    """
    visits: Counter[Step] = Counter()
    points = []
    for number, (file, line) in enumerate(steps, 1):
        visits[file, line] += 1
        points.append(KillPoint("line", file, line, visits[file, line], number))
    if len(points) <= most:
        return points
    firsts = {step: number for number, step in reversed([*enumerate(steps)])}
    lasts = {step: number for number, step in enumerate(steps)}
    evenly = range(0, len(steps), len(steps) // most)
    chosen = list(dict.fromkeys([*firsts.values(), *lasts.values(), *evenly]))[:most]
    return [points[number] for number in sorted(chosen)]
