"""What a Python function takes, as a JSON schema and as a check, read from its signature and docstring."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError

from fisk_ai.errors import ToolSetupError
from fisk_ai.jsontext import canonical
from fisk_ai.text import one_line
from fisk_ai.tools.base import ToolContext

MAX_PROBLEMS = 10
_MAX_LINE = 200


class UnusableArguments(ValueError):
    """The arguments don't fit; the text has a line for each mistake."""


@dataclass(frozen=True, slots=True)
class FunctionArguments:
    """The parameters of a function, but for those that get the `ToolContext`."""

    model: type[BaseModel]
    schema: Mapping[str, Any]
    context_names: tuple[str, ...]

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments of a call, converted to the annotated types.

        Raises:
            UnusableArguments: if they don't fit.
        """
        values = self._checked(arguments)
        given = {
            str(field.alias): getattr(values, name)
            for name, field in self.model.model_fields.items()
            if name in values.model_fields_set
        }
        return given | dict.fromkeys(self.context_names, context)

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, a line for each of the first mistakes, or None."""
        try:
            self._checked(arguments)
        except UnusableArguments as problem:
            return str(problem)
        return None

    def _checked(self, arguments: Mapping[str, Any]) -> BaseModel:
        try:
            return self.model.model_validate(dict(arguments))
        except ValidationError as problem:
            raise UnusableArguments(_problem_lines(problem)) from None
        except Exception as problem:  # validators of annotated types are code of the tool's author
            why = f"the arguments can't be checked: {type(problem).__name__}"
            raise UnusableArguments(why) from problem


def _problem_lines(problem: ValidationError) -> str:
    errors = problem.errors(include_url=False, include_context=False, include_input=False)
    lines = [_problem_line(error["type"], error["loc"], error["msg"]) for error in errors[:MAX_PROBLEMS]]
    if len(errors) > MAX_PROBLEMS:
        lines.append(f"and {len(errors) - MAX_PROBLEMS} more")
    return "\n".join(lines)


def _problem_line(kind: str, location: tuple[int | str, ...], message: str) -> str:
    what = {"extra_forbidden": "there is no such argument", "missing": "is missing"}.get(kind, message)
    return one_line(f"{'.'.join(map(str, location))}: {what}", _MAX_LINE)


def read_signature(function: Callable[..., object]) -> FunctionArguments:
    """Read the signature of a function.

    Raises:
        ToolSetupError: if it can't be described to a model, naming all mistakes.
    """
    label = function_label(function)
    hints = _hints(function, label)
    parameters = inspect.signature(function).parameters
    problems = [line for parameter in parameters.values() if (line := _parameter_problem(parameter, hints))]
    if problems:
        raise ToolSetupError(f"function {label} can't be a tool: {'; '.join(problems)}")
    contexts = tuple(name for name in parameters if _is_context(hints[name]))
    described = parse_docstring(inspect.getdoc(function) or "").arguments
    fields = {
        # Names of our own: a parameter may be called `schema` or `_x`, which a model's field must not be.
        f"p{place}": (hints[name], _field(parameter, hints[name], described.get(name)))
        for place, (name, parameter) in enumerate(parameters.items())
        if name not in contexts
    }
    model, schema = _model(label, fields)
    return FunctionArguments(model, schema, contexts)


def function_label(function: Callable[..., object]) -> str:
    """Return `module.qualname`, the same whether the module is imported or is the program that runs."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = function.__module__
    return f"{_name_of_program() if module == '__main__' else module}.{name}"


def _name_of_program() -> str:
    """Return the name by which the running script or module would be imported."""
    program = sys.modules["__main__"]
    if (spec := program.__spec__) is not None:
        return str(spec.name).removesuffix(".__main__")
    path = getattr(program, "__file__", None)
    return os.path.splitext(os.path.basename(path))[0] if path else "__main__"


def _hints(function: Callable[..., object], label: str) -> dict[str, Any]:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ToolSetupError(f"{label} can't be a tool: it is not a function")
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as problem:  # noqa: BLE001 - an annotation is code of the tool's author
        raise ToolSetupError(
            f"function {label} can't be a tool: an annotation can't be read "
            f"({type(problem).__name__}: {problem}). Types must be importable from its module at run time, "
            f"not only under TYPE_CHECKING"
        ) from None


def _parameter_problem(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> str | None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            return f"{parameter} takes any arguments; name each one"
        case inspect.Parameter.POSITIONAL_ONLY:
            return f"{parameter.name!r} is positional only; remove the / after it"
    if parameter.name not in hints:
        return f"{parameter.name!r} has no annotation; give it a type"
    return None


def _is_context(annotation: object) -> bool:
    return annotation is ToolContext or ToolContext in get_args(annotation)


def _field(parameter: inspect.Parameter, annotation: Any, description: str | None) -> Any:
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    if description and FieldInfo.from_annotation(annotation).description is None:
        return Field(default, alias=parameter.name, description=description)
    return Field(default, alias=parameter.name)


def _model(label: str, fields: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(schema_generator=_StableSchema)
        canonical(schema)
    except (PydanticUserError, TypeError, ValueError) as problem:
        why = one_line(str(problem).partition("\n")[0], 300)
        raise ToolSetupError(f"function {label} can't be a tool: its parameters have no JSON schema ({why})") from None
    return model, {"properties": {}, **without_titles(schema)}


class _StableSchema(GenerateJsonSchema):
    """The same schema in every process: the order of a set differs from one to the next."""

    # An instance variable for its base class, which only reads it.
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012
        "skipped-choice",
        "non-serializable-default",
    }

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(_ordered(dft))
        try:
            canonical(encoded)
        except ValueError as problem:  # infinity, for one; to the base class this means: leave the default out
            raise PydanticSerializationError(str(problem)) from None
        return encoded


def _ordered(value: Any) -> Any:
    match value:
        case set() | frozenset():
            return sorted(map(_ordered, value), key=repr)
        case list() | tuple():
            return [_ordered(item) for item in value]
        case dict():
            return {key: _ordered(item) for key, item in value.items()}
    return value


_OF_SCHEMAS = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
_OF_DATA = frozenset({"default", "const", "enum", "examples"})


def without_titles(schema: Any) -> Any:
    """Return a JSON schema without its `title` keywords; a property of that name stays."""
    if isinstance(schema, list):
        return [without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "title"}
    for key, value in kept.items():
        if key in _OF_SCHEMAS and isinstance(value, dict):
            kept[key] = {name: without_titles(item) for name, item in value.items()}
        elif key not in _OF_DATA:
            kept[key] = without_titles(value)
    return kept


@dataclass(frozen=True, slots=True)
class Docstring:
    """What a docstring says to a model."""

    summary: str
    """The first paragraph, on one line."""
    arguments: Mapping[str, str]
    """Descriptions from a Google-style `Args:` section."""


_ARGUMENTS_HEAD = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def parse_docstring(text: str) -> Docstring:
    """Read a docstring whose indentation was removed (`inspect.getdoc`)."""
    paragraph = text.strip().split("\n\n")[0]
    summary = "" if _ARGUMENTS_HEAD.match(paragraph) else " ".join(paragraph.split())
    return Docstring(summary, _described_arguments(text.splitlines()))


def _described_arguments(lines: list[str]) -> dict[str, str]:
    start = next((place for place, line in enumerate(lines) if _ARGUMENTS_HEAD.fullmatch(line)), len(lines))
    described: dict[str, str] = {}
    name, indent = "", 0
    for line in lines[start + 1 :]:
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if depth == 0:
            break
        found = _ARGUMENT.fullmatch(line.strip())
        if found and (not name or depth <= indent):
            name, indent = found[1], depth
            described[name] = found[2]
        elif name:
            described[name] = f"{described[name]} {line.strip()}".strip()
    return described
