from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from fisk_ai.errors import ConfigError
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import ModelOptions
from fisk_ai.providers.credentials import CREDENTIAL_NAMES, check_base_url, find_credential

KEYS = {"ANTHROPIC_API_KEY": "a-secret", "OPENAI_API_KEY": "o-secret"}


def test_importing_the_package_imports_no_adapter() -> None:
    program = (
        "import sys, fisk_ai.providers; print(*sorted({'httpx2', 'tenacity', 'ruamel.yaml'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"\n"


def test_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="unknown provider 'gemini': expected anthropic, openai, pydantic-ai, scripted"
    ):
        open_provider("gemini", environ=KEYS)


@pytest.mark.parametrize(
    ("name", "environ", "variable"),
    [
        ("anthropic", {}, "ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"),
        ("anthropic", {"ANTHROPIC_API_KEY": " "}, "ANTHROPIC_API_KEY"),
        ("openai", {}, "OPENAI_API_KEY"),
        ("openai", {"OPENAI_BASE_URL": "https://example.test/v1"}, "OPENAI_API_KEY"),
    ],
)
def test_missing_key_names_the_variable(name: str, environ: dict[str, str], variable: str) -> None:
    with pytest.raises(ConfigError, match=f"set {variable}"):
        open_provider(name, environ=environ)


def test_other_variable_for_the_key_is_the_only_one_asked() -> None:
    with pytest.raises(ConfigError, match=r"set TEAM_KEY, or name another"):
        open_provider("openai", api_key_env="TEAM_KEY", base_url="http://localhost:1/v1", environ=KEYS)
    assert open_provider("anthropic", api_key_env="TEAM_KEY", environ={"TEAM_KEY": "x"}).name == "anthropic"


SEARCH = {"type": "web_search_20260209", "name": "web_search"}


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("openai", {"options": ModelOptions(betas=("b",))}, "betas go with provider anthropic only, not with openai"),
        ("openai", {"options": ModelOptions(server_tools=(SEARCH,))}, "not with openai chat"),
        ("scripted", {"options": ModelOptions(server_tools=(SEARCH,))}, "server_tools go with provider anthropic"),
        ("anthropic", {"api": "responses"}, "api responses goes with provider openai only"),
        ("openai", {"api": "completions"}, "unknown api 'completions': expected chat or responses"),
        ("pydantic-ai", {"model": "google:m", "base_url": "https://example.test"}, "base_url and api_key_env don't go"),
        ("pydantic-ai", {"model": "google:m", "api_key_env": "KEY"}, "base_url and api_key_env don't go"),
        ("pydantic-ai", {}, "needs the model's name"),
    ],
)
def test_what_a_provider_would_have_to_leave_out_is_refused(name: str, how: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_provider(name, environ=KEYS, **how)


def test_local_server_needs_no_key() -> None:
    assert open_provider("openai", base_url="http://127.0.0.1:8080/v1", environ={}).format == "openai"


def test_token_is_sent_as_bearer_and_key_comes_first() -> None:
    variables = {"ANTHROPIC_API_KEY": False, "ANTHROPIC_AUTH_TOKEN": True}
    token = find_credential({"ANTHROPIC_AUTH_TOKEN": "t"}, variables, required=True)
    both = find_credential({"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "k"}, variables, required=True)
    assert token is not None
    assert both is not None
    assert token.headers == {"authorization": "Bearer t"}
    assert both.headers == {"x-api-key": "k"}
    assert "'k'" not in repr(both)


@pytest.mark.parametrize("key", ["a\nb", "käse", "two words", "nul\x00"])
def test_key_that_cant_be_a_header_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY holds characters") as caught:
        open_provider("anthropic", environ={"ANTHROPIC_API_KEY": key})
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.test/v1",
        "http://127.0.0.1.example.test",
        "http://localhost.example.test",
        "http://10.0.0.1",
        "https://user:pass@example.test",
        "https://user@example.test",
        "ftp://example.test",
        "example.test/v1",
        "https://",
        "https://example.test:port",
        "https://example.test/v1?x=1",
        "https://example.test/v1#x",
        "https://[::1",
        "",
    ],
)
def test_unsafe_or_unusable_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_provider("anthropic", base_url=url, environ=KEYS)
    assert str(caught.value).startswith("llm.base_url: ")
    assert "user:pass" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://example.test/", "https://example.test"),
        (" https://example.test/v1 ", "https://example.test/v1"),
        ("http://localhost:8080/v1/", "http://localhost:8080/v1"),
        ("http://127.8.9.10", "http://127.8.9.10"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_usable_addresses_are_kept(url: str, kept: str) -> None:
    assert check_base_url(url, "here") == kept


def test_address_from_the_environment_is_checked_under_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^OPENAI_BASE_URL: plain http"):
        open_provider("openai", environ=KEYS | {"OPENAI_BASE_URL": "http://example.test/v1"})


def test_names_of_credentials_cover_both_sdks() -> None:
    assert {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "OPENAI_ADMIN_KEY"} <= CREDENTIAL_NAMES
    assert all(name.isupper() for name in CREDENTIAL_NAMES)
