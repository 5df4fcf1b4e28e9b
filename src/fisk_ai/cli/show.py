"""`fisk-ai session show`: where a run stands, and its conversation, also of a damaged one as far as it is whole."""

from __future__ import annotations

import click

from fisk_ai.cli import terminal
from fisk_ai.cli.ending import way_on
from fisk_ai.cli.json_output import print_json
from fisk_ai.cli.options import Command, json_option, state_dir_option
from fisk_ai.cli.places import Place, find_run, naming, open_state
from fisk_ai.cli.salvage import whole_part
from fisk_ai.errors import JournalCorrupt, UnsupportedFormat
from fisk_ai.folding import RunState
from fisk_ai.reports.summary import show_data, summary_lines
from fisk_ai.reports.transcript import transcript
from fisk_ai.stores import FileStore, RunInfo


@click.command("show", cls=Command)
@click.argument("run_id", metavar="ID")
@state_dir_option
@json_option
@click.option("--full", is_flag=True, help="Show tool results of any length.")
def command(run_id: str, state_dir: str | None, as_json: bool, full: bool) -> None:
    """Show where a run stands, and its conversation.

    Of a damaged run the part before the damage is shown, and the exit code says so. A run whose turns are in a format
    that isn't known here is shown as it is stored.
    """
    store = open_state(state_dir)
    run_id = find_run(store, run_id)
    with naming(run_id):
        _load_and_show(store, run_id, Place(state_dir), as_json=as_json, full=full)


def _load_and_show(store: FileStore, run_id: str, place: Place, *, as_json: bool, full: bool) -> None:
    try:
        state = store.load(run_id)
    except UnsupportedFormat:
        if not as_json:
            _show_raw(store, run_id)
        raise
    except JournalCorrupt:
        if not as_json:
            _show_whole_part(store, run_id, full=full)
        raise
    info = store.info(run_id)
    if as_json:
        print_json(show_data(info, state), pretty=True)
    else:
        _show(info, state, place, full=full)


def _show(info: RunInfo, state: RunState, place: Place, *, full: bool) -> None:
    running = info.status == "running"
    lines = [*summary_lines(info, state), "", *transcript(state, full=full, running=running)]
    if not running and (command := way_on(state, place)):
        lines += ["", "go on with:", f"  {command}"]
    terminal.answer("\n".join(lines))


def _show_whole_part(store: FileStore, run_id: str, *, full: bool) -> None:
    state = whole_part(store, run_id)
    if state is not None:
        terminal.answer(f"DAMAGED: this is the part before the damage, records 1 to {state.last_seq}\n")
        terminal.answer("\n".join(transcript(state, full=full)))


def _show_raw(store: FileStore, run_id: str) -> None:
    """Print the records as they are: a format that nobody here reads is no reason to hide them."""
    rest = b""
    for chunk in store.read_bytes(run_id):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            terminal.answer(line.decode("utf-8", "replace"))
    if rest:
        terminal.answer(rest.decode("utf-8", "replace"))
