"""`fisk-ai session show`: where a run stands, and its conversation, also of a damaged one as far as it is whole."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

import click

from fisk_ai.cli import terminal
from fisk_ai.cli.ending import go_on_with, way_on
from fisk_ai.cli.json_output import print_json
from fisk_ai.cli.options import Command, json_option, state_dir_option
from fisk_ai.cli.places import Place, find_run, naming, open_state
from fisk_ai.cli.salvage import misnamed, whole_part
from fisk_ai.errors import JournalCorrupt, UnsupportedFormat
from fisk_ai.folding import RunState, fold
from fisk_ai.reports.prices import Price, price_of
from fisk_ai.reports.summary import show_data, summary_lines
from fisk_ai.reports.transcript import Entry, entries_of_records, open_lines, transcript
from fisk_ai.stores import FileStore, RunInfo

_LABEL = 10
"""Columns of the labels of a summary."""


@click.command("show", cls=Command, short_help="Show where a run stands, and its conversation.")
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
        records = store.read(run_id).records
        state = fold(records)
    except UnsupportedFormat:
        if not as_json:
            _show_raw(store, run_id)
        raise
    except JournalCorrupt as problem:
        if not as_json:
            _show_whole_part(store, run_id, full=full)
        raise problem.located(store.path(run_id)) from None
    info = store.info(run_id)
    entries = list(entries_of_records(records))
    price = price_of(records)
    if as_json:
        print_json(show_data(info, state, entries, price))
    else:
        _show(info, state, entries, price, place, full=full)


def _show(
    info: RunInfo, state: RunState, entries: list[Entry], price: Price | None, place: Place, *, full: bool
) -> None:
    running = info.status == "running"
    lines = [*_fitted(summary_lines(info, state, price)), "", *transcript(entries, full=full, margin=True)]
    lines += open_lines(state.pending, running=running, margin=True)
    if not running and (command := way_on(state, place)):
        lines += ["", *go_on_with(command)]
    terminal.answer("\n".join(lines))


def _fitted(lines: Iterable[str]) -> Iterator[str]:
    """Wrap lines whose text begins after a label to the terminal's columns."""
    columns = terminal.columns()
    for line in lines:
        if columns is None:
            yield line
        else:
            yield from textwrap.wrap(
                line, max(columns, 2 * _LABEL), subsequent_indent=" " * _LABEL, break_on_hyphens=False
            )


def _show_whole_part(store: FileStore, run_id: str, *, full: bool) -> None:
    part = whole_part(store, run_id)
    if part is not None and not misnamed(run_id, part):
        terminal.answer(f"DAMAGED: this is the part before the damage, records 1 to {part.state.last_seq}\n")
        terminal.answer("\n".join(transcript(entries_of_records(part.records), full=full, margin=True)))


def _show_raw(store: FileStore, run_id: str) -> None:
    """Print the records as they are: a format that nobody here reads is no reason to hide them."""
    rest = b""
    for chunk in store.read_bytes(run_id):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            terminal.answer(line.decode("utf-8", "replace"))
    if rest:
        terminal.answer(rest.decode("utf-8", "replace"))
