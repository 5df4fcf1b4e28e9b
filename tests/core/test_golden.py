"""Journals of every version and origin, kept for ever: they load, resume and stay as they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fisk_ai.errors import NewerVersion
from fisk_ai.fingerprint import diff
from fisk_ai.folding import Counters
from fisk_ai.formats import reader_for
from fisk_ai.records import AssistantRecord, MetaRecord, ToolResultRecord, Waiting, resume_mark
from fisk_ai.stores import FileStore, MemoryStore
from tests.core.independent import read_journal
from tests.strategies import answer, ended, fingerprint, follow_up, result, scan

JOURNALS = Path(__file__).parents[1] / "journals"
# Never edit a journal, and never a sum: what was written once must be read for ever.
SUMS = {
    "v1.json": "86700ee57f45fba023c4c27fdba45593c76a27604b50019c6b1e81578e49d889",
    "v2-other-origin.json": "9bdda3b89d825d294ee0934b4ac2d4a4920eeeb71a2a8281d64ad2a1ba02cb36",
    "v2.json": "b423230131e4e7962dad969bed87136cad48c244a33a7b556a01404097b1ecde",
    "v2-interrupted.json": "3ba9e2c90ad1746ca1cda9a8e6467336a6e9e6e0355edfb7048c13f5dc6266ff",
    "v2-openai.json": "0e4fa937f8a49bbf88bee79551d995e993744c7600193dcab301c8acbe64bfe7",
    "v2-searched.json": "ebf789a57035072d9a7176c83ccf02843e9aeef34992efa8926a8afc22c3a723",
    "v2-responses.json": "1417f9819b8a4ce8b9b23d0ee96b60e1a0d08d8bf54bb1733d12433c03a81c06",
    "newer.json": "891229bfb9921257081bc65d72cd30fd0f5923da428ae4bf4a68bf0ff90136f5",
}
READABLE = sorted(set(SUMS) - {"newer.json"})


def golden(name: str) -> bytes:
    return (JOURNALS / name).read_bytes()


def store_with(name: str) -> tuple[MemoryStore, str]:
    data = golden(name)
    run_id = json.loads(data.splitlines()[0])["meta"]["run_id"]
    store = MemoryStore()
    store.put_bytes(run_id, data)
    return store, run_id


def test_no_golden_journal_was_changed_or_lost() -> None:
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in JOURNALS.iterdir()} == SUMS


@pytest.mark.parametrize("name", SUMS)
def test_an_independent_reader_agrees_with_the_codec(name: str) -> None:
    theirs, torn = read_journal(golden(name))
    assert torn == b""
    if name == "newer.json":
        return
    ours, tail = scan(golden(name))
    assert [each.seq for each in ours] == [each["seq"] for each in theirs]
    assert [each.time for each in ours] == [each.get("time") for each in theirs]
    assert not tail.needs_repair


@pytest.mark.parametrize("name", READABLE)
def test_a_golden_journal_can_be_continued_on_disk(name: str, tmp_path: Path) -> None:
    run_id = json.loads(golden(name).splitlines()[0])["meta"]["run_id"]
    (tmp_path / f"{run_id}.json").write_bytes(golden(name))
    store = FileStore(str(tmp_path))
    with store.open(run_id) as journal:
        journal.append(ended("suspended"))
        version = journal.records()[0].record
    assert isinstance(version, MetaRecord)
    assert b"".join(store.read_bytes(run_id)).startswith(golden(name))
    assert store.info(run_id).status == "suspended"
    scan(b"".join(store.read_bytes(run_id)))


def test_version_1_loads_with_documented_defaults() -> None:
    store, run_id = store_with("v1.json")
    state = store.load(run_id)
    assert (state.version, state.run_id, state.interactive, state.last_seq) == (1, "nightly-check", False, 6)
    assert state.prompt == "are all streams <ok>?"
    assert (state.fingerprint.provider, state.fingerprint.tools) == ("anthropic", None)
    assert state.counters == Counters(model_calls=2, tool_calls=2, in_tokens=1520, out_tokens=73)
    assert state.terminal == ended("completed")
    assert [message.role for message in state.messages] == ["user", "assistant", "user", "assistant"]
    assert {message.format for message in state.messages} == {"neutral", "anthropic"}
    info = store.info(run_id)
    assert (info.status, info.records, info.updated, info.interactive) == ("completed", 6, None, False)


def test_a_chat_of_other_origin_loads_and_goes_on() -> None:
    store, run_id = store_with("v2-other-origin.json")
    assert run_id == "Nightly-CHAT"
    state = store.load(run_id)
    assert (state.version, state.interactive, state.answered, state.pending) == (2, True, False, None)
    assert state.counters.cache_read_tokens == 50
    assert "the ORDERS stream\u2028please" in state.messages[2].content.decode()
    with store.open(run_id) as journal:
        for record in (resume_mark(), answer(), follow_up(), answer(), ended()):
            journal.append(record)
    state = store.load(run_id)
    assert (state.last_seq, state.counters.model_calls) == (11, 4)
    assert b"".join(store.read_bytes(run_id)).startswith(golden("v2-other-origin.json"))


def test_tools_of_other_origin_are_not_comparable_and_that_is_said() -> None:
    store, run_id = store_with("v1.json")
    changes = {change.field: change.text for change in diff(store.load(run_id).fingerprint, fingerprint())}
    assert "can't be compared" in changes["tools"]
    assert "provider" not in changes


def test_our_own_journal_holds_every_field() -> None:
    store, run_id = store_with("v2.json")
    state = store.load(run_id)
    assert state.forked_from is not None
    assert (state.forked_from.run_id, state.forked_from.seq) == ("orders-report.old", 9)
    assert state.fingerprint.model == "claude-opus-5"
    assert state.terminal is not None
    assert state.terminal.waiting == Waiting(kind="approval", tool_use_id="toolu_1", name="lookup")
    assert state.counters == Counters(
        model_calls=3, tool_calls=3, in_tokens=2663, out_tokens=61, cache_read_tokens=100, cache_create_tokens=50
    )
    assert [message.role for message in state.messages] == ["user", "assistant", "user"]
    answered = json.loads(state.messages[2].content)["content"]
    assert [block.get("tool_use_id") for block in answered] == ["toolu_1", "toolu_2", "toolu_3", None]
    assert state.pending is not None
    assert state.pending.ambiguous == ()
    assert store.info(run_id).waiting == state.terminal.waiting
    turns = [each.record for each in scan(golden("v2.json"))[0] if isinstance(each.record, AssistantRecord)]
    assert (turns[0].parallel, turns[0].unusable) == ((0, 2), (1,))
    assert bytes(turns[0].message) in golden("v2.json")


def test_an_interrupted_journal_names_the_call_in_doubt() -> None:
    store, run_id = store_with("v2-interrupted.json")
    state = store.load(run_id)
    assert state.interrupted
    assert state.pending is not None
    assert [call.id for call in state.pending.ambiguous] == ["toolu_2"]
    assert (
        state.key_of(state.pending.ambiguous[0])
        == (hashlib.sha256(b"crashed\n2026-12-01T03:21:00.123Z\n2\n1").hexdigest()[:32])
    )
    assert store.info(run_id).status == "interrupted"
    with store.open(run_id) as journal:
        journal.append(result("toolu_2"))
    assert store.load(run_id).pending is None


def test_a_journal_of_the_other_api_keeps_its_format() -> None:
    store, run_id = store_with("v2-openai.json")
    state = store.load(run_id)
    assert [message.format for message in state.messages] == ["neutral", "openai", "neutral", "openai"]
    found = [each.record for each in scan(golden("v2-openai.json"))[0]]
    assert isinstance(found[2], ToolResultRecord)
    assert state.terminal == ended("completed")


def test_a_journal_with_what_ran_on_the_providers_side_keeps_its_bytes() -> None:
    store, run_id = store_with("v2-searched.json")
    state = store.load(run_id)
    assert state.fingerprint.tools is not None
    assert list(state.fingerprint.tools) == ["lookup", "web_search"]
    turns = [each.record for each in scan(golden("v2-searched.json"))[0] if isinstance(each.record, AssistantRecord)]
    assert [(turn.response_id, turn.request_id) for turn in turns] == [(f"msg_{n}", f"req_{n}") for n in range(3)]
    said = [message.content for message in state.messages if message.role == "assistant"]
    assert said == [bytes(turn.message) for turn in turns]
    assert b'"n":1e3' in said[0]
    assert b'{"type":"from_the_future","n":123456789012345678901234567890}' in said[1]
    assert state.counters == Counters(
        model_calls=3, tool_calls=1, in_tokens=150, out_tokens=61, cache_read_tokens=1832, cache_create_tokens=900
    )


def test_a_journal_of_items_keeps_their_bytes_and_tells_their_calls() -> None:
    store, run_id = store_with("v2-responses.json")
    state = store.load(run_id)
    assert [message.format for message in state.messages] == ["neutral", "openai-responses"] * 2
    turns = [each.record for each in scan(golden("v2-responses.json"))[0] if isinstance(each.record, AssistantRecord)]
    assert [message.content for message in state.messages[1::2]] == [bytes(turn.message) for turn in turns]
    held = reader_for("openai-responses")(bytes(turns[0].message))
    assert held.text == "Looking\u2026"
    assert [(call.id, call.arguments) for call in held.calls] == [("call_a", b'{ "stream" : "ORDERS" }')]
    assert state.terminal == ended("completed")


def test_a_newer_journal_is_refused_by_name_and_listed() -> None:
    store, run_id = store_with("newer.json")
    for action in (store.load, store.open):
        with pytest.raises(NewerVersion, match=r"version 3.*up to 2"):
            action(run_id)
    assert store.info(run_id).reason == "newer: version 3"
    assert b"".join(store.read_bytes(run_id)) == golden("newer.json")
