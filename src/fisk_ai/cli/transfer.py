"""`fisk-ai session export` and `import`: a run as a file that another machine goes on with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from fisk_ai.cli import terminal
from fisk_ai.cli.ending import go_on_with
from fisk_ai.cli.json_output import print_json
from fisk_ai.cli.options import Command, json_option, state_dir_option
from fisk_ai.cli.places import Place, find_run, naming, open_state
from fisk_ai.errors import ConfigError, NotPermitted, RunExists
from fisk_ai.reports.summary import info_data
from fisk_ai.stores.base import Store
from fisk_ai.stores.disk import Disk, OsDisk
from fisk_ai.stores.transfer import WholeRun, read_export, read_run
from fisk_ai.stores.whole import write_whole

_CHUNK_BYTES = 1 << 20
_PIPE = "-"
_NOTHING_LEFT = "Nothing was left there. Put the cause right and try again"
_UNREAD = "Nothing was imported"


@click.command("export", cls=Command, short_help="Write a run to a file that another machine goes on with.")
@click.argument("run_id", metavar="ID")
@click.argument("file", metavar="[FILE]", default=_PIPE)
@state_dir_option
def export_command(run_id: str, file: str, state_dir: str | None) -> None:
    """Write a run to FILE, or to stdout, so that `session import` takes it over elsewhere.

    The run is checked first, and must not be in use. FILE must not exist; it is written whole or not at all, for the
    owner's eyes only, since it holds all that was said.
    """
    store = open_state(state_dir)
    origin = find_run(store, run_id)
    if file == _PIPE and terminal.stdout.stream.isatty():
        raise ConfigError("the run would go to the terminal: name a FILE, or redirect the output")
    with naming(origin):
        run = read_run(store, origin)
    if file == _PIPE:
        _write_to_stdout(run.data)
    else:
        _write(OsDisk(), os.path.abspath(file), run.data)
    terminal.say(f"run {origin}: {run.records} records, {len(run.data)} bytes exported")
    if run.left_out:
        terminal.say(f"a torn tail of {run.left_out} bytes, part of no record, was left out")
    terminal.say("take it over with `fisk-ai session import FILE`, and go on in one place only")


def _write_to_stdout(data: bytes) -> None:
    try:
        terminal.stdout.stream.buffer.write(data)
        terminal.stdout.stream.flush()
    except OSError as problem:  # also a reader that went away: it doesn't have the whole run
        terminal.stdout.give_up(problem)
        raise NotPermitted("standard output", f"{problem.strerror}", "What was written there is no whole run") from None


def _write(disk: Disk, path: str, data: bytes) -> None:
    place, name = os.path.split(path)
    try:
        directory = disk.open_directory(place)
        try:
            # Takes the name without touching whoever has it; what is written takes its place in one step.
            disk.close(disk.create_file(directory, name))
            _write_over(disk, directory, name, path, data)
        finally:
            disk.close(directory)
    except FileExistsError:
        raise ConfigError(f"{path} exists already, and nothing is overwritten: choose another name") from None
    except OSError as problem:
        raise NotPermitted(path, f"{problem.strerror}", _NOTHING_LEFT) from None


def _write_over(disk: Disk, directory: int, name: str, path: str, data: bytes) -> None:
    try:
        write_whole(disk, directory, name, f".{name}.{os.getpid()}.part", [data])
    except OSError as problem:
        disk.remove(directory, name)
        raise NotPermitted(path, f"it could not be written: {problem.strerror}", _NOTHING_LEFT) from None


@click.command("import", cls=Command, short_help="Take over a run that was exported.")
@click.argument("file", metavar="FILE")
@state_dir_option
@json_option
def import_command(file: str, state_dir: str | None, as_json: bool) -> None:
    """Take over the run in FILE (`-`: stdin) under its own id, with every byte as it is.

    All of it is checked before anything is written, and a run of that id that is here already is never touched.
    Stdout gets the id.
    """
    store = open_state(state_dir)
    run = _read(file)
    _adopt(store, run)
    info = store.info(run.run_id)
    if as_json:
        print_json(info_data(info))
    else:
        terminal.answer(run.run_id)
    terminal.say(f"run {run.run_id}: {run.records} records imported, {info.status}")
    if info.status != "completed":
        for line in go_on_with(Place(state_dir).run_command("--resume", run.run_id)):
            terminal.say(line)


def _adopt(store: Store, run: WholeRun) -> None:
    try:
        store.adopt(run.run_id, [run.data])
    except RunExists as problem:
        way = f"`fisk-ai session show {run.run_id}` tells what the one here is"
        problem.args = (
            f"a run named {run.run_id!r} is here already ({problem.status}), and an imported run keeps its id: {way}",
        )
        raise


def _read(file: str) -> WholeRun:
    if file == _PIPE:
        return read_export(_chunks(sys.stdin.fileno()), "stdin")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise NotPermitted(file, f"{problem.strerror}", _UNREAD) from None
    try:
        return read_export(_chunks(descriptor), file)
    except OSError as problem:
        raise NotPermitted(file, f"it can't be read: {problem.strerror}", _UNREAD) from None
    finally:
        os.close(descriptor)


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk
