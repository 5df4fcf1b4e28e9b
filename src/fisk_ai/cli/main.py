"""The entry point: finds the command, and turns what it raises into one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from typing import NoReturn

import click

from fisk_ai import __version__
from fisk_ai.cli.exits import ABORTED, CONFIGURATION, FAILED
from fisk_ai.cli.terminal import complain
from fisk_ai.errors import FiskError

_COMMANDS = {
    "info": ("fisk_ai.cli.info", "Show what a run would use: model, tools, store, budgets."),
    "run": ("fisk_ai.cli.run", "Start a run, or resume a stored one."),
    "session": ("fisk_ai.cli.session", "List, show, check, fork and remove stored runs."),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fisk-ai", message="%(prog)s %(version)s")
def cli() -> None:
    """Run agents whose runs outlive their process.

    With --checkpoint every step of a run is journaled before the next one depends on it, so that the run can be
    suspended, crash, be inspected and be resumed, without paying twice and without doing twice.
    """


def main() -> NoReturn:
    """Run the command line and exit with the code that the contract gives."""
    try:
        code = cli.main(prog_name="fisk-ai", standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        code = CONFIGURATION
    except click.Abort:
        code = ABORTED
    except KeyboardInterrupt:
        code = ABORTED
    except FiskError as problem:
        complain(str(problem))
        code = problem.exit_code
    except BrokenPipeError:
        code = _leave_pipe()
    except OSError as problem:
        complain(f"{problem.strerror or problem}" + (f": {problem.filename}" if problem.filename else ""))
        code = FAILED
    except Exception as problem:
        logging.getLogger(__name__).debug("internal error", exc_info=True)
        if os.environ.get("FISK_AI_DEBUG"):
            raise
        complain(
            f"internal error, please report it: {type(problem).__name__}: {problem}. What was journaled is kept. "
            f"FISK_AI_DEBUG=1 shows where it happened"
        )
        code = FAILED
    _exit(code if isinstance(code, int) else 0)


def _leave_pipe() -> int:
    """Go quietly: whoever read the output has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _exit(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except OSError as problem:
            with contextlib.suppress(OSError):
                complain(f"the output could not be written: {problem.strerror}")
            code = code or FAILED
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code == ABORTED:
        # At once: a tool's thread that hangs must not hold up an abort.
        os._exit(code)
    sys.exit(code)
