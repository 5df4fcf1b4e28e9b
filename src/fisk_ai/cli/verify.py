"""`fisk-ai session verify`: every byte of stored runs, checked; nothing is changed."""

from __future__ import annotations

from typing import Any

import click

from fisk_ai.cli import terminal
from fisk_ai.cli.json_output import print_json
from fisk_ai.cli.options import Command, flat, json_option, state_dir_option
from fisk_ai.cli.places import Place, find_run, open_state
from fisk_ai.cli.salvage import misnamed, whole_part
from fisk_ai.errors import ConfigError, FiskError, JournalCorrupt
from fisk_ai.folding import fold
from fisk_ai.stores import FileStore
from fisk_ai.stores.journal import Contents


@click.command("verify", cls=Command, short_help="Check every byte of runs, and change nothing.")
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All runs, as without an ID.")
@state_dir_option
@json_option
def command(run_ids: tuple[str, ...], every: bool, state_dir: str | None, as_json: bool) -> None:
    """Check every byte of runs (all of them without an ID), and change nothing.

    The exit code is that of the worst finding: 7 for damage. A torn tail, which the next resume repairs, is none, and
    neither is an append in progress.
    """
    if every and run_ids:
        raise ConfigError("--all and an ID together: name runs, or check all of them")
    store = open_state(state_dir)
    wanted = [find_run(store, text) for text in run_ids] or sorted(store.run_ids())
    found = [_verify(store, run_id, Place(state_dir)) for run_id in wanted]
    if as_json:
        print_json([finding for finding, _ in found])
    else:
        for finding, _ in found:
            terminal.answer(f"{finding['run_id']}: {finding['text']}")
    if not found:
        terminal.say(f"no runs in {store.location}")
    if worst := max((code for _, code in found), default=0):
        raise click.exceptions.Exit(worst)


def _verify(store: FileStore, run_id: str, place: Place) -> tuple[dict[str, Any], int]:
    """Return what was found and the exit code that it means."""
    try:
        contents = store.read(run_id)
        fold(contents.records)
    except JournalCorrupt as problem:
        return _damage(store, run_id, problem, place), problem.exit_code
    except FiskError as problem:
        text = place.completed(flat(str(problem)))
        return {"run_id": run_id, "ok": False, "code": problem.code, "text": text}, problem.exit_code
    return _sound(store, run_id, contents), 0


def _damage(store: FileStore, run_id: str, problem: JournalCorrupt, place: Place) -> dict[str, Any]:
    part = whole_part(store, run_id)
    whole = 0 if part is None else part.state.last_seq
    if wrong := misnamed(run_id, part):
        text = f"DAMAGED: {wrong}"
    else:
        text = f"DAMAGED {_located(problem)}: {flat(problem.cause)}; "
        text += f"records 1 to {whole} before it are whole" if whole else "nothing before it is whole"
        if whole:
            text += f", and `{place.session_command('fork', run_id, '--at', str(whole))}` makes a new run of them"
    return {
        "run_id": run_id,
        "ok": False,
        "code": problem.code,
        "text": text,
        "cause": problem.cause,
        "line": problem.line,
        "offset": problem.offset,
        "seq": problem.seq,
        "whole_records": whole,
    }


def _located(problem: JournalCorrupt) -> str:
    places = (("line", problem.line), ("byte", problem.offset), ("seq", problem.seq))
    return "at " + ", ".join(f"{name} {value}" for name, value in places if value is not None)


def _sound(store: FileStore, run_id: str, contents: Contents) -> dict[str, Any]:
    torn = len(contents.tail.torn)
    text = f"ok, {len(contents.records)} records"
    text += ", each with a checksum" if contents.chain.checked else ", without checksums"
    if torn and store.info(run_id).status == "running":
        text += f"; an append of {torn} bytes is in progress"
    elif torn:
        text += f"; a torn tail of {torn} bytes, which the next resume cuts and keeps in {run_id}.torn"
    elif contents.tail.missing_newline:
        text += "; the last newline is missing, which the next resume supplies"
    return {
        "run_id": run_id,
        "ok": True,
        "records": len(contents.records),
        "checksums": contents.chain.checked,
        "torn_bytes": torn,
        "missing_newline": contents.tail.missing_newline,
        "text": text,
    }
