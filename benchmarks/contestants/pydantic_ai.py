"""pydantic-ai.

Variants: `harness`, the StepPersistence of pydantic-ai-harness with its SQLite store; `harness-stop`, the same, in a
program that stops as soon as the ledger of tool effects has calls whose outcome is unknown; `dbos-steps`,
DBOSDurability with each tool declared as a step, as its documentation advises for tools with effects; `dbos`, the same
with plain tools.

With the harness the next process takes the messages of the last complete snapshot (`continue_run`) into a new run. If
there is none, it starts anew only if the ledger knows of no tool that was started, and stops otherwise.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.scene import PROMPT, TOOLS, Scene, play

VARIANTS = ("harness", "harness-stop", "dbos-steps", "dbos")
CONVERSATION = "order"


def _model(scene: Scene) -> FunctionModel:
    async def ask(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        returned = {part.tool_name: str(part.content) for part in parts if isinstance(part, ToolReturnPart)}
        reply = await scene.ask_async(returned)
        calls = [ToolCallPart(name, {}, tool_call_id=call_id) for name, call_id in reply.calls.items()]
        return ModelResponse(parts=calls or [TextPart(reply.text)])

    return FunctionModel(ask)


def _tool(name: str, scene: Scene) -> Tool[None]:
    async def work(context: RunContext[None]) -> str:
        return await scene.use_async(name, str(context.tool_call_id))

    return Tool(work, name=name, description=f"Does {name}")


def _step_tool(name: str, scene: Scene) -> Tool[None]:
    from dbos import DBOS

    @DBOS.step(name=name)
    async def step(call_id: str) -> str:
        return await scene.use_async(name, call_id)

    async def work(context: RunContext[None]) -> str:
        return await step(str(context.tool_call_id))

    return Tool(work, name=name, description=f"Does {name}")


def run(scene: Scene, variant: str, resume: bool) -> str:
    """Start or resume, and return the answer."""
    if variant.startswith("harness"):
        return asyncio.run(_with_harness(scene, resume, stops=variant == "harness-stop"))
    return _with_dbos(scene, _step_tool if variant == "dbos-steps" else _tool, resume)


async def _with_harness(scene: Scene, resume: bool, *, stops: bool) -> str:
    from pydantic_ai_harness import StepPersistence
    from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run

    store = SqliteStepStore(database=os.path.join(scene.store, "runs.sqlite"))
    tools = [_tool(name, scene) for name in TOOLS]
    agent = Agent(_model(scene), tools=tools, capabilities=[StepPersistence(store=store, agent_name="clerk")])
    runs = await store.list_runs(conversation_id=CONVERSATION) if resume else []
    if not runs:
        return (await agent.run(PROMPT, conversation_id=CONVERSATION)).output
    unresolved = [each.tool_name for each in await store.list_unresolved_tool_effects(run_id=runs[-1].run_id)]
    scene.names(unresolved)
    if unresolved and stops:
        raise RuntimeError(f"outcome unknown: {', '.join(unresolved)}")
    try:
        history = await continue_run(store, run_id=runs[-1].run_id)
    except LookupError as nothing:
        if unresolved:
            raise LookupError(f"no snapshot to continue from; unresolved: {', '.join(unresolved)}") from nothing
        return (await agent.run(PROMPT, conversation_id=CONVERSATION)).output
    last = history[-1]
    if isinstance(last, ModelResponse) and last.text:
        return last.text
    return (await agent.run(message_history=history, conversation_id=CONVERSATION)).output


def _with_dbos(scene: Scene, make_tool: Any, resume: bool) -> str:
    from dbos import DBOS, SetWorkflowID
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    from benchmarks.contestants.dbos import WORKFLOW, launch

    launch(scene)
    tools = [make_tool(name, scene) for name in TOOLS]
    agent = Agent(_model(scene), name="clerk", tools=tools, capabilities=[DBOSDurability()])

    @DBOS.workflow()
    async def work(prompt: str) -> str:
        return (await agent.run(prompt)).output

    async def begin() -> str:
        with SetWorkflowID(WORKFLOW):
            return await work(PROMPT)

    DBOS.launch()
    return str(DBOS.retrieve_workflow(WORKFLOW).get_result()) if resume else asyncio.run(begin())


if __name__ == "__main__":
    play(run, VARIANTS)
