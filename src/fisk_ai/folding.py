"""The state that follows from a run's records. Pure: no IO, no clock, no configuration.

`Folding` takes records one at a time and refuses those that contradict what came before; `fold` does it for a whole
journal and returns a frozen `RunState`. The live loop uses the same `Folding`, so what runs and what is resumed can't
drift apart. Rules: design section 4, repeated in `docs/journal-format.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from fisk_ai.errors import JournalCorrupt
from fisk_ai.formats import reader_for
from fisk_ai.jsontext import splice_array
from fisk_ai.messages import (
    NEUTRAL,
    Call,
    Message,
    ToolResultBlock,
    TurnContent,
    read_result,
    read_user,
    sendable_result,
    sendable_typed,
)
from fisk_ai.records import (
    AssistantRecord,
    Fingerprint,
    ForkedFrom,
    MetaRecord,
    Record,
    SequencedRecord,
    TerminalRecord,
    ToolResultRecord,
    UserRecord,
    idempotency_key,
)


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals over the whole run, derived from its records and so never out of step with them."""

    model_calls: int = 0
    tool_calls: int = 0
    in_tokens: int = 0
    out_tokens: int = 0
    cache_read_tokens: int = 0
    cache_create_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """All four kinds together; what the token budget is compared with."""
        return self.in_tokens + self.out_tokens + self.cache_read_tokens + self.cache_create_tokens


OVER = frozenset({"refusal", "content_filter", "model_context_window_exceeded"})
"""Stop reasons after which the model isn't asked again; going on needs another conversation."""

CUT_OFF = OVER | {"max_tokens"}
"""Stop reasons of a turn whose calls may be incomplete: they are answered with an error, never run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A model turn as the loop sees it."""

    seq: int
    """Of its assistant record; part of the idempotency keys."""
    iteration: int
    stop_reason: str
    text: str
    calls: tuple[Call, ...]
    parallel: tuple[int, ...] = ()
    input_tokens: int = 0
    """What the provider counted of its request, cached or not; 0 if it counted nothing."""
    output_tokens: int = 0

    def never_runs(self, call: Call) -> bool:
        """Tell whether a call of this turn can't have run and won't: the turn was cut off, or it is unusable."""
        return self.stop_reason in CUT_OFF or not call.usable

    def groups(self) -> tuple[tuple[Call, ...], ...]:
        """Return the calls in the order in which they start: one by one, the parallel ones together.

        The parallel group starts where its first member stands. The loop runs by this order and the fold tells
        from it what may have run, so there is one definition.
        """
        together = frozenset(self.parallel)
        side_by_side = tuple(call for call in self.calls if call.position in together)
        alone = [(call,) for call in self.calls if call.position not in together]
        groups = [side_by_side, *alone] if side_by_side else alone
        return tuple(sorted(groups, key=lambda group: group[0].position))


@dataclass(frozen=True, slots=True)
class Pending:
    """An open turn: some of its calls have no result yet."""

    turn: Turn
    message: Message
    """The assistant message; it joins the conversation when its last call is answered."""
    results: Mapping[str, bytes]
    """Results so far, by call id, as neutral blocks."""
    unanswered: tuple[Call, ...]
    ambiguous: tuple[Call, ...]
    """The calls that may have run; at most one unless they were declared parallel."""


@dataclass(frozen=True, slots=True)
class RunState:
    """All that a resume needs; no client, no credentials, no configuration."""

    version: int
    run_id: str
    created: str
    fingerprint: Fingerprint
    fingerprint_seq: int
    """Of the record that the fingerprint stands in: 1, or that of the last forced resume's mark."""
    prompt: str
    interactive: bool
    messages: tuple[Message, ...]
    """The committed conversation, ending where a provider accepts it."""
    counters: Counters
    next_iteration: int
    pending: Pending | None
    last_stop_reason: str | None
    terminal: TerminalRecord | None
    """The last record, if it is terminal."""
    last_seq: int
    last_turn: Turn | None
    answered: bool
    """True if the last word is the model's: an answer, or a paused turn."""
    pauses: int
    """Paused turns in a row, up to now."""
    forked_from: ForkedFrom | None = None

    @property
    def interrupted(self) -> bool:
        """True without a clean end: the run crashed, or is running right now."""
        return self.terminal is None or self.terminal.resumed

    def key_of(self, call: Call) -> str:
        """Return the idempotency key of a call of the last turn."""
        assert self.last_turn is not None
        return idempotency_key(self.run_id, self.created, self.last_turn.seq, call.position)


@dataclass(slots=True)
class Folding:
    """A run's state as it grows, one record at a time. Costs the same for record 10,000 as for record 1."""

    meta: MetaRecord | None = None
    fingerprint: Fingerprint | None = None
    fingerprint_seq: int = 0
    """Of the record that the fingerprint stands in."""
    last_seq: int = 0
    terminal: TerminalRecord | None = None
    last_turn: Turn | None = None
    answered: bool = False
    pauses: int = 0
    messages: list[Message] = field(default_factory=list)
    """The committed conversation but for the last user message, which may still grow."""
    _tally: list[int] = field(default_factory=lambda: [0] * 6)
    """The counters in their order, growing; a new `Counters` for each record would cost more than the rest."""
    _user_blocks: list[bytes] = field(default_factory=list)
    _open: Message | None = None
    _results: dict[str, bytes] = field(default_factory=dict)

    @property
    def counters(self) -> Counters:
        """Totals so far."""
        return Counters(*self._tally)

    @property
    def interactive(self) -> bool:
        """True for a chat."""
        return self.meta is not None and self.meta.interactive

    def apply(self, record: SequencedRecord) -> None:
        """Take the next record.

        Raises:
            JournalCorrupt: if it contradicts the records before it; the state is then unchanged.
            UnsupportedFormat: if nobody knows how to read its turn.
        """
        if record.seq != self.last_seq + 1:
            raise self._corrupt(f"the seq after {self.last_seq} is {record.seq}", record.seq)
        payload = record.record
        if isinstance(payload, MetaRecord):
            self._meta(payload, record.seq)
        elif self.meta is None:
            raise self._corrupt("the first record is not meta", record.seq)
        elif self.terminal is not None and self.terminal.reason == "completed":
            raise self._corrupt("a record follows after the run was completed", record.seq)
        else:
            self._after_meta(payload, record.seq)
        self.terminal = payload if isinstance(payload, TerminalRecord) else None
        self.last_seq = record.seq

    def check(self, record: Record) -> None:
        """Raise what `apply` would raise if this were the next record; the state stays as it is.

        For loops of your own: check, append, apply. A journal takes any valid record, also one that contradicts
        those before it, and is then damaged for good. Costs as much as `apply`, however long the run is.
        """
        probe = replace(self, messages=[], _user_blocks=[], _results=dict(self._results))
        probe.apply(SequencedRecord(self.last_seq + 1, record))

    def _after_meta(self, payload: AssistantRecord | ToolResultRecord | UserRecord | TerminalRecord, seq: int) -> None:
        match payload:
            case AssistantRecord():
                self._assistant(payload, seq)
            case ToolResultRecord():
                self._tool_result(payload, seq)
            case UserRecord():
                self._user(payload, seq)
            case TerminalRecord():
                if payload.fingerprint is not None:
                    self.fingerprint, self.fingerprint_seq = payload.fingerprint, seq

    def _meta(self, meta: MetaRecord, seq: int) -> None:
        if self.meta is not None:
            raise self._corrupt("a second meta record", seq)
        self.meta = meta
        self.fingerprint, self.fingerprint_seq = meta.fingerprint, seq
        self._user_blocks = sendable_typed(msgspec.json.encode(meta.prompt))

    def _assistant(self, record: AssistantRecord, seq: int) -> None:
        if self._open is not None:
            raise self._corrupt("a new turn while calls of the last one are unanswered", seq)
        message = Message("assistant", record.format, bytes(record.message), seq)
        content = self._read_turn(message, record, seq)
        self.last_turn = Turn(
            seq,
            record.iteration,
            record.stop_reason,
            content.text,
            content.calls,
            record.parallel,
            input_tokens=record.in_tokens + record.cache_read_tokens + record.cache_create_tokens,
            output_tokens=record.out_tokens,
        )
        self._count(1, 0, record.in_tokens, record.out_tokens, record.cache_read_tokens, record.cache_create_tokens)
        self.pauses = self.pauses + 1 if record.stop_reason == "pause_turn" else 0
        self._results = {}
        if content.calls:
            self._open, self.answered = message, False
            return
        self.answered = True
        if not content.empty:
            self._commit(message)

    def _count(self, *more: int) -> None:
        self._tally = [total + each for total, each in zip(self._tally, more, strict=True)]

    def _read_turn(self, message: Message, record: AssistantRecord, seq: int) -> TurnContent:
        try:
            content = reader_for(record.format)(message.content)
        except msgspec.MsgspecError as problem:
            raise self._corrupt(f"the turn isn't a message of format {record.format}: {problem}", seq) from None
        ids = [call.id for call in content.calls]
        if "" in ids or len(set(ids)) != len(ids):
            raise self._corrupt("call ids of the turn are missing or doubled", seq)
        if not record.unusable:
            return content
        calls = tuple(
            replace(call, usable=call.usable and call.position not in record.unusable) for call in content.calls
        )
        return replace(content, calls=calls)

    def _tool_result(self, record: ToolResultRecord, seq: int) -> None:
        call_id = record.tool_use_id
        if self._open is None or self.last_turn is None:
            raise self._corrupt(f"a result for {call_id!r}, but no call is open", seq)
        ids = [call.id for call in self.last_turn.calls]
        if call_id not in ids:
            raise self._corrupt(f"a result for {call_id!r}, which the open turn did not call", seq)
        if call_id in self._results:
            raise self._corrupt(f"a second result for {call_id!r}", seq)
        self._require_result_for(call_id, record, seq)
        self._results[call_id] = sendable_result(bytes(record.result))
        self._count(0, 1, 0, 0, 0, 0)
        if len(self._results) == len(ids):
            self._commit(self._open)
            # The order of the calls, whatever the order in the file: the request must not depend on timing.
            self._user_blocks += [self._results[each] for each in ids]
            self._open = None
            # What answers the calls of such a turn is ours; the last word stays the model's.
            self.answered = self.last_turn.stop_reason in OVER

    def _require_result_for(self, call_id: str, record: ToolResultRecord, seq: int) -> None:
        try:
            block = read_result(bytes(record.result))
        except msgspec.MsgspecError as problem:
            raise self._corrupt(f"not a tool result: {problem}", seq) from None
        if block.tool_use_id != call_id:
            raise self._corrupt(f"the result of {call_id!r} says that it is of {block.tool_use_id!r}", seq)

    def _user(self, record: UserRecord, seq: int) -> None:
        if self._open is not None:
            raise self._corrupt("a follow-up while calls are unanswered", seq)
        try:
            typed = read_user(bytes(record.message))
            blocks = sendable_typed(bytes(msgspec.json.decode(record.message, type=_UserContent).content))
        except msgspec.MsgspecError as problem:
            raise self._corrupt(f"not a user message: {problem}", seq) from None
        if any(isinstance(block, ToolResultBlock) for block in typed.blocks):
            raise self._corrupt("a follow-up holds the result of a call, which has a record of its own", seq)
        self._user_blocks += blocks
        self.answered = False
        self.pauses = 0

    def _commit(self, message: Message) -> None:
        if self._user_blocks:
            self.messages.append(self._user_message())
            self._user_blocks = []
        self.messages.append(message)

    def _user_message(self) -> Message:
        content = b'{"role":"user","content":' + splice_array(self._user_blocks) + b"}"
        return Message("user", NEUTRAL, content)

    def key_of(self, call: Call) -> str:
        """Return the idempotency key of a call of the last turn."""
        assert self.meta is not None
        assert self.last_turn is not None
        return idempotency_key(self.meta.run_id, self.meta.created, self.last_turn.seq, call.position)

    def conversation(self) -> list[Message]:
        """Return the committed conversation as a new list."""
        return self.messages + ([self._user_message()] if self._user_blocks else [])

    @property
    def pending(self) -> Pending | None:
        """The open turn, or None."""
        if self._open is None or self.last_turn is None:
            return None
        unanswered = tuple(call for call in self.last_turn.calls if call.id not in self._results)
        return Pending(self.last_turn, self._open, dict(self._results), unanswered, self._ambiguous())

    def _ambiguous(self) -> tuple[Call, ...]:
        assert self.last_turn is not None
        if self.terminal is not None and self.terminal.reason != "error":
            return ()
        for group in self.last_turn.groups():
            if started := tuple(call for call in group if call.id not in self._results):
                # Calls that never run are answered before anything of their group starts.
                return () if any(self.last_turn.never_runs(call) for call in started) else started
        return ()

    def state(self) -> RunState:
        """Return the state so far, frozen.

        Raises:
            JournalCorrupt: if there was no record at all.
        """
        if self.meta is None or self.fingerprint is None:
            raise JournalCorrupt("there is no meta record")
        return RunState(
            version=self.meta.version,
            run_id=self.meta.run_id,
            created=self.meta.created,
            fingerprint=self.fingerprint,
            fingerprint_seq=self.fingerprint_seq,
            prompt=self.meta.prompt,
            interactive=self.meta.interactive,
            messages=tuple(self.conversation()),
            counters=self.counters,
            next_iteration=self.counters.model_calls,
            pending=self.pending,
            last_stop_reason=self.last_turn.stop_reason if self.last_turn else None,
            terminal=self.terminal,
            last_seq=self.last_seq,
            last_turn=self.last_turn,
            answered=self.answered,
            pauses=self.pauses,
            forked_from=self.meta.forked_from,
        )

    def copy(self) -> Folding:
        """Return an independent folding that continues from here."""
        return replace(
            self,
            messages=list(self.messages),
            _user_blocks=list(self._user_blocks),
            _results=dict(self._results),
        )

    def _corrupt(self, cause: str, seq: int) -> JournalCorrupt:
        return JournalCorrupt(cause, seq=seq)


class _UserContent(msgspec.Struct):
    content: msgspec.Raw


def fold(records: Iterable[SequencedRecord]) -> RunState:
    """Replay a run's records, from the first, into the state that a resume continues from.

    Raises:
        JournalCorrupt: naming the seq, if the records contradict each other or there are none.
        UnsupportedFormat: if a turn is in a format without a reader.
    """
    folding = Folding()
    for record in records:
        folding.apply(record)
    return folding.state()
