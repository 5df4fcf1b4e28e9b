"""docs/cli.md says what the program says."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

from fisk_ai import errors
from fisk_ai.agent import events
from fisk_ai.cli import exits
from fisk_ai.cli.commands import cli
from fisk_ai.cli.stream import event_name, result_data
from fisk_ai.errors import FiskError
from fisk_ai.folding import Counters

from .bench import NOTE_TOOL, Bench, end, result, turn
from .conftest import Inline

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def _commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli, info_name="fisk-ai")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", found) for inner, found in command.commands.items())
        else:
            yield name, command


COMMANDS = dict(_commands())


def _section(heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no section {heading!r}"
    return found[1]


def _flag_row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else option.make_metavar(click.Context(cli)).replace("|", "\\|")
    return f"| {names[:-1]}{' ' + value if value else ''}` | {option.help} |"


@pytest.mark.parametrize("name", COMMANDS)
def test_reference_of_a_command_is_that_of_its_help(name: str) -> None:
    command = COMMANDS[name]
    context = click.Context(command, info_name=f"fisk-ai {name}")
    usage = command.get_usage(context).removeprefix("Usage: ")
    section = _section(usage)
    assert section.strip().startswith((command.help or "").partition("\n")[0])
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [_flag_row(option) for option in command.params if isinstance(option, click.Option)]


def test_no_command_is_missing_and_none_is_invented() -> None:
    described = re.findall(r"^## fisk-ai ([a-z]+(?: [a-z]+)?)", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(COMMANDS)


def test_every_help_says_what_it_does_and_ends_with_0(inline: Inline) -> None:
    for name in ("", *COMMANDS, "session"):
        shown = inline(*name.split(), "--help")
        assert (shown.code, shown.err) == (0, "")
        assert shown.text.startswith(f"Usage: fisk-ai {name}".strip())
        assert max(map(len, shown.text.splitlines())) <= 80


def test_exit_codes_are_those_of_the_program() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", _section("Exit codes"), re.MULTILINE)}
    raised = {
        error.exit_code for error in vars(errors).values() if isinstance(error, type) and issubclass(error, FiskError)
    }
    named = {value for value in vars(exits).values() if isinstance(value, int)}
    assert documented == named
    assert raised <= documented
    listed = COMMANDS["run"].epilog or ""
    assert {int(code) for code in re.findall(r"\d+", listed)} == documented


def _documented_fields(heading: str) -> list[str]:
    return re.findall(r"^\| `([a-z_]+)` \|", _section(heading), re.MULTILINE)


def _documented_events() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", _section("`run --output stream-json`"), re.MULTILINE)
    return {name: re.findall(r"`([a-z_]+)`", fields) for name, fields in rows}


def test_every_event_is_documented_with_its_fields() -> None:
    documented = _documented_events()
    plain = {event_name(kind): [each.name for each in dataclasses.fields(kind)] for kind in get_args(events.Event)}
    ended = events.RunResult("r", "completed", "", None, Counters(), 0, stored=True)
    plain["run_ended"] = list(result_data(ended))
    plain["run_resumed"] = ["run_id", "records", "counters", "next_input_tokens", "forced", "ambiguous"]
    plain["error"] = ["error"]
    assert documented == plain


def test_events_of_real_runs_have_the_documented_fields(bench: Bench, inline: Inline) -> None:
    documented = _documented_events()
    call = {"name": "note", "input": {"what": "a"}}
    bench.agent([{"text": "Go.", "calls": [call]}, {"text": "More.", "calls": [call]}, {"text": "Fine."}])
    path = bench.stored("r", turn("Go.", "a"), result("a"), turn("More.", "b"))
    path.write_bytes(path.read_bytes() + b'{"torn')
    seen = set()
    for args in (("--checkpoint", "hello"), ("--resume", "r"), ("--resume", "r")):
        run = inline("run", *args, "--output", "stream-json")
        for event in map(json.loads, run.out.splitlines()):
            assert [name for name in event if name != "event"] == documented[event["event"]]
            seen.add(event["event"])
    assert seen >= {
        "run_started",
        "run_resumed",
        "tail_repaired",
        "call_repeated",
        "tool_finished",
        "run_ended",
        "error",
    }


def test_json_of_sessions_has_the_documented_fields(bench: Bench, inline: Inline) -> None:
    bench.agent([{"text": "Fine."}], [NOTE_TOOL])
    bench.stored("r", turn("Go.", "a"), end("suspended"))
    row = _documented_fields("A row of `session ls --json`")
    assert list(inline("session", "ls", "--json", "--usage").data[0]) == row
    assert list(inline("session", "ls", "--json").data[0]) == row[:-1]
    shown = inline("session", "show", "r", "--json").data
    assert list(shown) == [*row[:-1], *_documented_fields("`session show --json`")]
    verified = _section("`session verify --json`")
    for name in inline("session", "verify", "--json").data[0]:
        assert f"`{name}`" in verified
    ended = inline("run", "--output", "json", "hello").data
    assert list(ended) == _documented_events()["run_ended"]
