"""Mistakes in how an agent is made or started are found before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.errors import ConfigError, ToolSetupError
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.stores.memory import MemoryStore
from tests.agent.bench import ANSWER

pytestmark = pytest.mark.anyio


def look() -> str:
    """Look around."""
    return "all quiet"


def make(**settings: Any) -> Agent:
    return Agent("m", provider=ScriptedProvider([ANSWER]), store=MemoryStore(), **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"provider": "anthropics"}, ["unknown provider 'anthropics'", "anthropic, openai, scripted"]),
        ({"max_output_tokens": 0}, ["max_output_tokens is a positive whole number, not 0"]),
        ({"max_output_tokens": 1.5}, ["max_output_tokens"]),
        ({"thinking_mode": "on"}, ["thinking_mode is off, adaptive or budget:<n> (tokens), not 'on'"]),
        ({"thinking_mode": "budget:0"}, ["thinking_mode"]),
        ({"thinking_mode": "budget:"}, ["thinking_mode"]),
        ({"call_timeout_s": 0}, ["call_timeout_s is a positive number of seconds, not 0"]),
        ({"call_timeout_s": float("nan")}, ["call_timeout_s"]),
        ({"model": " "}, ["model is empty"]),
        ({"max_output_tokens": -1, "call_timeout_s": -1}, ["max_output_tokens", "call_timeout_s"]),
    ],
)
def test_settings_that_cannot_be_are_all_named(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        Agent(**{"model": "m", **settings})
    assert all(word in str(refused.value) for word in words), refused.value
    assert len(refused.value.problems) == len(settings)


@pytest.mark.parametrize("mode", ["off", "adaptive", "budget:1024"])
def test_every_thinking_mode_is_taken(mode: str) -> None:
    assert make(thinking_mode=mode).fingerprint.thinking_mode == mode


def test_a_provider_that_is_opened_otherwise_may_have_any_name() -> None:
    provider = ScriptedProvider([ANSWER])
    assert Agent("m", provider="mine", open_with=lambda: provider).provider_name == "mine"


@pytest.mark.parametrize("item", ["mytools:look", 3, None, {"name": "look"}, b"look"])
def test_what_is_no_tool_is_refused(item: Any) -> None:
    with pytest.raises(ToolSetupError, match="a tool is a function or a Tool") as refused:
        make(tools=[look, item])
    assert type(item).__name__ in str(refused.value) or repr(item) in str(refused.value)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ToolSetupError, match="two tools are named 'look'"):
        make(tools=[look, look])


async def test_a_name_without_a_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="checkpoint=True"):
        await make().run("go", name="r7")
    async with make().stream("go", name="r7") as run:
        with pytest.raises(ConfigError, match="checkpoint=True"):
            await anext(aiter(run))


def test_a_name_without_a_checkpoint_is_refused_without_a_loop_as_well() -> None:
    with pytest.raises(ConfigError, match="checkpoint=True"):
        make().run_sync("go", name="r7")


async def test_the_methods_without_a_loop_say_what_to_use_inside_of_one() -> None:
    with pytest.raises(RuntimeError, match=r"use `await agent.run\(...\)`, not run_sync"):
        make().run_sync("go")
    with pytest.raises(RuntimeError, match=r"use `await agent.resume\(...\)`, not resume_sync"):
        make().resume_sync("r7", ResumeOptions())
