"""A bug as an edit of the product's source, in force for a while; it tells whether the changed place was reached."""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import inspect
import mmap
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from fisk_ai.errors import FiskError

NOTE = "planted"
"""What the new text of an edit calls: `planted()` in place of a statement, `planted(value)` in place of a value."""


class WrongEdit(Exception):
    """The edit doesn't fit the source (any more)."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Another text in place of one that stands exactly once in a function's source, without its own indentation."""

    function: Callable[..., Any]
    old: str
    new: str

    def target(self) -> FunctionType:
        """The function itself, without decorators."""
        found = inspect.unwrap(getattr(self.function, "fget", None) or self.function)
        found = getattr(found, "__func__", found)
        if not isinstance(found, FunctionType):
            raise WrongEdit(f"{self.function!r} is no function of Python's")
        return found


def left_out(function: Callable[..., Any], statement: str) -> Edit:
    """Leave a statement out."""
    return Edit(function, statement, "planted()")


def never(function: Callable[..., Any], condition: str) -> Edit:
    """Let the condition of an `if` never hold."""
    return Edit(function, f"if {condition}:", "if planted(False):")


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, and the test that has to catch it."""

    name: str
    does: str
    """What it does, in a sentence."""
    edits: tuple[Edit, ...]
    caught_by: str
    """The id of an ordinary test."""
    shows: tuple[type[BaseException], ...] = (AssertionError, FiskError)
    """What the test may fail with beside `pytest.fail`; an assertion has to be one of a test, not of the product."""
    hangs: bool = False
    """True if what the test shows is that it comes to no end."""

    @contextlib.contextmanager
    def plant(self) -> Iterator[Reached]:
        """Put the bug into the product."""
        reached = Reached()
        targets: dict[FunctionType, list[Edit]] = {}
        for edit in self.edits:
            targets.setdefault(edit.target(), []).append(edit)
        with contextlib.ExitStack() as undo:
            for target, edits in targets.items():
                undo.callback(setattr, target, "__code__", target.__code__)
                undo.callback(target.__globals__.pop, NOTE, None)
                target.__globals__[NOTE] = reached.note
                target.__code__ = _changed(target, edits)
            yield reached


class Reached:
    """Whether a changed place was executed, here or in a child that was forked meanwhile."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def note(self, value: Any = None) -> Any:
        """Note it; returns what it is given."""
        self._shared[0] = 1
        return value

    def __bool__(self) -> bool:
        return self._shared[0] == 1


@functools.cache
def source_of(path: str) -> tuple[str, ...]:
    """Return the lines of a file as they were when this was first asked: who edits it meanwhile moves them."""
    return tuple(Path(path).read_text().splitlines(keepends=True))


def source_at(target: FunctionType) -> tuple[str, int]:
    """Return a function's source without its own indentation, and its first line."""
    first = target.__code__.co_firstlineno
    lines = source_of(target.__code__.co_filename)
    return textwrap.dedent("".join(inspect.getblock(lines[first - 1 :]))), first


def _changed(target: FunctionType, edits: list[Edit]) -> CodeType:
    source, first = source_at(target)
    for edit in edits:
        if source.count(edit.old) != 1:
            raise WrongEdit(f"{target.__qualname__} has {source.count(edit.old)} times {edit.old!r}")
        if f"{NOTE}(" not in edit.new:
            raise WrongEdit(f"{edit.new!r} doesn't say that it was reached")
        source = source.replace(edit.old, edit.new)
    return _compiled(source, target, first)


def _compiled(source: str, target: FunctionType, first: int) -> CodeType:
    try:
        tree = ast.parse(source)
    except SyntaxError as problem:
        raise WrongEdit(f"{target.__qualname__} is no Python any more: {problem}") from None
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.decorator_list = []
    ast.increment_lineno(tree, first - 1)
    flags = __future__.annotations.compiler_flag
    module = compile(tree, target.__code__.co_filename, "exec", flags, dont_inherit=True)
    code = next(each for each in module.co_consts if isinstance(each, CodeType) and each.co_name == target.__name__)
    if code.co_freevars != target.__code__.co_freevars:
        raise WrongEdit(f"{target.__qualname__} is a closure")
    return code
