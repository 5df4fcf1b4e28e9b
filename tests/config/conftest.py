from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from fisk_ai.config import AgentConfig, load_config
from fisk_ai.errors import ConfigError

Load = Callable[[str], AgentConfig]
Problems = Callable[[str], list[str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write text to a file and load it."""

    def write_and_load(text: str) -> AgentConfig:
        path = tmp_path / "agent.yaml"
        path.write_text(dedent(text), encoding="utf-8")
        return load_config(str(path)).config

    return write_and_load


@pytest.fixture
def problems(tmp_path: Path, load: Load) -> Problems:
    """Return the lines of the error that a text causes, without the directory."""

    def lines(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text)
        return [line.removeprefix(f"{tmp_path}/") for line in caught.value.problems]

    return lines
