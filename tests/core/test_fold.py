"""The state that follows from the records, rule by rule (design, section 4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

import msgspec
import pytest

from fisk_ai.errors import JournalCorrupt, UnsupportedFormat
from fisk_ai.folding import Counters, Folding, RunState, fold
from fisk_ai.messages import read_user
from fisk_ai.records import (
    AssistantRecord,
    Reason,
    Record,
    SequencedRecord,
    ToolResultRecord,
    UserRecord,
    resume_mark,
)
from tests.strategies import (
    CREATED,
    RUN_ID,
    answer,
    anthropic_message,
    dumps,
    ended,
    fingerprint,
    follow_up,
    foreign_lines,
    meta,
    result,
    scan,
    sequenced,
    turn,
)


def folded(*records: Record) -> RunState:
    return fold(sequenced(records))


def texts_of(state: RunState) -> list[list[str]]:
    """The messages as lists of what stands in their blocks."""
    found = []
    for message in state.messages:
        content = json.loads(message.content)["content"]
        found.append([block.get("text") or block.get("tool_use_id") or block.get("id") for block in content])
    return found


def roles_of(state: RunState) -> list[str]:
    return [message.role for message in state.messages]


def ids(calls: Sequence[Any]) -> list[str]:
    return [call.id for call in calls]


def corrupt(*records: Record) -> JournalCorrupt:
    with pytest.raises(JournalCorrupt) as caught:
        folded(*records)
    return caught.value


# 4.1


def test_no_record_at_all_is_no_run() -> None:
    with pytest.raises(JournalCorrupt, match="no meta"):
        fold([])


def test_the_first_record_must_be_meta() -> None:
    assert "not meta" in corrupt(answer()).cause


def test_a_second_meta_is_damage() -> None:
    assert corrupt(meta(), answer(), meta()).seq == 3


@pytest.mark.parametrize("seqs", [[2], [0], [1, 3], [1, 1], [1, 2, 2], [1, 2, 1]])
def test_numbers_must_follow_each_other(seqs: list[int]) -> None:
    records: list[Record] = [meta(), turn("a"), result("a")]
    with pytest.raises(JournalCorrupt) as caught:
        fold(SequencedRecord(seq, record) for seq, record in zip(seqs, records, strict=False))
    assert caught.value.seq == seqs[-1]


def test_a_result_for_a_call_that_nobody_made_is_damage_that_names_it() -> None:
    problem = corrupt(meta(), turn("a"), result("z"))
    assert problem.seq == 3
    assert "'z'" in problem.cause


def test_a_result_without_an_open_turn_is_damage() -> None:
    assert corrupt(meta(), result("a")).seq == 2
    assert corrupt(meta(), answer(), result("a")).seq == 3


def test_a_second_result_is_damage_whether_the_turn_is_open_or_not() -> None:
    assert corrupt(meta(), turn("a", "b"), result("a"), result("a", "other")).seq == 4
    assert corrupt(meta(), turn("a"), result("a"), result("a", "other")).seq == 4


def test_a_result_that_is_labelled_for_another_call_is_damage() -> None:
    mislabelled = ToolResultRecord(tool_use_id="a", result=result("b").result)
    assert "'b'" in corrupt(meta(), turn("a", "b"), mislabelled).cause


@pytest.mark.parametrize("raw", [b"3", b"null", b"[]", b'"x"', b"{}", b'{"type":"text","text":"x"}'])
def test_a_result_of_another_shape_is_damage(raw: bytes) -> None:
    record = ToolResultRecord(tool_use_id="a", result=msgspec.Raw(raw))
    assert "not a tool result" in corrupt(meta(), turn("a"), record).cause


@pytest.mark.parametrize("raw", [b"3", b"{}", b'{"role":"user","content":[7]}', b'{"role":"assistant","content":"x"}'])
def test_a_follow_up_of_another_shape_is_damage(raw: bytes) -> None:
    assert corrupt(meta(), answer(), UserRecord(message=msgspec.Raw(raw))).seq == 3


def test_a_result_of_other_origin_may_be_a_bare_text() -> None:
    raw = msgspec.Raw(b'{"type":"tool_result","tool_use_id":"a","content":"3 consumers"}')
    state = folded(meta(), turn("a"), ToolResultRecord(tool_use_id="a", result=raw))
    assert read_user(state.messages[2].content).blocks[0].blocks[0].text == "3 consumers"  # type: ignore[union-attr]


def test_a_new_turn_while_calls_are_unanswered_is_damage() -> None:
    assert corrupt(meta(), turn("a", "b"), result("a"), answer()).seq == 4


def test_a_follow_up_while_calls_are_unanswered_is_damage() -> None:
    assert corrupt(meta(), turn("a", "b"), result("a"), follow_up()).seq == 4


@pytest.mark.parametrize(
    "record", [answer(), turn("a"), follow_up(), ended("error"), ended("completed"), resume_mark()]
)
def test_nothing_follows_after_completed(record: Record) -> None:
    assert corrupt(meta(), answer(), ended("completed"), record).seq == 4


def test_call_ids_that_are_missing_or_doubled_are_damage() -> None:
    for bad in (("x", "x"), ("",), ("a", "")):
        assert corrupt(meta(), turn(*bad)).seq == 2


@pytest.mark.parametrize("raw", [b"3", b"{}", b'{"role":"assistant"}', b'{"content":7}', b'{"content":[{"text":"x"}]}'])
def test_a_turn_of_another_shape_is_damage(raw: bytes) -> None:
    assert corrupt(meta(), AssistantRecord(iteration=0, message=msgspec.Raw(raw))).seq == 2


def test_a_format_that_nobody_knows_is_not_damage() -> None:
    with pytest.raises(UnsupportedFormat, match="'hologram'"):
        folded(meta(), AssistantRecord(iteration=0, format="hologram", message=msgspec.Raw(b"{}")))


def test_what_was_refused_leaves_the_state_as_it_was() -> None:
    folding = Folding()
    for record in sequenced([meta(), turn("a", "b"), result("a")]):
        folding.apply(record)
    before = folding.state()
    bad: list[Record] = [meta(), answer(), result("a"), result("z"), follow_up()]
    for each in bad:
        with pytest.raises(JournalCorrupt):
            folding.apply(SequencedRecord(4, each))
        assert folding.state() == before
    folding.apply(SequencedRecord(4, result("b")))
    assert folding.pending is None


# 4.2

REASONS: tuple[Reason, ...] = ("suspended", "error", "budget", "max_iterations", "completed")


@pytest.mark.parametrize("reason", REASONS)
def test_a_terminal_record_counts_while_it_is_last(reason: Reason) -> None:
    state = folded(meta(), answer(), ended(reason, "why"))
    assert state.terminal == ended(reason, "why")
    assert not state.interrupted
    if reason != "completed":
        state = folded(meta(), answer(), ended(reason), follow_up())
        assert state.terminal is None
        assert state.interrupted


def test_a_resume_mark_takes_the_clean_end_back() -> None:
    state = folded(meta(), turn("a", "b"), ended("suspended"), resume_mark())
    assert state.interrupted
    assert state.terminal == resume_mark()
    assert state.pending is not None
    assert ids(state.pending.ambiguous) == ["a"]


@pytest.mark.parametrize(
    ("tail", "ambiguous"),
    [
        ([], ["a"]),
        ([ended("suspended")], []),
        ([ended("budget")], []),
        ([ended("max_iterations")], []),
        ([ended("error")], ["a"]),
        ([ended("suspended"), resume_mark()], ["a"]),
        ([ended("budget"), resume_mark()], ["a"]),
        ([ended("suspended"), resume_mark(), ended("suspended")], []),
        ([ended("suspended"), resume_mark(), result("a")], ["b"]),
        ([result("a"), ended("error")], ["b"]),
        ([result("a"), ended("suspended")], []),
        ([result("b")], ["a"]),
    ],
)
def test_the_first_unanswered_call_is_ambiguous_unless_the_end_was_clean(
    tail: list[Record], ambiguous: list[str]
) -> None:
    state = folded(meta(), turn("a", "b", "c"), *tail)
    assert state.pending is not None
    assert ids(state.pending.ambiguous) == ambiguous


@pytest.mark.parametrize(
    ("parallel", "answered", "ambiguous"),
    [
        ((0, 2), "", ["a", "c"]),
        ((0, 2), "a", ["c"]),
        ((0, 2), "ac", ["b"]),
        ((1, 2), "", ["a"]),
        ((1, 2), "a", ["b", "c"]),
        ((1, 3), "a", ["b", "d"]),
        ((1, 3), "ad", ["b"]),
        ((1, 3), "abd", ["c"]),
        ((0, 1, 2, 3), "c", ["a", "b", "d"]),
        ((3,), "ab", ["c"]),
    ],
)
def test_all_unanswered_calls_of_a_parallel_group_are_ambiguous(
    parallel: tuple[int, ...], answered: str, ambiguous: list[str]
) -> None:
    state = folded(meta(), turn(*"abcd", parallel=parallel), *(result(each) for each in answered))
    assert state.pending is not None
    assert ids(state.pending.ambiguous) == ambiguous
    suspended = folded(meta(), turn(*"abcd", parallel=parallel), *(result(each) for each in answered), ended())
    assert suspended.pending is not None
    assert suspended.pending.ambiguous == ()


@pytest.mark.parametrize(
    ("opened", "ambiguous"),
    [
        (turn("a", "b", stop_reason="max_tokens"), []),
        (turn("a", "b", unusable=(0,)), []),
        (turn("a", "b", unusable=(1,)), ["a"]),
        (turn("a", "b", parallel=(0, 1), unusable=(1,)), []),
    ],
)
def test_a_call_that_never_runs_is_not_in_doubt_and_nothing_behind_it_started(
    opened: AssistantRecord, ambiguous: list[str]
) -> None:
    state = folded(meta(), opened)
    assert state.pending is not None
    assert ids(state.pending.ambiguous) == ambiguous


def test_the_last_word_of_a_refused_turn_stays_the_models() -> None:
    assert folded(meta(), turn("a", stop_reason="refusal"), result("a")).answered
    assert not folded(meta(), turn("a", stop_reason="refusal"), result("a"), follow_up()).answered
    assert not folded(meta(), turn("a", stop_reason="max_tokens"), result("a")).answered


def test_calls_start_one_by_one_and_parallel_ones_together() -> None:
    state = folded(meta(), turn(*"abcde", parallel=(1, 3)))
    assert state.last_turn is not None
    assert [ids(group) for group in state.last_turn.groups()] == [["a"], ["b", "d"], ["c"], ["e"]]


def test_the_last_fingerprint_is_the_runs() -> None:
    changed = fingerprint("claude-opus-5")
    state = folded(meta(), turn("a"), ended(), resume_mark(changed), resume_mark(), result("a"))
    assert state.fingerprint == changed
    assert folded(meta(), turn("a"), ended(), resume_mark()).fingerprint == fingerprint()


# 4.3


ORDERS = [order for size in range(4) for chosen in combinations("abc", size) for order in permutations(chosen)]


@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_exactly_the_unrecorded_calls_are_left_whatever_the_order_in_the_file(order: tuple[str, ...]) -> None:
    state = folded(meta(), turn("a", "b", "c"), *(result(each, f"of {each}") for each in order))
    if len(order) == 3:
        assert state.pending is None
        assert texts_of(state)[-1] == ["a", "b", "c"]
        assert roles_of(state) == ["user", "assistant", "user"]
        return
    assert state.pending is not None
    assert ids(state.pending.unanswered) == sorted(set("abc") - set(order))
    assert sorted(state.pending.results) == sorted(order)
    assert roles_of(state) == ["user"]
    rest = [result(each, f"of {each}") for each in ids(state.pending.unanswered)]
    resumed = folded(meta(), turn("a", "b", "c"), *(result(each, f"of {each}") for each in order), *rest)
    twin = folded(meta(), turn("a", "b", "c"), *(result(each, f"of {each}") for each in "abc"))
    assert resumed.messages == twin.messages  # the request is the same, byte for byte


def test_there_are_sixteen_orders() -> None:
    assert len(ORDERS) == 16


def test_an_open_turn_is_not_part_of_the_conversation() -> None:
    state = folded(meta(prompt="go"), turn("a"))
    assert texts_of(state) == [["go"]]
    assert state.pending is not None
    assert json.loads(state.pending.message.content)["content"][-1]["id"] == "a"


def test_user_messages_in_a_row_become_one() -> None:
    state = folded(meta(prompt="one"), follow_up("two"), follow_up("three"))
    assert texts_of(state) == [["one", "two", "three"]]


def test_a_failed_model_call_leaves_one_user_message() -> None:
    state = folded(meta(), answer("hm"), follow_up("x"), ended("error", "overloaded"), resume_mark(), follow_up("y"))
    assert texts_of(state)[-1] == ["x", "y"]
    assert roles_of(state) == ["user", "assistant", "user"]


def test_a_follow_up_joins_the_results_before_it() -> None:
    state = folded(meta(), turn("a"), result("a"), follow_up("faster"))
    assert texts_of(state)[-1] == ["a", "faster"]
    assert not state.answered


@pytest.mark.parametrize("text", [None, "", " ", "\n\n", "\u200b", "\u3000 \ufeff"])
def test_an_empty_turn_is_left_out_of_requests(text: str | None) -> None:
    blocks = [] if text is None else [{"type": "text", "text": text}]
    empty = AssistantRecord(
        iteration=0, message=msgspec.Raw(anthropic_message(*blocks)), stop_reason="end_turn", in_tokens=3
    )
    state = folded(meta(prompt="one"), empty)
    assert state.answered
    assert (state.counters.model_calls, state.counters.in_tokens) == (1, 3)
    assert roles_of(state) == ["user"]
    assert texts_of(folded(meta(prompt="one"), empty, follow_up("two"))) == [["one", "two"]]


def test_a_turn_of_thinking_alone_is_kept() -> None:
    thinking = anthropic_message({"type": "thinking", "thinking": "", "signature": "c2ln"})
    state = folded(meta(), AssistantRecord(iteration=0, message=msgspec.Raw(thinking), stop_reason="end_turn"))
    assert roles_of(state) == ["user", "assistant"]


def test_turns_after_a_pause_stay_separate() -> None:
    state = folded(meta(), turn(text="one", stop_reason="pause_turn"), turn(text="two", stop_reason="pause_turn"))
    assert roles_of(state) == ["user", "assistant", "assistant"]
    assert (state.pauses, state.answered) == (2, True)
    assert folded(meta(), turn(text="one", stop_reason="pause_turn"), answer()).pauses == 0
    assert folded(meta(), turn(text="one", stop_reason="pause_turn"), follow_up()).pauses == 0


def test_a_turn_is_kept_as_it_was_received() -> None:
    message = anthropic_message(
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "b3BhcXVl"}]},
        {"type": "text", "text": "found"},
        {"type": "tool_use", "id": "a", "name": "lookup", "input": {}},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "tool_use", "id": "b", "name": "lookup", "input": {}},
    )
    turned = AssistantRecord(iteration=0, message=msgspec.Raw(message), stop_reason="tool_use")
    state = folded(meta(), turned, result("a"))
    assert state.pending is not None
    assert state.pending.message.content == message
    assert ids(state.pending.unanswered) == ["b"]  # only calls of the client's own tools are in flight
    state = folded(meta(), turned, result("a"), result("b"))
    assert state.messages[1].content == message


def test_calls_of_both_formats_are_read_in_order() -> None:
    calls = [
        {"id": each, "type": "function", "function": {"name": "du", "arguments": '{"path": "/"}'}}
        for each in ("y", "x")
    ]
    message = dumps({"role": "assistant", "content": None, "tool_calls": calls})
    record = AssistantRecord(iteration=0, format="openai", message=msgspec.Raw(message), stop_reason="tool_use")
    state = folded(meta(), record)
    assert state.pending is not None
    assert ids(state.pending.unanswered) == ["y", "x"]
    assert state.pending.unanswered[0].parsed() == {"path": "/"}
    assert state.pending.message.format == "openai"


@pytest.mark.parametrize("arguments", ["", "[]", "null", "3", "{", "not JSON", '{"a":NaN}', "[" * 5000])
def test_arguments_that_are_no_object_make_a_call_unusable(arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "du", "arguments": arguments}}
    message = dumps({"role": "assistant", "content": None, "tool_calls": [call]})
    state = folded(meta(), AssistantRecord(iteration=0, format="openai", message=msgspec.Raw(message)))
    assert state.pending is not None
    assert not state.pending.unanswered[0].usable


@pytest.mark.parametrize("arguments", ["", [], None, 3, "text"])
def test_an_input_that_is_no_object_makes_a_call_unusable(arguments: Any) -> None:
    message = anthropic_message({"type": "tool_use", "id": "a", "name": "du", "input": arguments})
    state = folded(meta(), AssistantRecord(iteration=0, message=msgspec.Raw(message)))
    assert state.pending is not None
    assert not state.pending.unanswered[0].usable


def test_a_call_whose_input_was_replaced_stays_unusable() -> None:
    state = folded(meta(), turn("a", "b", unusable=(1,)))
    assert state.pending is not None
    assert [call.usable for call in state.pending.unanswered] == [True, False]


def test_one_id_may_return_in_a_later_turn() -> None:
    state = folded(meta(), turn("call_0"), result("call_0", "one"), turn("call_0"), result("call_0", "two"))
    assert state.counters.tool_calls == 2
    assert roles_of(state) == ["user", "assistant", "user", "assistant", "user"]


# 4.4 - 4.6


def test_what_comes_next_follows_from_the_state() -> None:
    assert not folded(meta()).answered
    assert not folded(meta(), turn("a")).answered
    assert not folded(meta(), turn("a"), result("a")).answered
    assert folded(meta(), answer()).answered
    assert folded(meta(), answer(), ended()).answered
    assert not folded(meta(), answer(), follow_up()).answered
    assert folded(meta(), answer()).last_stop_reason == "end_turn"
    assert folded(meta()).last_stop_reason is None


def test_counters_come_from_the_records_and_go_on_over_resumes() -> None:
    state = folded(
        meta(),
        turn("a", "b", tokens=(100, 10, 1, 2)),
        result("a"),
        ended(),
        resume_mark(),
        result("b"),
        turn("c", tokens=(200, 20, 3, 4)),
        result("c"),
        answer(),
    )
    assert state.counters == Counters(
        model_calls=3, tool_calls=3, in_tokens=1112, out_tokens=70, cache_read_tokens=4, cache_create_tokens=6
    )
    assert state.counters.total_tokens == 1192
    assert state.next_iteration == 3


def test_the_idempotency_key_is_bound_to_run_turn_and_place() -> None:
    state = folded(meta(), turn("a"), result("a"), turn("a", "b"))
    assert state.pending is not None
    keys = [state.key_of(call) for call in state.pending.unanswered]
    assert keys == [
        hashlib.sha256(f"{RUN_ID}\n{CREATED}\n4\n{position}".encode()).hexdigest()[:32] for position in (0, 1)
    ]
    resumed = folded(meta(), turn("a"), result("a"), turn("a", "b"), ended(), resume_mark(), result("a"))
    assert resumed.pending is not None
    assert resumed.key_of(resumed.pending.unanswered[0]) == keys[1]


def test_the_state_says_what_meta_said() -> None:
    state = folded(meta(interactive=True))
    assert (state.version, state.run_id, state.created) == (2, RUN_ID, CREATED)
    assert (state.prompt, state.interactive) == ("report on the ORDERS stream", True)
    assert (state.last_seq, state.next_iteration, state.pending, state.terminal) == (1, 0, None, None)


CONTRADICTIONS: list[tuple[list[Record], Record]] = [
    ([], turn("a")),
    ([meta()], meta()),
    ([meta(), turn("a")], turn("b")),
    ([meta(), turn("a")], follow_up("more")),
    ([meta(), turn("a")], result("b")),
    ([meta(), turn("a", "b"), result("a")], result("a")),
    ([meta(), answer()], result("a")),
    ([meta(), answer(), ended("completed")], follow_up("more")),
]


@pytest.mark.parametrize(("records", "record"), CONTRADICTIONS)
def test_a_check_raises_what_apply_would_raise(records: list[Record], record: Record) -> None:
    folding = Folding()
    for each in sequenced(records):
        folding.apply(each)
    before = repr(folding)
    with pytest.raises(JournalCorrupt) as checked:
        folding.check(record)
    assert repr(folding) == before
    with pytest.raises(JournalCorrupt) as applied:
        folding.apply(SequencedRecord(len(records) + 1, record))
    assert str(checked.value) == str(applied.value)


def test_a_check_of_what_fits_changes_nothing() -> None:
    records: list[Record] = [
        *(meta(interactive=True), turn("a", "b"), result("b"), result("a"), turn("c", stop_reason="max_tokens")),
        *(result("c"), answer(), ended("suspended"), resume_mark(fingerprint("other")), follow_up("more")),
        *(follow_up("and more"), turn(stop_reason="pause_turn"), answer(), ended("completed")),
    ]
    folding = Folding()
    for each in sequenced(records):
        before, conversation = repr(folding), folding.conversation()
        folding.check(each.record)
        assert (repr(folding), folding.conversation()) == (before, conversation)
        folding.apply(each)


def test_a_check_costs_the_same_in_a_long_run() -> None:
    folding = Folding()
    records: list[Record] = [meta(), *[answer() for _ in range(500)]]
    for each in sequenced(records):
        folding.apply(each)
    copied: list[object] = []

    class Watched(list[Any]):
        def __iter__(self) -> Any:
            copied.append(self)
            return super().__iter__()

    folding.messages = Watched(folding.messages)
    folding.check(answer())
    assert copied == []


@pytest.mark.parametrize("count", [-1, 2**53 + 1, 10**400])
@pytest.mark.parametrize("kind", ["in_tokens", "out_tokens", "cache_read_tokens", "cache_create_tokens"])
def test_a_number_of_tokens_that_nobody_can_have_used_is_damage(kind: str, count: int) -> None:
    lines = foreign_lines(meta(checksums=False), turn())
    payload = json.loads(lines[1])
    payload["assistant"][kind] = count
    with pytest.raises(JournalCorrupt):
        scan(lines[0].rstrip(b"\n") + b"\n" + json.dumps(payload).encode() + b"\n")
