"""`fisk-ai session`: stored runs, without a model and without agent.yaml."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from fisk_ai.cli import terminal
from fisk_ai.cli.places import find_run, open_state, resume_command, session_command
from fisk_ai.errors import FiskError, StoreError, UnsupportedFormat
from fisk_ai.ids import check_new_run_id, new_run_id
from fisk_ai.reports.summary import info_data, show_data, summary_lines, table
from fisk_ai.reports.transcript import transcript
from fisk_ai.stores import FileStore, RunInfo
from fisk_ai.stores.base import utc_now
from fisk_ai.text import one_line

F = TypeVar("F", bound=Callable[..., Any])


def _state_dir(function: F) -> F:
    return click.option("--state-dir", metavar="DIR", help="Look in DIR instead of the XDG state directory.")(function)


def _as_json(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


@click.group("session")
def command() -> None:
    """List, show, check, fork and remove stored runs.

    An ID may be shortened to any prefix that only one run has.
    """


@command.command("ls")
@_state_dir
@_as_json
@click.option("--usage", is_flag=True, help="Also tokens; reads whole journals, so it takes longer.")
def ls(state_dir: str | None, as_json: bool, usage: bool) -> None:
    """List runs, the one with the newest record first."""
    store = open_state(state_dir)
    infos = store.list()
    if as_json:
        rows = [{**info_data(info), **(_usage(store, info) if usage else {})} for info in infos]
        terminal.answer_json(rows, pretty=sys.stdout.isatty())
        return
    if not infos:
        terminal.say(f"no runs in {store.location}")
        return
    lines = list(table(infos, utc_now(), terminal.columns()))
    if usage:
        terminal.say("reading whole journals for the tokens")
        tokens = ["TOKENS", *(str(_usage(store, info)["tokens"] or "-") for info in infos)]
        width = max(map(len, tokens))
        lines = [f"{cell.rjust(width)}  {line}" for cell, line in zip(tokens, lines, strict=True)]
    terminal.answer("\n".join(lines))


def _usage(store: FileStore, info: RunInfo) -> dict[str, Any]:
    try:
        return {"tokens": store.load(info.run_id).counters.total_tokens}
    except FiskError:
        return {"tokens": None}  # the row says why the run can't be read


@command.command("show")
@click.argument("run_id", metavar="ID")
@_state_dir
@_as_json
@click.option("--full", is_flag=True, help="Show tool results of any length.")
def show(run_id: str, state_dir: str | None, as_json: bool, full: bool) -> None:
    """Show where a run stands, and its conversation."""
    store = open_state(state_dir)
    run_id = find_run(store, run_id)
    try:
        state = store.load(run_id)
    except UnsupportedFormat:
        _show_raw(store, run_id)
        raise
    info = store.info(run_id)
    if as_json:
        terminal.answer_json(show_data(info, state), pretty=True)
        return
    lines = [*summary_lines(info, state), "", *transcript(state, full=full)]
    if info.status not in ("completed", "running"):
        lines += ["", f"resume:   {resume_command(run_id, state_dir=state_dir)}"]
    terminal.answer("\n".join(lines))


def _show_raw(store: FileStore, run_id: str) -> None:
    """Print the records as they are: a format that nobody here reads is no reason to hide them."""
    for chunk in b"".join(store.read_bytes(run_id)).split(b"\n"):
        if chunk:
            terminal.answer(chunk.decode("utf-8", "replace"))


@command.command("rm")
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@_state_dir
def rm(run_ids: tuple[str, ...], state_dir: str | None) -> None:
    """Remove runs and all that belongs to them; a run in use is left alone."""
    store = open_state(state_dir)
    failed = 0
    for text in run_ids:
        try:
            run_id = find_run(store, text)
            store.delete(run_id)
        except FiskError as problem:
            terminal.complain(str(problem))
            failed = failed or problem.exit_code
        else:
            terminal.say(f"removed {run_id}")
    if failed:
        raise click.exceptions.Exit(failed)


@command.command("verify")
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@_state_dir
@_as_json
def verify(run_ids: tuple[str, ...], state_dir: str | None, as_json: bool) -> None:
    """Check every byte of runs (all of them without an ID), and change nothing.

    The exit code is that of the first run with a problem; a torn tail, which the next resume repairs, is none.
    """
    store = open_state(state_dir)
    wanted = [find_run(store, text) for text in run_ids] or sorted(store.run_ids())
    findings = [_verify(store, run_id) for run_id in wanted]
    if as_json:
        terminal.answer_json([finding for finding, _ in findings], pretty=sys.stdout.isatty())
    else:
        for finding, _ in findings:
            terminal.answer(f"{finding['run_id']}: {finding['text']}")
    if code := next((code for _, code in findings if code), 0):
        raise click.exceptions.Exit(code)


def _verify(store: FileStore, run_id: str) -> tuple[dict[str, Any], int]:
    try:
        contents = store.read(run_id)
        store.load(run_id)
    except StoreError as problem:
        where = {name: getattr(problem, name, None) for name in ("line", "offset", "seq")}
        found = {"run_id": run_id, "ok": False, "code": problem.code, "text": str(problem), **where}
        return found, problem.exit_code
    torn = len(contents.tail.torn)
    text = f"ok, {len(contents.records)} records"
    text += ", each with a checksum" if contents.chain.checked else ", without checksums"
    if torn and store.info(run_id).status == "running":
        text += f"; an append of {torn} bytes is in progress"
    elif torn:
        text += f"; a torn tail of {torn} bytes, which the next resume cuts and keeps in {run_id}.torn"
    elif contents.tail.missing_newline:
        text += "; the last newline is missing, which the next resume supplies"
    found = {
        "run_id": run_id,
        "ok": True,
        "records": len(contents.records),
        "checksums": contents.chain.checked,
        "torn_bytes": torn,
        "missing_newline": contents.tail.missing_newline,
        "text": text,
    }
    return found, 0


@command.command("fork")
@click.argument("run_id", metavar="ID")
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="The last record to take; all without it.")
@click.option("--name", metavar="ID", help="The id of the new run.")
@click.option("--chat/--no-chat", default=None, help="Make the new run a chat, or not; as its origin without it.")
@_state_dir
@_as_json
def fork(
    run_id: str, at: int | None, name: str | None, chat: bool | None, state_dir: str | None, as_json: bool
) -> None:
    """Make a new run from the records of another, up to a point; the origin is left as it is.

    Calls without a result are run anew by the fork, with new idempotency keys.
    """
    from fisk_ai.stores.fork import fork as make_fork

    store = open_state(state_dir)
    origin = find_run(store, run_id)
    made = make_fork(store, origin, check_new_run_id(name) if name else new_run_id(), at=at, interactive=chat)
    if as_json:
        terminal.answer_json({"run_id": made.run_id, "forked_from": {"run_id": origin, "seq": made.seq}})
    else:
        terminal.answer(made.run_id)
    pending = made.state.pending
    if pending is not None:
        names = ", ".join(one_line(call.name, 64) for call in pending.unanswered)
        terminal.say(f"the fork will run these calls, with new idempotency keys: {names}")
    terminal.say(f"resume:  {resume_command(made.run_id, state_dir=state_dir)}")
    terminal.say(f"look:    {session_command('show', made.run_id, state_dir=state_dir)}")
