from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fisk_ai.config import AgentConfig, CommandConfig, LlmConfig, ThinkingConfig

from .conftest import Load, Problems

LLM = "llm: {provider: anthropic, model: m}\n"


def test_a_provider_and_a_model_are_enough(load: Load) -> None:
    config = load(LLM)
    assert (config.identity, config.system_prompt, config.sessions.store) == ("agent", "", "file")
    assert (config.tools.commands, config.tools.python) == ([], [])
    llm = config.llm
    assert (llm.max_output_tokens, llm.stream, llm.base_url, llm.api_key_env) == (8192, True, None, None)
    assert (llm.budget.max_tokens, llm.budget.max_iterations, llm.budget.call_timeout) == (200_000, 50, 120.0)
    assert llm.thinking.mode == "off"


def test_a_command_needs_a_name_a_description_and_an_argv(load: Load) -> None:
    [command] = load(LLM + "tools: {commands: [{name: a, description: d, argv: [ls]}]}").tools.commands
    assert command.argv == ["ls"]
    assert (command.parameters, command.on_crash, command.confirm, command.parallel) == ({}, "rerun", False, False)
    assert (command.timeout, command.pass_env) == (60.0, [])


def test_null_lifts_a_budget(load: Load) -> None:
    budget = load("llm: {provider: openai, model: m, budget: {max_tokens: null, max_iterations: ~}}").llm.budget
    assert (budget.max_tokens, budget.max_iterations) == (None, None)


@pytest.mark.parametrize(
    ("enabled", "budget", "mode"),
    [(False, None, "off"), (False, 2048, "off"), (True, None, "adaptive"), (True, 2048, "budget:2048")],
)
def test_thinking_mode_is_spelled_as_in_the_fingerprint(enabled: bool, budget: int | None, mode: str) -> None:
    assert ThinkingConfig(enabled=enabled, budget_tokens=budget).mode == mode


def test_a_configuration_never_changes() -> None:
    config = AgentConfig(llm=LlmConfig(provider="openai", model="m"))
    with pytest.raises(ValidationError):
        config.identity = "other"


def test_values_stay_out_of_pydantics_own_messages() -> None:
    with pytest.raises(ValidationError) as caught:
        CommandConfig(name="a", description="d", argv=["a"], pass_env=["KEY=hunter2"])
    assert "hunter2" not in str(caught.value)


def test_the_scripted_provider_needs_a_script_and_no_model(load: Load, problems: Problems) -> None:
    llm = load("llm: {provider: scripted, script: turns.yaml}").llm
    assert (llm.model, llm.script) == ("scripted", "turns.yaml")
    assert load("llm: {provider: scripted, script: turns.yaml, model: m}").llm.model == "m"
    assert problems("llm: {provider: scripted}") == [
        "agent.yaml:1:1: llm.script: is missing: provider scripted needs the path of its YAML list of turns"
    ]


def wrong(problems: Problems, text: str) -> str:
    """Return the one problem of a text, without the file and the line."""
    [line] = problems(text)
    return line.split(": ", 1)[1]


@pytest.mark.parametrize(
    ("llm", "problem"),
    [
        ("provider: anthropic", "llm.model: is missing"),
        ("model: m", "llm.provider: is missing"),
        (
            "{provider: bard, model: m}",
            "llm.provider: expected one of anthropic, openai, pydantic-ai, scripted, found 'bard'",
        ),
        (
            "{provider: [], model: m}",
            "llm.provider: expected one of anthropic, openai, pydantic-ai, scripted, found an empty list",
        ),
        ("{provider: openai, model: 5}", "llm.model: expected a name: text on one line, not blank, found 5"),
        ('{provider: openai, model: " m"}', "llm.model: expected a name: text on one line, not blank, found 'm'"),
        ("{provider: openai, model: m, stream: yes}", "llm.stream: expected true or false, found 'yes'"),
        ("{provider: openai, model: m, stream: 1}", "llm.stream: expected true or false, found 1"),
        ("{provider: openai, model: m, script: a}", "llm.script: goes with provider scripted only, not with openai"),
        ("{provider: openai, model: m, budget: 5}", "llm.budget: expected a mapping, found 5"),
        (
            "{provider: anthropic, model: m, api: responses}",
            "llm.api: goes with provider openai only",
        ),
        ("{provider: openai, model: m, api: soap}", "llm.api: expected one of chat, responses, found 'soap'"),
        ("{provider: openai, model: m, betas: [x]}", "llm.betas: go with provider anthropic only"),
        (
            "{provider: openai, model: m, server_tools: [{type: web_search}]}",
            "llm.server_tools: go with provider anthropic, or openai with api responses",
        ),
        (
            "{provider: pydantic-ai, model: m}",
            "llm.model: has to name the provider for pydantic-ai, such as google:gemini-3-pro",
        ),
        ("{provider: anthropic, model: m, server_tools: [{name: x}]}", "llm.server_tools[0].type: is missing"),
        ("{provider: openai, model: m, thinking: true}", "llm.thinking: expected a mapping, found true"),
    ],
)
def test_wrong_values_of_the_model_are_named(problems: Problems, llm: str, problem: str) -> None:
    assert wrong(problems, f"llm:\n  {llm}") == problem


@pytest.mark.parametrize("value", ['"5"', "true", "0", "-1", "1.0", "1e3", "[]", "x"])
@pytest.mark.parametrize("key", ["max_tokens", "max_iterations"])
def test_budgets_are_integers_above_0_or_null(problems: Problems, key: str, value: str) -> None:
    line = wrong(problems, f"llm: {{provider: openai, model: m, budget: {{{key}: {value}}}}}")
    assert line.startswith(f"llm.budget.{key}: expected an integer greater than 0, or null for no limit, found ")


@pytest.mark.parametrize("value", ["null", '"5"', "true", "0"])
def test_a_call_always_has_an_output_limit(problems: Problems, value: str) -> None:
    line = wrong(problems, f"llm: {{provider: openai, model: m, max_output_tokens: {value}}}")
    assert line.startswith("llm.max_output_tokens: expected an integer greater than 0, found ")


@pytest.mark.parametrize("value", ["null", '"5"', "0", "5 minutes", "1d", "true"])
def test_time_limits_are_durations(problems: Problems, value: str) -> None:
    line = wrong(problems, f"llm: {{provider: openai, model: m, budget: {{call_timeout: {value}}}}}")
    assert line.startswith("llm.budget.call_timeout: expected a duration like 500ms, 120s, 2m or 1h, or a number")


def test_time_limits_are_kept_in_seconds(load: Load) -> None:
    assert load("llm: {provider: openai, model: m, budget: {call_timeout: 2m}}").llm.budget.call_timeout == 120.0
    assert load("llm: {provider: openai, model: m, budget: {call_timeout: 5}}").llm.budget.call_timeout == 5.0


@pytest.mark.parametrize("value", ["1023", "true", '"2048"', "2048.0"])
def test_a_thinking_budget_has_at_least_1024_tokens(problems: Problems, value: str) -> None:
    line = wrong(problems, f"llm: {{provider: openai, model: m, thinking: {{budget_tokens: {value}}}}}")
    assert line.startswith("llm.thinking.budget_tokens: expected an integer of at least 1024, or null, found ")


def test_thinking_leaves_room_for_the_answer(load: Load, problems: Problems) -> None:
    text = "llm: {provider: openai, model: m, max_output_tokens: 2048, thinking: {enabled: %s, budget_tokens: 2048}}"
    assert wrong(problems, text % "true") == (
        "llm.thinking.budget_tokens: has to be less than llm.max_output_tokens (2048), which includes it"
    )
    assert load(text % "false").llm.thinking.mode == "off"


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com",
        "https://example.com:8443/v1/",
        "http://localhost:8080/v1",
        "http://127.0.0.1:1",
        "http://127.8.8.8/v1",
        "http://[::1]:8080/v1",
    ],
)
def test_a_server_is_reached_by_https_or_is_this_machine(load: Load, url: str) -> None:
    assert load(f"llm: {{provider: openai, model: m, base_url: '{url}'}}").llm.base_url == url


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com", "ftp://example.com", "example.com", "", "https://", "https://[", "https://a:99999"),
        "https://a?key=hunter2",
        "https://a:hunter2@b",
        "https://a:0",
        "https://a#b",
        "https://a b",
        "http://127.0.0.1:80@hunter2.example",
        "http://localhost.hunter2",
    ],
)
def test_other_servers_are_refused_without_showing_the_url(problems: Problems, url: str) -> None:
    line = wrong(problems, f"llm: {{provider: openai, model: m, base_url: '{url}'}}")
    assert line.startswith("llm.base_url: expected an https URL")
    assert line.endswith("found a value that isn't shown, as it may be a secret")


@pytest.mark.parametrize("value", ["sk-ant-hunter2", "A=hunter2", "5", '""'])
def test_a_key_in_place_of_its_variables_name_is_refused_and_not_shown(problems: Problems, value: str) -> None:
    line = wrong(problems, f"llm: {{provider: openai, model: m, api_key_env: {value}}}")
    assert line.startswith("llm.api_key_env: expected the name of an environment variable")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("name", "a b", "expected 1-64 of a-z A-Z 0-9 _ -, found 'a b'"),
        ("name", '"a\\n"', "expected 1-64 of a-z A-Z 0-9 _ -, found 'a'"),
        ("name", "a" * 65, f"expected 1-64 of a-z A-Z 0-9 _ -, found '{'a' * 39}…'"),
        ("name", "é", "expected 1-64 of a-z A-Z 0-9 _ -, found 'é'"),
        ("description", '"  "', "expected text that isn't blank, found ''"),
        ("description", "", "expected text that isn't blank, found nothing"),
        ("argv", "[]", "expected a list with at least one item, found an empty list"),
        ("argv", "du -sh", "expected a list, found 'du -sh'"),
        ("on_crash", "retry", "expected one of rerun, ask, skip, found 'retry'"),
        ("confirm", "true", "this version can't ask for approvals: only false is possible"),
        ("parallel", "maybe", "expected true or false, found 'maybe'"),
        ("timeout", "null", "expected a duration like 500ms, 120s, 2m or 1h"),
        ("pass_env", "HOME", "expected a list, found a value that isn't shown, as it may be a secret"),
        ("parameters", "[path]", "expected a mapping, found a list"),
    ],
)
def test_wrong_values_of_a_command_are_named(problems: Problems, key: str, value: str, problem: str) -> None:
    command = {"name": "a", "description": "d", "argv": "[ls]"} | {key: value}
    text = "".join(f"      {key}: {value}\n" for key, value in command.items())
    line = wrong(problems, f"{LLM}tools:\n  commands:\n    -\n{text}")
    assert line.startswith(f"tools.commands[0].{key}: {problem}")


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ("[sleep, 5]", "argv[1]: expected text, found 5"),
        ("[du, {path}]", 'argv[1]: expected text, found a mapping (text that starts with { needs quotes: "{...}")'),
        ("['']", "argv[0]: expected the name of a program, found ''"),
    ],
)
def test_arguments_are_text(problems: Problems, argv: str, problem: str) -> None:
    line = wrong(problems, f"{LLM}tools: {{commands: [{{name: a, description: d, argv: {argv}}}]}}")
    assert line == f"tools.commands[0].{problem}"


def test_environment_variables_are_named_and_never_shown(problems: Problems) -> None:
    line = wrong(problems, LLM + "tools: {commands: [{name: a, description: d, argv: [a], pass_env: [K=hunter2]}]}")
    assert line.startswith("tools.commands[0].pass_env[0]: expected the name of an environment variable")
    assert "hunter2" not in line


@pytest.mark.parametrize("on_crash", ["ask", "skip"])
def test_parallel_tools_must_be_harmless_to_repeat(load: Load, problems: Problems, on_crash: str) -> None:
    text = LLM + "tools: {commands: [{name: a, description: d, argv: [a], parallel: true, on_crash: %s}]}"
    assert wrong(problems, text % on_crash).startswith(
        "tools.commands[0].parallel: parallel tools must be harmless to repeat"
    )
    assert load(text % "rerun").tools.commands[0].parallel


@pytest.mark.parametrize("name", ["lookup", "a-b:c", "a:b c", "a:", ":b", "a:b:c", "1a:b", "a:b\\n"])
def test_python_tools_are_importable_names(problems: Problems, name: str) -> None:
    line = wrong(problems, f'{LLM}tools: {{python: [a.b:C.d, "{name}"]}}')
    assert line.startswith("tools.python[1]: expected module:name of a function that can be imported, found ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('identity: ""', "identity: expected a name"),
        ('identity: "a\\nb"', "identity: expected a name"),
        ("system_prompt: [a]", "system_prompt: expected text, found a list"),
        ('system_prompt: "\\ud800"', "system_prompt: isn't valid text"),
        ("sessions: {store: ''}", "sessions.store: expected text that isn't blank"),
        ("sessions: file", "sessions: expected a mapping, found 'file'"),
        ("tools:", "tools: expected a mapping, found nothing"),
    ],
)
def test_other_wrong_values_are_named(problems: Problems, text: str, problem: str) -> None:
    assert wrong(problems, LLM + text).startswith(problem)


def test_text_of_the_host_program_has_to_be_valid_too() -> None:
    with pytest.raises(ValidationError):
        AgentConfig(system_prompt="\ud800", llm=LlmConfig(provider="openai", model="m"))


@pytest.mark.parametrize("value", [None, [], "text", 5, True])
def test_the_file_has_to_be_a_mapping(value: Any) -> None:
    with pytest.raises(ValidationError):
        AgentConfig.model_validate(value)
