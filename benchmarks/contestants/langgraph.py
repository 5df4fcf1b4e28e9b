"""LangGraph: `create_agent` of LangChain with a SqliteSaver, resumed with `invoke(None)` on the same thread.

Variants: `sync` (each step is stored before the next one begins) and `default`, which passes no durability (that is
`async`: stored while the next step runs).
"""

from __future__ import annotations

import os
import sqlite3
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks.scene import PROMPT, TOOLS, Scene, play

VARIANTS = ("sync", "default")
THREAD: Any = {"configurable": {"thread_id": "order"}}


class Model(BaseChatModel):
    """The scene's model as a chat model."""

    scene: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Model:
        """Ignore the tools: the script knows them."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **_options: Any) -> ChatResult:
        reply = self.scene.ask(
            {str(each.name): str(each.content) for each in messages if isinstance(each, ToolMessage)}
        )
        calls = [{"name": name, "args": {}, "id": call_id} for name, call_id in reply.calls.items()]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(reply.text, tool_calls=calls))])


def _tool(name: str, scene: Scene) -> StructuredTool:
    def work(call_id: Annotated[str, InjectedToolCallId]) -> str:
        return scene.use(name, call_id)

    return StructuredTool.from_function(work, name=name, description=f"Does {name}")


def run(scene: Scene, variant: str, resume: bool) -> str:
    """Start or resume, and return the answer."""
    connection = sqlite3.connect(os.path.join(scene.store, "checkpoints.sqlite"), check_same_thread=False)
    agent = create_agent(
        Model(scene=scene), [_tool(name, scene) for name in TOOLS], checkpointer=SqliteSaver(connection)
    )
    stored = resume and agent.get_state(THREAD).created_at is not None
    given: Any = None if stored else {"messages": [("user", PROMPT)]}
    options: Any = {"durability": "sync"} if variant == "sync" else {}
    return str(agent.invoke(given, THREAD, **options)["messages"][-1].content)


if __name__ == "__main__":
    play(run, VARIANTS)
