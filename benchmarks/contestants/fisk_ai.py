"""fisk-ai: a checkpointed run in a FileStore, resumed by its name.

Variants: `rerun` (what a tool does unless told otherwise), `ask` with an operator who looks whether the effect happened
before he decides, `skip` (the model is told that the outcome is unknown).
"""

from __future__ import annotations

import json
import os
from typing import Any, cast

from benchmarks.scene import PROMPT, TOOLS, Scene, play
from fisk_ai import (
    Agent,
    CallRepeated,
    Event,
    FileStore,
    FunctionTool,
    ResumeOptions,
    RunResult,
    ScriptedProvider,
    ToolContext,
    ToolFinished,
)
from fisk_ai.errors import AlreadyCompleted, DecisionNeeded
from fisk_ai.messages import Message
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.tools.base import OnCrash

RUN = "order"
VARIANTS = ("rerun", "ask", "skip")


class Model(ScriptedProvider):
    """The scene's model behind the seam of the library."""

    def __init__(self, scene: Scene) -> None:
        super().__init__([])
        self._scene = scene

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one call."""
        reply = await self._scene.ask_async(_results(request.messages))
        turn = {
            "text": reply.text,
            "calls": [{"name": name, "id": call_id} for name, call_id in reply.calls.items()],
        }
        return await ScriptedProvider([turn] * (request.iteration + 1)).complete(request, on_delta)


def _results(messages: Any) -> dict[str, str]:
    """Return what the conversation has as the result of each tool."""
    names: dict[str, str] = {}
    found: dict[str, str] = {}
    for message in cast("list[Message]", messages):
        content = json.loads(message.content)
        for block in content if isinstance(content, list) else content["content"]:
            if block["type"] == "tool_use":
                names[block["id"]] = block["name"]
            elif block["type"] == "tool_result":
                found[names[block["tool_use_id"]]] = _text(block["content"])
    return found


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def _tool(name: str, scene: Scene, on_crash: OnCrash) -> FunctionTool[Any, Any]:
    async def work(context: ToolContext) -> str:
        return await scene.use_async(name, context.idempotency_key)

    return FunctionTool(work, name=name, description=f"Does {name}", on_crash=on_crash)


def run(scene: Scene, variant: str, resume: bool) -> str:
    """Start or resume, and return the answer."""
    store = FileStore(os.path.join(scene.store, "runs"))
    tools = [_tool(name, scene, cast("OnCrash", variant)) for name in TOOLS]
    agent = Agent("scripted", provider=Model(scene), tools=tools, store=store)
    if not resume:
        return _answer(agent.run_sync(PROMPT, checkpoint=True, name=RUN))

    def told(event: Event) -> None:
        if isinstance(event, CallRepeated):
            scene.names([event.name])
        if isinstance(event, ToolFinished) and event.duration_ms is None:  # answered without being run
            scene.names([event.name])

    try:
        return _answer(agent.resume_sync(RUN, on_event=told))
    except AlreadyCompleted:
        turn = store.load(RUN).last_turn
        return turn.text if turn else ""
    except DecisionNeeded as asked:
        return _answer(agent.resume_sync(RUN, ResumeOptions(on_crash=_decision(scene, asked))))


def _decision(scene: Scene, asked: DecisionNeeded) -> OnCrash:
    """Decide as an operator would who looks up whether the named call took effect."""
    [call] = asked.calls
    tool = call.split()[0]
    scene.names([tool])
    return "skip" if tool in scene.effects() else "rerun"


def _answer(result: RunResult) -> str:
    if result.reason != "completed":
        raise RuntimeError(f"the run ended as {result.reason}: {result.message}")
    return result.answer or ""


if __name__ == "__main__":
    play(run, VARIANTS)
