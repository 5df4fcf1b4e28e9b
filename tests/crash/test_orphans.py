"""A tool that outlives its runner: a resume sees it, and the repeat never runs beside it unless an operator says so."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.commands import RUN, Workplace, is_alive, shell_tool, until

pytestmark = pytest.mark.slow

SCRIPTED: dict[str, Any] = {"provider": "scripted", "script": "script.yaml"}
ALL_IS_WELL = (0, "All is well.\n")
WHILE_HELD = "while [ -e hold ]; do sleep 0.02; done"


def orphaned(directory: Path, script: str = WHILE_HELD, **more: Any) -> Workplace:
    """A run whose runner was killed while its tool works; the tool goes on until there is no file `hold`."""
    place = Workplace(directory, SCRIPTED, [shell_tool("slow", f"echo $$ >> groups; {script}", **more)])
    place.scripted([{"calls": [{"name": "slow"}]}, {"text": "All is well."}])
    (directory / "hold").touch()
    process = place.begin()
    until(lambda: groups(place) and noted(place) == set(groups(place)), "the tool's start, and the note of it")
    process.kill()
    assert place.ambiguous == ["slow"]
    assert is_alive(groups(place)[0])
    return place


def groups(place: Workplace) -> list[int]:
    path = place.directory / "groups"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def noted(place: Workplace) -> set[int]:
    """The groups that the runner has noted; it does so right after a tool has started, which a kill may prevent."""
    path = place.state_dir / f"{RUN}.tools"
    lines = path.read_text().splitlines() if path.exists() else []
    notes = [json.loads(line) for line in lines if line.endswith("}")]
    return {note["pgid"] for note in notes if "pgid" in note}


def words(place: Workplace) -> list[str]:
    return [line[0] for line in place.effects]


def test_a_resume_waits_until_the_living_tool_has_ended(tmp_path: Path) -> None:
    place = orphaned(tmp_path)
    process = place.resume()
    process.says("slow")
    assert words(place) == ["start"]
    assert place.info.status == "running"
    (tmp_path / "hold").unlink()
    assert process.finishes() == ALL_IS_WELL
    assert words(place) == ["start", "end", "start", "end"]  # never two at once
    assert len({key for _, _, key in place.effects}) == 1


def test_a_tool_that_outlasts_its_time_limit_refuses_the_resume_by_name(tmp_path: Path) -> None:
    place = orphaned(tmp_path, timeout="300ms")
    before = place.bytes
    process = place.resume()
    assert process.finishes() == (6, "")
    assert "slow" in process.stderr
    assert str(groups(place)[0]) in process.stderr
    assert "--orphan kill" in process.stderr
    assert (place.bytes, words(place)) == (before, ["start"])

    (tmp_path / "hold").unlink()
    until(lambda: not is_alive(groups(place)[0]), "the tool's end")
    assert place.resume().finishes() == ALL_IS_WELL


def test_the_living_tool_can_be_ended(tmp_path: Path) -> None:
    place = orphaned(tmp_path, f"trap '' TERM; (sleep 60; echo late >> effects) & {WHILE_HELD}")
    first = groups(place)[0]
    process = place.resume("--orphan", "kill")
    until(lambda: len(groups(place)) == 2, "the repeat")
    assert not is_alive(first)
    (tmp_path / "hold").unlink()
    assert process.finishes() == ALL_IS_WELL
    assert words(place) == ["start", "start", "end"]


@pytest.fixture
def side_by_side(tmp_path: Path) -> Workplace:
    """A run whose runner was killed while two parallel tools work."""
    tools = [
        shell_tool(name, f"echo $$ >> groups; {WHILE_HELD}", parallel=True, timeout="300ms")
        for name in ("left", "right")
    ]
    place = Workplace(tmp_path, SCRIPTED, tools)
    place.scripted([{"calls": [{"name": "left"}, {"name": "right"}]}, {"text": "All is well."}])
    (tmp_path / "hold").touch()
    process = place.begin()
    until(lambda: len(groups(place)) == 2 and noted(place) == set(groups(place)), "the tools' start, and their notes")
    process.kill()
    assert place.ambiguous == ["left", "right"]
    return place


UNNOTED = """
import os, signal, sys
from fisk_ai.stores.orphans import ToolsLock

ToolsLock.started = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.argv = sys.argv[3:]
from fisk_ai.cli.main import main
main()
"""
"""A runner that dies when its tool has started and before it could note that."""


@pytest.fixture
def unnoted(tmp_path: Path) -> Workplace:
    """A run whose tool lives on without a note of its process group."""
    place = Workplace(tmp_path, SCRIPTED, [shell_tool("slow", f"echo $$ >> groups; {WHILE_HELD}", timeout="300ms")])
    place.scripted([{"calls": [{"name": "slow"}]}, {"text": "All is well."}])
    (tmp_path / "hold").touch()
    process = place.begin(through=[sys.executable, "-c", UNNOTED])
    assert process.ends() == -signal.SIGKILL
    until(lambda: groups(place) and place.effects, "the tool's start")
    assert noted(place) == set()
    return place


def test_a_tool_that_was_not_noted_yet_is_named_by_its_process(unnoted: Workplace) -> None:
    process = unnoted.resume()
    assert process.finishes() == (6, "")
    leader = groups(unnoted)[0]
    assert re.search(rf"'slow' of run 'r7' is still running from before, as process \b{leader}\b", process.stderr)
    (unnoted.directory / "hold").unlink()
    until(lambda: not is_alive(groups(unnoted)[0]), "the tool's end")


def test_a_tool_that_was_not_noted_yet_can_be_ended(unnoted: Workplace) -> None:
    first = groups(unnoted)[0]
    process = unnoted.resume("--orphan", "kill")
    until(lambda: len(groups(unnoted)) == 2, "the repeat")
    assert not is_alive(first)
    (unnoted.directory / "hold").unlink()
    assert process.finishes() == ALL_IS_WELL
    assert words(unnoted) == ["start", "start", "end"]


ESCAPES = f"setsid sh -c 'echo $$ > escaped; {WHILE_HELD}' & "


def test_what_left_the_tools_group_can_be_ended_too(tmp_path: Path) -> None:
    place = orphaned(tmp_path, ESCAPES + WHILE_HELD)
    escaped = int(until(lambda: (tmp_path / "escaped").exists() and (tmp_path / "escaped").read_text(), "the escape"))
    assert is_alive(escaped)
    process = place.resume("--orphan", "kill")
    until(lambda: len(groups(place)) == 2, "the repeat")
    assert not is_alive(escaped)
    (tmp_path / "hold").unlink()
    assert process.finishes() == ALL_IS_WELL


def test_a_run_whose_tool_still_works_is_not_removed(tmp_path: Path) -> None:
    place = orphaned(tmp_path)
    group = groups(place)[0]
    told = place.session("rm", RUN)
    assert told.returncode == 6
    assert f"tool 'slow' of run '{RUN}' (process group {group}) is still running" in told.stderr
    assert "--orphan" not in told.stderr
    assert place.ambiguous == ["slow"]
    (tmp_path / "hold").unlink()
    until(lambda: not is_alive(group), "the tool's end")
    assert place.session("rm", RUN).returncode == 0
    assert list(place.state_dir.iterdir()) == []


def test_all_living_tools_of_a_parallel_group_are_named(side_by_side: Workplace) -> None:
    process = side_by_side.resume()
    assert process.finishes() == (6, "")
    *told, refused = process.stderr.splitlines()
    for each in ("left", "right", *map(str, groups(side_by_side))):
        assert each in refused
        assert any(each in line for line in told)


def test_all_living_tools_of_a_parallel_group_can_be_ended(side_by_side: Workplace) -> None:
    first = groups(side_by_side)
    process = side_by_side.resume("--orphan", "kill")
    until(lambda: len(groups(side_by_side)) == 4, "the repeats")
    assert not any(map(is_alive, first))
    (side_by_side.directory / "hold").unlink()
    assert process.finishes() == ALL_IS_WELL
    assert words(side_by_side) == ["start"] * 4 + ["end"] * 2


def test_the_living_tool_can_be_ignored(tmp_path: Path) -> None:
    place = orphaned(tmp_path)
    process = place.resume("--orphan", "ignore")
    until(lambda: len(groups(place)) == 2, "the repeat")
    assert is_alive(groups(place)[0])
    (tmp_path / "hold").unlink()
    assert process.finishes() == ALL_IS_WELL
    assert words(place)[:2] == ["start", "start"]


def test_the_wait_for_the_living_tool_is_left_at_once_by_a_signal(tmp_path: Path) -> None:
    place = orphaned(tmp_path)
    before = place.bytes
    process = place.resume()
    process.says("slow")
    process.is_told(signal.SIGTERM)
    code, _ = process.ends_soon()
    assert code == 3
    assert place.bytes == before  # the doubt is not taken back
    assert place.ambiguous == ["slow"]
    (tmp_path / "hold").unlink()
    assert place.resume().finishes() == ALL_IS_WELL


def test_a_second_resume_beside_the_first_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    place = orphaned(tmp_path)
    first = place.resume()
    first.says("slow")
    before = place.bytes
    second = place.resume()
    assert second.finishes() == (6, "")
    assert f"process {first.process.pid}" in second.stderr
    assert RUN in second.stderr
    assert place.bytes == before
    (tmp_path / "hold").unlink()
    assert first.finishes() == ALL_IS_WELL
    assert words(place) == ["start", "end", "start", "end"]


def test_a_daemon_of_a_tool_that_has_ended_is_seen_too(tmp_path: Path) -> None:
    place = Workplace(
        tmp_path, SCRIPTED, [shell_tool("slow", "(while [ -e hold ]; do sleep 0.02; done) & kill -9 $PPID")]
    )
    place.scripted([{"calls": [{"name": "slow"}]}, {"text": "All is well."}])
    (tmp_path / "hold").touch()
    assert place.begin().ends() == -signal.SIGKILL
    process = place.resume()
    process.says("slow")
    assert words(place).count("start") == 1
    process.send(signal.SIGTERM)
    assert process.ends_soon()[0] == 3
    (tmp_path / "hold").unlink()
    assert place.resume("--on-crash", "skip").finishes() == ALL_IS_WELL
    assert words(place).count("start") == 1
