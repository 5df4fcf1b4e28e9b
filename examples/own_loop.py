"""A loop of your own on top of `Journal` and `fold`: no Agent, no provider, no event loop. Runs offline.

    python examples/own_loop.py

The order is the whole point: a turn is appended before its tools start, a result before the next step. `append`
returns when the record is on disk, and only then it is applied to the state; `check` comes first, because a journal
takes a record that makes no sense as well. A new run and a resumed one take the same path, because what comes next
follows from the state alone.
"""

from __future__ import annotations

import tempfile

import msgspec

from fisk_ai import (
    AssistantRecord,
    Call,
    FileStore,
    Folding,
    Journal,
    Message,
    Record,
    SequencedRecord,
    TerminalRecord,
    ToolResultRecord,
    fold,
    new_meta,
    tool_result,
)


class PowerCut(Exception):
    """Stands for the end of the process."""


class MyLoop:
    """One run, driven from its journal."""

    def __init__(self, journal: Journal, *, dies_in_tool: bool = False) -> None:
        self.journal = journal
        self.dies_in_tool = dies_in_tool
        self.folding = Folding()
        for record in journal.records():
            self.folding.apply(record)

    def run(self) -> str:
        """Go on from wherever the journal ends, and return the answer."""
        while True:
            pending = self.folding.pending
            if pending is not None:
                self.run_tool(pending.unanswered[0])
            elif self.folding.answered and self.folding.last_turn is not None:
                self.record(TerminalRecord(reason="completed"))
                return self.folding.last_turn.text
            else:
                self.record(ask_my_model(self.folding.conversation(), self.folding.counters.model_calls))

    def run_tool(self, call: Call) -> None:
        """Run one call; its result is durable before anything else happens."""
        self.journal.ensure_held()
        print(f"  {call.name} with key {self.folding.key_of(call)}")
        if self.dies_in_tool:
            raise PowerCut
        result = tool_result(call.id, "done")
        self.record(ToolResultRecord(tool_use_id=call.id, result=msgspec.Raw(result), name=call.name))

    def record(self, record: Record) -> None:
        """Check, append, then apply: state never runs ahead of the disk."""
        self.folding.check(record)
        seq = self.journal.append(record)
        self.folding.apply(SequencedRecord(seq, record))


def ask_my_model(messages: list[Message], iteration: int) -> AssistantRecord:
    """Return the next turn, as it would come from an API: here a tool call, then an answer."""
    print(f"  model call {iteration}, with {len(messages)} message(s)")
    call = {"type": "tool_use", "id": "call_1", "name": "restart_server", "input": {"host": "web1"}}
    blocks = [call] if iteration == 0 else [{"type": "text", "text": "web1 is up again."}]
    return AssistantRecord(
        iteration=iteration,
        format="anthropic",
        message=msgspec.Raw(msgspec.json.encode({"role": "assistant", "content": blocks})),
        stop_reason="tool_use" if iteration == 0 else "end_turn",
        in_tokens=100,
        out_tokens=10,
    )


def main() -> None:
    """Start a run that dies in its tool, look at it, and resume it."""
    with tempfile.TemporaryDirectory() as directory:
        store = FileStore(directory)
        print("start")
        meta = new_meta("restart", "Restart web1.", provider="mine", model="mine-1")
        with store.create("restart", meta) as journal:
            try:
                MyLoop(journal, dies_in_tool=True).run()
            except PowerCut:
                print("  the power goes out")

        with store.open("restart") as journal:  # locked: nobody else can append to this run now
            state = fold(journal.records())
            assert state.pending is not None
            doubtful = [call.name for call in state.pending.ambiguous]
            print(f"resume: {state.counters.model_calls} turn is paid for, in doubt: {', '.join(doubtful)}")
            print(f"answer: {MyLoop(journal).run()}")


if __name__ == "__main__":
    main()
