"""What the tests of the providers share: doubles that work, and no network beyond loopback."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from fisk_ai.messages import NEUTRAL, Message, user_text
from fisk_ai.providers.base import Delta, ModelRequest, ToolSpec

LOOKUP = ToolSpec("lookup", "Look a stream up", {"type": "object", "properties": {"stream": {"type": "string"}}})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def deltas() -> list[Delta]:
    """Collects what is streamed: pass `deltas.append`."""
    return []


@pytest.fixture(scope="session")
def anthropic_sdk() -> ModuleType:
    """The official SDK; importing it takes seconds."""
    return importlib.import_module("anthropic")


@pytest.fixture(scope="session")
def openai_sdk() -> ModuleType:
    """The official SDK."""
    return importlib.import_module("openai")


def user(text: str = "go") -> Message:
    """Return a typed message."""
    return Message("user", NEUTRAL, user_text(text))


def results(*encoded: bytes) -> Message:
    """Return the message that holds tool results."""
    return Message("user", NEUTRAL, b'{"role":"user","content":[' + b",".join(encoded) + b"]}")


def ask(*messages: Message, iteration: int = 0, tools: tuple[ToolSpec, ...] = (LOOKUP,)) -> ModelRequest:
    """Return a request for the next turn of a conversation."""
    return ModelRequest("some-model", "Be brief.", tools, messages or (user(),), iteration, max_output_tokens=1000)
