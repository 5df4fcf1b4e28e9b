"""Where runs are: the store that flags name, ids from prefixes, and commands that work when pasted."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fisk_ai.errors import AmbiguousRunId, ConfigError, JournalCorrupt, NewerVersion, RunNotFound, UnsupportedFormat
from fisk_ai.ids import check_stored_run_id
from fisk_ai.stores import FileStore, Store
from fisk_ai.text import printable

DEFAULT_CONFIG = "agent.yaml"

_SHOWN_IDS = 5
_COMMAND = re.compile(r"`fisk-ai (run|session) [^`]*(?=`)")


@dataclass(frozen=True, slots=True)
class Place:
    """What the command line said about where things are; None is the default."""

    state_dir: str | None = None
    config: str = DEFAULT_CONFIG

    def run_command(self, *words: str) -> str:
        """Return a `run` command with these words, ready to paste."""
        return _joined(["fisk-ai", "run", *words, *self._config_flags(), *self._state_flags()])

    def session_command(self, *words: str) -> str:
        """Return a `session` command with these words, ready to paste."""
        return _joined(["fisk-ai", "session", *words, *self._state_flags()])

    def completed(self, text: str) -> str:
        """Return a message with its commands, which are between backticks, made to work from here."""

        def add(match: re.Match[str]) -> str:
            flags = [*(self._config_flags() if match[1] == "run" else ()), *self._state_flags()]
            return _joined([match[0], *flags], keep=1)

        return _COMMAND.sub(add, text)

    def _config_flags(self) -> list[str]:
        return [] if self.config == DEFAULT_CONFIG else ["--config", self.config]

    def _state_flags(self) -> list[str]:
        return [] if self.state_dir is None else ["--state-dir", self.state_dir]


def open_state(state_dir: str | None) -> FileStore:
    """Return the file store that `--state-dir` names, or the default one."""
    if state_dir == "":
        raise ConfigError("--state-dir is empty: name a directory, or leave it out for the default one")
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


def exact_run(store: Store, text: str) -> str:
    """Return `text` if it is the whole id of a run; for what can't be undone.

    Raises:
        InvalidRunId, RunNotFound: naming the runs that may be meant.
    """
    check_stored_run_id(text)
    ids = store.run_ids()
    if text not in ids:
        problem = RunNotFound(text, store.location)
        if near := sorted(run_id for run_id in ids if run_id.startswith(text)):
            meant = ", ".join(near[:_SHOWN_IDS]) + (", ..." if len(near) > _SHOWN_IDS else "")
            problem.args = (f"no run {text!r} in {store.location}; did you mean {meant}? rm takes whole ids",)
        raise problem
    return text


@contextmanager
def naming(run_id: str) -> Iterator[None]:
    """Name the run in errors that come from where only its bytes are known."""
    try:
        yield
    except (NewerVersion, UnsupportedFormat) as problem:
        if repr(run_id) not in str(problem):
            problem.args = (f"run {run_id!r}: {problem}",)
        raise
    except JournalCorrupt as problem:
        raise problem.located(problem.where, run_id=run_id) from None


def _joined(words: list[str], *, keep: int = 0) -> str:
    """Quote words for a shell; the first `keep` are one command already."""
    return " ".join([*words[:keep], *(_quoted(word) for word in words[keep:])])


def _quoted(word: str) -> str:
    if printable(word) == word and "\n" not in word and "\t" not in word:
        return shlex.quote(word)
    # What can't be shown as it is would be lost on the way to the terminal and back.
    escaped = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(word)
    )
    return f"$'{''.join(escaped)}'"
