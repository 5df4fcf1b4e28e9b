"""`fisk-ai session`: stored runs, without a model and without agent.yaml."""

from __future__ import annotations

from typing import Any

import click

from fisk_ai.cli import show, terminal, transfer, verify
from fisk_ai.cli.ending import go_on_with
from fisk_ai.cli.json_output import print_json
from fisk_ai.cli.options import Command, json_option, report, state_dir_option
from fisk_ai.cli.places import Place, exact_run, find_run, naming, open_state
from fisk_ai.errors import FiskError
from fisk_ai.folding import Counters
from fisk_ai.ids import check_new_run_id, new_run_id
from fisk_ai.reports.summary import counters_data, info_data, table
from fisk_ai.stores import FileStore, RunInfo
from fisk_ai.stores.base import utc_now
from fisk_ai.text import one_line


@click.group("session")
def command() -> None:
    """List, show, check, fork, move and remove stored runs.

    An ID may be shortened to any prefix that only one run has, but for `rm`.
    """


@command.command("ls", cls=Command, short_help="List runs, newest record first.")
@state_dir_option
@json_option
@click.option("--usage", is_flag=True, help="Also tokens; reads whole journals, so it takes longer.")
def ls(state_dir: str | None, as_json: bool, usage: bool) -> None:
    """List runs, the one with the newest record first."""
    store = open_state(state_dir)
    infos = store.list()
    if usage and infos:
        terminal.say("reading whole journals for the tokens")
    used = {info.run_id: _counters(store, info) for info in infos} if usage else None
    if as_json:
        print_json([_row(info, used) for info in infos])
    elif infos:
        terminal.answer("\n".join(table(infos, utc_now(), terminal.columns(), used)))
    else:
        terminal.say(f"no runs in {store.location}")


def _row(info: RunInfo, used: dict[str, Counters | None] | None) -> dict[str, Any]:
    if used is None:
        return info_data(info)
    counters = used[info.run_id]
    return {**info_data(info), "counters": None if counters is None else counters_data(counters)}


def _counters(store: FileStore, info: RunInfo) -> Counters | None:
    try:
        return store.load(info.run_id).counters
    except FiskError:
        return None  # the row says why the run can't be read


command.add_command(show.command)


@command.command("rm", cls=Command, short_help="Remove runs, named by their whole ids.")
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@state_dir_option
def rm(run_ids: tuple[str, ...], state_dir: str | None) -> None:
    """Remove runs and all that belongs to them; a run in use, or with a tool that still works, is left alone.

    Each ID is a whole one: a prefix removes nothing.
    """
    store = open_state(state_dir)
    failed = 0
    for text in run_ids:
        try:
            store.delete(exact_run(store, text))
        except FiskError as problem:
            report(problem, {"state_dir": state_dir})
            failed = failed or problem.exit_code
        else:
            terminal.say(f"removed {text}")
    if failed:
        raise click.exceptions.Exit(failed)


command.add_command(verify.command)


@command.command("fork", cls=Command, short_help="Make a new run from another's records.")
@click.argument("run_id", metavar="ID")
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="The last record to take; all without it.")
@click.option("--name", metavar="ID", help="The id of the new run; one that sorts by time without it.")
@click.option("--chat/--no-chat", default=None, help="Make the new run a chat, or not; as its origin without it.")
@state_dir_option
@json_option
def fork(
    run_id: str, at: int | None, name: str | None, chat: bool | None, state_dir: str | None, as_json: bool
) -> None:
    """Make a new run from the records of another, up to a point; the origin is left as it is.

    Calls without a result are run anew by the fork, with new idempotency keys. Stdout gets the id of the new run.
    """
    from fisk_ai.stores.fork import fork as make_fork

    store = open_state(state_dir)
    new_id = new_run_id() if name is None else check_new_run_id(name)
    origin = find_run(store, run_id)
    with naming(origin):
        made = make_fork(store, origin, new_id, at=at, interactive=chat)
    if as_json:
        print_json({"run_id": made.run_id, "forked_from": {"run_id": origin, "seq": made.seq}})
    else:
        terminal.answer(made.run_id)
    if made.state.pending is not None:
        names = ", ".join(one_line(call.name, 64) for call in made.state.pending.unanswered)
        terminal.say(f"it will run these calls, with new idempotency keys: {names}")
    terminal.say(f"run {made.run_id} has records 1 to {made.seq} of {origin}")
    for line in go_on_with(Place(state_dir).run_command("--resume", made.run_id)):
        terminal.say(line)


command.add_command(transfer.export_command)
command.add_command(transfer.import_command)
