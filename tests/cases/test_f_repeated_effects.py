"""Section F of the reported failures: crash windows and repeated side effects."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from fisk_ai.agent.events import CallRepeated, Event, ModelCalled, ToolStarted
from fisk_ai.messages import read_result
from fisk_ai.records import Reason, Record, ToolResultRecord
from fisk_ai.stores import FileStore
from fisk_ai.tools import CommandTool, FunctionTool, ToolContext
from tests.cases.bench import (
    RUN,
    Done,
    Library,
    Shell,
    asks,
    counting_tool,
    ends,
    gives,
    lines_parse,
    result_text,
    says,
)
from tests.cases.processes_bench import KILLED, Desk, forks
from tests.stores.faults import FaultyDisk, Operation

pytestmark = forks

DONE = says()
RESUME = ("run", "--resume", RUN)


class Place(Shell, Desk):
    """A shell whose processes are forked, so that they can be killed and are cheap to start."""

    def begin(self, *more: str) -> Done:
        """Start the run in a process of its own, and wait for its end."""
        return self.does("run", "go", "--checkpoint", "--name", RUN, *more)

    def pending(self) -> dict[str, Any]:
        """Return what `show --json` says of the open batch."""
        pending: dict[str, Any] = self.does("session", "show", RUN, "--json").data["pending"]
        return pending


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.stop()


def deadly_tool(name: str, *, once: bool = True, first: str = "", **more: Any) -> dict[str, Any]:
    """A tool that has its effect, and then kills the process that runs it; `once`, or each time."""
    spared = "[ -e spared ] || { : > spared; " if once else "{ "
    script = f"echo $FISK_AI_IDEMPOTENCY_KEY >> effect-{name}; {first} {spared}kill -9 $PPID; exit; }}; "
    return {
        "name": name,
        "description": f"Does {name}",
        "argv": ["sh", "-c", (script + f"printf '{result_text(name)}'").replace("{", "{{").replace("}", "}}")],
        **more,
    }


def tools_with(deadly: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [deadly if name == deadly["name"] else counting_tool(name, **more) for name in "abcde"]


@pytest.mark.parametrize("deadly", ["a", "d", "e"])
def test_b39_of_a_batch_only_the_call_in_flight_is_repeated(place: Place, deadly: str) -> None:
    """After a crash the whole batch ran again: doubled pull requests and writes.

    GEMISIS/leviath#96, anthropics/claude-code#74599, laurigates/claude-plugins#1868.
    """
    place.plays(asks("a", "b", "c", "d", "e"), DONE, tools=tools_with(deadly_tool(deadly)))
    killed = place.begin()
    assert killed.code == KILLED
    before = "abcde".index(deadly)
    assert place.counts() == [1] * (before + 1) + [0] * (4 - before)

    shown = place.does("session", "show", RUN)
    assert shown.code == 0
    assert f"in doubt: {deadly} (call {deadly}) may have run" in shown.text
    assert f"{deadly}: no result; it may have run" in shown.text

    done = place.does(*RESUME)
    assert (done.code, done.text) == (0, "All is well.\n"), done.err
    assert place.counts() == [2 if name == deadly else 1 for name in "abcde"]
    assert len(set(place.keys(deadly))) == 1, "the repeat has the idempotency key of the first time"
    told = [line for line in done.err.splitlines() if "runs again" in line]
    assert len(told) == 1
    assert f"{deadly} (call {deadly}) may have run before; it runs again" in told[0]
    place.refuses(*RESUME, code=5, names=RUN)
    assert sum(place.counts()) == 6


def test_b39_a_recorded_call_of_a_parallel_group_is_never_repeated(place: Place) -> None:
    """As above, for tools that run side by side: those that were in flight may be repeated, and are named."""
    recorded = f"until [ $(grep -c session.tool_result {place.path()}) -ge 2 ]; do sleep 0.01; done;"
    begun = "until [ -e effect-c ] && [ -e effect-e ]; do sleep 0.01; done;"
    waits = "; while [ ! -e go ]; do sleep 0.01; done; printf 'done'"
    tools = tools_with(deadly_tool("d", first=recorded + begun, parallel=True), parallel=True)
    for tool in tools:
        if tool["name"] in "ce":
            tool["argv"][2] = tool["argv"][2].split(";")[0] + waits
    place.plays(asks("a", "b", "c", "d", "e"), DONE, tools=tools)
    assert place.begin().code == KILLED
    assert place.counts() == [1] * 5
    (place.directory / "go").touch()

    done = place.does(*RESUME)
    assert done.code == 0, done.err
    assert place.counts() == [1, 1, 2, 2, 2]
    told = {line.split()[0] for line in done.err.splitlines() if "runs again" in line}
    assert told == {"c", "d", "e"}


def watched(lib: Library) -> FaultyDisk:
    """Put the store on a disk that logs, and let the log tell when the model is asked and tools are started."""
    disk = FaultyDisk()
    lib.store = FileStore(str(lib.path.parent), disk=disk)

    def hook(event: Event) -> None:
        if isinstance(event, ModelCalled | ToolStarted):
            disk.log.append(Operation(type(event).__name__, getattr(event, "name", "")))

    lib.hook = hook
    return disk


@pytest.mark.anyio
@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "side by side"])
async def test_b41_a_turn_is_durable_before_any_of_its_tools_starts(lib: Library, parallel: bool) -> None:
    """State was put down after the work that it should have protected.

    langchain-ai/langgraph#8039.
    """
    seen: dict[str, list[dict[str, Any]]] = {}

    def looks(name: str) -> FunctionTool[Any, Any]:
        def work(context: ToolContext) -> str:
            seen[context.call_id] = lines_parse(lib.path.read_bytes())
            return result_text(name)

        return FunctionTool(work, name=name, description=f"Does {name}", parallel=parallel)

    lib.tools = [looks(name) for name in "abc"]
    lib.plays(asks("a", "b"), asks("c"), DONE)
    disk = watched(lib)
    await lib.run()
    lib.crash_after(2)
    await lib.resume()

    for name, number in (("a", 2), ("b", 2), ("c", 5)):
        turn = seen[name][number - 1]["assistant"]
        assert name in [block["id"] for block in turn["message"]["content"]]
    if not parallel:
        assert [len(seen[name]) for name in "abc"] == [2, 3, 5], "each result is there before the next tool starts"

    journal = [each for each in disk.log if each.name in ("ModelCalled", "ToolStarted") or is_of_journal(each, lib)]
    pending = False
    effects = 0
    for each in journal:
        if each.name == "write":
            pending = True
        elif each.name == "sync":
            pending = False
        else:
            effects += 1
            assert parallel or not pending, f"{each} before what was written is durable"
    assert effects == 6 + 5, "of the run: 3 requests, 3 tools; of the resume: 2 requests, 3 tools"
    assert not pending
    requests = [place for place, each in enumerate(journal) if each.name == "ModelCalled"]
    assert all(journal[place - 1].name == "sync" for place in requests[:3])


def is_of_journal(operation: Operation, lib: Library) -> bool:
    return operation.target == lib.path.name and operation.name in ("write", "sync")


def test_b43_a_step_that_always_kills_has_a_way_on(place: Place) -> None:
    """A step that always kills the process was run again by each recovery, without end.

    UKGovernmentBEIS/inspect_ai#5165.
    """
    place.plays(asks("a", "b"), DONE, tools=tools_with(deadly_tool("a", once=False)))
    assert place.begin().code == KILLED
    left = place.path().read_bytes()
    for resumes in range(1, 5):
        killed = place.does(*RESUME)
        assert killed.code == KILLED
        assert "a (call a) may have run before; it runs again" in killed.err
        assert len(place.keys("a")) == resumes + 1
        assert place.path().read_bytes() == left, "the journal does not grow with each try"
        assert [each["id"] for each in place.pending()["ambiguous"]] == ["a"]

    skipped = place.does(*RESUME, "--on-crash", "skip")
    assert (skipped.code, skipped.text) == (0, "All is well.\n"), skipped.err
    assert place.counts("ab") == [5, 1]
    (told, other) = results_of(place)
    assert "outcome of this call is unknown" in told
    assert other == result_text("b")
    place.refuses(*RESUME, code=5, names=RUN)


def test_b43_such_a_run_can_be_removed(place: Place) -> None:
    """As above, for the other way on; and a tool may ask for the decision itself, so nothing runs again unasked."""
    place.plays(asks("a", "b"), DONE, tools=tools_with(deadly_tool("a", once=False, on_crash="ask")))
    assert place.begin().code == KILLED
    for _ in range(2):
        line = place.refuses(*RESUME, code=5, names="a (call a)")
        assert "--on-crash skip" in line
    assert place.counts("a") == [1]
    assert place.does("session", "rm", RUN).code == 0
    assert not list(place.state.glob(f"{RUN}.*"))


def results_of(place: Shell) -> list[str]:
    records = [each.record for each in place.store.read(RUN).records]
    return [read_result(bytes(each.result)).text for each in records if isinstance(each, ToolResultRecord)]


ANSWERED: tuple[Record, ...] = (asks("a"), gives("a"), DONE)


@pytest.mark.parametrize("changed", [False, True], ids=["same", "changed"])
@pytest.mark.parametrize("flags", [[], ["--force"], ["--on-crash", "rerun"], ["--on-crash", "skip"]])
def test_b44_a_completed_run_stays_completed(shell: Shell, flags: list[str], changed: bool) -> None:
    """A run that had ended could be resumed again; its tool ran a second time, even with the opposite approval.

    mastra-ai/mastra#24796.
    """
    shell.plays(asks("a"), DONE)
    shell.plant(*ANSWERED, ends("completed"))
    if changed:
        shell.plays(asks("a"), DONE, model="another")
    for _ in range(2):
        shell.refused(5, RUN, "completed", "session show", "session fork", args=[*RESUME, *flags])
    assert shell.counts("a") == [0]


@dataclass(frozen=True)
class Ended:
    """What a resume of a run does that ended so: with the same limits, and with other ones and `--force`."""

    reason: Reason
    budget: dict[str, int]
    raised: dict[str, int]
    code: int
    forced_code: int = 0


ENDS = {
    "error": Ended("error", {}, {}, 0),
    "suspended": Ended("suspended", {}, {}, 0),
    "budget": Ended("budget", {"max_tokens": 15}, {"max_tokens": 100}, 4),
    "budget, raised too little": Ended("budget", {"max_tokens": 15}, {"max_tokens": 10}, 4, 4),
    "max_iterations": Ended("max_iterations", {"max_iterations": 1}, {"max_iterations": 2}, 4),
    "max_iterations, lowered": Ended("max_iterations", {"max_iterations": 1}, {"max_tokens": 15}, 4, 4),
}


@pytest.mark.parametrize("ended", ENDS.values(), ids=ENDS)
def test_b44_each_other_end_has_one_answer(shell: Shell, ended: Ended) -> None:
    """As above: an error and a suspend go on; a budget says that nothing is left until there is a larger one."""
    shell.plays(asks("a"), DONE, budget=ended.budget)
    shell.plant(asks("a"), gives("a"), ends(ended.reason))
    if ended.code == 0:
        done = shell.resume()
        assert (done.code, done.text) == (0, "All is well.\n")
        shell.refused(5, RUN, "completed")
        shell.check_same_as_twin()
        return
    for _ in range(2):
        with shell.untouched:
            done = shell.resume()
        assert (done.code, done.out) == (ended.code, b"")
        assert "budget" in done.err
    shell.plays(asks("a"), DONE, budget=ended.raised)
    shell.refused(5, RUN, "configuration changed", "budget")
    done = shell.resume("--force")
    assert done.code == ended.forced_code, done.err
    assert shell.counts("a") == [0]
    if ended.forced_code == 0:
        shell.refused(5, RUN, "completed")


@pytest.mark.parametrize("reason", ["error", "budget", "max_iterations", "suspended", None])
def test_b44_an_answer_before_another_end_needs_no_model(shell: Shell, reason: Reason | None) -> None:
    """As above, where the answer was there already when the run ended otherwise."""
    shell.plays(asks("a"), DONE, budget={"max_iterations": 2})
    shell.plant(*ANSWERED, *([ends(reason)] if reason else []))
    done = shell.resume()
    assert (done.code, done.text) == (0, "All is well.\n"), done.err
    assert shell.counts("a") == [0]
    state = shell.store.load(RUN)
    assert (state.counters.model_calls, state.terminal) == (2, ends("completed"))
    shell.refused(5, RUN, "completed")


@pytest.mark.parametrize("cut", [0, 1, 60], ids=["whole", "no newline", "a torn end record"])
def test_b46_a_recorded_answer_is_printed_without_a_model_call(shell: Shell, cut: int) -> None:
    """The answer was complete but the process died before its end mark; the retry did the work again.

    UKGovernmentBEIS/inspect_ai#4078.
    """
    shell.plays(asks("a"), DONE)
    tail = shell.lines(*ANSWERED, ends("completed"))[-1][:60] if cut == 60 else b""
    path = shell.plant(*ANSWERED, tail=tail)
    if cut == 1:
        path.write_bytes(path.read_bytes()[:-1])
    before = shell.store.load(RUN)
    (shell.directory / "turns.yaml").write_text("- error: the model must not be asked\n" * 4)

    done = shell.resume()

    assert (done.code, done.text) == (0, "All is well.\n"), done.err
    state = shell.store.load(RUN)
    assert (state.last_seq, state.terminal) == (5, ends("completed"))
    assert state.messages == before.messages
    assert state.counters == before.counters
    assert shell.counts("a") == [0]
    lines_parse(path.read_bytes())
    for _ in range(2):
        shell.refused(5, RUN, "completed")


def test_b46_a_chat_with_a_recorded_answer_waits_for_input(place: Place) -> None:
    """As above: in a chat an answer is no end, so the input opens, and what is typed is answered."""
    place.plays(asks("a"), DONE, says("Second."))
    place.plant(*ANSWERED, interactive=True)
    left = place.does(*RESUME, stdin=b"")
    assert (left.code, left.out) == (0, b""), left.err
    assert "All is well." in left.err, "the conversation so far is shown"
    assert place.store.load(RUN).terminal == ends("suspended")
    done = place.does(*RESUME, stdin=b"and?\n/end\n")
    assert (done.code, done.text) == (0, "Second.\n"), done.err
    assert place.counts("a") == [0]
    place.refuses(*RESUME, code=5, names=RUN)


HANGS_ONCE = "; [ -e spared ] || { : > spared; while :; do sleep 0.05; done; }; printf '%s'"
NOT_RUN = ("not executed", "Not run", "not run", "never ran")


def hanging_tool(name: str) -> dict[str, Any]:
    """A tool that has its effect, and never ends the first time."""
    tool = counting_tool(name)
    script = tool["argv"][2].split(";")[0] + HANGS_ONCE % result_text(name)
    return {**tool, "argv": ["sh", "-c", script.replace("{", "{{").replace("}", "}}")]}


def test_b47_a_tool_that_was_killed_by_a_second_signal_is_in_doubt(place: Place) -> None:
    """A tool that had been running and was killed was reported to the model as never run.

    anthropics/claude-code#86001, NousResearch/hermes-agent#65298.
    """
    place.plays(asks("a", "b"), DONE, tools=[hanging_tool("a"), counting_tool("b")])
    child = place.fork("run", "go", "--checkpoint", "--name", RUN)
    place.wait_for("spared", 0)
    child.send(signal.SIGINT)
    child.says("SIGINT:")
    child.send(signal.SIGINT)
    aborted = child.ends()
    assert aborted.code == 130
    assert place.counts("ab") == [1, 0]
    state = place.store.load(RUN)
    assert state.pending is not None
    assert [call.id for call in state.pending.ambiguous] == ["a"], "no result, and in doubt"
    assert results_of(place) == []

    done = place.does(*RESUME)
    assert done.code == 0, done.err
    assert "a (call a) may have run before; it runs again" in done.err
    assert place.counts("ab") == [2, 1]
    assert len(set(place.keys("a"))) == 1
    assert not any(word in text for text in results_of(place) for word in NOT_RUN)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["command", "function", "coroutine"])
async def test_b47_a_tool_that_ran_out_of_time_may_have_taken_effect(lib: Library, tmp_path: Path, kind: str) -> None:
    """As above, for a time limit: an error that says so, and says it after a resume too."""
    lib.tools = [timed_tool(kind, lib, tmp_path)]
    lib.plays(asks("a"), DONE)
    assert (await lib.run()).reason == "completed"
    live = lib.bodies[-1]
    (text,) = lib.results
    assert "timed out after 0.3 s; it may have taken effect" in text
    assert not any(word in text for word in NOT_RUN)
    assert b'"is_error":true' in live
    lib.crash_after(3)
    await lib.resume()
    assert lib.bodies[-1] == live
    assert lib.told(CallRepeated) == []
    assert lib.effects.names == ["a"]


def timed_tool(kind: str, lib: Library, tmp_path: Path) -> Any:
    """A tool that has its effect, and is still at it when its time is up."""
    if kind == "command":
        argv = ["sh", "-c", "echo a - >> effects; sleep 30"]
        return CommandTool("a", "Does a", argv, {}, timeout_s=0.3, cwd=str(tmp_path))

    def in_thread() -> None:
        lib.effects.note("a")
        threading.Event().wait(1)

    async def in_loop() -> None:
        lib.effects.note("a")
        await anyio.sleep(30)

    return FunctionTool(in_thread if kind == "function" else in_loop, name="a", description="Does a", timeout_s=0.3)
