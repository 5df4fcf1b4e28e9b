"""Mistakes in how an agent is made or started are found before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.errors import ConfigError, ToolSetupError
from fisk_ai.fingerprint import tool_hashes
from fisk_ai.providers.base import ModelOptions
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.stores.memory import MemoryStore
from tests.agent.bench import ANSWER
from tests.providers.strict_server import KEY, StrictServer

pytestmark = pytest.mark.anyio


def look() -> str:
    """Look around."""
    return "all quiet"


def make(**settings: Any) -> Agent:
    return Agent("m", provider=ScriptedProvider([ANSWER]), store=MemoryStore(), **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"provider": "anthropics"}, ["unknown provider 'anthropics'", "anthropic, openai, pydantic-ai, scripted"]),
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


def served(*definitions: Any) -> ModelOptions:
    return ModelOptions(server_tools=definitions)


def test_tools_of_the_providers_side_are_part_of_the_fingerprint() -> None:
    options = served({"type": "search_1", "name": "search"}, {"type": "mcp_toolset"}, {"type": "mcp_toolset"})
    hashed = make(tools=[look], model_options=options).fingerprint
    assert hashed.tools is not None
    assert list(hashed.tools) == ["look", "mcp_toolset", "mcp_toolset 2", "search"]
    assert hashed.tools["search"] == tool_hashes("", {}, {"name": "search", "type": "search_1"})
    assert hashed.tools_hash != make(tools=[look]).fingerprint.tools_hash


@pytest.mark.parametrize(
    ("definitions", "words"),
    [
        ([{"type": "custom", "name": "look"}], ["server tool 'look' has the name of another tool"]),
        ([{"type": "a", "name": "x"}, {"type": "b", "name": "x"}], ["server tool 'x' has the name of another tool"]),
        ([{"name": "x"}, {"type": " "}, {"type": "a", "n": float("nan")}], ["at least `type`"] * 3),
        ([{"type": "a", "n": {1}}, {"type": "a", "n": "\ud800"}], ["plain JSON values"] * 2),
    ],
)
def test_tools_of_the_providers_side_that_cannot_be_are_refused(definitions: list[Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tools=[look], model_options=served(*definitions))
    assert len(refused.value.problems) == len(words)
    assert all(word in problem for word, problem in zip(words, refused.value.problems, strict=True))


async def test_a_provider_given_by_its_name_is_opened_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    search = {"type": "web_search_20260209", "name": "web_search"}
    options = ModelOptions(cache=False, service_tier="standard_only", betas=("one", "two"), server_tools=(search,))
    with StrictServer([{"text": "Done."}]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        agent = Agent("m", model_options=options, store=MemoryStore())
        assert (await agent.run("go")).answer == "Done."
        [request] = server.requests
    assert request.headers["anthropic-beta"] == "one,two"
    assert (request.json["tools"], request.json["service_tier"]) == ([search], "standard_only")
    assert "cache_control" not in request.json


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
