"""A run and its operator: where it is found, what steers it, what is said when it ends, and the exit code."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from typing import Any, Literal, Protocol

import anyio
import click

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.agent.assemble import load_agent
from fisk_ai.agent.control import Control
from fisk_ai.agent.input import Input, InputSource, Line
from fisk_ai.cli import exits, terminal
from fisk_ai.cli.chat import operator_input
from fisk_ai.cli.ending import ending, resume
from fisk_ai.cli.live import Live
from fisk_ai.cli.places import Place, find_run, naming, open_state
from fisk_ai.cli.signals import steered
from fisk_ai.cli.stream import FinalJson, StreamedJson
from fisk_ai.errors import ConfigError, ConfigurationChanged, DecisionNeeded, NothingToResume
from fisk_ai.messages import is_blank
from fisk_ai.stores.base import RunInfo
from fisk_ai.text import one_line, wellformed
from fisk_ai.tools.base import OnCrash

Output = Literal["text", "json", "stream-json"]

_RESUMABLE = frozenset({"suspended", "interrupted", "error", "budget", "max_iterations"})


class _Run(Protocol):
    async def __call__(self, control: Control, tell: events.OnEvent) -> events.RunResult: ...


class Driver:
    """Drives runs of one agent at one place; what the operator sees is as `output` says."""

    def __init__(self, place: Place, output: Output) -> None:
        store = None if place.state_dir is None else open_state(place.state_dir)
        self._place = place
        self._output = output
        self._agent: Agent = load_agent(place.config, store=store)

    def start(self, prompt: str, *, checkpoint: bool, name: str | None) -> int:
        """Start a run and return its exit code."""

        async def run(control: Control, tell: events.OnEvent) -> events.RunResult:
            return await self._agent.run(prompt, checkpoint=checkpoint, name=name, control=control, on_event=tell)

        return self._drive(run, stored=checkpoint)

    def chat(self, prompt: str, *, checkpoint: bool, name: str | None) -> int:
        """Start a chat, whose prompt is the first line of input if there is none yet, and return its exit code."""

        async def run(control: Control, tell: events.OnEvent) -> events.RunResult:
            # Nothing could resume a chat that isn't stored.
            source = operator_input(control.suspend if checkpoint else control.abort)
            return await self._agent.run(
                await _first_line(source, control) if is_blank(prompt) else prompt,
                checkpoint=checkpoint,
                name=name,
                interactive=True,
                input_source=source,
                control=control,
                on_event=tell,
            )

        return self._drive(run, stored=checkpoint, chat=True)

    def resume(self, text: str | None, options: ResumeOptions, *, chat: bool) -> int:
        """Go on with the run that `text` names, or with the latest one, and return its exit code."""
        store = self._agent.store
        run_id = self._latest() if text is None else find_run(store, text)
        with naming(run_id):
            if chat and not store.load(run_id).interactive:
                raise ConfigError(
                    f"run {run_id!r} is not a chat: `fisk-ai session fork {run_id} --chat` makes one of it"
                )
            try:
                return self._resume_deciding(run_id, options)
            except ConfigurationChanged as problem:
                problem.args = (f"{problem} (configuration: {one_line(self._place.config, 1000)})",)
                raise

    def _latest(self) -> str:
        """Return the newest run that can be resumed with this configuration's model."""
        store = self._agent.store
        resumable = [info for info in store.list() if info.status in _RESUMABLE]
        for info in resumable:
            if self._may_have_made(info):
                terminal.say(f"--continue takes run {info.run_id}")
                return info.run_id
        problem = NothingToResume(store.location)
        if resumable:
            problem.args = (_only_others(store.location, self._agent, resumable[0]),)
        raise problem

    def _may_have_made(self, info: RunInfo) -> bool:
        """Tell whether a run fits this agent as far as a listing shows; the guard looks at the rest."""
        return info.provider in (None, self._agent.provider_name) and info.model in (None, self._agent.model)

    def _resume_deciding(self, run_id: str, options: ResumeOptions) -> int:
        while True:
            try:
                return self._resume(run_id, options)
            except DecisionNeeded as needed:
                options = dataclasses.replace(options, on_crash=self._decision(needed))

    def _resume(self, run_id: str, options: ResumeOptions) -> int:
        async def run(control: Control, tell: events.OnEvent) -> events.RunResult:
            source = operator_input(control.suspend)
            return await self._agent.resume(run_id, options, input_source=source, control=control, on_event=tell)

        return self._drive(run, stored=True)

    def _decision(self, needed: DecisionNeeded) -> OnCrash:
        """Let the operator decide about a call that may have run; without a terminal the refusal stands."""
        if self._output != "text" or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise needed
        for call in needed.calls:
            terminal.say(f"{one_line(call, 200)} may have run before the crash.")
        choice: str = click.prompt(
            "Run it again, skip it (the model is told that its outcome is unknown), or leave the run as it is?",
            type=_Words(["rerun", "skip", "leave"]),
            default="leave",
            err=True,
        )
        if choice == "leave":
            raise needed
        return "rerun" if choice == "rerun" else "skip"

    def _display(self, *, chat: bool) -> Live | StreamedJson:
        match self._output:
            case "json":
                return FinalJson()
            case "stream-json":
                return StreamedJson()
            case "text":
                return Live(self._place, chat=chat)

    def _drive(self, run: _Run, *, stored: bool, chat: bool = False) -> int:
        show = self._display(chat=chat)
        begun: list[str] = []

        def tell(event: events.Event) -> None:
            if isinstance(event, events.RunStarted | events.RunResumed) and stored:
                begun.append(event.run_id)
            show(event)

        try:
            result = anyio.run(partial(steered, partial(run, tell=tell), stored=stored, say=show.notice))
        except Exception as problem:  # of any kind, and raised again
            for run_id in begun:  # it exists, and can be gone on with whatever stopped it
                problem.add_note(f"  {resume(run_id, None, self._place)}")
            raise
        finally:
            show.close()
        # Only now, when the run is given up: who reads the answer may take long.
        show.finish(result)
        return self._conclude(result)

    def _conclude(self, result: events.RunResult) -> int:
        """Say how to go on, and return the exit code."""
        if terminal.stdout.failed and result.stored:
            terminal.say(f"what it says is kept: {self._place.session_command('show', result.run_id)}")
        if result.storage_error is not None:
            terminal.complain(f"the end of the run was not stored: {result.storage_error}")
            terminal.say(f"  {resume(result.run_id, None, self._place)}")
            return exits.FAILED
        if result.reason != "completed":
            terminal.say(ending(result, self._place, self._agent.store))
        return exits.COMPLETED if result.input_ended else exits.OF_REASON[result.reason]


async def _first_line(source: InputSource, control: Control) -> str:
    """Read what a chat begins with; a signal meanwhile means that there is no run."""
    with anyio.CancelScope() as scope, control.listening(scope.cancel):
        given: Input = Line("")
        while isinstance(given, Line) and is_blank(given.text):
            given = await source.read()
        if isinstance(given, Line):
            return wellformed(given.text)
    if scope.cancelled_caught:
        raise click.Abort
    raise ConfigError("the input ended before anything was said: no run was started")


def _only_others(location: str, agent: Agent, newest: RunInfo) -> str:
    return (
        f"no run in {location} that can be resumed has the model of the configuration, {one_line(agent.model, 80)} "
        f"({agent.provider_name}). The newest one of another is {newest.run_id}, of {one_line(newest.model or '', 80)} "
        f"({one_line(newest.provider or '', 40)}): `fisk-ai session show {newest.run_id}` shows it"
    )


class _Words(click.Choice[str]):
    """Words that may be shortened as long as it is clear which one is meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        meant = [word for word in self.choices if word.startswith(value.lower())] if value else []
        return super().convert(meant[0] if len(meant) == 1 else value, param, ctx)
