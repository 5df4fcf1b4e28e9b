"""agent.yaml: what it may say, and how it is read."""

from __future__ import annotations

from fisk_ai.config.load import LoadedConfig, load_config
from fisk_ai.config.model import (
    AgentConfig,
    BudgetConfig,
    CommandConfig,
    LlmConfig,
    SessionsConfig,
    ThinkingConfig,
    ToolsConfig,
)

__all__ = [
    "AgentConfig",
    "BudgetConfig",
    "CommandConfig",
    "LlmConfig",
    "LoadedConfig",
    "SessionsConfig",
    "ThinkingConfig",
    "ToolsConfig",
    "load_config",
]
