"""What guards the promises in the product's source: each sync, cut, lock and check, and the lines it stands on.

A check is a `raise` outside of an exception handler; the condition that leads to it counts as part of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fisk_ai
from tests.reliability.planted.edits import Edit, source_at, source_of

ROOT = Path(fisk_ai.__file__).parent
OPERATIONS = frozenset(
    {"sync", "truncate", "drop_cache", "lock", "announce", "remove", "rename", "repair"}
    | {"ensure_held", "_require_held", "require_plain_file", "set_aside", "_before_effect", "before_effect"}
)
MODULES = (
    *(f"stores/{name}.py" for name in ("directory", "file", "fork", "journal", "listing", "lock", "memory", "whole")),
    "stores/orphans.py",
    *(f"agent/{name}.py" for name in ("calls", "decide", "guard", "loop", "orphan", "writer")),
    *("codec.py", "folding.py", "ids.py", "jsontext.py"),
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Guard:
    """One of them."""

    module: str
    function: str
    text: str
    """Its source, on one line."""
    lines: frozenset[int]

    @property
    def name(self) -> str:
        """What it is and where, but for the line."""
        return f"{self.module} {self.function}: {self.text}"

    def __str__(self) -> str:
        return f"{self.name} (line {min(self.lines)})"


def guards(module: str) -> Iterator[Guard]:
    """Yield the guards of a module."""
    tree = ast.parse("".join(source_of(str(ROOT / module))))
    for function in ast.walk(tree):
        if isinstance(function, _Function):
            for statement, conditions in _statements(function.body, ()):
                if _guards(statement):
                    lines = _lines(statement).union(*map(_lines, conditions))
                    yield Guard(module, function.name, " ".join(ast.unparse(statement).split()), lines)


def _statements(
    body: list[ast.stmt], conditions: tuple[ast.expr, ...]
) -> Iterator[tuple[ast.AST, tuple[ast.expr, ...]]]:
    """Yield what is executed in a body, without handlers and inner functions, and the conditions right before it."""
    for each in body:
        match each:
            case ast.If():
                yield each.test, ()
                yield from _statements(each.body, (each.test,))
                yield from _statements(each.orelse, (each.test,))
            case ast.While():
                yield each.test, ()
                yield from _statements(each.body, ())
            case ast.Match():
                for case in each.cases:
                    yield from _statements(case.body, ())
            case ast.For() | ast.AsyncFor():
                yield each.iter, ()
                yield from _statements(each.body, ())
            case ast.With() | ast.AsyncWith():
                yield from ((item.context_expr, ()) for item in each.items)
                yield from _statements(each.body, ())
            case ast.Try():
                yield from _statements(each.body, ())
                yield from _statements(each.orelse, ())
                yield from _statements(each.finalbody, ())
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                yield each, conditions


def _guards(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Raise) or any(
        isinstance(each, ast.Call) and _name(each.func) in OPERATIONS for each in ast.walk(statement)
    )


def _name(function: ast.expr) -> str | None:
    match function:
        case ast.Attribute():
            return function.attr
        case ast.Name():
            return function.id
    return None


def _lines(node: ast.AST) -> frozenset[int]:
    assert isinstance(node, ast.stmt | ast.expr)
    return frozenset(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def changed_lines(edits: Iterable[Edit]) -> dict[str, set[int]]:
    """Return the lines that edits change, by module."""
    changed: dict[str, set[int]] = {}
    for edit in edits:
        target = edit.target()
        source, first = source_at(target)
        before = source.partition(edit.old)[0]
        start = first + before.count("\n")
        module = str(Path(target.__code__.co_filename).relative_to(ROOT))
        changed.setdefault(module, set()).update(range(start, start + edit.old.count("\n") + 1))
    return changed
