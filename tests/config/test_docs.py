from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from ruamel.yaml import YAML

from fisk_ai.config import AgentConfig, load_config
from fisk_ai.config.schema import render_schema

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "agent-yaml.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]


def keys(model: type[BaseModel], place: str = "") -> Iterator[str]:
    """Yield the keys that have a value of their own, as the page spells them."""
    for name, field in model.model_fields.items():
        inner = [k for k in (field.annotation, *get_args(field.annotation)) if isinstance(k, type)]
        models = [kind for kind in inner if issubclass(kind, BaseModel)]
        in_list = "[]" if models and models[0] is not field.annotation else ""
        if not models or in_list:
            yield f"{place}{name}"
        for found in models:
            yield from keys(found, f"{place}{name}{in_list}.")


def test_the_schema_of_the_docs_is_the_models() -> None:
    stored = (DOCS / "agent.schema.json").read_text(encoding="utf-8")
    assert stored == render_schema(), "run: python -m fisk_ai.config.schema > docs/agent.schema.json"


def test_the_schema_is_a_valid_one_and_describes_every_key() -> None:
    schema = json.loads(render_schema())
    Draft202012Validator.check_schema(schema)
    for name, section in {"": schema, **schema["$defs"]}.items():
        assert section["additionalProperties"] is (name == "ServerTool")  # which is handed on as it stands
        for name, rules in section["properties"].items():
            assert "description" in rules or "$ref" in rules, name


def test_the_table_has_a_row_for_every_key_and_no_other() -> None:
    assert re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE) != []
    assert set(re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)) == set(keys(AgentConfig))


def test_the_example_loads_and_has_every_key_but_script(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(EXAMPLE, encoding="utf-8")
    assert load_config(str(path)).config.llm.thinking.mode == "budget:2048"
    names = {key.rsplit(".", 1)[-1] for key in keys(AgentConfig)} - {"script"}
    assert {name for name in names if not re.search(rf"\b{name}:", EXAMPLE)} == set()


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (EXAMPLE, True),
        ("llm: {provider: scripted, script: turns.yaml}", True),
        ("llm: {provider: openai, model: m, budget: {call_timeout: 1.5h}}", True),
        ("llm: {provider: scripted}", False),
        ("llm: {provider: openai}", False),
        ("llm: {provider: openai, model: m, script: turns.yaml}", False),
        ("llm: {provider: openai, model: m, budget: {call_timeout: 1d}}", False),
        ("llm: {provider: openai, modle: m}", False),
    ],
)
def test_the_schema_agrees_with_the_loader(text: str, valid: bool) -> None:
    value: Any = YAML(typ="safe", pure=True).load(text)
    assert Draft202012Validator(json.loads(render_schema())).is_valid(value) is valid
