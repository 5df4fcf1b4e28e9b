"""Every error that fisk-ai raises on purpose, with the exit code and the JSON code that each one means.

    FiskError
    ├── ConfigError             agent.yaml, flags or environment are wrong
    ├── InvalidRunId            a text that can't name a run
    ├── AmbiguousRunId          a prefix that several runs share
    ├── RunExists               the name is taken
    ├── StoreError              the store can't be used
    │   ├── RunNotFound         no such run
    │   ├── NothingToResume     no run that could be gone on with
    │   ├── NothingRecorded     a file without a whole first record
    │   ├── NotPermitted        the operating system, or an unsafe file, says no
    │   ├── RunLocked           another process holds the run
    │   ├── OrphanRunning       a tool of a dead runner is still alive
    │   ├── JournalCorrupt      bytes that were whole once are damaged
    │   ├── NewerVersion        written by a newer fisk-ai
    │   ├── UnsupportedFormat   model turns in a format that nobody here reads
    │   ├── RecordRefused       a record that may not be written
    │   ├── JournalFailed       a write or sync failed; the journal is poisoned
    │   ├── JournalLost         the lock or the file is no longer ours
    │   └── JournalClosed       used after close, or by a forked child
    ├── ResumeRefused           the run is fine, going on with it is not
    │   ├── ConfigurationChanged
    │   ├── AlreadyCompleted
    │   ├── DecisionNeeded      a call may have run and its tool says `ask`
    │   └── DeadEnd             the model's last turn can't be continued
    ├── RunAborted              stopped at once, from outside
    ├── ToolSetupError          a tool can't be loaded or described
    └── ProviderError           a model call failed for good
        ├── ProviderUnreachable
        ├── ProviderRefused     the API answered with an error
        └── InvalidReply        the answer isn't a whole, valid turn

Messages say what happened, why, and what to do. They carry no secrets and no prompt text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar


class FiskError(Exception):
    """The root of the tree. `code` is the JSON `error.code`, `exit_code` the command line's."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1


class ConfigError(FiskError):
    """Configuration or usage is wrong; `problems` holds one line for each mistake."""

    code = "config"
    exit_code = 2

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class InvalidRunId(FiskError):
    """A text that can't be the id of a run; nothing was touched."""

    code = "invalid_run_id"
    exit_code = 2

    def __init__(self, run_id: str, suggestion: str | None = None) -> None:
        self.run_id = run_id
        self.suggestion = suggestion
        hint = f"; try {suggestion!r}" if suggestion else ""
        super().__init__(
            f"{run_id[:120]!r} can't be a run id: 1-100 of a-z 0-9 . _ - are allowed, "
            f"starting with a letter or digit{hint}"
        )


class AmbiguousRunId(FiskError):
    """A prefix that fits several runs."""

    code = "ambiguous_run_id"
    exit_code = 2

    def __init__(self, prefix: str, matches: Sequence[str]) -> None:
        self.prefix = prefix
        self.matches = tuple(matches)
        shown = ", ".join(self.matches[:5]) + (", ..." if len(self.matches) > 5 else "")
        super().__init__(f"{prefix!r} fits {len(self.matches)} runs ({shown}): type more of the id")


class RunExists(FiskError):
    """The name is taken; the stored run was not touched."""

    code = "run_exists"
    exit_code = 2

    def __init__(self, run_id: str, status: str) -> None:
        self.run_id = run_id
        self.status = status
        way = {
            "completed": f"remove it with `fisk-ai session rm {run_id}` or choose another name",
            "unreadable": f"look at it with `fisk-ai session verify {run_id}` or choose another name",
            "running": "another process works on it: choose another name",
        }.get(status, f"go on with `fisk-ai run --resume {run_id}` or choose another name")
        super().__init__(f"a run named {run_id!r} exists already ({status}): {way}")


class StoreError(FiskError):
    """The store, or a run in it, can't be used as asked."""

    code = "store"


class RunNotFound(StoreError):
    """No such run in the store that was searched."""

    code = "run_not_found"

    def __init__(self, run_id: str, where: str) -> None:
        self.run_id = run_id
        self.where = where
        super().__init__(
            f"no run {run_id!r} in {where}: `fisk-ai session ls` lists what is there "
            f"(--state-dir or XDG_STATE_HOME name another place)"
        )


class NothingToResume(StoreError):
    """The store has no run that could be gone on with."""

    code = "nothing_to_resume"

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"no run in {where} can be resumed: `fisk-ai session ls` lists what is there")


class NothingRecorded(StoreError):
    """The file exists but its first record never became whole, so no run began."""

    code = "nothing_recorded"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"nothing was recorded under {run_id!r}: its file has no whole first record. Start it again under "
            f"the same name, or remove it with `fisk-ai session rm {run_id}`"
        )


class NotPermitted(StoreError):
    """The operating system refused, or a file or directory isn't safe to use."""

    code = "not_permitted"

    def __init__(self, path: str, why: str, advice: str | None = None) -> None:
        self.path = path
        self.why = why
        way = advice or "Put it right, or choose another place with --state-dir or XDG_STATE_HOME"
        super().__init__(f"can't use {path}: {why}. {way}")


class RunLocked(StoreError):
    """Another process holds the run. `pid` and `host` name it where they are known."""

    code = "run_locked"
    exit_code = 6

    def __init__(self, run_id: str, pid: int | None = None, host: str | None = None) -> None:
        self.run_id = run_id
        self.pid = pid
        self.host = host
        holder = f"process {pid}" + (f" on {host}" if host else "") if pid else "another process"
        super().__init__(f"run {run_id!r} is in use by {holder}: wait for it to end, or stop it")


class OrphanRunning(StoreError):
    """A tool that a dead runner started is still alive, so its call can't be repeated safely."""

    code = "orphan_running"
    exit_code = 6

    def __init__(
        self, run_id: str, tool: str | None, pgid: int | None, why: str = "", advice: str | None = None
    ) -> None:
        self.run_id = run_id
        self.tool = tool
        self.pgid = pgid
        what = f"tool {tool!r}" if tool else "a tool"
        group = f" (process group {pgid})" if pgid else ""
        advice = advice or (
            "Resume when it has ended, or pass --orphan kill to end it, or --orphan ignore to go on beside it"
        )
        super().__init__(f"{what} of run {run_id!r}{group} is still running from before{why}. {advice}")


class JournalCorrupt(StoreError):
    """Bytes of a journal that were whole once are damaged, or records contradict each other.

    `line` counts from 1, `offset` is the line's first byte, `seq` is the record's number where it is known, and so is
    `run_id`.
    """

    code = "journal_corrupt"
    exit_code = 7

    def __init__(
        self,
        cause: str,
        *,
        where: str = "journal",
        line: int | None = None,
        offset: int | None = None,
        seq: int | None = None,
        run_id: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.advice = advice
        self.cause = cause
        self.where = where
        self.line = line
        self.offset = offset
        self.seq = seq
        place = [f"line {line}"] if line is not None else []
        place += [f"byte {offset}"] if offset is not None else []
        place += [f"seq {seq}"] if seq is not None else []
        at = f" at {', '.join(place)}" if place else ""
        named = f" {run_id}" if run_id else ""
        way = advice or (
            f"`fisk-ai session verify{named}` tells how much is whole, `fisk-ai session fork{named} --at SEQ` makes a "
            f"new run of the whole part"
        )
        super().__init__(f"{where} is damaged{at}: {cause}. Nothing was changed. {way}")

    def located(
        self,
        where: str,
        line: int | None = None,
        offset: int | None = None,
        run_id: str | None = None,
        advice: str | None = None,
    ) -> JournalCorrupt:
        """Return the same finding with what only its reader knows: the place, and what to do."""
        return JournalCorrupt(
            self.cause,
            where=where,
            line=self.line if line is None else line,
            offset=self.offset if offset is None else offset,
            seq=self.seq,
            run_id=self.run_id if run_id is None else run_id,
            advice=advice or self.advice,
        )


class NewerVersion(StoreError):
    """The journal was written by a newer fisk-ai."""

    code = "newer_version"
    exit_code = 5

    def __init__(self, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(
            f"the journal has version {found}, this fisk-ai reads versions up to {supported}: "
            f"use a newer fisk-ai. Nothing was changed"
        )


class UnsupportedFormat(StoreError):
    """Model turns are stored in a format that no reader here knows, or that the version can't hold."""

    code = "unsupported_format"
    exit_code = 5

    def __init__(self, why: str) -> None:
        super().__init__(why)


class RecordRefused(StoreError):
    """A record is too large, too deeply nested or not valid text, so it was not written."""

    code = "record_refused"


class JournalFailed(StoreError):
    """A write or sync failed (or was interrupted); nothing more is appended through this journal."""

    code = "journal_failed"

    def __init__(self, where: str, what: str, advice: str | None = None) -> None:
        self.where = where
        self.what = what
        way = advice or (
            "The run stopped before its next step; what was recorded is kept. Put the cause right and resume the run"
        )
        super().__init__(f"journal could not be written: {what} ({where}). {way}")


class JournalLost(StoreError):
    """The lock, the file or the directory under an open journal is no longer the one that was opened."""

    code = "journal_lost"

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        super().__init__(f"{where} is no longer ours: {what}. The run stopped; nothing was written to it")


class JournalClosed(StoreError):
    """The journal was closed, or belongs to the parent of this forked process."""

    code = "journal_closed"


class ResumeRefused(FiskError):
    """The stored run is readable, but it must not be continued like this. No byte was changed."""

    code = "resume_refused"
    exit_code = 5


class ConfigurationChanged(ResumeRefused):
    """The fingerprint differs. `fields` are the names of what changed, `changes` one line for each."""

    code = "configuration_changed"

    def __init__(self, run_id: str, fields: Sequence[str], changes: Sequence[str], *, forcible: bool) -> None:
        self.run_id = run_id
        self.fields = tuple(fields)
        self.changes = tuple(changes)
        self.forcible = forcible
        way = (
            "Restore the configuration, or pass --force to go on with the current one"
            if forcible
            else "A conversation can't move to another provider, not even with --force; restore the provider"
        )
        super().__init__(
            f"cannot resume run {run_id!r}: the configuration changed since it was journaled "
            f"({'; '.join(self.changes)}). {way}"
        )


class AlreadyCompleted(ResumeRefused):
    """The run has its answer; nothing is left to do."""

    code = "already_completed"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id!r} is completed: `fisk-ai session show {run_id}` shows its answer, "
            f"`fisk-ai session fork {run_id} --at SEQ` starts a new run from an earlier record"
        )


class DecisionNeeded(ResumeRefused):
    """Calls may have run before the crash, and their tools want an operator to decide."""

    code = "decision_needed"

    def __init__(self, run_id: str, calls: Sequence[str]) -> None:
        self.run_id = run_id
        self.calls = tuple(calls)
        super().__init__(
            f"run {run_id!r} can't go on by itself: {', '.join(self.calls)} may have run before the crash. Decide "
            f"with `fisk-ai run --resume {run_id} --on-crash rerun` (run it again, with the same idempotency key) "
            f"or `fisk-ai run --resume {run_id} --on-crash skip` (the model is told that the outcome is unknown)"
        )


class DeadEnd(ResumeRefused):
    """The model's last turn ended the conversation; going on would only repeat it."""

    code = "dead_end"

    def __init__(self, run_id: str, why: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id!r} can't be continued: {why}. Fork it to an earlier record with "
            f"`fisk-ai session fork {run_id} --at SEQ`, or start a run with another prompt"
        )


class RunAborted(FiskError):
    """The run was stopped at once; what was journaled is kept, and a running call may have taken effect."""

    code = "aborted"
    exit_code = 130

    def __init__(self, run_id: str, *, stored: bool) -> None:
        self.run_id = run_id
        self.stored = stored
        way = "it can be resumed from its last record" if stored else "nothing of it was stored"
        super().__init__(f"run {run_id!r} was aborted: {way}")


class ToolSetupError(FiskError):
    """A tool can't be imported, described or prepared."""

    code = "tool_setup"


class ProviderError(FiskError):
    """A model call failed.

    `retryable` says whether the same request may succeed soon; `retry_after_s` is how many seconds the API asked to
    wait. `rate_limited` says that the API takes no more requests for now, and `resume_at` from when on it does, where
    it said so: a stored run is suspended until then. `may_be_paid` says whether the model may have worked all the
    same. The retry policy reads and completes them; what leaves it has failed for good.
    """

    code = "provider"

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        rate_limited: bool = False,
        may_be_paid: bool = True,
    ) -> None:
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.rate_limited = rate_limited
        self.resume_at: datetime | None = None
        self.may_be_paid = may_be_paid
        super().__init__(message)

    @property
    def is_context_overflow(self) -> bool:
        """True if the conversation no longer fits the model."""
        return False


class ProviderUnreachable(ProviderError):
    """No connection, or the connection broke or took too long. `sent` is false if no request can have arrived."""

    code = "provider_unreachable"

    def __init__(self, message: str, *, retryable: bool = False, sent: bool = True) -> None:
        self.sent = sent
        super().__init__(message, retryable=retryable, may_be_paid=sent)


CONTEXT_OVERFLOW = "context_overflow"
"""The `kind` of a refusal because the conversation no longer fits the model, whatever the API calls it."""


class ProviderRefused(ProviderError):
    """The API answered with an error. `status` is the HTTP status, `kind` the API's own error type."""

    code = "provider_refused"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        rate_limited: bool = False,
        may_be_paid: bool = False,
    ) -> None:
        self.status = status
        self.kind = kind
        super().__init__(
            message,
            retryable=retryable,
            retry_after_s=retry_after_s,
            rate_limited=rate_limited,
            may_be_paid=may_be_paid,
        )

    @property
    def is_context_overflow(self) -> bool:
        """True if the conversation no longer fits the model."""
        return self.kind == CONTEXT_OVERFLOW


class InvalidReply(ProviderError):
    """The answer isn't a whole turn: broken JSON, a stream that ended early, a missing stop reason."""

    code = "invalid_reply"
