"""What the guide gives to supervisors succeeds for a completed run, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fisk_ai import Event, FileStore, ToolStarted, load_agent

from .blocks import Block, Runner, read_blocks
from .test_guide import GUIDE

pytestmark = pytest.mark.slow

AGENT = """
llm: {provider: scripted, script: turns.yaml}
tools:
  commands:
    - {name: look, description: Look around, argv: [echo, well], on_crash: rerun}
"""
TURNS = "[{calls: [{name: look}]}, {text: All is well.}]"


class Killed(Exception):
    """Stands for the end of the process."""


def die_in_a_tool(event: Event) -> None:
    if isinstance(event, ToolStarted):
        raise Killed


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return a directory with a run named nightly whose only call is in doubt."""
    runner = Runner(tmp_path)
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "turns.yaml").write_text(TURNS)
    agent = load_agent(str(tmp_path / "agent.yaml"), store=FileStore(str(tmp_path / "state" / "fisk-ai" / "runs")))
    with pytest.raises(Killed):
        agent.run_sync("Look around", checkpoint=True, name="nightly", on_event=die_in_a_tool)
    return runner


def supervise(runner: Runner, *, ends_with: int) -> str:
    """Run the command of the guide, check its exit code and return what it printed."""
    [block] = [block for block in read_blocks(GUIDE) if "is_completed()" in block.text]
    runner.run(Block(block.language, block.text, {"exit": str(ends_with)}, block.line))
    return runner.printed


def test_an_interrupted_run_is_resumed_once(runner: Runner) -> None:
    assert "All is well." in supervise(runner, ends_with=0)
    assert supervise(runner, ends_with=0) == ""


@pytest.mark.parametrize(("old", "new", "why"), [("around", "about", "changed"), ("rerun", "ask", "may have run")])
def test_a_refusal_is_no_success(runner: Runner, old: str, new: str, why: str) -> None:
    (runner.directory / "agent.yaml").write_text(AGENT.replace(old, new))
    assert why in supervise(runner, ends_with=5)


def test_a_run_that_is_gone_is_no_success(runner: Runner) -> None:
    (runner.directory / "state" / "fisk-ai" / "runs" / "nightly.json").unlink()
    assert "no run 'nightly'" in supervise(runner, ends_with=1)
