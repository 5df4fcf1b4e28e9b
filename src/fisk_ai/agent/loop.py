"""The loop: decide, act, make durable, apply. New, in-memory and resumed runs all go through it.

The order within a turn, which the guarantees rest on:

    1. a torn tail is cut, and the resume mark, if one is due, is durable before the first effect
    2. the run is still ours, asked before each effect
    3. the model is asked; its turn is durable before any of its tools starts
    4. a tool runs; its result is durable before the next tool starts and before the next model call
    5. state changes only by applying a record that is durable; the caller is told after that
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
import msgspec
from anyio.lowlevel import checkpoint_if_cancelled

from fisk_ai.agent import events
from fisk_ai.agent.calls import CallRunner, milliseconds_since
from fisk_ai.agent.control import Control
from fisk_ai.agent.decide import (
    KNOWN_STOP_REASONS,
    AnswerCall,
    AwaitInput,
    Budget,
    CallModel,
    Finish,
    RunCalls,
    decide,
    fitting_record,
)
from fisk_ai.agent.input import EndOfChat, EndOfInput, Input, InputSource
from fisk_ai.agent.writer import JournalWriter
from fisk_ai.errors import (
    InvalidReply,
    ProviderError,
    RecordRefused,
    RunAborted,
    StoreError,
)
from fisk_ai.folding import Folding
from fisk_ai.formats import reader_for
from fisk_ai.messages import is_blank, user_text
from fisk_ai.providers.base import Delta, ModelRequest, Provider, Reply, ToolSpec
from fisk_ai.providers.retry import RetryPolicy, complete_with_retries
from fisk_ai.records import (
    MAX_COUNT,
    MAX_REQUEST_ID_CHARACTERS,
    MAX_TERMINAL_MESSAGE_BYTES,
    AssistantRecord,
    Record,
    SequencedRecord,
    TerminalRecord,
    UserRecord,
)
from fisk_ai.text import shorten, wellformed
from fisk_ai.tools.base import Tool

log = logging.getLogger(__name__)

_MESSAGE_BYTES = MAX_TERMINAL_MESSAGE_BYTES - 100
"""Leaves room for the mark of a shortened text."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run works with; rebuilt on a resume, never stored."""

    provider: Provider
    model: str
    system_prompt: str
    tools: Mapping[str, Tool]
    budget: Budget
    max_output_tokens: int
    thinking_mode: str
    call_timeout_s: float
    retry: RetryPolicy

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools as the model is told of them, by name, so that their order never changes a request."""
        return tuple(ToolSpec(tool.name, tool.description, tool.parameters) for _, tool in sorted(self.tools.items()))


class _SuspendedWhileWaiting(Exception):
    """A retry pause was left because the operator asked to suspend."""


@dataclass(slots=True)
class Loop:
    """One run on its way to its next end."""

    setup: Setup
    writer: JournalWriter
    folding: Folding
    control: Control
    on_event: events.OnEvent
    input: InputSource
    stored: bool
    mark: TerminalRecord | None = None
    """The resume mark that is due before the first effect."""
    doubt: dict[str, str | None] = field(default_factory=dict)
    """Calls of the open turn that may have run in an earlier process: call id -> what the model is told instead of
    running it, or None to run it again. Ids are unique within a turn only, so each goes when it is answered."""
    _appended: bool = False
    _repaired: bool = False
    _input_ended: bool = False
    _provider_error: ProviderError | None = None
    _suspend: anyio.Event = field(default_factory=anyio.Event)
    _input_scope: anyio.CancelScope | None = None
    _stop_note: str | None = None
    """What the API said of the last turn's end."""
    _calls: CallRunner = field(init=False)

    def __post_init__(self) -> None:
        self._calls = CallRunner(
            tools=self.setup.tools,
            journal=self.writer.journal,
            folding=self.folding,
            doubt=self.doubt,
            on_event=self.on_event,
            before_effect=self._before_effect,
            record=self._record,
        )

    async def run(self) -> events.RunResult:
        """Run to the next end and say how it ended.

        Raises:
            StoreError: if the journal can't be written; nothing more happens after that.
            RunAborted: after `Control.abort`.
        """
        with anyio.CancelScope() as scope:

            def listener() -> None:
                if self.control.abort_requested:
                    scope.cancel()
                self._suspend.set()
                if self._input_scope is not None:
                    self._input_scope.cancel()

            with self.control.listening(listener):
                return await self._steps()
        raise RunAborted(self._run_id, stored=self.stored)

    async def _steps(self) -> events.RunResult:
        while True:
            await checkpoint_if_cancelled()  # appends are shielded, so an abort would get past them unseen
            step = decide(
                self.folding,
                tools=self.setup.tools,
                budget=self.setup.budget,
                skip={call_id: text for call_id, text in self.doubt.items() if text is not None},
                suspend=self.control.suspend_requested or self._input_ended,
            )
            finish = step if isinstance(step, Finish) else await self._act(step)
            if finish is not None:
                return await self._finish(finish)

    async def _act(self, step: CallModel | RunCalls | AnswerCall | AwaitInput) -> Finish | None:
        match step:
            case CallModel():
                return await self._call_model()
            case AwaitInput():
                return await self._await_input()
            case RunCalls():
                await self._calls.run(step.calls)
            case AnswerCall():
                await self._calls.answer(step)
        return None

    async def _before_effect(self) -> None:
        """Do what must be durable or true before anything happens outside."""
        await self._take_end_back()
        await checkpoint_if_cancelled()
        self.writer.journal.ensure_held()

    async def _take_end_back(self) -> None:
        await self._repair()
        if self.mark is not None:
            await self._append(self.mark)
            self.mark = None

    async def _repair(self) -> None:
        if self._repaired:
            return
        cut = await self.writer.call(self.writer.journal.repair)
        self._repaired = True
        if cut:
            self.on_event(events.TailRepaired(self._run_id, len(cut)))

    async def _record(self, record: Record) -> int:
        """Append one step of the run."""
        await self._take_end_back()
        return await self._append(record)

    async def _append(self, record: Record) -> int:
        seq = await self.writer.append(record)  # durable, or an exception
        self._appended = True
        self.folding.apply(SequencedRecord(seq, record))
        return seq

    async def _call_model(self) -> Finish | None:
        await self._before_effect()
        iteration = self.folding.counters.model_calls
        self._stop_note = None
        self.on_event(events.ModelCalled(iteration))
        started = time.monotonic()
        try:
            reply = await self._complete(self._request(iteration))
            seq = await self._record(self._assistant_record(reply, iteration, started))
        except _SuspendedWhileWaiting:
            return None
        except ProviderError as problem:
            return self._after_failure(problem)
        except RecordRefused as problem:
            return Finish("error", f"the model's turn can't be kept: {problem}")
        self._stop_note = reply.stop_note
        self._tell_turn(seq)
        return None

    def _after_failure(self, problem: ProviderError) -> Finish:
        self._provider_error = problem
        if problem.rate_limited and self.stored:  # what is left can be done when the limit has passed
            return Finish("suspended", f"the model can't be asked for now: {problem}")
        advice = ""
        if self.stored and problem.is_context_overflow and (seq := fitting_record(self.folding)) is not None:
            advice = f"; it did up to record {seq}: fork the run there, or earlier"
        elif why := self._broken_rule(problem):
            advice = f"; {why}"
        return Finish("error", f"the model could not be asked: {problem}{advice}")

    def _broken_rule(self, problem: ProviderError) -> str | None:
        from fisk_ai.providers.diagnosis import explain_refusal  # it imports every adapter

        request = self._request(self.folding.counters.model_calls)
        return explain_refusal(problem, self.setup.provider.format, request, self._run_id if self.stored else None)

    def _request(self, iteration: int) -> ModelRequest:
        return ModelRequest(
            model=self.setup.model,
            system_prompt=self.setup.system_prompt,
            tools=self.setup.specs(),
            messages=self.folding.conversation(),
            iteration=iteration,
            max_output_tokens=self.setup.max_output_tokens,
            thinking_mode=self.setup.thinking_mode,
        )

    async def _complete(self, request: ModelRequest) -> Reply:
        def on_delta(delta: Delta) -> None:
            self.on_event(events.TextStreamed(delta.kind, delta.text))

        attempt = 1

        def on_retry(failed: int, error: ProviderError, wait_s: float) -> None:
            nonlocal attempt
            attempt = failed + 1
            self.on_event(events.ModelRetried(failed, str(error), wait_s, error.may_be_paid))

        async def pause(seconds: float) -> None:
            await self._pause(seconds)
            await self._before_effect()
            self.on_event(events.ModelCalled(request.iteration, attempt))

        return await complete_with_retries(
            self.setup.provider,
            request,
            on_delta=on_delta,
            on_retry=on_retry,
            pause=pause,
            call_timeout_s=self.setup.call_timeout_s,
            policy=self.setup.retry,
        )

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._suspend.wait()
            raise _SuspendedWhileWaiting

    def _assistant_record(self, reply: Reply, iteration: int, started: float) -> AssistantRecord:
        try:
            calls = reader_for(reply.format)(reply.message).calls
        except (msgspec.MsgspecError, RecursionError) as problem:
            raise InvalidReply(f"the answer is no message of format {reply.format}: {problem}") from None
        ids = [call.id for call in calls]
        if "" in ids or len(set(ids)) != len(ids):
            raise InvalidReply("call ids of the answer are missing or doubled: its provider has to make them unique")
        tools = self.setup.tools
        parallel = tuple(call.position for call in calls if call.name in tools and tools[call.name].parallel)
        return AssistantRecord(
            iteration=iteration,
            format=reply.format,
            message=msgspec.Raw(reply.message),
            stop_reason=wellformed(reply.stop_reason),
            in_tokens=_counted(reply.in_tokens),
            out_tokens=_counted(reply.out_tokens),
            cache_read_tokens=_counted(reply.cache_read_tokens),
            cache_create_tokens=_counted(reply.cache_create_tokens),
            duration_ms=milliseconds_since(started),
            response_id=wellformed(reply.response_id) if reply.response_id is not None else None,
            request_id=wellformed(reply.request_id)[:MAX_REQUEST_ID_CHARACTERS] if reply.request_id else None,
            parallel=parallel if len(parallel) > 1 else (),
            unusable=reply.unusable,
        )

    def _tell_turn(self, seq: int) -> None:
        turn = self.folding.last_turn
        assert turn is not None
        counters = self.folding.counters
        names = tuple(call.name for call in turn.calls)
        self.on_event(
            events.TurnRecorded(
                seq, turn.iteration, turn.text, names, turn.stop_reason, counters.in_tokens, counters.out_tokens
            )
        )
        if turn.stop_reason not in KNOWN_STOP_REASONS:
            self.on_event(events.Noticed(f"the model stopped for a reason not known here: {turn.stop_reason!r}"))

    async def _await_input(self) -> Finish | None:
        self.on_event(events.InputAwaited())
        given = await self._read_input()
        match given:
            case None:
                return None  # left because of a suspend
            case EndOfInput():
                self._input_ended = True
                return None
            case EndOfChat():
                return Finish("completed")
        if is_blank(given.text):
            return None
        try:
            seq = await self._record(UserRecord(message=msgspec.Raw(user_text(given.text))))
        except RecordRefused as problem:
            self.on_event(events.Noticed(f"not sent: {problem}"))
            return None
        self.on_event(events.InputRecorded(seq, given.text))
        return None

    async def _read_input(self) -> Input | None:
        with anyio.CancelScope() as scope:
            self._input_scope = scope
            if self._suspend.is_set():
                scope.cancel()
            try:
                return await self.input.read()
            finally:
                self._input_scope = None
        return None

    async def _finish(self, step: Finish) -> events.RunResult:
        problem: StoreError | None = None
        step = self._explained(step)
        if not self._is_already_said(step):
            try:
                await self._append_end(step)
            except StoreError as failed:
                problem = failed  # what came before is durable, and an answer is still an answer
        result = self._result(step, problem)
        self.on_event(events.RunEnded(result))
        return result

    def _explained(self, step: Finish) -> Finish:
        if step.reason != "error" or step.message is None or self._stop_note is None:
            return step
        return Finish(step.reason, f"{step.message} ({self._stop_note})")

    async def _append_end(self, step: Finish) -> None:
        await self._repair()
        if self.mark is not None and self.mark.fingerprint is not None:
            await self._take_end_back()  # a forced resume leaves its trace even if little was left to do
        message = shorten(wellformed(step.message), _MESSAGE_BYTES) if step.message else None
        await self._append(TerminalRecord(reason=step.reason, message=message))

    def _is_already_said(self, step: Finish) -> bool:
        """Tell whether the journal needs no further record for this end."""
        if step.reason == "suspended" and self.doubt:
            # A clean end would take back the doubt about a call that may have run in a process that died.
            return True
        if self._appended:
            return False
        terminal = self.folding.terminal
        if step.reason == "suspended":
            return terminal is not None and terminal.reason == "suspended"
        return step.reason in ("budget", "max_iterations")  # a resume with nothing left

    def _result(self, step: Finish, problem: StoreError | None) -> events.RunResult:
        turn = self.folding.last_turn
        answer = turn.text if turn is not None and self.folding.answered else None
        return events.RunResult(
            run_id=self._run_id,
            reason=step.reason,
            answer=answer,
            message=step.message,
            counters=self.folding.counters,
            iterations=self.folding.counters.model_calls,
            stored=self.stored,
            input_ended=self._input_ended,
            storage_error=problem,
            provider_error=self._provider_error,
        )

    @property
    def _run_id(self) -> str:
        return self.writer.journal.run_id


def _counted(tokens: int) -> int:
    """Bring what a provider counted to what a record may say."""
    return min(max(tokens, 0), MAX_COUNT)
