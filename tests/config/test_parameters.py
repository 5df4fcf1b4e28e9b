from __future__ import annotations

from typing import Any

import pytest

from .conftest import Load, Problems

COMMAND = """\
llm: {provider: openai, model: m}
tools:
  commands:
  - name: a
    description: d
    argv: [a]
    parameters:
"""


def found(problems: Problems, parameter: str) -> list[str]:
    """Return the problems of the parameter `p`, without the place."""
    prefix = "tools.commands[0].parameters.p"
    return [line.split(": ", 1)[1].removeprefix(prefix) for line in problems(f"{COMMAND}      p: {parameter}")]


@pytest.mark.parametrize(
    ("written", "schema"),
    [
        ("{type: string}", {"type": "string"}),
        ("{enum: [a, 1, null]}", {"enum": ["a", 1, None]}),
        ("{type: [string, 'null'], required: false}", {"type": ["string", "null"], "required": False}),
        (
            "{type: object, properties: {x: {type: integer}}, additionalProperties: false}",
            {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False},
        ),
        (
            "{type: array, items: {type: object, required: [x]}, minItems: 1}",
            {"type": "array", "items": {"type": "object", "required": ["x"]}, "minItems": 1},
        ),
        ("{type: object, required: [x]}", {"type": "object", "required": ["x"]}),
        ("{type: string, default: 2026-12-01}", {"type": "string", "default": "2026-12-01"}),
    ],
)
def test_sound_parameters_stay_as_they_were_written(load: Load, written: str, schema: dict[str, Any]) -> None:
    assert load(f"{COMMAND}      p: {written}").tools.commands[0].parameters == {"p": schema}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("string", ": expected a mapping with at least `type` or `enum`, found 'string'"),
        ("", ": expected a mapping with at least `type` or `enum`, found nothing"),
        ("{description: d}", ": needs at least `type` or `enum`"),
        ("{type: str}", ".type: expected one of array, boolean, integer, null, number, object, string, or a list of"),
        (
            "{type: string, required: yes}",
            ".required: expected true or false, or the list of what an object needs, found 'yes'",
        ),
        ("{type: object, required: [5]}", ".required[0]: expected text, found 5"),
        ("{type: string, descripton: d}", ".descripton: unknown key, did you mean description?"),
        ("{type: string, minLength: -1}", ".minLength: expected a number of at least 0, found -1"),
        ("{type: string, minLength: a}", ".minLength: expected an integer, found 'a'"),
        ("{type: number, multipleOf: 0}", ".multipleOf: expected a number greater than 0, found 0"),
        ("{type: string, pattern: '('}", ".pattern: expected a regular expression, found '('"),
        ("{enum: a}", ".enum: expected a list, found 'a'"),
        ("{type: string, description: 5}", ".description: expected text, found 5"),
        ("{type: object, properties: {x: {typ: string}}}", ".properties.x.typ: unknown key, did you mean type?"),
        ("{type: object, properties: {x: {required: true}}}", ".properties.x.required: expected a list, found true"),
        ("{type: array, items: 5}", ".items: expected a schema or true or false, found 5"),
        ("{type: array, prefixItems: []}", ".prefixItems: expected a list with at least one item, found an empty list"),
        ("{type: object, required: true, properties: {x: {required: [y, y]}}}", ".properties.x.required: expected a"),
        ("{type: string, anyOf: [{type: string}, {mum: 1}]}", ".anyOf[1].mum: unknown key"),
        ("{type: string, $ref: 'http://example.com'}", ".$ref: references aren't supported: write the schema out"),
    ],
)
def test_unsound_parameters_are_named_by_their_place(problems: Problems, written: str, problem: str) -> None:
    [line] = found(problems, written)
    assert line.startswith(problem)


def test_all_mistakes_of_all_parameters_are_named(problems: Problems) -> None:
    lines = problems(COMMAND + "      p: {type: str, minLenght: 1}\n      q: 5\n      'r s': {type: string}\n")
    assert [line.split(" ")[0] for line in lines] == [
        "agent.yaml:8:17:",
        "agent.yaml:8:22:",
        "agent.yaml:9:10:",
        "agent.yaml:10:14:",
    ]
    assert lines[3].endswith("parameters.r s: a parameter's name is 1-64 of a-z A-Z 0-9 _ . -")


def test_a_default_under_a_secret_name_is_not_shown(problems: Problems) -> None:
    [line] = problems(COMMAND + "      api_key: {type: string, description: [], pattern: '(hunter2'}\n")[1:]
    assert line.endswith("found a value that isn't shown, as it may be a secret")


def test_schemas_as_deep_as_a_file_may_be_are_checked(load: Load) -> None:
    deep = "{type: array, items: " * 30 + "{type: string}" + "}" * 30
    assert load(f"{COMMAND}      p: {deep}").tools.commands[0].parameters["p"]["type"] == "array"
