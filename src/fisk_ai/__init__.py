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
    from fisk_ai.agent.events import (
        CallRepeated,
        Event,
        InputAwaited,
        InputRecorded,
        ModelCalled,
        ModelRetried,
        Noticed,
        OnEvent,
        OrphanFound,
        RunEnded,
        RunResult,
        RunResumed,
        RunStarted,
        TailRepaired,
        TextStreamed,
        ToolFinished,
        ToolStarted,
        TurnRecorded,
    )
    from fisk_ai.agent.input import EndOfChat, EndOfInput, InputSource, Line
    from fisk_ai.errors import FiskError
    from fisk_ai.fingerprint import make_fingerprint, tool_hashes
    from fisk_ai.folding import Counters, Folding, Pending, RunState, Turn, fold
    from fisk_ai.ids import new_run_id
    from fisk_ai.messages import Call, ImageBlock, ImageSource, Message, TextBlock, tool_result, user_text
    from fisk_ai.providers import open_provider
    from fisk_ai.providers.base import ModelOptions, Provider
    from fisk_ai.providers.retry import RetryPolicy
    from fisk_ai.providers.scripted import ScriptedProvider
    from fisk_ai.records import (
        AssistantRecord,
        Fingerprint,
        MetaRecord,
        Record,
        SequencedRecord,
        TerminalRecord,
        ToolHashes,
        ToolResultRecord,
        UserRecord,
    )
    from fisk_ai.stores import FileStore, Journal, MemoryStore, RunInfo, Store, open_store
    from fisk_ai.stores.meta import new_meta
    from fisk_ai.tools import CommandTool, FunctionTool, Tool, ToolContext, ToolOutput, tool

__version__ = "0.1.0"

_HOMES = {
    "fisk_ai.agent.agent": (
        "Agent",
        "ResumeOptions",
        "RunStream",
    ),
    "fisk_ai.agent.assemble": ("load_agent",),
    "fisk_ai.agent.control": ("Control",),
    "fisk_ai.agent.decide": ("Budget",),
    "fisk_ai.agent.events": (
        "CallRepeated",
        "Event",
        "InputAwaited",
        "InputRecorded",
        "ModelCalled",
        "ModelRetried",
        "Noticed",
        "OnEvent",
        "OrphanFound",
        "RunEnded",
        "RunResult",
        "RunResumed",
        "RunStarted",
        "TailRepaired",
        "TextStreamed",
        "ToolFinished",
        "ToolStarted",
        "TurnRecorded",
    ),
    "fisk_ai.agent.input": (
        "EndOfChat",
        "EndOfInput",
        "InputSource",
        "Line",
    ),
    "fisk_ai.errors": ("FiskError",),
    "fisk_ai.fingerprint": (
        "make_fingerprint",
        "tool_hashes",
    ),
    "fisk_ai.folding": (
        "Counters",
        "Folding",
        "Pending",
        "RunState",
        "Turn",
        "fold",
    ),
    "fisk_ai.ids": ("new_run_id",),
    "fisk_ai.messages": (
        "Call",
        "ImageBlock",
        "ImageSource",
        "Message",
        "TextBlock",
        "tool_result",
        "user_text",
    ),
    "fisk_ai.providers": ("open_provider",),
    "fisk_ai.providers.base": (
        "ModelOptions",
        "Provider",
    ),
    "fisk_ai.providers.retry": ("RetryPolicy",),
    "fisk_ai.providers.scripted": ("ScriptedProvider",),
    "fisk_ai.records": (
        "AssistantRecord",
        "Fingerprint",
        "MetaRecord",
        "Record",
        "SequencedRecord",
        "TerminalRecord",
        "ToolHashes",
        "ToolResultRecord",
        "UserRecord",
    ),
    "fisk_ai.stores": (
        "FileStore",
        "Journal",
        "MemoryStore",
        "RunInfo",
        "Store",
        "open_store",
    ),
    "fisk_ai.stores.meta": ("new_meta",),
    "fisk_ai.tools": (
        "CommandTool",
        "FunctionTool",
        "Tool",
        "ToolContext",
        "ToolOutput",
        "tool",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Agent",
    "AssistantRecord",
    "Budget",
    "Call",
    "CallRepeated",
    "CommandTool",
    "Control",
    "Counters",
    "EndOfChat",
    "EndOfInput",
    "Event",
    "FileStore",
    "Fingerprint",
    "FiskError",
    "Folding",
    "FunctionTool",
    "ImageBlock",
    "ImageSource",
    "InputAwaited",
    "InputRecorded",
    "InputSource",
    "Journal",
    "Line",
    "MemoryStore",
    "Message",
    "MetaRecord",
    "ModelCalled",
    "ModelOptions",
    "ModelRetried",
    "Noticed",
    "OnEvent",
    "OrphanFound",
    "Pending",
    "Provider",
    "Record",
    "ResumeOptions",
    "RetryPolicy",
    "RunEnded",
    "RunInfo",
    "RunResult",
    "RunResumed",
    "RunStarted",
    "RunState",
    "RunStream",
    "ScriptedProvider",
    "SequencedRecord",
    "Store",
    "TailRepaired",
    "TerminalRecord",
    "TextBlock",
    "TextStreamed",
    "Tool",
    "ToolContext",
    "ToolFinished",
    "ToolHashes",
    "ToolOutput",
    "ToolResultRecord",
    "ToolStarted",
    "Turn",
    "TurnRecorded",
    "UserRecord",
    "fold",
    "load_agent",
    "make_fingerprint",
    "new_meta",
    "new_run_id",
    "open_provider",
    "open_store",
    "tool",
    "tool_hashes",
    "tool_result",
    "user_text",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value  # so that the next look finds the value, not the submodule of the same name
    return value


def __dir__() -> list[str]:
    return __all__
