from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fisk_ai.config import AgentConfig, load_config
from fisk_ai.config.load import NOT_IN_THIS_VERSION
from fisk_ai.errors import ConfigError
from fisk_ai.text import one_line

from .conftest import Problems

SMALLEST = "llm: {provider: openai, model: m}\n"


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    [line] = caught.value.problems
    return line


def test_the_path_is_kept_and_its_directory_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.yaml").write_text(SMALLEST)
    monkeypatch.chdir(tmp_path)
    loaded = load_config("sub/a.yaml")
    assert (loaded.path, loaded.directory) == ("sub/a.yaml", str(tmp_path / "sub"))
    assert isinstance(loaded.config, AgentConfig)


def test_seven_mistakes_in_one_file_give_seven_lines(problems: Problems) -> None:
    text = """\
        identity: ""
        llm:
          provider: antropic
          modle: m
          budget:
            call_timeout: -1
            max_tokens: 'x'
        tools:
          commands:
            - name: disk_usage
              argv: [du, -sh, 5]
        """
    limit = "an integer greater than 0, or null for no limit"
    duration = "a duration like 500ms, 120s, 2m or 1h, or a number of seconds, above 0 and at most 8760h"
    assert problems(text) == [
        "agent.yaml:1:11: identity: expected a name: text on one line, not blank, found ''",
        "agent.yaml:3:13: llm.provider: expected one of anthropic, openai, pydantic-ai, scripted, found 'antropic'",
        "agent.yaml:4:3: llm.modle: unknown key, did you mean model?",
        f"agent.yaml:6:19: llm.budget.call_timeout: expected {duration}, found -1",
        f"agent.yaml:7:17: llm.budget.max_tokens: expected {limit}, found 'x'",
        "agent.yaml:10:7: tools.commands[0].description: is missing",
        "agent.yaml:11:23: tools.commands[0].argv[2]: expected text, found 5",
    ]


def test_flaws_of_the_yaml_and_of_the_values_come_together_in_the_order_of_the_file(problems: Problems) -> None:
    lines = problems(
        """\
        colour: blue
        llm: {provider: openai, model: m, stream: on}
        identity: "\\0"
        llm: {}
        """
    )
    assert [line.split(": ", 1)[1] for line in lines] == [
        "colour: unknown key",
        "llm.stream: expected true or false, found 'on'",
        "identity: isn't usable as text: it holds a NUL character",
        "llm: is there twice: line 2 has it already",
    ]


def test_one_mistake_is_told_once(problems: Problems) -> None:
    """A misspelled key is also missing, and an unusable number is also not above 0."""
    assert len(problems("llm: {provider: openai, modle: m, max_output_tokens: 1e999}")) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lllm: {}", "1:1: lllm: unknown key, did you mean llm?"),
        (SMALLEST + "max_tokens: 5", "2:1: max_tokens: unknown key: it belongs at llm.budget.max_tokens"),
        (SMALLEST + "on_crash: ask", "2:1: on_crash: unknown key: it belongs at tools.commands.on_crash"),
        (SMALLEST + "<<: {a: 1}", "2:1: <<: unknown key"),
        (SMALLEST + "'': 1", "2:1: : unknown key"),
        (SMALLEST + "sessions: {path: x}", "2:12: sessions.path: unknown key"),
        (SMALLEST + "tools: {mcp: [{name: x}]}", "2:9: tools.mcp: MCP servers aren't supported by this version"),
    ],
)
def test_unknown_keys_are_named_with_what_may_have_been_meant(problems: Problems, text: str, problem: str) -> None:
    assert problems(text) == [f"agent.yaml:{problem}"]


def test_keys_of_later_versions_are_not_keys_of_this_one() -> None:
    for path in NOT_IN_THIS_VERSION:
        with pytest.raises(KeyError):
            AgentConfig.model_json_schema()["$defs"]["ToolsConfig"]["properties"][path[-1]]


def test_doubled_tools_are_named_with_both_lines_beside_other_mistakes(problems: Problems) -> None:
    text = SMALLEST + (
        "tools:\n  commands:\n  - {name: a, description: d, argv: [a]}\n  - {name: b, argv: [b]}\n"
        "  - {name: a, description: d, argv: [c]}\n  python: [m:f, m:g, m:f]\n"
    )
    assert problems(text) == [
        "agent.yaml:5:5: tools.commands[1].description: is missing",
        "agent.yaml:6:12: tools.commands[2].name: the tool 'a' is there twice: line 4 has it already",
        "agent.yaml:7:22: tools.python[2]: the tool 'm:f' is there twice: line 7 has it already",
    ]


def test_doubled_names_in_one_anchor_are_found_too(problems: Problems) -> None:
    text = SMALLEST + "tools:\n  commands:\n  - &a {name: a, description: d, argv: [a]}\n  - *a\n"
    assert problems(text) == [
        "agent.yaml:4:15: tools.commands[1].name: the tool 'a' is there twice: line 4 has it already"
    ]


@pytest.mark.parametrize("text", ["[]", "text", "---", "5"])
def test_a_file_that_is_no_mapping_is_refused(problems: Problems, text: str) -> None:
    [line] = problems(text)
    assert "expected a mapping, found " in line


def test_shown_values_are_short_and_cannot_drive_a_terminal(problems: Problems) -> None:
    [line] = problems('llm: {provider: "\\e[2J\\n%s", model: m}' % ("x" * 500))
    assert line.endswith("found '" + "x" * 39 + "…'")
    [line] = problems(SMALLEST + '"\\e[2Ja\\nb": 1')
    assert line == "agent.yaml:2:1: a b: unknown key"


@pytest.mark.parametrize(
    "text",
    [
        "llm: {provider: openai, model: m, api_key: hunter2}",
        "llm: {provider: openai, model: m, api_key_env: 'hunter2 '}",
        "llm: {provider: openai, model: m, base_url: 'https://u:hunter2@[h'}",
        SMALLEST + "password: hunter2",
        SMALLEST + "sessions: {store: [hunter2]}",
    ],
)
def test_secrets_are_not_repeated(problems: Problems, text: str) -> None:
    assert "hunter2" not in "\n".join(problems(text))


def test_a_missing_file_is_named_with_the_place_that_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("agent.yaml") == (
        f"there is no configuration agent.yaml (looked for {tmp_path}/agent.yaml): "
        "write one, or name another with --config"
    )
    assert (
        refusal(f"{tmp_path}/x") == f"there is no configuration {tmp_path}/x: write one, or name another with --config"
    )


def test_a_directory_is_told_apart(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == f"{tmp_path} is a directory: name the file in it with --config"


def test_a_working_directory_that_is_gone_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert refusal("agent.yaml").startswith("there is no configuration agent.yaml: ")


@pytest.mark.parametrize("path", ["a\0b", "\udc80/\ud800", "x" * 5000, "", "/dev/null/x"])
def test_paths_that_cannot_be_opened_are_refused(path: str) -> None:
    assert "--config" in refusal(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(SMALLEST)
    path.chmod(0)
    assert "Permission denied" in refusal(str(path))


def test_an_endless_file_is_read_only_to_the_limit() -> None:
    assert refusal("/dev/zero") == "/dev/zero: is larger than 1024 KiB"


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, SMALLEST.encode())
    os.close(writing)
    assert load_config(f"/dev/fd/{reading}").config.llm.model == "m"
    os.close(reading)


def problems_or_none(path: Path) -> tuple[str, ...]:
    """Return what is wrong with a file, at least one line if it can't be loaded."""
    try:
        load_config(str(path))
    except ConfigError as refused:
        return refused.problems or ("no problem was named",)
    return ()


KEYS = ["llm", "provider", "model", "tools", "commands", "name", "description", "argv", "parameters", "type", "budget"]
KEYS += ["max_tokens", "on_crash", "parallel", "pass_env", "script", "thinking", "mcp", "required", "[key]", "items"]
VALUES = [
    "openai",
    "scripted",
    "rerun",
    "1",
    "-0o",
    "1e9",
    "~",
    "on",
    "*a",
    "&a",
    "!x",
    '"\\ud83d"',
    "|",
    "'",
    "#",
    "%",
]
LAYOUT = ["\n", "\n  ", "\n- ", "\n  - ", ": ", "{", "}", "[", "]", ", ", "---\n", "\t", "? "]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.lists(st.sampled_from(KEYS + VALUES + LAYOUT), max_size=40).map(lambda parts: "".join(parts).encode()),
    )
)
def test_any_bytes_give_a_configuration_or_a_configuration_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(raw)
    lines = problems_or_none(path)
    assert all(line.startswith(str(path)) and line == one_line(line, 2000) for line in lines)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON, JSON, JSON)
def test_any_values_give_a_configuration_or_a_configuration_error(
    tmp_path: Path, llm: object, command: object, parameter: object
) -> None:
    """JSON is YAML, so the shape of a file can be right while what stands in it is not."""
    path = tmp_path / "agent.yaml"
    commands = [command, {"name": "a", "description": "d", "argv": ["a"], "parameters": {"p": parameter}}]
    path.write_text(json.dumps({"llm": llm, "tools": {"commands": commands}}))
    lines = problems_or_none(path)
    assert len(set(lines)) == len(lines)
