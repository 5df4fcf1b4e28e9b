"""`fisk-ai info`: what a run would use."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.assemble import assemble
from fisk_ai.cli import terminal
from fisk_ai.cli.json_output import print_json
from fisk_ai.cli.options import Command, json_option, state_dir_option
from fisk_ai.cli.places import DEFAULT_CONFIG, open_state
from fisk_ai.config import load_config
from fisk_ai.text import one_line


@click.command("info", cls=Command)
@click.option("--config", default=DEFAULT_CONFIG, show_default=True, metavar="FILE", help="The agent's configuration.")
@state_dir_option
@json_option
def command(config: str, state_dir: str | None, as_json: bool) -> None:
    """Show what a run would use: model, tools with their hashes, store, budgets.

    No model is asked and nothing is written.
    """
    loaded = load_config(config)
    agent = assemble(loaded, store=None if state_dir is None else open_state(state_dir))
    data = _data(loaded.config.identity, agent)
    if as_json:
        print_json(data, pretty=True)
    else:
        terminal.answer("\n".join(_lines(data)))


def _data(identity: str, agent: Agent) -> dict[str, Any]:
    fingerprint: dict[str, Any] = msgspec.to_builtins(agent.fingerprint)
    return {
        "identity": identity,
        "provider": agent.provider_name,
        "model": agent.model,
        "thinking_mode": agent.thinking_mode,
        "max_output_tokens": agent.max_output_tokens,
        "call_timeout_s": agent.call_timeout_s,
        "budget": {"max_tokens": agent.budget.max_tokens, "max_iterations": agent.budget.max_iterations},
        "store": agent.store.location,
        "fingerprint": fingerprint,
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "runs": tool.identity,
                "on_crash": tool.on_crash,
                "parallel": tool.parallel,
                "timeout_s": tool.timeout_s,
                "hashes": fingerprint["tools"][tool.name],
            }
            for _, tool in sorted(agent.tools.items())
        ],
    }


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
        f"prompt:    system prompt with hash {data['fingerprint']['system_hash'][:12]}",
        f"tools:     {len(data['tools'])} with hash {data['fingerprint']['tools_hash'][:12]}",
    ]
    for tool in data["tools"]:
        hashes = " ".join(f"{aspect} {value[:8]}" for aspect, value in tool["hashes"].items())
        limit = "no time limit" if tool["timeout_s"] is None else f"{tool['timeout_s']:g} s"
        parallel = ", parallel" if tool["parallel"] else ""
        lines.append(f"  {tool['name']}: {one_line(tool['description'], 70)}")
        lines.append(f"      on crash {tool['on_crash']}, {limit}{parallel}; {hashes}")
    return lines


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else str(value)
