"""Tools that don't want to end, and tools that outlive their runner."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fisk_ai.tools.process import GRACE_S
from tests.crash.commands import is_alive
from tests.crash.forked import Forked, Host
from tests.reliability.random_kills import Place
from tests.reliability.trials import Form, Tally, Trial, require

LIMIT_S = 20.0
LATE_S = 1.0
"""How much later than its grace a tree may be gone."""

ESCAPE = "setsid sh -c 'echo $$ > escaped; exec sleep 60' & while [ ! -s escaped ]; do sleep 0.01; done; "
TREES: Mapping[str, str] = {
    "its child ignores SIGTERM and holds the pipe": "(trap '' TERM; while :; do sleep 0.05; done) & wait",
    "a shell and its grandchildren": "(sleep 60; true) & (sleep 60 & wait) & wait",
    "leaves its session and its output": ESCAPE.replace("' &", "' > /dev/null 2>&1 &") + "wait",
    "ignores SIGTERM": "trap '' TERM; while :; do sleep 0.05; done",
    "leaves its session": ESCAPE + "wait",
}
HELD = "while [ -e hold ]; do sleep 0.01; done"


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Return what `condition` gives as soon as that is true."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s} s in vain for {what}")
        time.sleep(0.005)
    return found


def _tool(script: str, timeout: str) -> dict[str, Any]:
    text = 'echo "start $FISK_AI_IDEMPOTENCY_KEY" >> effects; echo $$ >> groups; ' + script
    text += '; echo "end $FISK_AI_IDEMPOTENCY_KEY" >> effects'
    escaped = text.replace("{", "{{").replace("}", "}}")
    return {"name": "slow", "description": "Is slow", "argv": ["sh", "-c", escaped], "timeout": timeout}


def _prepared(host: Host, directory: str, script: str, timeout: str = "60s") -> Place:
    place = Place(host, Path(directory) / "place")
    place.prepare([{"calls": [{"name": "slow"}]}, {"text": "All is well."}], [_tool(script, timeout)])
    return place


def _numbers(place: Place, name: str) -> list[int]:
    path = place.directory / name
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def _end(place: Place) -> None:
    for group in (*_numbers(place, "groups"), *_numbers(place, "escaped")):
        if is_alive(group):
            os.killpg(group, signal.SIGKILL)


def _noted(place: Place) -> bool:
    notes = place.directory / "runs" / "r7.tools"
    return notes.exists() and '"pgid"' in notes.read_text()


def _check_gone(place: Place, began: float) -> None:
    [group] = _numbers(place, "groups")
    until(lambda: not is_alive(group), "the end of the tool's group", limit_s=GRACE_S + LATE_S)
    took = time.monotonic() - began
    require(took < GRACE_S + LATE_S, f"the tool's group was there for {took:.2f} s more", kind="hang")


def _aborted(place: Place) -> None:
    """Abort a run while its tool works; whoever survives that is named by a resume, and can be ended."""
    process = place.go()
    until(lambda: _numbers(place, "groups") and _noted(place), "the tool's start")
    if "leaves" in place.directory.parent.name:
        until(lambda: _numbers(place, "escaped"), "the escape")
    process.send(signal.SIGTERM)
    until(lambda: "SIGTERM" in process.stderr, "the first signal's answer")
    process.send(signal.SIGTERM)
    began = time.monotonic()
    require(process.ends() == 130, process.stderr, kind="traceback")
    _check_gone(place, began)
    for escaped in _numbers(place, "escaped"):
        _check_escaped(place, escaped)


def _check_escaped(place: Place, escaped: int) -> None:
    require(is_alive(escaped), "nothing escaped", kind="undetected")
    (place.directory / "agent.yaml").write_text((place.directory / "agent.yaml").read_text().replace("60s", "200ms"))
    process = place.go()
    require(process.ends() == 6, f"the call was repeated beside {escaped}: {process.stderr}", kind="repeated")
    require(re.search(rf"process \b{escaped}\b", process.stderr), f"{escaped} is not named: {process.stderr}")
    document = json.loads((place.directory / "agent.yaml").read_text())
    document["tools"]["commands"][0]["argv"] = ["true"]
    (place.directory / "agent.yaml").write_text(json.dumps(document))
    process = place.go("--orphan", "kill", "--force")
    require(process.ends() == 0, process.stderr, kind="hang")
    require(not is_alive(escaped), f"{escaped} was not ended")


def _timed_out(place: Place) -> None:
    """Let a tool's time run out; whoever survives that is named by its result."""
    process = place.go()
    until(lambda: _numbers(place, "groups"), "the tool's start")
    began = time.monotonic() + 0.3
    require(process.ends() == 0, process.stderr, kind="traceback")
    _check_gone(place, began)
    require("timed out" in process.stderr, process.stderr, kind="undetected")
    for escaped in _numbers(place, "escaped"):
        require(is_alive(escaped), "nothing escaped", kind="undetected")
        require(re.search(rf"process \b{escaped}\b", process.stderr), f"{escaped} is not named: {process.stderr}")


def tool_trees(tally: Tally, form: Form) -> None:
    """End each kind of tree by an abort and by its time limit."""
    endings = {"abort": ("60s", _aborted), "time-out": ("300ms", _timed_out)}
    kinds = tuple(TREES)[:: 1 if form == "long" else 2]
    with Host() as host:
        for number in range(20 if form == "long" else 1):
            for ending, (timeout, act) in endings.items():
                for kind in kinds:
                    with tempfile.TemporaryDirectory(suffix=kind.replace(" ", "-")) as directory:
                        place = _prepared(host, directory, TREES[kind], timeout)
                        with tally.case(f"{ending} of a tool that is or does: {kind} ({number})"):
                            act(place)
                            tally.reached[f"{ending}: {kind}"] += 1
                        _end(place)
    require(len(tally.reached) == len(kinds) * len(endings), "some were never ended", kind="undetected")


def _let_go(place: Place) -> None:
    (place.directory / "hold").unlink()


def _let_go_when_waited_for(place: Place, process: Forked) -> None:
    until(lambda: "still runs from before; waiting" in process.stderr, "the wait for the tool")
    require([word for word, _ in place.effects()] == ["start"], "it ran beside itself", kind="repeated")
    _let_go(place)
    require(process.ends() == 0, process.stderr, kind="hang")


def _waits(place: Place) -> None:
    _let_go_when_waited_for(place, place.go())
    place.check_never_two_at_once()


def _skips(place: Place) -> None:
    _let_go_when_waited_for(place, place.go("--on-crash", "skip"))
    require([word for word, _ in place.effects()] == ["start", "end"], "it ran again", kind="repeated")


def _kills(place: Place) -> None:
    [group] = _numbers(place, "groups")
    process = place.go("--orphan", "kill")
    until(lambda: len(_numbers(place, "groups")) == 2, "the repeat")
    require(not is_alive(group), "it ran beside itself", kind="repeated")
    _let_go(place)
    require(process.ends() == 0, process.stderr, kind="hang")
    require([word for word, _ in place.effects()] == ["start", "start", "end"], "the first one ran on")


def _ignores(place: Place) -> None:
    process = place.go("--orphan", "ignore")
    until(lambda: len(_numbers(place, "groups")) == 2, "the repeat")
    _let_go(place)
    require(process.ends() == 0, process.stderr, kind="hang")
    until(lambda: [word for word, _ in place.effects()].count("end") == 2, "both ends")


POLICIES: Mapping[str, Callable[[Place], None]] = {
    "wait": _waits,
    "kill": _kills,
    "ignore": _ignores,
    "skip": _skips,
}


def _left_alive(place: Place, *, noted: bool) -> None:
    """Kill the runner while its tool works, or before it could note who does."""
    process = place.go(die_before_note=not noted)
    until(lambda: _numbers(place, "groups") and (_noted(place) or not noted), "the tool's start")
    process.kill()
    require(process.ends() == -signal.SIGKILL, "it was not killed", kind="undetected")
    [group] = _numbers(place, "groups")
    require(is_alive(group), "the tool ended before it could be left behind", kind="undetected")
    require(len(place.ambiguous()) == 1, "the call is not named")


def tools_of_the_dead(tally: Tally, form: Form) -> None:
    """Resume runs whose tools still work, in each of the ways there are."""
    with Host() as host:
        for number in range(50 if form == "long" else 1):
            for policy, act in POLICIES.items():
                # In the short form only what other tests leave out.
                for noted in (True, False) if form == "long" else (False,):
                    how = f"{policy}, {'' if noted else 'not '}noted ({number})"
                    with tally.case(how), tempfile.TemporaryDirectory() as directory:
                        place = _prepared(host, directory, HELD)
                        (place.directory / "hold").touch()
                        _left_alive(place, noted=noted)
                        act(place)
                        _end(place)
                        tally.reached[policy] += 1
    require(tally.reached.keys() == POLICIES.keys(), "a policy was never tried", kind="undetected")


TOOL_TREES = Trial(
    name="tool trees",
    unit="tools",
    method=(
        "A tool with children that ignore SIGTERM, hold its output or leave its session is ended by an abort and by "
        "its time limit. Within its grace and a second its process group must be gone, and who left it must be named"
    ),
    promises="P9",
    run=tool_trees,
    target=200,
)
TOOLS_OF_THE_DEAD = Trial(
    name="tools of dead runners",
    unit="resumes",
    method=(
        "A runner is killed while its tool works, also before it could note the tool's process group. A resume waits "
        "for the tool, ends it, ignores it or skips the call; but for ignoring it, never do two work at once"
    ),
    promises="P7 P9",
    run=tools_of_the_dead,
    target=400,
)
