"""Arguments against a JSON schema: brief words, no exceptions, no network."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from fisk_ai.tools.schema import MAX_PROBLEMS, ArgumentSchema, BadSchema


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "object"}, {}, None),
        ({"type": "object"}, [], "expected object, got array"),
        ({"required": ["a"]}, {}, "'a' is a required property"),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, {"a": 1.5}, "a: expected integer or null, got number"),
        ({"properties": {"a": {"type": "integer"}}}, {"a": True}, "a: expected integer, got boolean"),
        ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", None]}, "a[1]: expected string, got null"),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": "z"}, "a: 'z' is not one of ['x', 'y']"),
        ({"properties": {"a": {"maxLength": 3}}}, {"a": "z" * 1000}, "a: does not fit maxLength 3"),
        ({"properties": {"a": {"pattern": "^x"}}}, {"a": "\x1b[2Jy"}, "a: '\\x1b[2Jy' does not match '^x'"),
    ],
)  # fmt: skip
def test_problems_are_said_briefly(schema: dict[str, Any], value: Any, problem: str | None) -> None:
    assert ArgumentSchema(schema).problem_with(value) == problem


def test_only_the_first_problems_are_listed() -> None:
    found = ArgumentSchema({"items": {"type": "integer"}}).problem_with(["x"] * 1000)
    assert found is not None
    assert found.count("\n") == MAX_PROBLEMS
    assert found.endswith("\nand more")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#/$defs/gone"}, {}),
        ({"const": nested(500)}, nested(500)),
        ({"multipleOf": 0.1}, 10**5000),
        ({"type": "string"}, 10**5000),
    ],
    ids=["gone", "deep", "multiple", "digits"],
)
def test_what_cannot_be_checked_is_a_problem_and_no_exception(schema: dict[str, Any], value: Any) -> None:
    assert ArgumentSchema(schema).problem_with(value)


def test_remote_schema_is_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        server.setblocking(False)
        problem = ArgumentSchema({"$ref": address}).problem_with({})
        with pytest.raises(BlockingIOError):
            server.accept()
    assert problem == f"the tool's schema refers to {address!r}, which is not in it"


@pytest.mark.parametrize("schema", [{"type": "txt"}, {"properties": 3}, {"pattern": "("}, {"required": True}])
def test_bad_schema_says_why(schema: dict[str, Any]) -> None:
    with pytest.raises(BadSchema, match=r"^\$\."):
        ArgumentSchema(schema)
