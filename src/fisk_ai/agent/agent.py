"""`Agent`: a configuration that can start runs and resume them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
from anyio.lowlevel import current_token
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from fisk_ai.agent import events
from fisk_ai.agent.control import Control
from fisk_ai.agent.decide import Budget
from fisk_ai.agent.guard import Passage, check_resume
from fisk_ai.agent.input import InputSource, NoInput
from fisk_ai.agent.loop import Loop, Setup
from fisk_ai.agent.orphan import OrphanPolicy, settle_orphans
from fisk_ai.agent.settings import check_settings, server_tools_by_name, tools_by_name
from fisk_ai.agent.writer import JournalWriter, never_abandoned
from fisk_ai.errors import ConfigError, JournalCorrupt
from fisk_ai.fingerprint import make_fingerprint, tool_hashes
from fisk_ai.folding import Folding, RunState
from fisk_ai.ids import check_new_run_id, new_run_id
from fisk_ai.messages import is_blank
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import ModelOptions, Provider
from fisk_ai.providers.retry import RetryPolicy
from fisk_ai.records import VERSION, Fingerprint, MetaRecord
from fisk_ai.stores.base import Journal, Store, timestamp, utc_now
from fisk_ai.stores.file import FileStore
from fisk_ai.stores.memory import MemoryStore
from fisk_ai.text import wellformed
from fisk_ai.tools.base import OnCrash, Tool

_ORPHAN_WAIT_S = 60.0
"""How long a living tool without a time limit of its own is waited for."""


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """How a resume treats what it finds."""

    force: bool = False
    """Go on although the configuration changed; never to another provider."""
    on_crash: OnCrash | None = None
    """Overrides what the tools say of calls that may have run."""
    orphan: OrphanPolicy = "wait"
    """What to do about a tool of the dead runner that is still alive."""


class Agent:
    """A model, its instructions and its tools; starts runs and resumes them.

    Nothing is opened before a run starts, and one agent may have many runs at once: they share no state.
    """

    def __init__(
        self,
        model: str,
        *,
        provider: str | Provider = "anthropic",
        open_with: Callable[[], Provider] | None = None,
        model_options: ModelOptions | None = None,
        system_prompt: str = "",
        tools: Iterable[Tool | Callable[..., object]] = (),
        budget: Budget | None = None,
        max_output_tokens: int = 8192,
        thinking_mode: str = "off",
        call_timeout_s: float = 120.0,
        retry: RetryPolicy | None = None,
        store: Store | None = None,
    ) -> None:
        """Describe an agent.

        Args:
            model: the model's name, as the provider knows it.
            provider: a provider's name (its key is read from the environment when a run starts) or an open one.
            open_with: how to open the provider of that name, instead of from the environment alone.
            model_options: what the provider is asked for besides turns. A provider given by its name alone is opened
                with them; one that is open, or that `open_with` opens, has to have been given the same, as its server
                tools are part of the fingerprint.
            system_prompt: the instructions.
            tools: tools, or plain functions to be made into tools.
            budget: limits over the whole life of a run.
            max_output_tokens: limit of one model call.
            thinking_mode: `off`, `adaptive` or `budget:<n>` (tokens).
            call_timeout_s: limit of one attempt at a model call, in seconds, in all.
            retry: how failing model calls are tried again.
            store: where checkpointed runs are kept; None is the file store in the XDG state directory.

        Raises:
            ConfigError: for settings that can't be, all of them at once.
            ToolSetupError: if a tool can't be described, or two have one name.
        """
        check_settings(
            model=model,
            provider=provider if isinstance(provider, str) and open_with is None else None,
            max_output_tokens=max_output_tokens,
            thinking_mode=thinking_mode,
            call_timeout_s=call_timeout_s,
        )
        self.model = model
        self.provider_name = provider if isinstance(provider, str) else provider.name
        self._provider = provider
        self._open_with = open_with
        self.model_options = model_options or ModelOptions()
        self.system_prompt = wellformed(system_prompt)
        self.tools = tools_by_name(tools)
        self.server_tools = server_tools_by_name(self.model_options.server_tools, self.tools)
        self.budget = budget or Budget()
        self.max_output_tokens = max_output_tokens
        self.thinking_mode = thinking_mode
        self.call_timeout_s = call_timeout_s
        self.retry = retry or RetryPolicy()
        self._store = store

    @property
    def store(self) -> Store:
        """Where checkpointed runs are kept."""
        if self._store is None:
            self._store = FileStore()
        return self._store

    @property
    def fingerprint(self) -> Fingerprint:
        """What a resume compares: hashes of prompt and tools, and plain values."""
        return make_fingerprint(
            provider=self.provider_name,
            model=self.model,
            system_prompt=self.system_prompt,
            tools={
                name: tool_hashes(tool.description, tool.parameters, tool.identity) for name, tool in self.tools.items()
            }
            | {name: tool_hashes("", {}, definition) for name, definition in self.server_tools.items()},
            thinking_mode=self.thinking_mode,
            max_tokens=self.budget.max_tokens,
            max_iterations=self.budget.max_iterations,
        )

    async def run(
        self,
        prompt: str,
        *,
        checkpoint: bool = False,
        name: str | None = None,
        interactive: bool = False,
        input_source: InputSource | None = None,
        control: Control | None = None,
        on_event: events.OnEvent | None = None,
    ) -> events.RunResult:
        """Start a run and drive it to its first end.

        Args:
            prompt: what the run is about; must not be blank.
            checkpoint: journal the run in the store; otherwise it lives in memory and nothing is written.
            name: the id of the run, which must be checkpointed; None makes one that sorts by time.
            interactive: a chat: each answer waits for `input_source`.
            input_source: where follow-ups come from.
            control: to suspend or abort from outside.
            on_event: called with each event, in this event loop; it must not block.

        Raises:
            ConfigError: for a blank prompt, a name without `checkpoint`, or a missing key.
            InvalidRunId, RunExists, NotPermitted, JournalFailed, JournalLost: from the store.
            RunAborted: after `control.abort()`.
        """
        if is_blank(prompt):
            raise ConfigError("the prompt is empty: say what the run is about")
        if name is not None and not checkpoint:
            raise ConfigError(f"name={name!r} has no use without checkpoint=True: a run in memory can't be found by it")
        run_id = new_run_id() if name is None else check_new_run_id(name)
        async with self._opened_provider() as provider:
            meta = self._meta(run_id, prompt, interactive=interactive)
            store = self.store if checkpoint else MemoryStore()
            tell = on_event or _ignore
            source = input_source or NoInput()
            with contextlib.ExitStack() as opened:
                journal = await never_abandoned(lambda: opened.enter_context(store.create(run_id, meta)))
                tell(events.RunStarted(run_id, stored=checkpoint))
                folding = _folded(journal)
                return await self._drive(journal, folding, provider, control, tell, source, stored=checkpoint)

    async def resume(
        self,
        run_id: str,
        options: ResumeOptions | None = None,
        *,
        input_source: InputSource | None = None,
        control: Control | None = None,
        on_event: events.OnEvent | None = None,
    ) -> events.RunResult:
        """Go on with a stored run, whatever ended it.

        1. lock, read and check  2. guard  3. wait for orphans  4. repair  5. the loop, as for a new run

        Until step 4 nothing was changed, so a refusal leaves every byte as it was.

        Raises:
            RunNotFound, NothingRecorded, RunLocked, NotPermitted, JournalCorrupt, NewerVersion, UnsupportedFormat.
            AlreadyCompleted, ConfigurationChanged, DeadEnd, DecisionNeeded, OrphanRunning.
            JournalFailed, JournalLost, RunAborted, ConfigError.
        """
        options = options or ResumeOptions()
        tell = on_event or _ignore
        control = control or Control()
        with contextlib.ExitStack() as opened:
            journal = await never_abandoned(lambda: opened.enter_context(self.store.open(run_id)))
            folding = _folded(journal)
            state = folding.state()
            passage = check_resume(state, self.fingerprint, self.tools, force=options.force, on_crash=options.on_crash)
            if passage.doubt:
                # A suspend or an abort leaves the wait; the loop then sees it before anything else.
                with anyio.CancelScope() as waiting, control.listening(waiting.cancel):
                    await settle_orphans(journal, options.orphan, _time_limit(state, self.tools), tell)
            async with self._opened_provider() as provider:
                tell(events.RunResumed(run_id, state, passage.forced))
                source = input_source or NoInput()
                return await self._drive(
                    journal, folding, provider, control, tell, source, stored=True, passage=passage
                )

    def run_sync(
        self,
        prompt: str,
        *,
        checkpoint: bool = False,
        name: str | None = None,
        on_event: events.OnEvent | None = None,
    ) -> events.RunResult:
        """Do `run` from code without an event loop; raises `RuntimeError` where one runs.

        Ctrl-C raises `KeyboardInterrupt` once the record that is being written is durable; a checkpointed run is
        interrupted then and can be resumed.
        """
        _require_no_loop("run")
        return anyio.run(partial(self.run, prompt, checkpoint=checkpoint, name=name, on_event=on_event))

    def resume_sync(
        self, run_id: str, options: ResumeOptions | None = None, *, on_event: events.OnEvent | None = None
    ) -> events.RunResult:
        """Do `resume` from code without an event loop, as `run_sync` does `run`."""
        _require_no_loop("resume")
        return anyio.run(partial(self.resume, run_id, options, on_event=on_event))

    @asynccontextmanager
    async def stream(
        self, prompt: str, *, checkpoint: bool = False, name: str | None = None, control: Control | None = None
    ) -> AsyncIterator[RunStream]:
        """Start a run and iterate over its events: `async with agent.stream(...) as run: async for event in run`.

        Leaving the block early cancels the run where it is; a checkpointed one can be resumed.
        """
        async with _streamed(partial(self.run, prompt, checkpoint=checkpoint, name=name, control=control)) as stream:
            yield stream

    @asynccontextmanager
    async def stream_resume(
        self, run_id: str, options: ResumeOptions | None = None, *, control: Control | None = None
    ) -> AsyncIterator[RunStream]:
        """Resume a run and iterate over its events, as `stream` does."""
        async with _streamed(partial(self.resume, run_id, options, control=control)) as stream:
            yield stream

    def _meta(self, run_id: str, prompt: str, *, interactive: bool) -> MetaRecord:
        return MetaRecord(
            version=VERSION,
            run_id=run_id,
            created=timestamp(utc_now()),
            fingerprint=self.fingerprint,
            prompt=wellformed(prompt),
            checksums=True,
            interactive=interactive,
        )

    async def _drive(
        self,
        journal: Journal,
        folding: Folding,
        provider: Provider,
        control: Control | None,
        tell: events.OnEvent,
        input_source: InputSource,
        *,
        stored: bool,
        passage: Passage | None = None,
    ) -> events.RunResult:
        writer = JournalWriter(journal)
        try:
            loop = Loop(
                setup=self._setup(provider),
                writer=writer,
                folding=folding,
                control=control or Control(),
                on_event=tell,
                input=input_source,
                stored=stored,
                mark=passage.mark if passage else None,
                doubt=dict(passage.doubt) if passage else {},
            )
            return await loop.run()
        finally:
            writer.stop()

    def _setup(self, provider: Provider) -> Setup:
        return Setup(
            provider=provider,
            model=self.model,
            system_prompt=self.system_prompt,
            tools=self.tools,
            budget=self.budget,
            max_output_tokens=self.max_output_tokens,
            thinking_mode=self.thinking_mode,
            call_timeout_s=self.call_timeout_s,
            retry=self.retry,
        )

    @asynccontextmanager
    async def _opened_provider(self) -> AsyncIterator[Provider]:
        if not isinstance(self._provider, str):
            yield self._provider  # the caller's, who also closes it
            return
        provider = self._open_with() if self._open_with else self._open_named(self._provider)
        try:
            yield provider
        finally:
            with anyio.CancelScope(shield=True):
                await provider.aclose()

    def _open_named(self, name: str) -> Provider:
        return open_provider(name, model=self.model, options=self.model_options)


class RunStream:
    """The events of one run, in order; `result` is there when they have ended."""

    def __init__(self, received: MemoryObjectReceiveStream[events.Event]) -> None:
        self._received = received
        self._result: events.RunResult | None = None
        self._error: BaseException | None = None

    async def __aiter__(self) -> AsyncIterator[events.Event]:
        """Yield the events; raises what ended the run if that was an error."""
        async for event in self._received:
            yield event
        if self._error is not None:
            raise self._error

    @property
    def result(self) -> events.RunResult:
        """How the run ended; raises `RuntimeError` before that."""
        if self._result is None:
            raise RuntimeError("the run has not ended: iterate over its events first")
        return self._result

    async def drive(self, start: _Start, send: MemoryObjectSendStream[events.Event]) -> None:
        """Run to the end, keeping the outcome for whoever iterates."""
        with send:
            try:
                self._result = await start(on_event=send.send_nowait)
            except Exception as problem:  # noqa: BLE001 - raised again where the events are read
                self._error = problem


class _Start(Protocol):
    async def __call__(self, *, on_event: events.OnEvent) -> events.RunResult: ...


@asynccontextmanager
async def _streamed(start: _Start) -> AsyncIterator[RunStream]:
    send, receive = anyio.create_memory_object_stream[events.Event](math.inf)
    stream = RunStream(receive)
    problem: Exception | None = None
    with receive:
        async with anyio.create_task_group() as group:
            group.start_soon(stream.drive, start, send)
            try:
                yield stream
            except Exception as raised:  # noqa: BLE001 - raised outside of the group, which would wrap it
                problem = raised
            group.cancel_scope.cancel()
    if problem is not None:
        raise problem


def _require_no_loop(method: str) -> None:
    try:
        current_token()
    except RuntimeError:
        return
    raise RuntimeError(
        f"an event loop is running here (as in a notebook): use `await agent.{method}(...)`, not {method}_sync"
    )


def _folded(journal: Journal) -> Folding:
    folding = Folding()
    try:
        for record in journal.records():
            folding.apply(record)
    except JournalCorrupt as problem:
        raise problem.located(f"run {journal.run_id!r}", run_id=journal.run_id) from None
    return folding


def _time_limit(state: RunState, tools: Mapping[str, Tool]) -> float:
    """Return how long the calls in doubt may take by their tools' own limits, in seconds."""
    calls = state.pending.ambiguous if state.pending else ()
    limits = [tools[call.name].timeout_s for call in calls if call.name in tools]
    return max((limit for limit in limits if limit is not None), default=_ORPHAN_WAIT_S)


def _ignore(event: events.Event) -> None:
    """Take an event that nobody asked for."""
