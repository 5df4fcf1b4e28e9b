"""What `fisk_ai` exports: pinned, lazy, and described on the library's page."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import fisk_ai
from fisk_ai import Agent, CommandTool, Event, RunInfo, RunResult, RunState, new_meta

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()

NAMES = [
    "Agent",
    "AssistantRecord",
    "Budget",
    "Call",
    "CallRepeated",
    "CommandTool",
    "Control",
    "Counters",
    "EndOfChat",
    "EndOfInput",
    "Event",
    "FileStore",
    "Fingerprint",
    "FiskError",
    "Folding",
    "FunctionTool",
    "ImageBlock",
    "ImageSource",
    "InputAwaited",
    "InputRecorded",
    "InputSource",
    "Journal",
    "Line",
    "MemoryStore",
    "Message",
    "MetaRecord",
    "ModelCalled",
    "ModelOptions",
    "ModelRetried",
    "Noticed",
    "OnEvent",
    "OrphanFound",
    "Pending",
    "Provider",
    "Record",
    "ResumeOptions",
    "RetryPolicy",
    "RunEnded",
    "RunInfo",
    "RunResult",
    "RunResumed",
    "RunStarted",
    "RunState",
    "RunStream",
    "ScriptedProvider",
    "SequencedRecord",
    "Store",
    "TailRepaired",
    "TerminalRecord",
    "TextBlock",
    "TextStreamed",
    "Tool",
    "ToolContext",
    "ToolFinished",
    "ToolHashes",
    "ToolOutput",
    "ToolResultRecord",
    "ToolStarted",
    "Turn",
    "TurnRecorded",
    "UserRecord",
    "fold",
    "load_agent",
    "make_fingerprint",
    "new_meta",
    "new_run_id",
    "open_provider",
    "open_store",
    "tool",
    "tool_hashes",
    "tool_result",
    "user_text",
]


def test_exported_names_are_these() -> None:
    assert fisk_ai.__all__ == NAMES
    assert dir(fisk_ai) == sorted(NAMES)
    assert all(getattr(fisk_ai, name) is not None for name in NAMES)


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Agents'"):
        fisk_ai.Agents  # noqa: B018


def test_every_event_is_exported() -> None:
    assert {kind.__name__ for kind in get_args(Event)} <= set(NAMES)


def test_importing_the_package_loads_nothing() -> None:
    script = (
        "import sys; before = set(sys.modules); import fisk_ai; fisk_ai.__all__; dir(fisk_ai)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = ended.stdout.split()
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == ["fisk_ai"]
    assert not {"typing", "asyncio", "dataclasses"} & set(loaded)


@pytest.mark.parametrize("name", NAMES)
def test_page_names_every_exported_name(name: str) -> None:
    assert re.search(rf"`(await |async with )?{name}\b", PAGE)


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_page_has_every_event_with_its_fields(kind: type) -> None:
    fields = ", ".join(f"`{each.name}`" for each in dataclasses.fields(kind))
    assert f"| `{kind.__name__}` | {fields}{' ' if fields else ''}|" in PAGE


@pytest.mark.parametrize("kind", [RunResult, RunState, RunInfo], ids=lambda kind: kind.__name__)
def test_page_has_the_fields_of_what_is_returned(kind: type) -> None:
    assert all(f"`{each.name}`" in PAGE for each in dataclasses.fields(kind))


@pytest.mark.parametrize("described", [Agent, CommandTool], ids=lambda kind: kind.__name__)
def test_page_has_every_parameter(described: type) -> None:
    [table] = [
        table for table in PAGE.split("\n\n") if f"`{'call_timeout_s' if described is Agent else 'argv'}` |" in table
    ]
    names = set(inspect.signature(described).parameters) - {"name", "description"}
    assert {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])} == names


@pytest.mark.parametrize("method", ["run", "resume", "stream", "stream_resume", "run_sync", "resume_sync"])
def test_page_has_the_signatures_of_the_agents_methods(method: str) -> None:
    shown = _shown(list(inspect.signature(getattr(Agent, method)).parameters.values())[1:])
    assert f" {method}({', '.join(shown)})`" in PAGE.replace("`" + method, "` " + method)


def test_page_has_the_signature_of_new_meta() -> None:
    shown = _shown([each for each in inspect.signature(new_meta).parameters.values() if each.name != "clock"])
    assert f"`new_meta({', '.join(shown)})`".replace("'", '"') in re.sub(r"\s+", " ", PAGE)


def _shown(parameters: list[inspect.Parameter]) -> list[str]:
    shown = [each.name if each.default is each.empty else f"{each.name}={each.default!r}" for each in parameters]
    first = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    return shown if first is None else [*shown[:first], "*", *shown[first:]]
