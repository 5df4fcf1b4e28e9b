"""Where runs are: the store that flags name, ids from prefixes, and commands that work when pasted."""

from __future__ import annotations

import shlex

from fisk_ai.errors import AmbiguousRunId, RunNotFound
from fisk_ai.ids import check_stored_run_id
from fisk_ai.stores import FileStore, Store

DEFAULT_CONFIG = "agent.yaml"


def open_state(state_dir: str | None) -> FileStore:
    """Return the file store that `--state-dir` names, or the default one."""
    return FileStore(state_dir)


def find_run(store: Store, text: str) -> str:
    """Return the id of the run that an id or a unique prefix of one names.

    Raises:
        InvalidRunId, RunNotFound, AmbiguousRunId.
    """
    check_stored_run_id(text)
    ids = store.run_ids()
    if text in ids:
        return text
    matches = sorted(run_id for run_id in ids if run_id.startswith(text))
    if len(matches) > 1:
        raise AmbiguousRunId(text, matches)
    if not matches:
        raise RunNotFound(text, store.location)
    return matches[0]


def resume_command(run_id: str, *, config: str = DEFAULT_CONFIG, state_dir: str | None = None) -> str:
    """Return the command that resumes a run from here, ready to paste."""
    return _command(["run", "--resume", run_id], config=config, state_dir=state_dir)


def session_command(action: str, run_id: str, *, state_dir: str | None = None) -> str:
    """Return a `session` command for a run, ready to paste."""
    return _command(["session", action, run_id], config=DEFAULT_CONFIG, state_dir=state_dir)


def _command(words: list[str], *, config: str, state_dir: str | None) -> str:
    words = ["fisk-ai", *words]
    if config != DEFAULT_CONFIG:
        words += ["--config", config]
    if state_dir is not None:
        words += ["--state-dir", state_dir]
    return shlex.join(words)
