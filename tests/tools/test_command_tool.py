"""Commands as tools: arguments, environment, what the model is told."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from fisk_ai.errors import ToolSetupError
from fisk_ai.fingerprint import tool_hashes
from fisk_ai.messages import NO_OUTPUT
from fisk_ai.tools import CommandTool, Tool, ToolContext
from fisk_ai.tools.command import MAX_OUTPUT_BYTES

from .doubles import FileGuard, Signpost, said

pytestmark = pytest.mark.anyio

TEXT = {"type": "string", "description": "Any text"}


def shell(script: str, *, timeout_s: float | None = 60.0) -> CommandTool:
    """A tool without parameters."""
    script = script.replace("{", "{{").replace("}", "}}")
    return CommandTool("shell", "Runs a script", ["sh", "-c", script], {}, timeout_s=timeout_s)


def show(parameters: Mapping[str, Mapping[str, Any]], *argv: str) -> CommandTool:
    """A tool that prints its arguments, each in brackets."""
    return CommandTool("show", "Shows its arguments", ["printf", "<%s>", *argv], parameters)


def test_is_a_tool() -> None:
    tool: Tool = show({"path": TEXT}, "{path}")
    assert tool.name == "show"
    assert tool.description == "Shows its arguments"
    assert tool.parameters == {
        "type": "object",
        "properties": {"path": TEXT},
        "required": ["path"],
        "additionalProperties": False,
    }
    assert tool.identity == {"argv": ["printf", "<%s>", "{path}"], "parallel": False}
    assert (tool.on_crash, tool.parallel, tool.timeout_s) == ("rerun", False, 60.0)
    assert tool.starts_processes
    assert tool_hashes(tool.description, tool.parameters, tool.identity).command


def test_parameters_with_a_default_or_marked_so_are_optional() -> None:
    specs: dict[str, dict[str, Any]] = {"a": TEXT, "b": {**TEXT, "default": "x"}, "c": {**TEXT, "required": False}}
    tool = show(specs, "{a}{b}{c}")
    assert tool.parameters["required"] == ["a"]
    assert tool.parameters["properties"]["c"] == TEXT


@pytest.mark.parametrize(
    "value",
    ["; rm -rf /", "$(id) `id` $HOME", "-rf", "--", "a b\tc\nd", "*", "{path}", "}}{{", "'\"\\", "👩‍👩‍👧", "\x1b[2J"],
)
async def test_text_reaches_the_command_unchanged_as_one_argument(value: str, context: ToolContext) -> None:
    output = await show({"path": TEXT}, "{path}", "p={path}").call({"path": value}, context)
    assert said(output) == f"<{value}><p={value}>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "true"), (3, "3"), (0.5, "0.5"), (None, "null"), ([1, "é"], '[1,"é"]'), ({"a": {"b": 1}}, '{"a":{"b":1}}')],
)
async def test_other_values_are_passed_as_compact_json(value: object, shown: str, context: ToolContext) -> None:
    assert said(await show({"it": {}}, "{it}").call({"it": value}, context)) == f"<{shown}>"


async def test_doubled_braces_are_braces(context: ToolContext) -> None:
    assert said(await show({"x": TEXT}, "{{{x}}}", "{{x}}").call({"x": "1"}, context)) == "<{1}><{x}>"


async def test_missing_optional_parameter_gives_its_default_or_drops_the_argument(context: ToolContext) -> None:
    specs = {"depth": {"type": "integer", "default": 2}, "only": {**TEXT, "required": False}}
    tool = show(specs, "-d{depth}", "--only={only}", "end")
    assert said(await tool.call({}, context)) == "<-d2><end>"
    assert said(await tool.call({"depth": 3, "only": ""}, context)) == "<-d3><--only=><end>"


@pytest.mark.parametrize(
    ("argv", "parameters", "problems"),
    [
        ([], {}, ["argv is empty"]),
        (["{x}"], {"x": TEXT}, ["argv[0], the program"]),
        (
            ["echo", "{y}", "{"],
            {"x": TEXT},
            ["{y}, which is no parameter", "argv[2] has a single '{'", "'x' is used nowhere"],
        ),
        (["find", "{}"], {}, ["{}, which is no parameter (braces are written {{ and }})"]),
        (["echo", "a\0"], {}, ["argv[1] holds a NUL"]),
        (["echo", "{x}"], {"x": {"type": "txt"}}, ["not a JSON schema", "txt"]),
        (["echo", "{x}"], {"x": {"type": "integer", "default": "a"}}, ["a default doesn't fit: x: expected integer"]),
        (["echo", "{x}"], {"x": {"maximum": math.inf}}, ["not a JSON schema"]),
        ("echo hello", {}, ["argv is a list of arguments, not one text"]),
        (["echo", "{x y}"], {"x y": TEXT}, ["a parameter's name is"]),
    ],
)
def test_mistakes_in_the_declaration_are_all_named(
    argv: list[str] | str, parameters: dict[str, dict[str, Any]], problems: list[str]
) -> None:
    with pytest.raises(ToolSetupError) as refused:
        CommandTool("bad", "Does it", argv, parameters)
    assert all(problem in str(refused.value) for problem in problems), refused.value
    assert "tool 'bad'" in str(refused.value)


def test_bad_name_on_crash_and_time_limit_are_named_together() -> None:
    with pytest.raises(ToolSetupError) as refused:
        CommandTool("no spaces", "Does it", ["true"], {}, on_crash="retry", timeout_s=0)  # type: ignore[arg-type]
    assert all(word in str(refused.value) for word in ("a name is 1-64", "rerun, ask, skip", "time limit"))


async def test_arguments_are_checked_before_anything_runs(tmp_path: Path, context: ToolContext) -> None:
    mark = tmp_path / "ran"
    tool = CommandTool("touch", "Does it", ["touch", str(mark), "-d", "@{t}"], {"t": {"type": "integer"}})
    output = await tool.call({"t": "now", "u": 1}, context)
    assert output.is_error
    assert "t: expected integer, got string" in said(output)
    assert "'u' was unexpected" in said(output)
    assert not mark.exists()


@pytest.mark.parametrize("value", ["a\0b", 10**5000], ids=["NUL", "digits"])
async def test_values_that_no_argument_can_hold_are_refused(value: object, context: ToolContext) -> None:
    tool = show({"it": {}}, "{it}")
    assert "it: " in str(tool.problem_with({"it": value}))
    assert (await tool.call({"it": value}, context)).is_error


async def test_lone_surrogate_in_an_argument_is_an_error_result(context: ToolContext) -> None:
    output = await show({"it": TEXT}, "{it}").call({"it": "\ud83d"}, context)
    assert output.is_error
    assert "can't be started" in said(output)


async def test_argument_that_the_system_refuses_is_an_error_result(context: ToolContext) -> None:
    output = await show({"it": TEXT}, "{it}").call({"it": "x" * 200_000}, context)
    assert output.is_error
    assert "Argument list too long" in said(output)


async def test_environment_has_the_call_and_not_the_keys(context: ToolContext) -> None:
    environ = {
        "PATH": "/usr/bin:/bin",
        "ANTHROPIC_API_KEY": "sk-secret",
        "COPY": "sk-secret",
        "OPENAI_API_KEY": "sk-given",
        "GIVEN_COPY": "sk-given",
        "AWS_BEARER_TOKEN_BEDROCK": "",
        "EMPTY": "",
        "FISK_AI_RUN_ID": "of an outer run",
    }
    tool = CommandTool(
        "env",
        "Shows the environment",
        ["env"],
        {},
        environ=environ,
        hidden_env={"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"},
        pass_env=["OPENAI_API_KEY"],
    )
    seen = dict(line.split("=", 1) for line in said(await tool.call({}, context)).splitlines())
    assert seen == {
        "PATH": "/usr/bin:/bin",
        "OPENAI_API_KEY": "sk-given",
        "GIVEN_COPY": "sk-given",
        "EMPTY": "",
        "FISK_AI_RUN_ID": context.run_id,
        "FISK_AI_TOOL_USE_ID": context.call_id,
        "FISK_AI_IDEMPOTENCY_KEY": context.idempotency_key,
    }


async def test_environment_is_the_runners_at_the_time_of_the_call(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = shell('echo "$LATE"')
    monkeypatch.setenv("LATE", "set after construction")
    assert said(await tool.call({}, context)) == "set after construction\n"


async def test_working_directory_is_the_given_one(tmp_path: Path, context: ToolContext) -> None:
    tool = CommandTool("pwd", "Does it", ["pwd"], {}, cwd=str(tmp_path))
    assert said(await tool.call({}, context)).strip() == str(tmp_path)


async def test_success_without_output_says_so(context: ToolContext) -> None:
    output = await shell("echo; echo ' '").call({}, context)
    assert (said(output), output.is_error) == (NO_OUTPUT, False)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo out; echo err >&2; exit 3", "out\nerr\n[exit status 3]"),
        ("printf out; exit 1", "out\n[exit status 1]"),
        ("exit 2", "[exit status 2]"),
        ("kill -SEGV $$", "[ended by SIGSEGV]"),
        ("kill -35 $$", "[ended by signal 35]"),
    ],
)
async def test_failure_is_an_error_result_with_output_and_status(script: str, told: str, context: ToolContext) -> None:
    output = await shell(script).call({}, context)
    assert (said(output), output.is_error) == (told, True)


async def test_program_that_cannot_be_started_is_an_error_result(context: ToolContext) -> None:
    output = await CommandTool("gone", "Does it", ["no-such-program"], {}).call({}, context)
    assert output.is_error
    assert said(output) == "'no-such-program' can't be started: No such file or directory"


async def test_time_limit_says_that_it_may_have_taken_effect(
    guard: FileGuard, tmp_path: Path, context: ToolContext
) -> None:
    guard.ready = Signpost(tmp_path)
    tool = shell(f"echo so far; echo > {guard.ready.path}; sleep 600", timeout_s=0.01)
    output = await tool.call({}, replace(context, guard=guard))
    assert output.is_error
    assert said(output) == "so far\n[timed out after 0.01 s; it may have taken effect]"


async def test_abort_leaves_no_process_and_no_result(guard: FileGuard, tmp_path: Path, context: ToolContext) -> None:
    signpost = Signpost(tmp_path)
    tool = shell(f'sh -c "echo > {signpost.path}; sleep 600" & wait')
    outputs: list[object] = []

    async def call() -> None:
        outputs.append(await tool.call({}, replace(context, guard=guard)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await signpost.reached()
        tasks.cancel_scope.cancel()
    guard.wait_until_nobody_holds_it()
    assert outputs == []


async def test_invalid_bytes_become_replacement_characters(context: ToolContext) -> None:
    output = await shell(r"printf '\377\376 ok \360'; printf 'W\000s\000'").call({}, context)
    assert said(output) == "\ufffd\ufffd ok \ufffdW\0s\0"


@pytest.mark.parametrize("offset", range(-4, 5))
async def test_long_output_is_cut_between_characters(offset: int, context: ToolContext) -> None:
    before = MAX_OUTPUT_BYTES + offset
    script = f"import sys; sys.stdout.buffer.write(b'x' * {before} + '👩'.encode() + b'y' * 100000)"
    output = await CommandTool("long", "Does it", [sys.executable, "-SEc", script], {}).call({}, context)
    kept, _, mark = said(output).rpartition("\n")
    assert kept == "x" * min(before, MAX_OUTPUT_BYTES) + ("👩" if offset == -4 else "")
    assert mark == f"[shortened: {len(kept.encode())} of {before + 100_004} bytes shown]"
    assert not output.is_error
