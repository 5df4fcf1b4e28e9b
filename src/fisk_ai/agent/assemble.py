"""From agent.yaml to an `Agent`: the one place where configuration meets tools, provider and store."""

from __future__ import annotations

import os
from functools import partial

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.decide import Budget
from fisk_ai.config import CommandConfig, LoadedConfig, load_config
from fisk_ai.errors import ConfigError, ToolSetupError
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import ModelOptions
from fisk_ai.providers.credentials import CREDENTIAL_NAMES
from fisk_ai.stores import Store, open_store
from fisk_ai.tools.base import Tool
from fisk_ai.tools.command import CommandTool
from fisk_ai.tools.loading import load_python_tool


def load_agent(path: str, *, store: Store | None = None) -> Agent:
    """Read agent.yaml and return the agent that it describes; `store` overrides `sessions.store`.

    Raises:
        ConfigError: with every mistake in the file at once.
        ToolSetupError: with every tool that can't be loaded.
    """
    return assemble(load_config(path), store=store)


def assemble(loaded: LoadedConfig, *, store: Store | None = None) -> Agent:
    """Return the agent of a loaded configuration; raises as `load_agent` does."""
    llm = loaded.config.llm
    script = os.path.join(loaded.directory, llm.script) if llm.script is not None else None
    options = ModelOptions(
        cache=llm.cache,
        service_tier=llm.service_tier,
        betas=tuple(llm.betas),
        server_tools=tuple(tool.model_dump() for tool in llm.server_tools),
    )
    return Agent(
        llm.model,
        provider=llm.provider,
        open_with=partial(
            open_provider,
            llm.provider,
            model=llm.model,
            base_url=llm.base_url,
            api_key_env=llm.api_key_env,
            script=script,
            stream=llm.stream,
            api=llm.api,
            options=options,
        ),
        model_options=options,
        system_prompt=loaded.config.system_prompt,
        tools=_tools(loaded),
        budget=Budget(llm.budget.max_tokens, llm.budget.max_iterations),
        max_output_tokens=llm.max_output_tokens,
        thinking_mode=llm.thinking.mode,
        call_timeout_s=llm.budget.call_timeout,
        store=store or _store(loaded.config.sessions.store),
    )


def _store(url: str) -> Store | None:
    """Open the store of a URL; None is the default one, opened when it is needed: a run in memory wants no home."""
    return None if url == "file" else open_store(url)


def _tools(loaded: LoadedConfig) -> list[Tool]:
    hidden = CREDENTIAL_NAMES | ({loaded.config.llm.api_key_env} - {None})
    tools: list[Tool] = []
    problems: list[str] = []
    for command in loaded.config.tools.commands:
        try:
            tools.append(_command(command, hidden, loaded.directory))
        except ToolSetupError as problem:
            problems.append(f"{loaded.path}: {problem}")
    for spec in loaded.config.tools.python:
        try:
            tools.append(load_python_tool(spec, loaded.directory))
        except ToolSetupError as problem:
            problems.append(f"{loaded.path}: {problem}")
    if problems:
        raise ConfigError(problems)
    return tools


def _command(command: CommandConfig, hidden: frozenset[str | None], directory: str) -> Tool:
    return CommandTool(
        command.name,
        command.description,
        command.argv,
        command.parameters,
        on_crash=command.on_crash,
        parallel=command.parallel,
        timeout_s=command.timeout,
        pass_env=command.pass_env,
        hidden_env=frozenset(name for name in hidden if name is not None),
        # Where agent.yaml is, so that a resume from another place works on the same files.
        cwd=directory,
    )
