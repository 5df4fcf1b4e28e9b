"""OpenAI Agents SDK.

Variants: `session`, a SQLiteSession that the next process runs on again, and `dbos`, the SDK's runner in a DBOS
workflow with its tools as steps, recovered by DBOS (package dbos-openai-agents).

A session has no call that means "go on where you were": the next process passes a new input to the same session. If the
session already ends with the answer, that is taken.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from benchmarks.scene import PROMPT, TOOLS, Reply, Scene, play

VARIANTS = ("session", "dbos")
GO_ON = "Go on."


class Scripted(Model):
    """The scene's model behind the seam of the SDK."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **_options: Any) -> ModelResponse:  # noqa: A002
        """Make one call."""
        items = input if isinstance(input, list) else []
        names = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
        outputs = [item for item in items if item.get("type") == "function_call_output"]
        results = {names[item["call_id"]]: str(item["output"]) for item in outputs}
        output = _output(await self._scene.ask_async(results))
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **_options: Any) -> Any:
        """Refuse; nothing here streams."""
        raise NotImplementedError


def _output(reply: Reply) -> list[Any]:
    if reply.calls:
        return [
            ResponseFunctionToolCall(type="function_call", name=name, call_id=call_id, arguments="{}")
            for name, call_id in reply.calls.items()
        ]
    text = ResponseOutputText(type="output_text", text=reply.text, annotations=[])
    return [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]


def _tool(name: str, scene: Scene) -> FunctionTool:
    async def work(context: ToolContext[None]) -> str:
        return await scene.use_async(name, context.tool_call_id)

    return function_tool(work, name_override=name, description_override=f"Does {name}")


def _step_tool(name: str, scene: Scene) -> FunctionTool:
    from dbos import DBOS

    @DBOS.step(name=name)
    async def step(call_id: str) -> str:
        return await scene.use_async(name, call_id)

    async def work(context: ToolContext[None]) -> str:
        return await step(context.tool_call_id)

    return function_tool(work, name_override=name, description_override=f"Does {name}")


def run(scene: Scene, variant: str, resume: bool) -> str:
    """Start or resume, and return the answer."""
    set_tracing_disabled(True)
    if variant == "dbos":
        return _with_dbos(scene, resume)
    agent = Agent(name="clerk", model=Scripted(scene), tools=[_tool(name, scene) for name in TOOLS])
    session = SQLiteSession("order", os.path.join(scene.store, "sessions.sqlite"))
    return asyncio.run(_on_session(agent, session))


async def _on_session(agent: Agent[None], session: SQLiteSession) -> str:
    items: Sequence[Any] = await session.get_items()
    if items and items[-1].get("type") == "message" and items[-1].get("role") == "assistant":
        return str(items[-1]["content"][0]["text"])
    result = await Runner.run(agent, GO_ON if items else PROMPT, session=session)
    return str(result.final_output)


def _with_dbos(scene: Scene, resume: bool) -> str:
    from dbos import DBOS, SetWorkflowID
    from dbos_openai_agents import DBOSRunner

    from benchmarks.contestants.dbos import WORKFLOW, launch

    launch(scene)
    agent = Agent(name="clerk", model=Scripted(scene), tools=[_step_tool(name, scene) for name in TOOLS])

    @DBOS.workflow()
    async def work(prompt: str) -> str:
        result = await DBOSRunner.run(agent, prompt, run_config=RunConfig(tracing_disabled=True))
        return str(result.final_output)

    async def begin() -> str:
        with SetWorkflowID(WORKFLOW):
            return str(await work(PROMPT))

    DBOS.launch()
    return str(DBOS.retrieve_workflow(WORKFLOW).get_result()) if resume else asyncio.run(begin())


if __name__ == "__main__":
    play(run, VARIANTS)
