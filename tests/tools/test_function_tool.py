"""Python functions as tools: what the model is told, what the function gets, what comes back."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import pytest
from pydantic import AfterValidator, BaseModel, Field

from fisk_ai.errors import ToolSetupError
from fisk_ai.fingerprint import tool_hashes
from fisk_ai.tools import CommandTool, FunctionTool, Tool, ToolContext, tool

from .doubles import said

if TYPE_CHECKING:
    from collections import OrderedDict

pytestmark = pytest.mark.anyio


class Stream(BaseModel):
    """A stream."""

    name: str
    title: str = "none"


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


@tool
def lookup(
    stream: Stream,
    schema: str,
    _depth: Annotated[int, Field(gt=0)] = 3,
    mode: Mode = Mode.FAST,
    *,
    tags: set[str] = frozenset({"b", "a", "c"}),  # type: ignore[assignment]
    groups: dict[str, set[str]] = {"all": {"y", "x", "z"}},  # noqa: B006
    own: Annotated[str | None, Field(description="Its own words", title="T")] = None,
    context: ToolContext,
) -> dict[str, Any]:
    """Look a stream
    up.

    More that the model isn't told.

    Args:
        stream: The stream to
            look up: all of it.
        schema (str, optional): A word that models reserve.
        own: Not these.

    Returns:
        _depth: nothing of this.
    """
    return {"stream": stream.name, "depth": _depth, "mode": mode.name, "run": context.run_id}


def test_is_a_tool() -> None:
    it: Tool = lookup
    assert it.name == "lookup"
    assert it.description == "Look a stream up."
    assert it.identity == {"function": f"{__name__}.lookup", "parallel": False}
    assert (it.on_crash, it.parallel, it.timeout_s, it.starts_processes) == ("rerun", False, None, False)


def test_schema_is_read_from_the_signature_and_the_docstring() -> None:
    assert lookup.parameters == {
        "$defs": {
            "Mode": {"enum": ["fast", "slow"], "type": "string"},
            "Stream": {
                "description": "A stream.",
                "properties": {"name": {"type": "string"}, "title": {"default": "none", "type": "string"}},
                "required": ["name"],
                "type": "object",
            },
        },
        "additionalProperties": False,
        "properties": {
            "stream": {"$ref": "#/$defs/Stream", "description": "The stream to look up: all of it."},
            "schema": {"type": "string", "description": "A word that models reserve."},
            "_depth": {"type": "integer", "default": 3, "exclusiveMinimum": 0},
            "mode": {"$ref": "#/$defs/Mode", "default": "fast"},
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "default": ["a", "b", "c"]},
            "groups": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                "default": {"all": ["x", "y", "z"]},
            },
            "own": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "description": "Its own words"},
        },
        "required": ["stream", "schema"],
        "type": "object",
    }  # fmt: skip


def test_options_are_taken_over() -> None:
    @tool(name="other", description="Said otherwise", on_crash="ask", timeout_s=5)
    def function() -> None:
        """Not this."""

    @tool(parallel=True)
    def another() -> None:
        """Do it side by side."""

    assert (function.name, function.description) == ("other", "Said otherwise")
    assert (function.on_crash, function.parallel, function.timeout_s) == ("ask", False, 5)
    assert another.parallel is True
    assert another.identity["parallel"] is True


def test_function_without_parameters_takes_none() -> None:
    @tool(description="Does it")
    def now() -> str:
        return "now"

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.problem_with({"x": 1}) == "x: there is no such argument"


def test_tool_is_still_the_function() -> None:
    @tool
    def double(number: int) -> int:
        """Double it."""
        return 2 * number

    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Double it.")


def test_hashes_are_the_same_in_every_process() -> None:
    script = (
        "from tools.test_function_tool import *;"
        "print(tool_hashes(lookup.description, lookup.parameters, lookup.identity))"
    )
    tests = os.path.dirname(os.path.dirname(__file__))
    ours = str(tool_hashes(lookup.description, lookup.parameters, {**lookup.identity, "function": "f"}))
    script = script.replace("lookup.identity)", '{**lookup.identity, "function": "f"})')
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": tests}
        theirs = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert theirs.stdout.strip() == ours


async def test_function_gets_converted_values_and_the_context(context: ToolContext) -> None:
    output = await lookup.call({"stream": {"name": "ORDERS"}, "schema": "s", "_depth": "7", "mode": "slow"}, context)
    assert json.loads(said(output)) == {"stream": "ORDERS", "depth": 7, "mode": "SLOW", "run": context.run_id}


async def test_defaults_are_the_functions_own(context: ToolContext) -> None:
    marker: list[int] = []

    @tool(description="Does it")
    def function(given: list[int] = marker, context: ToolContext | None = None) -> bool:
        return given is marker and context is not None

    assert said(await function.call({}, context)) == "true"


async def test_mistakes_in_arguments_have_a_line_each(context: ToolContext) -> None:
    arguments = {"stream": {"name": 3}, "_depth": 0, "unknown": 1}
    problem = lookup.problem_with(arguments)
    assert problem is not None
    assert problem.splitlines() == [
        "stream.name: Input should be a valid string",
        "schema: is missing",
        "_depth: Input should be greater than 0",
        "unknown: there is no such argument",
    ]
    output = await lookup.call(arguments, context)
    assert (said(output), output.is_error) == (problem, True)


def fail(_value: str) -> str:
    raise KeyError("x")


def test_failing_validator_is_a_problem_and_no_exception() -> None:
    @tool(description="Does it")
    def function(text: Annotated[str, AfterValidator(fail)]) -> None: ...

    assert function.problem_with({"text": "a"}) == "the arguments can't be checked: KeyError"


def test_many_mistakes_are_not_all_listed() -> None:
    @tool(description="Does it")
    def function(numbers: list[int]) -> None: ...

    problem = function.problem_with({"numbers": ["x"] * 1000})
    assert problem is not None
    assert problem.splitlines()[-1] == "and 990 more"


def any_arguments(*args: int, **kwargs: int) -> None: ...
def positional(x: int, /) -> None: ...
def unannotated(x, y: int = 1): ...  # type: ignore[no-untyped-def]
def unresolved(x: OrderedDict[str, int]) -> None: ...
def without_schema(x: threading.Thread) -> None: ...
def endless_limit(x: Annotated[float, Field(json_schema_extra={"examples": [math.inf]})]) -> None: ...
def not_in_json(x: Callable[[], int]) -> None: ...
def generator(x: int) -> Iterator[int]:
    yield x


def undescribed(x: int) -> int:
    """
    Args:
        x: This says nothing of the function.
    """
    return x


async def async_generator(x: int) -> AsyncIterator[int]:
    yield x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (any_arguments, ["*args", "**kwargs", "name each one"]),
        (positional, ["'x' is positional only"]),
        (unannotated, ["'x' has no annotation", "give it a type"]),
        (unresolved, ["NameError", "OrderedDict", "TYPE_CHECKING"]),
        (without_schema, ["no JSON schema", "Thread"]),
        (endless_limit, ["no JSON schema"]),
        (not_in_json, ["no JSON schema"]),
        (generator, ["generator"]),
        (async_generator, ["generator"]),
        (lambda: None, ["a name is 1-64", "a model needs a description"]),
        (undescribed, ["a model needs a description"]),
        (len, ["not a function"]),
        (functools.partial(positional), ["not a function"]),
        (Stream, ["not a function"]),
    ],
)
def test_function_that_cannot_be_described_is_refused(function: Callable[..., Any], words: list[str]) -> None:
    with pytest.raises(ToolSetupError) as refused:
        FunctionTool(function)
    assert all(word in str(refused.value) for word in words), refused.value
    assert getattr(function, "__qualname__", "") in str(refused.value)


def test_defaults_that_json_cannot_hold_are_left_out_without_a_warning() -> None:
    @tool(description="Does it")
    def function(x: float = math.inf, y: Any = object()) -> None: ...  # noqa: B008

    assert function.parameters["properties"] == {"x": {"type": "number"}, "y": {}}
    assert tool_hashes("", function.parameters, {}).parameters


def raises(problem: BaseException) -> FunctionTool[[], None]:
    def function() -> None:
        raise problem

    return FunctionTool(function, description="Fails")


def raises_in_loop(problem: BaseException) -> FunctionTool[[], Any]:
    async def function() -> None:
        raise problem

    return FunctionTool(function, description="Fails")


class Shy(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("make", [raises, raises_in_loop])
@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (ValueError("no such stream"), "ValueError: no such stream"),
        (KeyError("x\ud83d"), "KeyError: 'x\\ud83d'"),
        (OSError(2, "gone\udc80"), "FileNotFoundError: [Errno 2] gone\ufffd"),
        (TimeoutError(), "TimeoutError: "),
        (RecursionError("deep"), "RecursionError: deep"),
        (Shy(), "Shy: (its message can't be shown)"),
        (SystemExit(3), "the tool tried to exit the program (SystemExit: 3)"),
    ],
)
async def test_exception_is_an_error_result_without_traceback(
    make: Callable[[BaseException], Tool],
    problem: BaseException,
    told: str,
    context: ToolContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="fisk_ai"):
        output = await make(problem).call({}, context)
    assert (said(output), output.is_error) == (told, True)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


async def test_interrupt_is_not_swallowed(context: ToolContext) -> None:
    with pytest.raises(KeyboardInterrupt):
        await raises(KeyboardInterrupt()).call({}, context)


async def test_cancellation_from_inside_is_an_error_result(context: ToolContext) -> None:
    @tool(description="Does it")
    async def function() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    output = await function.call({}, context)
    assert output.is_error
    assert "may have taken effect" in said(output)


async def test_coroutine_runs_in_the_loop_and_a_function_beside_it(context: ToolContext) -> None:
    @tool(description="Does it")
    async def inside() -> bool:
        return threading.current_thread() is threading.main_thread()

    @tool(description="Does it")
    def beside() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert said(await inside.call({}, context)) == "true"
    assert said(await beside.call({}, context)) == "false"


async def test_wrapped_coroutine_function_is_awaited(context: ToolContext) -> None:
    async def original(x: int) -> int:
        return x + 1

    @tool(description="Does it")
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    assert said(await wrapper.call({"x": 1}, context)) == "2"


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


async def test_function_sees_the_context_variables_of_its_caller(context: ToolContext) -> None:
    @tool(description="Does it")
    def function() -> str:
        return VARIABLE.get()

    VARIABLE.set("seen")
    assert said(await function.call({}, context)) == "seen"


async def test_coroutine_beyond_its_time_limit_is_cancelled(context: ToolContext) -> None:
    ended = []

    @tool(description="Does it", timeout_s=0.01)
    async def function() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    output = await function.call({}, context)
    assert (said(output), output.is_error) == ("timed out after 0.01 s; it may have taken effect", True)
    assert ended == [True]


async def test_function_beyond_its_time_limit_is_abandoned(context: ToolContext) -> None:
    release = threading.Event()

    @tool(description="Does it", timeout_s=0.01)
    def function() -> None:
        release.wait()

    output = await function.call({}, context)
    release.set()
    told = "timed out after 0.01 s; it may have taken effect and may still be running"
    assert (said(output), output.is_error) == (told, True)


async def test_abort_does_not_wait_for_a_function(context: ToolContext) -> None:
    started, release = threading.Event(), threading.Event()

    @tool(description="Does it")
    def function() -> None:
        started.set()
        release.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(function.call, {}, context)
        await anyio.to_thread.run_sync(started.wait)
        tasks.cancel_scope.cancel()
    assert not release.is_set()
    release.set()


HANGS = """
import threading, anyio
from fisk_ai.tools import ToolContext, tool

@tool(timeout_s=0.01)
def hang() -> None:
    'Hang.'
    threading.Event().wait()

print(anyio.run(hang.call, {}, ToolContext("run", "call", "key")).blocks[0].text)
"""


def test_abandoned_function_does_not_keep_the_process_alive() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith("timed out after")


async def test_value_that_cannot_be_shown_leaves_one_effect_and_a_result(context: ToolContext) -> None:
    counter = []

    class Unshowable:
        def __str__(self) -> str:
            raise ValueError

    @tool(description="Does it")
    def function() -> object:
        counter.append(1)
        return Unshowable()

    output = await function.call({}, context)
    assert output.is_error
    assert "ran to its end" in said(output)
    assert counter == [1]


class Plain:
    def method(self) -> None: ...


class Named:
    def __str__(self) -> str:
        return "<named at 12>"


@pytest.mark.parametrize("value", [Plain(), Plain().method, lambda: 1, threading.Lock()])
async def test_value_without_a_text_of_its_own_is_an_error_result(context: ToolContext, value: object) -> None:
    output = await FunctionTool(lambda: value, name="f", description="Does it").call({}, context)
    assert output.is_error
    assert "the call ran to its end" in said(output)
    assert "address in memory" in said(output)


@pytest.mark.parametrize(("value", "text"), [(Named(), "<named at 12>"), ("<f at 0x12>", "<f at 0x12>")])
async def test_value_with_a_text_of_its_own_is_shown(context: ToolContext, value: object, text: str) -> None:
    output = await FunctionTool(lambda: value, name="f", description="Does it").call({}, context)
    assert (said(output), output.is_error) == (text, False)


@pytest.mark.parametrize("on_crash", ["ask", "skip"])
def test_parallel_tool_must_be_harmless_to_repeat(on_crash: Any) -> None:
    with pytest.raises(ToolSetupError, match="harmless to repeat: use on_crash='rerun'"):
        FunctionTool(undescribed, description="Does it", on_crash=on_crash, parallel=True)
    with pytest.raises(ToolSetupError, match="harmless to repeat: use on_crash='rerun'"):
        CommandTool("c", "Does it", ["true"], {}, on_crash=on_crash, parallel=True)


def test_literals_are_checked() -> None:
    @tool(description="Does it")
    def function(kind: Literal["a", "b"]) -> None: ...

    assert function.parameters["properties"]["kind"] == {"type": "string", "enum": ["a", "b"]}
    assert function.problem_with({"kind": "c"}) == "kind: Input should be 'a' or 'b'"


@pytest.mark.parametrize("started", [["worker.py"], ["-m", "worker"], ["-c", "import worker"]])
def test_a_function_is_the_same_tool_whether_its_module_is_run_or_imported(tmp_path: Path, started: list[str]) -> None:
    (tmp_path / "worker.py").write_text(
        "from fisk_ai import tool\n\n@tool\ndef look() -> str:\n    'Look.'\n    return 'x'\n\n"
        "print(look.identity['function'])\n"
    )
    told = subprocess.run([sys.executable, *started], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout == "worker.look\n"


def test_a_description_that_no_request_can_carry_is_refused() -> None:
    with pytest.raises(ToolSetupError, match="half a surrogate pair"):
        FunctionTool(print_nothing, description="Look\ud83d")


def print_nothing() -> None:
    """Print nothing."""
