"""What commands share: their options, and how their errors reach the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from fisk_ai.cli import terminal
from fisk_ai.errors import ConfigError, FiskError

F = TypeVar("F", bound=Callable[..., Any])


def state_dir_option(function: F) -> F:
    """Add `--state-dir`."""
    about = "Keep runs in DIR instead of the XDG state directory."
    return click.option("--state-dir", metavar="DIR", help=about)(function)


def json_option(function: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


class Command(click.Command):
    """A command that reports its errors: a line on stderr, and a document on stdout if JSON was asked for.

    Commands named in messages are completed with `--state-dir` and `--config`, so that they work when pasted.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error becomes its exit code."""
        try:
            return super().invoke(ctx)
        except FiskError as problem:
            report(problem, ctx.params)
            raise click.exceptions.Exit(problem.exit_code) from None


def report(problem: FiskError, params: Mapping[str, Any]) -> None:
    """Show an error; notes that were added to it come last, as they are."""
    from fisk_ai.cli.places import DEFAULT_CONFIG, Place

    place = Place(params.get("state_dir"), params.get("config") or DEFAULT_CONFIG)
    problems = problem.problems if isinstance(problem, ConfigError) else (str(problem),)
    lines = [place.completed(flat(line)) for line in problems]
    _report_as_json(problem, "\n".join(lines), params)
    for line in lines:
        terminal.complain(line)
    say_notes(problem)


def say_notes(problem: Exception) -> None:
    """Show the lines that were added to an exception on its way, such as how to go on."""
    for note in getattr(problem, "__notes__", ()):
        terminal.say(note)


def _report_as_json(problem: FiskError, text: str, params: Mapping[str, Any]) -> None:
    from fisk_ai.cli.json_output import error_data, print_json, print_json_line

    data = error_data(problem, text)
    if params.get("as_json"):
        print_json({"error": data})
    elif params.get("output") == "json":
        print_json({"event": "error", "error": data})
    elif params.get("output") == "stream-json":
        print_json_line({"event": "error", "error": data})


def flat(text: str) -> str:
    """Keep what a message quotes from beginning a line of its own."""
    return text.replace("\n", " ").replace("\t", " ")
