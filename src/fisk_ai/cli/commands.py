"""The commands by name, each imported when it is used, and what becomes of what they raise."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Sequence

import click

from fisk_ai import __version__
from fisk_ai.cli import terminal
from fisk_ai.cli.exits import ABORTED, CONFIGURATION, FAILED
from fisk_ai.cli.options import flat, report, say_notes
from fisk_ai.errors import FiskError

_COMMANDS = {
    "info": ("fisk_ai.cli.info", "Show what a run would use: model, tools, store, budgets."),
    "run": ("fisk_ai.cli.run", "Start a run, or resume a stored one."),
    "session": ("fisk_ai.cli.session", "List, show, check, fork and remove stored runs."),
}

_MEANT = {
    "resume": "run --resume",
    "continue": "run --continue",
    "chat": "run --chat",
    "list": "session ls",
    **{name: f"session {name}" for name in ("ls", "show", "rm", "verify", "fork")},
}
"""What somebody means who types a command that there isn't."""


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if meant := _MEANT.get(args[0]):
            ctx.fail(f"No such command {args[0]!r}: did you mean `fisk-ai {meant}`?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fisk-ai", message="%(prog)s %(version)s")
def cli() -> None:
    """Run agents whose runs outlive their process.

    With --checkpoint every step of a run is journaled before the next one depends on it, so that the run can be
    suspended, crash, be inspected and be resumed, so that nothing that was recorded is paid for or done again.
    """


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; only FISK_AI_DEBUG lets a traceback through."""
    try:
        code = cli.main(arguments, prog_name="fisk-ai", standalone_mode=False)
    except click.ClickException as problem:
        _show_usage(problem)
        return CONFIGURATION
    except (click.Abort, KeyboardInterrupt):
        return ABORTED
    except FiskError as problem:
        report(problem, {})
        return problem.exit_code
    except OSError as problem:
        terminal.stdout.write("")  # complains if the problem is that of click's own output, such as help
        if not terminal.stdout.failed:
            where = f": {problem.filename}" if problem.filename else ""
            terminal.complain(flat(f"{problem.strerror or problem}{where}"))
        return FAILED
    except Exception as problem:
        # The last resort: an operator can't use a traceback, and the exit code must be one of the contract's.
        logging.getLogger(__name__).debug("internal error", exc_info=True)
        if os.environ.get("FISK_AI_DEBUG"):
            raise
        terminal.complain(
            f"internal error, please report it: {type(problem).__name__}: {flat(str(problem))}. What was journaled "
            f"is kept. FISK_AI_DEBUG=1 shows where it happened"
        )
        say_notes(problem)
        return FAILED
    return code if isinstance(code, int) else 0


def _show_usage(problem: click.ClickException) -> None:
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        terminal.say(problem.format_message())
        return
    terminal.complain(flat(problem.format_message()))
    if isinstance(problem, click.UsageError) and problem.ctx is not None:
        terminal.complain(f"`{problem.ctx.command_path} --help` shows what can be given")
