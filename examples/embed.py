"""fisk-ai as a library: an agent, its tools, its events, a suspend and a resume. Runs offline.

python examples/embed.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import anyio

from fisk_ai import (
    Agent,
    Budget,
    Control,
    FileStore,
    ScriptedProvider,
    ToolContext,
    ToolFinished,
    TurnRecorded,
    tool,
)

TURNS: list[dict[str, Any]] = [
    {"text": "I look the customer up.", "calls": [{"name": "find_customer", "input": {"name": "Ada"}}]},
    {"text": "Now the mail.", "calls": [{"name": "send_mail", "input": {"to": "ada@example.org", "text": "Hello"}}]},
    {"text": "Ada has her mail."},
]


@tool(timeout_s=10)
def find_customer(name: str) -> dict[str, str]:
    """Look up a customer.

    Args:
        name: The customer's first name.
    """
    return {"name": name, "mail": f"{name.lower()}@example.org"}


@tool(on_crash="ask")
async def send_mail(to: str, text: str, context: ToolContext) -> str:
    """Send a mail."""
    # A real mail service takes the key and drops a repeat: it is the same if this very call is made again.
    return f"sent {len(text)} characters to {to}, request {context.idempotency_key}"


def make_agent(store: FileStore) -> Agent:
    """Describe the agent; each process that starts or resumes runs does this anew."""
    return Agent(
        "scripted",
        provider=ScriptedProvider(TURNS),  # or provider="anthropic", with ANTHROPIC_API_KEY set
        system_prompt="You write to customers.",
        tools=[find_customer, send_mail],
        budget=Budget(max_tokens=50_000, max_iterations=10),
        store=store,
    )


async def start_and_suspend(store: FileStore) -> None:
    """Start a run, and ask it to stop at its next boundary once a tool has ended."""
    control = Control()
    async with make_agent(store).stream("Write to Ada.", checkpoint=True, name="mail-ada", control=control) as run:
        async for event in run:
            match event:
                case TurnRecorded():
                    print(f"turn {event.iteration}: {event.text}")
                case ToolFinished():
                    print(f"  {event.name}: {event.text}")
                    control.suspend()
    print(f"-> {run.result.reason}, resumable: {run.result.resumable}")


async def resume(store: FileStore) -> None:
    """Go on, as another process on another day would."""
    state = store.load("mail-ada")
    print(f"found {state.counters.model_calls} turn(s) and {state.counters.tool_calls} result(s)")
    result = await make_agent(store).resume("mail-ada", on_event=lambda event: print(f"  {type(event).__name__}"))
    print(f"-> {result.reason}: {result.answer}")


async def main() -> None:
    """Run the example in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        store = FileStore(directory)
        await start_and_suspend(store)
        await resume(store)


if __name__ == "__main__":
    anyio.run(main)
