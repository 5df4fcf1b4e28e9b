"""What a run depends on, and what is said when it changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fisk_ai.fingerprint import diff, hash_text, make_fingerprint, tool_hashes
from fisk_ai.records import Fingerprint, ToolHashes
from tests.strategies import fingerprint

SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": "é"}}}


def tools(**changes: ToolHashes | None) -> dict[str, ToolHashes]:
    found: dict[str, ToolHashes | None] = {
        "lookup": tool_hashes("Look up", SCHEMA, {"function": "mytools:lookup", "parallel": False}),
        "du": tool_hashes("Size", SCHEMA, {"argv": ["du", "-sh", "{path}"], "parallel": False}),
        **changes,
    }
    return {name: hashes for name, hashes in found.items() if hashes is not None}


def make(**changes: object) -> Fingerprint:
    fields: dict[str, object] = {
        "provider": "anthropic",
        "model": "claude-sonnet-5",
        "system_prompt": "You report.\n",
        "tools": tools(),
        "max_tokens": 1000,
        "max_iterations": 5,
        **changes,
    }
    return make_fingerprint(**fields)  # type: ignore[arg-type]


def test_the_same_configuration_is_no_change() -> None:
    assert diff(make(), make()) == []
    assert make(tools=dict(reversed(tools().items()))) == make()


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"provider": "openai"}, "provider", "provider anthropic is now openai"),
        ({"model": "claude-opus-5"}, "model", "model claude-sonnet-5 is now claude-opus-5"),
        ({"thinking_mode": "budget:4096"}, "thinking_mode", "thinking mode off is now budget:4096"),
        ({"max_tokens": 2000}, "max_tokens", "token budget 1000 is now 2000"),
        ({"max_tokens": None}, "max_tokens", "token budget 1000 is now unlimited"),
        ({"max_iterations": 6}, "max_iterations", "iteration budget 5 is now 6"),
        ({"system_prompt": "You report. \n"}, "system_prompt", "system prompt with hash "),
    ],
)
def test_each_change_is_named_with_old_and_new(change: dict[str, object], field: str, said: str) -> None:
    found = diff(make(), make(**change))
    assert [each.field for each in found] == [field]
    assert found[0].text.startswith(said)


def test_the_prompt_itself_is_never_shown() -> None:
    found = diff(make(system_prompt="secret one"), make(system_prompt="secret two"))
    assert "secret" not in found[0].text
    assert "secret" not in repr(make(system_prompt="secret one"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (tools(fetch=tool_hashes("Fetch", {}, {})), "tools added: fetch"),
        (tools(du=None), "tools removed: du"),
        (tools(du=None, fetch=tool_hashes("Fetch", {}, {})), "tools added: fetch; removed: du"),
        (
            tools(du=tool_hashes("Size!", SCHEMA, {"argv": ["du", "-sh", "{path}"], "parallel": False})),
            "tools changed: du (description)",
        ),
        (
            tools(du=tool_hashes("Size", {"type": "object"}, {"argv": ["du", "-s", "{path}"], "parallel": False})),
            "tools changed: du (parameters, command)",
        ),
        (
            tools(lookup=tool_hashes("Look up", SCHEMA, {"function": "mytools:lookup", "parallel": True})),
            "tools changed: lookup (command)",
        ),
    ],
)
def test_tools_that_changed_are_named_with_what_changed(changed: dict[str, ToolHashes], said: str) -> None:
    assert [(each.field, each.text) for each in diff(make(), make(tools=changed))] == [("tools", said)]


def test_tools_of_other_origin_cannot_be_compared() -> None:
    foreign = msgspec.structs.replace(make(), tools=None)
    assert "can't be compared" in diff(foreign, make())[0].text


def test_a_tampered_hash_of_all_tools_is_noticed() -> None:
    changed = msgspec.structs.replace(make(), tools_hash="0" * 64)
    assert diff(changed, make())[0].text == "the hash of the tool set differs"


def test_hashes_are_those_of_the_format_page() -> None:
    hashes = tool_hashes("Size", {"b": 1, "a": "é"}, {})
    assert hashes.parameters == hashlib.sha256('{"a":"é","b":1}'.encode()).hexdigest()
    assert hashes.description == hashlib.sha256(b'"Size"').hexdigest()
    assert make().system_hash == hash_text("You report.\n") == hashlib.sha256(b"You report.\n").hexdigest()


def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    code = "from tests.strategies import fingerprint; print(fingerprint().tools_hash)"
    root = str(Path(__file__).parents[2])
    for seed, zone in (("0", "UTC"), ("1", "Pacific/Auckland")):
        environment = {
            **os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C",
        }  # fmt: skip
        said = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, check=True, text=True
        )
        assert said.stdout.strip() == fingerprint().tools_hash
