"""`fisk-ai info`: what a run would use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.assemble import assemble
from fisk_ai.cli import terminal
from fisk_ai.cli.json_output import print_json
from fisk_ai.cli.options import Command, json_option, state_dir_option
from fisk_ai.cli.outlook import outlook, outlook_data, outlook_lines
from fisk_ai.cli.places import DEFAULT_CONFIG, Place, open_state
from fisk_ai.config import LoadedConfig, load_config
from fisk_ai.config.model import LlmConfig
from fisk_ai.messages import is_blank
from fisk_ai.providers.credentials import check_base_url
from fisk_ai.text import one_line
from fisk_ai.tools.base import Tool

_KEY_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
}
"""Of pydantic-ai each model's own provider names its variable."""


@click.command("info", cls=Command)
@click.option("--config", default=DEFAULT_CONFIG, show_default=True, metavar="FILE", help="The agent's configuration.")
@click.option("-r", "--resume", metavar="ID", help="Also what a resume of this run would send, and if it may go on.")
@state_dir_option
@json_option
def command(config: str, resume: str | None, state_dir: str | None, as_json: bool) -> None:
    """Show what a run would use: model, tools with their hashes, store, budgets.

    No model is asked and nothing is written.
    """
    terminal.stdout.reserve()
    loaded = load_config(config)
    agent = assemble(loaded, store=None if state_dir is None else open_state(state_dir))
    data = _data(loaded, agent)
    place = Place(state_dir, config)
    found = None if resume is None else outlook(agent, resume)
    if as_json:
        print_json({**data, "resume": None if found is None else outlook_data(found, place)})
    else:
        terminal.answer("\n".join([*_lines(data), *(() if found is None else outlook_lines(found, place))]))


def _data(loaded: LoadedConfig, agent: Agent) -> dict[str, Any]:
    fingerprint: dict[str, Any] = msgspec.to_builtins(agent.fingerprint)
    return {
        "identity": loaded.config.identity,
        "provider": agent.provider_name,
        "model": agent.model,
        "base_url": _base_url(loaded.config.llm),
        "key_variables": _key_variables(loaded.config.llm),
        "api": loaded.config.llm.api if agent.provider_name == "openai" else None,
        "cache": agent.model_options.cache,
        "service_tier": agent.model_options.service_tier,
        "betas": agent.model_options.betas,
        "thinking_mode": agent.thinking_mode,
        "max_output_tokens": agent.max_output_tokens,
        "call_timeout_s": agent.call_timeout_s,
        "budget": {"max_tokens": agent.budget.max_tokens, "max_iterations": agent.budget.max_iterations},
        "store": agent.store.location,
        "system_prompt": not is_blank(agent.system_prompt),
        "fingerprint": fingerprint,
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "runs": tool.identity,
                "found": _is_found(tool, loaded.directory),
                "on_crash": tool.on_crash,
                "parallel": tool.parallel,
                "timeout_s": tool.timeout_s,
                "hashes": fingerprint["tools"][tool.name],
            }
            for _, tool in sorted(agent.tools.items())
        ],
        # Not their definitions, which may hold a token for what they reach.
        "server_tools": [
            {"name": name, "type": definition["type"], "hashes": fingerprint["tools"][name]}
            for name, definition in agent.server_tools.items()
        ],
    }


def _base_url(llm: LlmConfig) -> str | None:
    """Return the address that was set, in the configuration or in the environment."""
    variable = f"{llm.provider.upper()}_BASE_URL"
    if llm.base_url is not None or llm.provider == "scripted" or not os.environ.get(variable, "").strip():
        return llm.base_url
    return check_base_url(os.environ[variable], variable)


def _key_variables(llm: LlmConfig) -> dict[str, bool]:
    """Return the variables that the key may come from, and whether they are set; never their values."""
    names = (llm.api_key_env,) if llm.api_key_env else _KEY_VARIABLES.get(llm.provider, ())
    return {name: bool(os.environ.get(name, "").strip()) for name in names}


def _is_found(tool: Tool, directory: str) -> bool | None:
    """Tell whether the program of a command is there; None for what isn't a command."""
    argv = tool.identity.get("argv")
    if not argv:
        return None
    # Commands are run where agent.yaml is, and so are paths of programs taken from there.
    program = os.path.join(directory, argv[0]) if os.sep in argv[0] else argv[0]
    return shutil.which(program) is not None


def _lines(data: dict[str, Any]) -> list[str]:
    budget = data["budget"]
    lines = [
        f"identity:  {one_line(data['identity'], 80)}",
        f"model:     {one_line(data['model'], 80)} ({data['provider']}), thinking {data['thinking_mode']}",
        (
            f"budgets:   {_limit(budget['max_tokens'])} tokens, {_limit(budget['max_iterations'])} iterations, "
            f"{data['call_timeout_s']:g} s a model call, {data['max_output_tokens']} output tokens a call"
        ),
        f"store:     {data['store']}",
        f"prompt:    {_hashed('system prompt', data['fingerprint']['system_hash'], there=data['system_prompt'])}",
        f"tools:     {_tools_line(data)}",
    ]
    lines[2:2] = _access_lines(data)
    for tool in data["tools"]:
        hashes = " ".join(f"{aspect} {value[:8]}" for aspect, value in tool["hashes"].items())
        limit = "no time limit" if tool["timeout_s"] is None else f"{tool['timeout_s']:g} s"
        parallel = ", parallel" if tool["parallel"] else ""
        lines.append(f"  {tool['name']}: {one_line(tool['description'], 70)}")
        lines.append(f"      on crash {tool['on_crash']}, {limit}{parallel}; {hashes}")
        if tool["found"] is False:
            lines.append(f"      its program is not found: {one_line(tool['runs']['argv'][0], 200)}")
    for tool in data["server_tools"]:
        lines.append(f"  {one_line(tool['name'], 80)}: {one_line(tool['type'], 70)}")
        lines.append(f"      on the provider's side; definition {tool['hashes']['command'][:8]}")
    return lines


def _tools_line(data: dict[str, Any]) -> str:
    own, served = len(data["tools"]), len(data["server_tools"])
    count = f"{own} and {served} on the provider's side" if served else str(own)
    return _hashed(count, data["fingerprint"]["tools_hash"], there=own + served)


def _options_line(data: dict[str, Any]) -> str:
    said = [f"api {data['api']}"] if data["api"] else []
    said.append(f"cache {'on' if data['cache'] else 'off'}")
    said += [f"service tier {one_line(data['service_tier'], 80)}"] if data["service_tier"] else []
    said += [f"beta {one_line(name, 80)}" for name in data["betas"]]
    return ", ".join(said)


def _access_lines(data: dict[str, Any]) -> list[str]:
    lines = [] if data["provider"] == "scripted" else [f"options:   {_options_line(data)}"]
    lines += [f"server:    {one_line(data['base_url'], 200)}"] if data["base_url"] else []
    variables = data["key_variables"]
    found = [name for name, is_set in variables.items() if is_set]
    if found:
        lines.append(f"key:       {found[0]} is set")
    elif variables:
        lines.append(f"key:       not set ({' or '.join(variables)})")
    return lines


def _hashed(what: str, value: str, *, there: object) -> str:
    return f"{what} with hash {value[:12]}" if there else "none"


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else str(value)
