"""What holds for every run: pieces fold like the whole, and the conversation is one that providers accept."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fisk_ai.folding import Folding, RunState, fold
from fisk_ai.formats import reader_for
from fisk_ai.messages import TextBlock, ToolResultBlock, read_user
from fisk_ai.records import AssistantRecord, Record, TerminalRecord, ToolResultRecord
from tests.strategies import journal_bytes as encode
from tests.strategies import journals, scan, sequenced


def folding_of(records: list[Record]) -> Folding:
    folding = Folding()
    for record in sequenced(records):
        folding.apply(record)
    return folding


@settings(max_examples=150, deadline=None)
@given(journals(), st.data())
def test_folding_the_rest_onto_a_part_is_folding_the_whole(records: list[Record], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(records)))
    part = folding_of(records[:cut])
    at_the_cut = part.state()
    copy = part.copy()
    for record in sequenced(records)[cut:]:
        copy.apply(record)
    assert copy.state() == fold(sequenced(records))
    assert part.state() == at_the_cut == fold(sequenced(records[:cut]))  # the copy did not reach back


@settings(max_examples=150, deadline=None)
@given(journals())
def test_every_prefix_folds_to_a_conversation_that_a_provider_accepts(records: list[Record]) -> None:
    folding = Folding()
    for count, record in enumerate(sequenced(records), 1):
        folding.apply(record)
        check(folding.state(), records[:count])


@settings(max_examples=100, deadline=None)
@given(journals(version=1))
def test_runs_of_version_1_fold_the_same_way(records: list[Record]) -> None:
    state = fold(sequenced(records))
    assert state.version == 1
    check(state, records)


@settings(max_examples=100, deadline=None)
@given(journals())
def test_what_was_on_disk_folds_like_what_was_in_memory(records: list[Record]) -> None:
    found, _ = scan(encode(records))
    assert fold(found) == fold(sequenced(records))


def check(state: RunState, records: list[Record]) -> None:
    check_roles(state)
    check_results(state)
    check_counters(state, records)
    check_pending(state, records)


def check_roles(state: RunState) -> None:
    roles = [message.role for message in state.messages]
    assert roles[0] == "user"
    for before, after in pairwise(roles):
        assert (before, after) != ("user", "user")
    for message in state.messages:
        if message.role == "user":
            assert read_user(message.content).blocks


def check_results(state: RunState) -> None:
    for position, message in enumerate(state.messages):
        if message.role != "assistant":
            continue
        calls = [call.id for call in reader_for(message.format)(message.content).calls]
        following = state.messages[position + 1] if position + 1 < len(state.messages) else None
        blocks = read_user(following.content).blocks if following and following.role == "user" else ()
        answered = [block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock)]
        assert answered == calls
        kinds = [type(block) for block in blocks]
        assert kinds == sorted(kinds, key=lambda kind: kind is not ToolResultBlock), "results come first"
        assert all(isinstance(block, TextBlock) for block in blocks[len(calls) :])


def check_counters(state: RunState, records: list[Record]) -> None:
    turns = [record for record in records if isinstance(record, AssistantRecord)]
    assert state.counters.model_calls == state.next_iteration == len(turns)
    assert state.counters.tool_calls == sum(isinstance(record, ToolResultRecord) for record in records)
    assert state.counters.total_tokens == sum(
        turn.in_tokens + turn.out_tokens + turn.cache_read_tokens + turn.cache_create_tokens for turn in turns
    )


def check_pending(state: RunState, records: list[Record]) -> None:
    last = records[-1]
    assert state.terminal == (last if isinstance(last, TerminalRecord) else None)
    assert state.interrupted == (not isinstance(last, TerminalRecord) or last.resumed)
    if state.pending is None:
        return
    turn = state.pending.turn
    answered = set(state.pending.results)
    assert [call for call in turn.calls if call.id not in answered] == list(state.pending.unanswered)
    assert state.pending.unanswered
    if not state.interrupted and isinstance(last, TerminalRecord) and last.reason != "error":
        assert state.pending.ambiguous == ()
    else:
        started = next(
            waiting
            for group in turn.groups()
            if (waiting := [call for call in group if call in state.pending.unanswered])
        )
        assert bool(state.pending.ambiguous) != any(map(turn.never_runs, started))
        assert set(state.pending.ambiguous) <= set(state.pending.unanswered)
        alone = [call for call in state.pending.ambiguous if call.position not in turn.parallel]
        assert len(alone) <= 1
        assert not alone or len(state.pending.ambiguous) == 1
