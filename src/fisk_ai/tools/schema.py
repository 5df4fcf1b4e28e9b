"""JSON schemas of arguments (Draft 2020-12): compiled once, and mistakes said briefly, for the model to mend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import jsonschema
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from fisk_ai.text import one_line

MAX_PROBLEMS = 5
_MAX_LINE = 200
_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class BadSchema(ValueError):
    """Not a JSON schema; the text says why."""


class ArgumentSchema:
    """A JSON schema of a tool's arguments, ready to check with."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raise `BadSchema` if `schema` isn't one."""
        try:
            Draft202012Validator.check_schema(dict(schema))
        except jsonschema.SchemaError as problem:
            raise BadSchema(f"{problem.json_path}: {one_line(problem.message, _MAX_LINE)}") from None
        # With a registry of its own a validator never fetches what a `$ref` names.
        self._validator = Draft202012Validator(dict(schema), registry=Registry())

    def problem_with(self, arguments: object) -> str | None:
        """Return what is wrong with the arguments, a line for each of the first mistakes, or None."""
        try:
            found = list(islice(self._validator.iter_errors(arguments), MAX_PROBLEMS + 1))
        except Unresolvable as problem:
            return f"the tool's schema refers to {one_line(str(problem.ref), 80)!r}, which is not in it"
        except (ArithmeticError, RecursionError, ValueError, re.error) as problem:  # of numbers, levels, patterns
            return f"the arguments can't be checked: {one_line(str(problem), _MAX_LINE)}"
        lines = [_line(problem) for problem in found[:MAX_PROBLEMS]]
        if len(found) > MAX_PROBLEMS:
            lines.append("and more")
        return "\n".join(lines) or None


def _line(problem: jsonschema.ValidationError) -> str:
    where = problem.json_path.removeprefix("$").removeprefix(".")
    what = problem.message
    if problem.validator == "type":
        expected: Any = problem.validator_value
        names = expected if isinstance(expected, str) else " or ".join(expected)
        what = f"expected {names}, got {_JSON_TYPES.get(type(problem.instance), 'null')}"
    elif len(what) > _MAX_LINE:  # it shows the whole value, which can be of any size
        what = f"does not fit {problem.validator} {problem.validator_value!r}"
    return one_line(f"{where}: {what}" if where else what, _MAX_LINE)
