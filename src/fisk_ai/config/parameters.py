"""The parameters of a command tool: one JSON schema for each, plus our own `required: true|false`.

Only keywords that are checked where the tool is called are accepted, so that a typing error isn't silently no rule.
References are left out: a parameter says all of it in its own place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from pydantic_core import InitErrorDetails

from fisk_ai.config.checks import expected, problem, raise_all, refused, unknown_key

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
"""What every provider takes as the name of a parameter."""

_ONE_SCHEMA = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_LISTED_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"dependentSchemas", "patternProperties", "properties"})
_REFERENCES = frozenset({"$anchor", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "$schema", "$vocabulary"})
_ANNOTATIONS = frozenset(
    {"$comment", "contentEncoding", "contentMediaType", "default", "deprecated", "description", "examples"}
    | {"readOnly", "title", "writeOnly"}
)
_READ_BY_OTHERS = frozenset({"else", "maxContains", "minContains", "then"})
"""Rules that jsonschema applies from within the one for `if` or `contains`."""

KEYWORDS = (frozenset(Draft202012Validator.VALIDATORS) | _READ_BY_OTHERS | _ANNOTATIONS) - _REFERENCES

_TYPES = "array, boolean, integer, null, number, object, string"
_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}
_META = Draft202012Validator(Draft202012Validator.META_SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)

Loc = tuple[int | str, ...]


def check_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Pass parameters that are sound.

    Raises:
        pydantic.ValidationError: with every mistake in its place.
    """
    raise_all([found for name, schema in parameters.items() for found in _check_parameter(name, schema)])
    return parameters


def _check_parameter(name: str, schema: Any) -> Iterator[InitErrorDetails]:
    if not NAME.fullmatch(name):
        yield problem(refused("a parameter's name is 1-64 of a-z A-Z 0-9 _ . -"), (name,), name)
    if not isinstance(schema, dict):
        yield problem(expected("a mapping with at least `type` or `enum`"), (name,), schema)
        return
    if not schema.keys() & {"type", "enum"}:
        yield problem(refused("needs at least `type` or `enum`"), (name,), schema)
    required = schema.get("required", True)
    if not isinstance(required, (bool, list)):
        yield problem(expected("true or false, or the list of what an object needs"), (name, "required"), required)
    own_rules = {key: rule for key, rule in schema.items() if key != "required" or isinstance(rule, list)}
    yield from _check_keywords((name,), own_rules)
    yield from _check_rules((name,), own_rules)


def _check_keywords(loc: Loc, schema: Any) -> Iterator[InitErrorDetails]:
    """Find keywords that no rule stands behind, here and in the schemas inside."""
    if not isinstance(schema, dict):
        return
    for keyword, rule in schema.items():
        if keyword in _REFERENCES:
            text = "references aren't supported: write the schema out"
            yield problem(refused(text), (*loc, keyword), rule)
        elif keyword not in KEYWORDS:
            yield problem(unknown_key(KEYWORDS), (*loc, keyword), rule)
    for inner_loc, inner in _inner_schemas(loc, schema):
        yield from _check_keywords(inner_loc, inner)


def _inner_schemas(loc: Loc, schema: Mapping[str, Any]) -> Iterator[tuple[Loc, Any]]:
    for keyword, rule in schema.items():
        if keyword in _ONE_SCHEMA:
            yield (*loc, keyword), rule
        elif keyword in _NAMED_SCHEMAS and isinstance(rule, dict):
            yield from (((*loc, keyword, name), inner) for name, inner in rule.items())
        elif keyword in _LISTED_SCHEMAS and isinstance(rule, list):
            yield from (((*loc, keyword, at), inner) for at, inner in enumerate(rule))


def _check_rules(loc: Loc, schema: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    """Check what stands behind the keywords against the meta-schema of JSON Schema 2020-12."""
    for error in _META.iter_errors(schema):
        where: Loc = (*loc, *error.absolute_path)
        yield problem(expected(_wanted(error)), where, error.instance)


def _wanted(error: ValidationError) -> str:
    """Say what the meta-schema wanted; its own message would quote the value."""
    if error.absolute_path and error.absolute_path[-1] == "type":
        return f"one of {_TYPES}, or a list of them"
    wanted = error.validator_value
    match error.validator:
        case "type":
            kinds = [str(kind) for kind in (wanted if isinstance(wanted, list) else [wanted])]
            return " or ".join("a schema" if len(kinds) > 1 and k == "object" else _KINDS.get(k, k) for k in kinds)
        case "format":
            return "a regular expression"
        case "minimum":
            return f"a number of at least {wanted}"
        case "exclusiveMinimum":
            return f"a number greater than {wanted}"
        case "minItems":
            return "a list with at least one item"
        case "uniqueItems":
            return "a list without doubled items"
    return "what JSON Schema 2020-12 allows here"
