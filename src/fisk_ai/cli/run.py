"""`fisk-ai run`: start a run or resume a stored one, with a terminal or without."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import anyio
import click

from fisk_ai.agent import events
from fisk_ai.agent.agent import Agent, ResumeOptions
from fisk_ai.agent.assemble import load_agent
from fisk_ai.agent.control import Control
from fisk_ai.agent.input import Input, InputSource, Line
from fisk_ai.agent.orphan import OrphanPolicy
from fisk_ai.cli import exits, terminal
from fisk_ai.cli.chat import operator_input
from fisk_ai.cli.live import Live
from fisk_ai.cli.places import DEFAULT_CONFIG, find_run, resume_command, session_command
from fisk_ai.cli.signals import steered
from fisk_ai.cli.stream import FinalJson, StreamedJson, error_data
from fisk_ai.errors import ConfigError, DecisionNeeded, FiskError, RunNotFound
from fisk_ai.ids import check_new_run_id
from fisk_ai.messages import is_blank
from fisk_ai.stores.base import Store
from fisk_ai.stores.file import FileStore
from fisk_ai.text import wellformed
from fisk_ai.tools.base import OnCrash

Output = Literal["text", "json", "stream-json"]

MAX_PROMPT_BYTES = 16 * 1024 * 1024
_RESUMABLE = frozenset({"suspended", "interrupted", "error", "budget", "max_iterations"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for, checked."""

    prompt: str
    config: str
    state_dir: str | None
    checkpoint: bool
    name: str | None
    resume: str | None
    latest: bool
    chat: bool
    options: ResumeOptions
    output: Output

    @property
    def resumes(self) -> bool:
        """True if a stored run is wanted."""
        return self.resume is not None or self.latest


@click.command("run", context_settings={"ignore_unknown_options": False})
@click.argument("prompt", nargs=-1)
@click.option("--config", default=DEFAULT_CONFIG, show_default=True, metavar="FILE", help="The agent's configuration.")
@click.option("--checkpoint", is_flag=True, help="Journal the run, so that it outlives this process.")
@click.option("--name", metavar="ID", help="The id of a checkpointed run; one that sorts by time without it.")
@click.option("-r", "--resume", metavar="ID", help="Go on with a stored run; a unique prefix of its id will do.")
@click.option("-c", "--continue", "latest", is_flag=True, help="Go on with the latest run that can be resumed.")
@click.option("--force", is_flag=True, help="Resume although the configuration changed (never the provider).")
@click.option("--chat", is_flag=True, help="An interactive run: each answer waits for the next line of input.")
@click.option("--state-dir", metavar="DIR", help="Keep runs in DIR instead of the XDG state directory.")
@click.option(
    "--on-crash",
    type=click.Choice(["rerun", "ask", "skip"]),
    help="For this resume: what to do with a call that may have run, over what its tool says.",
)
@click.option(
    "--orphan",
    type=click.Choice(["wait", "kill", "ignore"]),
    help="For this resume: a tool of the dead runner that still runs is waited for (default), ended, or ignored.",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json", "stream-json"]),
    default="text",
    show_default=True,
    help="What stdout gets: the answer, one JSON document, or one JSON event a line.",
)
def command(
    prompt: tuple[str, ...],
    config: str,
    checkpoint: bool,
    name: str | None,
    resume: str | None,
    latest: bool,
    force: bool,
    chat: bool,
    state_dir: str | None,
    on_crash: OnCrash | None,
    orphan: OrphanPolicy | None,
    output: Output,
) -> int:
    r"""Start a run with PROMPT, or resume a stored one.

    The answer goes to stdout, everything else to stderr. PROMPT is read from standard input if it is `-`, or if
    there is none and standard input is a pipe; of a chat from a pipe, the first line.

    \b
    Exit codes: 0 completed, 1 error, 2 usage or configuration, 3 suspended, 4 budget reached,
    5 resume refused, 6 locked, 7 journal corrupt, 130 aborted.
    """
    options = ResumeOptions(force=force, on_crash=on_crash, orphan=orphan or "wait")
    asked = Asked(
        prompt=wellformed(" ".join(prompt)),
        config=config,
        state_dir=state_dir,
        checkpoint=checkpoint,
        name=name,
        resume=resume,
        latest=latest,
        chat=chat,
        options=options,
        output=output,
    )
    try:
        _check(asked, bool(prompt), orphan_given=orphan is not None)
        agent = load_agent(config, store=FileStore(state_dir) if state_dir is not None else None)
        return _resume(agent, asked) if asked.resumes else _start(agent, asked)
    except FiskError as problem:
        if output != "text":
            terminal.answer_json({"event": "error", "error": error_data(problem)})
        raise


def _check(asked: Asked, has_prompt: bool, *, orphan_given: bool) -> None:
    """Refuse flags that contradict each other, before anything is opened."""
    if asked.resume is not None and asked.latest:
        raise click.UsageError("--resume and --continue name different runs: use one of them")
    if asked.resumes and has_prompt:
        raise click.UsageError(
            "a resume takes no prompt: the run goes on from its journal. For another prompt start a new run, or "
            "`fisk-ai session fork` it"
        )
    if asked.resumes and asked.name is not None:
        raise click.UsageError("--name is for a new run; a resumed one keeps its id")
    given = [
        flag
        for flag, is_given in (
            ("--force", asked.options.force),
            ("--on-crash", asked.options.on_crash is not None),
            ("--orphan", orphan_given),
        )
        if is_given
    ]
    if given and not asked.resumes:
        raise click.UsageError(f"{', '.join(given)}: only with --resume or --continue")
    if asked.name is not None:
        if not asked.checkpoint:
            raise click.UsageError("--name is for a stored run: add --checkpoint")
        check_new_run_id(asked.name)


def _start(agent: Agent, asked: Asked) -> int:
    prompt = asked.prompt
    if not asked.chat and (prompt == "-" or (is_blank(prompt) and not sys.stdin.isatty())):
        prompt = _piped_prompt()
    if is_blank(prompt) and not asked.chat:
        raise ConfigError("the prompt is empty: say what the run is about, as arguments or on standard input")
    show = _display(asked)

    async def run(control: Control) -> events.RunResult:
        source = operator_input() if asked.chat else None
        return await agent.run(
            prompt if source is None or not is_blank(prompt) else await _first_line(source, control),
            checkpoint=asked.checkpoint,
            name=asked.name,
            interactive=asked.chat,
            input_source=source,
            control=control,
            on_event=show,
        )

    return _drive(run, show, asked, stored=asked.checkpoint)


def _piped_prompt() -> str:
    """Read the prompt from standard input."""
    data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise ConfigError(f"the prompt on standard input is larger than {MAX_PROMPT_BYTES} bytes")
    return data.decode("utf-8", "replace")


async def _first_line(source: InputSource, control: Control) -> str:
    """Read what a chat begins with; a signal meanwhile means that there is no run."""
    with anyio.CancelScope() as scope, control.listening(scope.cancel):
        given: Input = Line("")
        while isinstance(given, Line) and is_blank(given.text):
            given = await source.read()
        if isinstance(given, Line):
            return given.text
    if scope.cancelled_caught:
        raise click.Abort
    raise ConfigError("the input ended before anything was said: no run was started")


def _resume(agent: Agent, asked: Asked) -> int:
    run_id = _latest(agent.store) if asked.resume is None else find_run(agent.store, asked.resume)
    if asked.chat and agent.store.info(run_id).interactive is False:
        fork = session_command("fork", run_id, state_dir=asked.state_dir)
        raise ConfigError(f"run {run_id!r} is not a chat: make a chat of it with `{fork} --chat`")
    show = _display(asked)
    options = asked.options
    while True:

        async def run(control: Control, options: ResumeOptions = options) -> events.RunResult:
            return await agent.resume(run_id, options, input_source=operator_input(), control=control, on_event=show)

        try:
            return _drive(run, show, asked, stored=True)
        except DecisionNeeded as needed:
            options = dataclasses.replace(options, on_crash=_ask(needed))


def _latest(store: Store) -> str:
    for info in store.list():
        if info.status in _RESUMABLE:
            return info.run_id
    raise RunNotFound("(the latest)", store.location)


def _ask(needed: DecisionNeeded) -> OnCrash:
    """Let the operator decide about a call that may have run; without a terminal the refusal stands."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise needed
    terminal.say(f"{', '.join(needed.calls)} may have run before the crash.")
    choice: str = click.prompt(
        "Run it again, or skip it (the model is told that its outcome is unknown)?",
        type=click.Choice(["rerun", "skip", "leave"]),
        default="leave",
        err=True,
    )
    if choice == "leave":
        raise needed
    return "rerun" if choice == "rerun" else "skip"


def _display(asked: Asked) -> Live | FinalJson | StreamedJson:
    match asked.output:
        case "json":
            return FinalJson()
        case "stream-json":
            return StreamedJson()
        case "text":
            return Live(chat=asked.chat, config=asked.config, state_dir=asked.state_dir)


def _drive(
    run: Callable[[Control], Awaitable[events.RunResult]],
    show: Live | FinalJson | StreamedJson,
    asked: Asked,
    *,
    stored: bool,
) -> int:
    try:
        result = anyio.run(partial(steered, run, stored=stored, say=terminal.say))
    finally:
        show.close()
    if isinstance(show, Live):
        show.finish(result)
    return _conclude(result, asked)


def _conclude(result: events.RunResult, asked: Asked) -> int:
    """Say how to go on, and return the exit code."""
    if result.storage_error is not None:
        terminal.complain(f"the end of the run was not stored: {result.storage_error}")
        return exits.FAILED
    if result.resumable:
        resume = resume_command(result.run_id, config=asked.config, state_dir=asked.state_dir)
        more = " --force  (after raising the budget)" if result.reason in ("budget", "max_iterations") else ""
        terminal.say(f"resume with: {resume}{more}")
    return exits.COMPLETED if result.input_ended else exits.OF_REASON[result.reason]
