"""Calls of a turn: run one by one or side by side, or answered without being run; each result durable at once.

What runs and when is decided elsewhere (`decide`); what must be durable before an effect is the loop's.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from fisk_ai.agent import events
from fisk_ai.agent.decide import AnswerCall
from fisk_ai.agent.guard import OUTCOME_UNKNOWN
from fisk_ai.errors import FiskError, RecordRefused
from fisk_ai.folding import Folding
from fisk_ai.messages import Call, TextBlock, encode_result, is_blank, read_result, tool_result
from fisk_ai.records import Record, ToolResultRecord
from fisk_ai.stores.base import Journal
from fisk_ai.text import wellformed
from fisk_ai.tools.base import Tool, ToolContext, ToolOutput

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CallRunner:
    """Runs the calls of one run."""

    tools: Mapping[str, Tool]
    journal: Journal
    folding: Folding
    doubt: dict[str, str | None]
    """The loop's: calls that may have run in an earlier process; each goes when it is answered."""
    on_event: events.OnEvent
    before_effect: Callable[[], Awaitable[None]]
    """Makes durable what has to be before anything happens outside."""
    record: Callable[[Record], Awaitable[int]]
    """Makes a record durable, applies it, and returns its seq."""
    _appending: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self, calls: tuple[Call, ...]) -> None:
        """Run one call, or a parallel group side by side.

        Raises:
            StoreError: if the journal failed; calls that are under way are ended.
        """
        # Once for all of a group: none of them may start before the mark is durable.
        await self.before_effect()
        if len(calls) == 1:
            return await self._run_call(calls[0])
        failures: list[FiskError] = []
        async with anyio.create_task_group() as group:

            async def run_one(call: Call) -> None:
                try:
                    await self._run_call(call)
                except FiskError as problem:  # the journal failed: no other call may go on
                    failures.append(problem)
                    group.cancel_scope.cancel()

            for call in calls:
                group.start_soon(run_one, call)
        if failures:
            raise failures[0]
        return None

    async def _run_call(self, call: Call) -> None:
        tool = self.tools[call.name]
        arguments = call.parsed()
        if problem := tool.problem_with(arguments):
            text = f"Not run again: {problem}\n{OUTCOME_UNKNOWN}" if call.id in self.doubt else f"Not run: {problem}"
            await self.answer(AnswerCall(call, text))
            return
        key = self.folding.key_of(call)
        if call.id in self.doubt:
            self.on_event(events.CallRepeated(call.id, call.name, key))
        self.on_event(events.ToolStarted(call.id, call.name, call.arguments.decode(), key))
        started = time.monotonic()
        result = await self._call_tool(tool, arguments, call, key)
        await self._record_result(call, result, milliseconds_since(started))

    async def _call_tool(self, tool: Tool, arguments: Mapping[str, Any], call: Call, key: str) -> bytes:
        guarding = (
            self.journal.guard_call(tool.name, call.id, tool.timeout_s)
            if tool.starts_processes
            else contextlib.nullcontext(None)
        )
        with guarding as guard:
            try:
                output = await tool.call(arguments, ToolContext(self.journal.run_id, call.id, key, guard))
                return _encoded(call, output)
            except Exception as problem:  # a tool's bug must not leave its effect without a record
                log.debug("tool %s failed", tool.name, exc_info=True)
                text = f"The tool failed: {type(problem).__name__}: {problem}. It may have taken effect."
                return tool_result(call.id, text, is_error=True)

    async def _record_result(self, call: Call, result: bytes, duration_ms: int) -> None:
        try:
            await self._record_answer(call, result, duration_ms)
        except RecordRefused as problem:
            # The effect happened; without any record the call would be repeated for ever.
            text = f"The call ran, but its result can't be kept: {problem}"
            await self._record_answer(call, tool_result(call.id, text, is_error=True), duration_ms)

    async def answer(self, step: AnswerCall) -> None:
        """Answer a call that isn't run."""
        await self._record_answer(step.call, tool_result(step.call.id, step.text, is_error=step.is_error), None)

    async def _record_answer(self, call: Call, result: bytes, duration_ms: int | None) -> None:
        record = ToolResultRecord(
            tool_use_id=call.id, result=msgspec.Raw(result), name=wellformed(call.name), duration_ms=duration_ms
        )
        async with self._appending:  # results of a parallel group are appended one after another
            seq = await self.record(record)
        self.doubt.pop(call.id, None)
        block = read_result(result)
        self.on_event(events.ToolFinished(seq, call.id, call.name, block.text, block.is_error, duration_ms))


def _encoded(call: Call, output: ToolOutput) -> bytes:
    """Encode what a tool said; raises if that could not be read back. Blank text is left out: providers refuse it."""
    blocks = [block for block in output.blocks if not (isinstance(block, TextBlock) and is_blank(block.text))]
    result = encode_result(call.id, blocks, is_error=output.is_error)
    read_result(result)
    return result


def milliseconds_since(started: float) -> int:
    """Return the time since a moment of the monotonic clock."""
    return round((time.monotonic() - started) * 1000)
