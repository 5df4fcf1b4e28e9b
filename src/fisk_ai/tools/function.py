"""Python functions as tools."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

import anyio

from fisk_ai.tools.base import OnCrash, ToolContext, ToolOutput
from fisk_ai.tools.declaration import declaration_problems, refuse
from fisk_ai.tools.output import error_output
from fisk_ai.tools.signature import UnusableArguments, function_label, parse_docstring, read_signature
from fisk_ai.tools.values import output_of
from fisk_ai.tools.worker import run_abandonable

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)


class FunctionTool(Generic[P, R]):
    """A function that the model can call; calling the tool itself calls the function.

    Its name and the first paragraph of its docstring are what the model is told unless `name` and `description` say
    otherwise. A parameter annotated `ToolContext` is filled in for each call. An ordinary function runs in a thread,
    a coroutine function in the event loop, which it must not block.

    Raises:
        ToolSetupError: if the function can't be described to a model; without docstring and `description`, for one.
    """

    __name__: str
    starts_processes = False

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        on_crash: OnCrash = "rerun",
        parallel: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self._arguments = read_signature(function)
        self.name: str = function.__name__ if name is None else name
        summary = parse_docstring(inspect.getdoc(function) or "").summary
        self.description: str = summary if description is None else description
        declared = declaration_problems(
            self.name, self.description, on_crash=on_crash, parallel=parallel, timeout_s=timeout_s
        )
        refuse(self.name, declared + _kind_problems(function))
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._is_async = _is_async(function)
        self.parameters: Mapping[str, Any] = self._arguments.schema
        self.identity: Mapping[str, Any] = {"function": function_label(function), "parallel": parallel}
        self.on_crash: OnCrash = on_crash
        self.parallel: bool = parallel
        self.timeout_s: float | None = timeout_s

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, a line for each of the first mistakes, or None."""
        return self._arguments.problem_with(arguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the function once; see `Tool.call`.

        At the time limit and on a cancellation a coroutine is cancelled; a thread can't be, and is left to itself.
        """
        try:
            bound = self._arguments.bind(arguments, context)
        except UnusableArguments as problem:
            return error_output(str(problem))
        with anyio.move_on_after(self.timeout_s):
            if self._is_async:
                return await self._run_in_task(bound)
            return await run_abandonable(functools.partial(self._run, bound), f"tool {self.name}")
        still = "" if self._is_async else " and may still be running"
        return error_output(f"timed out after {self.timeout_s:g} s; it may have taken effect{still}")

    def _run(self, bound: Mapping[str, Any]) -> ToolOutput:
        try:
            value = self._invoke(bound)
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - what a tool raises is an answer to the model
            return self._failed(problem)
        return output_of(value)

    async def _run_in_task(self, bound: Mapping[str, Any]) -> ToolOutput:
        """Run a coroutine function in a task of its own, so that a cancellation from inside isn't taken for ours."""
        outcomes: list[ToolOutput] = []

        async def run() -> None:
            outcomes.append(await self._run_async(bound))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
        if not outcomes:
            return error_output("the call was cancelled from inside; it may have taken effect")
        return outcomes[0]

    async def _run_async(self, bound: Mapping[str, Any]) -> ToolOutput:
        try:
            value = self._invoke(bound)
            if inspect.isawaitable(value):
                value = await value
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - what a tool raises is an answer to the model
            return self._failed(problem)
        return output_of(value)

    def _invoke(self, bound: Mapping[str, Any]) -> object:
        function: Callable[..., object] = self._function
        return function(**bound)

    def _failed(self, problem: BaseException) -> ToolOutput:
        logger.debug("tool %r failed", self.name, exc_info=problem)
        if isinstance(problem, SystemExit):
            return error_output(f"the tool tried to exit the program (SystemExit: {_message(problem)})")
        return error_output(f"{type(problem).__name__}: {_message(problem)}")


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    on_crash: OnCrash = "rerun",
    parallel: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None, /, **options: Any
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a function a tool: `@tool`, or `@tool(on_crash="ask", ...)` with the options of `FunctionTool`."""
    if function is not None:
        return FunctionTool(function, **options)
    return lambda decorated: FunctionTool(decorated, **options)


def _is_async(function: Callable[..., object]) -> bool:
    # A decorator's plain wrapper around a coroutine function is one, too.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function))


def _kind_problems(function: Callable[..., object]) -> list[str]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return ["it is a generator; return a list instead"]
    return []


def _message(problem: BaseException) -> str:
    try:
        return str(problem)
    except Exception:  # noqa: BLE001 - an exception's str() is code of the tool's author
        return "(its message can't be shown)"
