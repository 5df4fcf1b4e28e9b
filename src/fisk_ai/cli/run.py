"""`fisk-ai run`: what it can be asked for, checked. Doing it is the business of `drive`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import click

from fisk_ai.agent.agent import ResumeOptions
from fisk_ai.agent.orphan import OrphanPolicy
from fisk_ai.cli import terminal
from fisk_ai.cli.drive import Driver, Output
from fisk_ai.cli.options import Command, state_dir_option
from fisk_ai.cli.places import DEFAULT_CONFIG, Place
from fisk_ai.errors import ConfigError
from fisk_ai.ids import check_new_run_id, check_stored_run_id
from fisk_ai.messages import is_blank
from fisk_ai.tools.base import OnCrash

_EXIT_CODES = (
    "Exit codes: 0 completed, 1 error, 2 usage or configuration, 3 suspended, 4 budget reached, 5 resume refused, "
    "6 locked, 7 journal corrupt, 130 aborted."
)
MAX_PROMPT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Asked:
    """The flags that may contradict each other."""

    prompt: tuple[str, ...]
    checkpoint: bool
    name: str | None
    resume: str | None
    latest: bool
    for_a_resume: tuple[str, ...]
    """The flags given that only a resume has."""

    def check(self) -> None:
        """Refuse contradictions, before anything is opened."""
        if self.resume is not None or self.latest:
            self._check_resume()
        elif self.for_a_resume:
            raise ConfigError(f"{', '.join(self.for_a_resume)}: only with --resume or --continue")
        elif self.name is not None:
            check_new_run_id(self.name)
            if not self.checkpoint:
                raise ConfigError("--name is for a stored run: add --checkpoint")

    def _check_resume(self) -> None:
        if self.resume is not None:
            check_stored_run_id(self.resume)
            if self.latest:
                raise ConfigError("--resume and --continue name different runs: use one of them")
        if self.prompt:
            raise ConfigError(
                "a resume takes no prompt: the run goes on from its journal. For another prompt start a new run"
            )
        if self.name is not None:
            raise ConfigError("--name is for a new run; a resumed one keeps its id")


@click.command("run", cls=Command, epilog=_EXIT_CODES)
@click.argument("prompt", nargs=-1)
@click.option("--config", default=DEFAULT_CONFIG, show_default=True, metavar="FILE", help="The agent's configuration.")
@click.option("--checkpoint", is_flag=True, help="Journal the run, so that it outlives this process.")
@click.option("--name", metavar="ID", help="The id of a checkpointed run; one that sorts by time without it.")
@click.option("-r", "--resume", metavar="ID", help="Go on with a stored run; a unique prefix of its id will do.")
@click.option("-c", "--continue", "latest", is_flag=True, help="Go on with the latest run that can be resumed.")
@click.option("--force", is_flag=True, help="Resume although the configuration changed (never the provider).")
@click.option("--chat", is_flag=True, help="An interactive run: each answer waits for the next line of input.")
@state_dir_option
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
    """Start a run with PROMPT, or resume a stored one.

    The answer goes to stdout, everything else to stderr. PROMPT is read from standard input if it is `-`, or if
    there is none and standard input is a pipe; of a chat from a pipe, the first line.
    """
    given = (("--force", force), ("--on-crash", on_crash), ("--orphan", orphan))
    for_a_resume = tuple(flag for flag, value in given if value)
    _Asked(prompt, checkpoint, name, resume, latest, for_a_resume).check()
    terminal.stdout.reserve()
    driver = Driver(Place(state_dir, config), output)
    if resume is not None or latest:
        return driver.resume(resume, ResumeOptions(force, on_crash, orphan or "wait"), chat=chat)
    if chat:
        return driver.chat(_joined(prompt), checkpoint=checkpoint, name=name)
    return driver.start(_prompt(prompt), checkpoint=checkpoint, name=name)


def _prompt(words: tuple[str, ...]) -> str:
    """Return the prompt from the arguments or from standard input."""
    prompt = _joined(words)
    if prompt == "-" or (is_blank(prompt) and not sys.stdin.isatty()):
        prompt = _piped_prompt()
    if is_blank(prompt):
        raise ConfigError("the prompt is empty: say what the run is about, as arguments or on standard input")
    return prompt


def _joined(words: tuple[str, ...]) -> str:
    """Return the arguments as text, whose bytes are UTF-8 whatever the locale says."""
    return os.fsencode(" ".join(words)).decode("utf-8", "replace")


def _piped_prompt() -> str:
    try:
        data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    except OSError as problem:
        raise ConfigError(f"standard input, which should hold the prompt, can't be read: {problem.strerror}") from None
    if len(data) > MAX_PROMPT_BYTES:
        raise ConfigError(f"the prompt on standard input is larger than {MAX_PROMPT_BYTES} bytes")
    return data.decode("utf-8", "replace")
