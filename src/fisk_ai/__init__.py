"""fisk-ai: agent runs that outlive their process.

Embed `Agent`, or use `FileStore`, `Journal` and `fold` with a loop of your own. Importing this package does nothing
and loads nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # type checkers take the name as true; importing typing would cost every start 15 ms
if TYPE_CHECKING:
    from fisk_ai.agent.agent import Agent, ResumeOptions, RunStream
    from fisk_ai.agent.assemble import load_agent
    from fisk_ai.agent.control import Control
    from fisk_ai.agent.decide import Budget
    from fisk_ai.agent.events import Event, RunResult
    from fisk_ai.errors import FiskError
    from fisk_ai.folding import Counters, Folding, Pending, RunState, fold
    from fisk_ai.records import (
        AssistantRecord,
        Fingerprint,
        MetaRecord,
        SequencedRecord,
        TerminalRecord,
        ToolResultRecord,
        UserRecord,
    )
    from fisk_ai.stores import FileStore, Journal, MemoryStore, RunInfo, Store, open_store
    from fisk_ai.tools import CommandTool, FunctionTool, ToolContext, ToolOutput, tool

__version__ = "0.1.0"

_HOMES = {
    "fisk_ai.agent.agent": ("Agent", "ResumeOptions", "RunStream"),
    "fisk_ai.agent.assemble": ("load_agent",),
    "fisk_ai.agent.control": ("Control",),
    "fisk_ai.agent.decide": ("Budget",),
    "fisk_ai.agent.events": ("Event", "RunResult"),
    "fisk_ai.errors": ("FiskError",),
    "fisk_ai.folding": ("Counters", "Folding", "Pending", "RunState", "fold"),
    "fisk_ai.records": (
        "AssistantRecord",
        "Fingerprint",
        "MetaRecord",
        "SequencedRecord",
        "TerminalRecord",
        "ToolResultRecord",
        "UserRecord",
    ),
    "fisk_ai.stores": ("FileStore", "Journal", "MemoryStore", "RunInfo", "Store", "open_store"),
    "fisk_ai.tools": ("CommandTool", "FunctionTool", "ToolContext", "ToolOutput", "tool"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Agent",
    "AssistantRecord",
    "Budget",
    "CommandTool",
    "Control",
    "Counters",
    "Event",
    "FileStore",
    "Fingerprint",
    "FiskError",
    "Folding",
    "FunctionTool",
    "Journal",
    "MemoryStore",
    "MetaRecord",
    "Pending",
    "ResumeOptions",
    "RunInfo",
    "RunResult",
    "RunState",
    "RunStream",
    "SequencedRecord",
    "Store",
    "TerminalRecord",
    "ToolContext",
    "ToolOutput",
    "ToolResultRecord",
    "UserRecord",
    "fold",
    "load_agent",
    "open_store",
    "tool",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value  # so that the next look finds the value, not the submodule of the same name
    return value


def __dir__() -> list[str]:
    return __all__
