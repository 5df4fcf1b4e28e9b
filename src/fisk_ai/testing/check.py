"""One check: the call undisturbed, then killed at each of its moments and resumed, each time in a new world."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fisk_ai.agent.guard import OUTCOME_UNKNOWN
from fisk_ai.errors import ConfigError, DecisionNeeded
from fisk_ai.testing.lives import Lives, ending_of, keys_in, require_well, told_in
from fisk_ai.testing.points import KillPoint, Scope, line_points
from fisk_ai.testing.processes import Life
from fisk_ai.testing.report import Crash, CrashReport, Left, NothingProven, Told, Undisturbed
from fisk_ai.tools.base import OnCrash


@dataclass(frozen=True, slots=True)
class Check:
    """See `CrashKit.check`."""

    lives: Lives
    scope: Scope
    observe: Callable[[], object]
    reset: Callable[[], object]
    on_crash: OnCrash
    most: int
    slices: int
    expect_error: bool
    expect_change: bool

    def run(self) -> CrashReport:
        """Do all of it.

        Raises:
            NothingProven: if the undisturbed call isn't fit to be compared with.
        """
        self.lives.prepare()
        undisturbed, life = self._undisturbed()
        points = self._points(life, undisturbed)
        crashes = tuple(self._crash(f"crash-{number}", point, undisturbed) for number, point in enumerate(points, 1))
        untried = undisturbed.steps - sum(point.phase == "line" for point in points)
        tool = self.lives.tool
        return CrashReport(tool.name, self.on_crash, tool.on_crash, undisturbed, crashes, untried)

    def _undisturbed(self) -> tuple[Undisturbed, Life]:
        """Make the call twice: once followed, to find its lines, and once as it is, to see if it does the same."""
        before = self._make_world()
        followed = self._undisturbed_life("followed", self.scope)
        world, told = self._observed(), self._told_undisturbed(followed)
        self._make_world()
        plain = self._undisturbed_life("undisturbed", Scope())
        self._told_undisturbed(plain)
        self._require_comparable(before, world, self._observed())
        return Undisturbed(before, world, told, _ended(followed)["total"], _ended(plain)["duration_s"]), followed

    def _undisturbed_life(self, name: str, scope: Scope) -> Life:
        tool, limit_s = self.lives.tool.name, self.lives.limit_s
        self.lives.new_run(name)
        life = self.lives.resume(name, name, scope=scope)
        left = self.lives.end_orphans(name, wait_s=0)
        if life.hung_at is not None:
            raise NothingProven(
                f"the undisturbed call of {tool} did not end within {limit_s:g} s; it was {life.hung_at}: give the "
                f"tool a time limit, or the kit a larger limit_s"
            )
        require_well(life, f"the undisturbed call of {tool} can't be made")
        if left.found:
            raise NothingProven(
                f"{tool} left a process running when it ended, which a resume would wait for: let it end what it starts"
            )
        return life

    def _told_undisturbed(self, life: Life) -> Told:
        tool, told = self.lives.tool.name, told_in(life)
        assert told is not None
        if told.is_error and not self.expect_error:
            raise NothingProven(
                f"the undisturbed call of {tool} failed ({told}): give it what it needs, or expect_error=True\n"
                f"{life.output}".rstrip()
            )
        if self.expect_error and not told.is_error:
            raise NothingProven(f"the undisturbed call of {tool} was expected to fail, and did not: it said {told}")
        return told

    def _require_comparable(self, before: object, world: object, again: object) -> None:
        tool = self.lives.tool.name
        if world != again:
            raise NothingProven(
                f"two undisturbed calls of {tool} leave two worlds, so nothing can be compared: let reset() make it "
                f"new, and let observe() leave out what differs each time, such as times\n"
                f"first:  {world!r:.1000}\nsecond: {again!r:.1000}"
            )
        if before == world and self.expect_change and not self.expect_error:
            raise NothingProven(
                f"observe() sees nothing of what {tool} does: let it look at all that the tool changes, or say that "
                f"it changes nothing with expect_change=False"
            )

    def _points(self, life: Life, undisturbed: Undisturbed) -> list[KillPoint]:
        steps = [(file, line) for file, line in _ended(life)["steps"]]
        started = [KillPoint("started")] if life.noted("process") is not None else []
        part_s = undisturbed.duration_s / (self.slices + 1)
        times = [KillPoint("time", after_s=part_s * number) for number in range(1, self.slices + 1)]
        return [KillPoint("before"), *line_points(steps, self.most), *started, *times, KillPoint("returned")]

    def _crash(self, run: str, point: KillPoint, undisturbed: Undisturbed) -> Crash:
        """Kill the call at a point of its first life, and resume it in a second one."""
        self.lives.new_run(run)
        self._make_world()
        scope = self.scope if point.phase == "line" else Scope()
        first = self.lives.resume(run, f"{run}-killed", scope=scope, point=point)
        orphans = self.lives.end_orphans(run, wait_s=self.lives.limit_s)
        world = self._observed()
        crash = Crash(
            point=point,
            killed=first.killed,
            left=_left(world, undisturbed),
            outlived=orphans.found,
            world_after_kill=world,
            world=world,
            keys=keys_in(first),
            ended="",
            told=None,
            problem=None if first.killed else self._why_missed(first),
        )
        if orphans.killed:
            return replace(crash, problem=f"its process was still running {self.lives.limit_s:g} s after the kill")
        return self._resumed(run, crash, undisturbed) if crash.killed else crash

    def _resumed(self, run: str, crash: Crash, undisturbed: Undisturbed) -> Crash:
        life = self.lives.resume(run, f"{run}-resumed", scope=self.scope, on_crash=self.on_crash)
        self.lives.end_orphans(run, wait_s=0)
        world = self._observed()
        problem = self._problem(life, crash.keys, undisturbed)
        if problem is None:
            problem = self._difference(world, crash.world_after_kill, undisturbed)
        return replace(
            crash,
            world=world,
            keys=crash.keys + keys_in(life),
            ended=ending_of(life),
            told=told_in(life),
            problem=problem,
        )

    def _why_missed(self, first: Life) -> str:
        if first.hung_at is not None:
            return f"it did not get there within {self.lives.limit_s:g} s; it was {first.hung_at}"
        return f"the call took another way this time, and ended with {ending_of(first)}"

    def _problem(self, life: Life, keys: tuple[str, ...], undisturbed: Undisturbed) -> str | None:
        """Say what was wrong with the resume of a call that began with `keys`, the world aside."""
        told, ending = told_in(life), ending_of(life)
        if life.hung_at is not None:
            return f"the resume did not end within {self.lives.limit_s:g} s; it was {life.hung_at}"
        if self.on_crash == "ask":
            return None if ending == DecisionNeeded.code else f"the resume ended with {ending}, and asked nobody"
        if ending != "completed":
            return f"the resume ended with {ending}"
        if self.on_crash == "skip":
            unknown = told == Told(OUTCOME_UNKNOWN, is_error=False) and not keys_in(life)
            return None if unknown else f"the model was told {told}"
        if keys_in(life) != keys:
            return f"it began with the keys {keys}, and was repeated with {keys_in(life)}"
        if told is None or (told.is_error and not undisturbed.told.is_error):
            return f"the repeat failed: {told}"
        return None

    def _difference(self, world: object, after_kill: object, undisturbed: Undisturbed) -> str | None:
        if self.on_crash == "rerun":
            return None if world == undisturbed.world else "the world differs"
        return None if world == after_kill else "the world changed, though the call was not repeated"

    def _make_world(self) -> object:
        """Begin anew, and return what there is then."""
        shutil.rmtree(self.lives.world)
        self.lives.world.mkdir()
        self.reset()
        return self._observed()

    def _observed(self) -> object:
        """Return the world as it is now; a copy, as what `observe` returns may go on changing."""
        try:
            return copy.deepcopy(self.observe())
        except TypeError as problem:
            raise ConfigError(
                f"observe() must return plain data, such as lists and dicts of text and numbers: {problem}"
            ) from problem


def _left(world: object, undisturbed: Undisturbed) -> Left:
    if world == undisturbed.before:
        return "untouched"
    return "done" if world == undisturbed.world else "halfway"


def _ended(life: Life) -> dict[str, Any]:
    ended = life.noted("ended")
    assert ended is not None
    return dict(ended)
