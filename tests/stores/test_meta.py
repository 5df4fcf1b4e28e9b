"""The first record of a run, for loops of one's own."""

from __future__ import annotations

from fisk_ai.fingerprint import diff, make_fingerprint, tool_hashes
from fisk_ai.stores import MemoryStore
from fisk_ai.stores.meta import new_meta
from tests.strategies import MOMENT, TIME


def test_a_new_run_has_version_time_and_fingerprint() -> None:
    tools = {"look": tool_hashes("Look", {"type": "object"}, {"argv": ["ls"]})}
    settings = {"provider": "mine", "model": "mine-1", "system_prompt": "Be brief.", "thinking_mode": "adaptive"}
    meta = new_meta(
        "r7",
        "go \ud83d",
        **settings,
        tools=tools,
        max_tokens=9,
        max_iterations=2,
        interactive=True,
        clock=lambda: MOMENT,
    )
    assert (meta.version, meta.created, meta.prompt) == (2, TIME, "go \ufffd")
    assert (meta.checksums, meta.interactive) == (True, True)
    assert meta.fingerprint == make_fingerprint(**settings, tools=tools, max_tokens=9, max_iterations=2)


def test_a_new_run_can_be_created_and_compared() -> None:
    store = MemoryStore()
    with store.create("r7", new_meta("r7", "go", provider="mine", model="mine-1")) as journal:
        assert journal.last_seq == 1
    changes = diff(store.load("r7").fingerprint, new_meta("x", "", provider="mine", model="mine-2").fingerprint)
    assert [change.field for change in changes] == ["model"]
