"""The live state of a run is the fold of its journal, after each step of any script, stopped anywhere."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fisk_ai.agent import events, loop
from fisk_ai.agent.control import Control
from fisk_ai.errors import DeadEnd
from fisk_ai.folding import Folding, fold
from tests.agent.bench import RUN, Bench, Crash, Effects, Typed, bench, effect_tool, end_of, said

CALLS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(dict, name=st.sampled_from(["a", "b", "p", "gone"]), id=st.sampled_from(["x", "y", ""])), max_size=4
)
REASONS = st.sampled_from(["", "", "", "pause_turn", "max_tokens", "refusal", "tea_time"])
TURNS = st.lists(st.builds(lambda calls, reason: _turn(calls, reason), CALLS, REASONS), max_size=4)


def _turn(calls: list[dict[str, Any]], reason: str) -> dict[str, Any]:
    return {"text": "Hm", "calls": calls} | ({"stop_reason": reason} if reason else {})


class Checked(loop.Loop):
    """A loop that compares its state with the journal after each step."""

    async def _act(self, step: Any) -> Any:
        finish = await super()._act(step)
        assert isinstance(self.folding, Folding)
        assert self.folding.state() == fold(self.writer.journal.records())
        return finish


@settings(max_examples=40, deadline=None)
@given(
    turns=TURNS,
    interactive=st.booleans(),
    stops=st.lists(st.tuples(st.integers(1, 14), st.booleans()), max_size=3),
)
def test_any_run_that_is_stopped_anywhere_is_its_undisturbed_twin(
    turns: list[dict[str, Any]], interactive: bool, stops: list[tuple[int, bool]]
) -> None:
    anyio.run(partial(_check, [*turns, {"text": "Done"}, {"text": "Done"}], interactive, stops))


async def _check(turns: list[dict[str, Any]], interactive: bool, stops: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        twin = bench(Effects(Path(directory) / "twin"), *turns)
        stage = bench(Effects(Path(directory) / "effects"), *turns)
        typed = Typed("more")
        await twin.run(_agent(twin), interactive=interactive, input_source=Typed("more"))
        crashes = 0
        for number, clean in stops:
            crashes += await _stopped(stage, number, clean, interactive, typed)
        await _stopped(stage, 0, True, interactive, typed)
        assert end_of(stage.state) == end_of(twin.state)
        ours, theirs = stage.state, twin.state
        assert (ours.messages, ours.counters, ours.pending) == (theirs.messages, theirs.counters, theirs.pending)
        for request in stage.requests:
            assert said(request) == said(twin.requests[request.iteration])
        # The group of p may be repeated whole; of all others at most one call a crash.
        alone = [name for name in stage.effects.names if name != "p"]
        assert len(alone) - len([name for name in twin.effects.names if name != "p"]) <= crashes


def _agent(stage: Bench) -> Any:
    tools = [effect_tool(name, stage.effects, parallel=name == "p") for name in "abp"]
    return stage.agent(tools)


async def _stopped(stage: Bench, number: int, clean: bool, interactive: bool, typed: Typed) -> bool:
    """Go on until the `number`-th event; tell whether the run died there."""
    control, seen = Control(), 0

    def hook(event: events.Event) -> None:
        nonlocal seen
        seen += 1
        # Inside a parallel group a crash would come out wrapped; its doubt is tested elsewhere.
        if seen == number and not (isinstance(event, events.ToolStarted | events.ToolFinished) and event.name == "p"):
            if not clean:
                raise Crash
            control.suspend()

    stage.hook = hook
    agent = _agent(stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fisk_ai.agent.agent.Loop", Checked)
        try:
            if RUN not in stage.store.run_ids():
                await stage.run(agent, interactive=interactive, input_source=typed, control=control)
            elif end_of(stage.state) != "completed":
                await stage.resume(agent, input_source=typed, control=control)
        except Crash:
            return True
        except DeadEnd:
            return False
    return False
