"""What a resume of a stored run would meet under this configuration; the run is read, not locked and not changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.guard import check_resume
from fisk_ai.cli.json_output import error_data
from fisk_ai.cli.options import flat
from fisk_ai.cli.places import Place, find_run, naming
from fisk_ai.errors import FiskError, RunLocked
from fisk_ai.folding import RunState
from fisk_ai.reports.cost import NextInput, next_input, next_input_text
from fisk_ai.stores import RunInfo


@dataclass(frozen=True, slots=True)
class Outlook:
    """A resume that isn't made."""

    info: RunInfo
    following: NextInput | None
    """What it would send first; None if it would ask nothing."""
    refusal: FiskError | None


def outlook(agent: Agent, text: str) -> Outlook:
    """Look at the run that `text` names.

    Raises:
        InvalidRunId, RunNotFound, AmbiguousRunId, JournalCorrupt, UnsupportedFormat: as `session show` does.
    """
    run_id = find_run(agent.store, text)
    with naming(run_id):
        state, info = agent.store.load(run_id), agent.store.info(run_id)
    refusal = RunLocked(run_id) if info.status == "running" else _refusal(agent, state)
    return Outlook(info, next_input(state), refusal)


def _refusal(agent: Agent, state: RunState) -> FiskError | None:
    try:
        check_resume(state, agent.fingerprint, agent.tools)
    except FiskError as problem:
        return problem
    return None


def outlook_data(found: Outlook, place: Place) -> dict[str, Any]:
    """Return it as `info --json` has it."""
    return {
        "run_id": found.info.run_id,
        "status": found.info.status,
        "next_input_tokens": None if found.following is None else found.following.tokens,
        "refusal": None if found.refusal is None else error_data(found.refusal, _message(found.refusal, place)),
    }


def outlook_lines(found: Outlook, place: Place) -> Iterator[str]:
    """Yield it for people."""
    if found.refusal is None:
        yield f"resume:    run {found.info.run_id} ({found.info.status}) may go on"
    else:
        yield f"resume:    refused: {_message(found.refusal, place)}"
    if found.following is not None:
        yield f"next:      the model is sent {next_input_text(found.following)}"
    elif found.refusal is None:
        yield "next:      the model is asked nothing, only the end is recorded"


def _message(problem: FiskError, place: Place) -> str:
    return place.completed(flat(str(problem)))
