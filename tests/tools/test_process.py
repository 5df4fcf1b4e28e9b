"""Processes of tools: what they inherit, how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from fisk_ai.tools import process
from fisk_ai.tools.process import Ended, NotStarted, run_process

from .doubles import FileGuard, Signpost, is_held

pytestmark = pytest.mark.anyio

ENVIRONMENT = {"PATH": os.environ["PATH"]}


async def run_shell(
    script: str,
    *arguments: str,
    guard: FileGuard | None = None,
    timeout_s: float | None = None,
    capture_bytes: int = 1000,
) -> Ended:
    return await run_process(
        ["sh", "-c", script, "sh", *arguments],
        environment=ENVIRONMENT,
        capture_bytes=capture_bytes,
        guard=guard,
        timeout_s=timeout_s,
    )


@pytest.fixture(params=["pidfd", "thread"])
def _both_ways_to_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "thread":
        monkeypatch.setattr(process, "_pidfd", lambda _pid: None)


@pytest.mark.usefixtures("_both_ways_to_wait")
async def test_status_and_output_of_both_streams_come_back_in_order() -> None:
    ended = await run_shell("echo one; echo two >&2; echo three; exit 3")
    assert ended == Ended(3, False, b"one\ntwo\nthree\n", 14)


async def test_signal_that_ended_it_is_a_negative_status() -> None:
    assert (await run_shell("kill -KILL $$")).status == -signal.SIGKILL


async def test_stdin_is_empty() -> None:
    assert (await run_shell("cat; echo end")).output == b"end\n"


async def test_output_beyond_the_limit_is_counted_but_not_kept() -> None:
    ended = await run_shell("head -c 100000000 /dev/zero", capture_bytes=10)
    assert (ended.output, ended.size_bytes) == (bytes(10), 100_000_000)


async def test_process_leads_a_session_of_its_own() -> None:
    ended = await run_shell("ps -o pid=,pgid=,sid= -p $$")
    pid, group, session = ended.output.split()
    assert pid == group == session
    assert int(session) != os.getsid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_only_the_guard_is_inherited(guard: FileGuard, tmp_path: Path) -> None:
    with (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        ended = await run_shell("ls /proc/$$/fd; :", guard=guard)
    assert sorted(map(int, ended.output.split())) == [0, 1, 2, guard.descriptor]


async def test_guard_learns_the_group(guard: FileGuard) -> None:
    ended = await run_shell("echo $$", guard=guard)
    assert guard.groups == [int(ended.output)]


async def test_failing_guard_leaves_no_process(guard: FileGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_group: int) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(guard, "started", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        await run_shell("sleep 600", guard=guard)
    guard.wait_until_nobody_holds_it()


@pytest.mark.usefixtures("_both_ways_to_wait")
async def test_time_limit_ends_grandchildren_too(guard: FileGuard, tmp_path: Path) -> None:
    guard.ready, late = Signpost(tmp_path), tmp_path / "late"
    script = 'echo begun; sh -c "echo > $1; sleep 600; echo late >> $2" & wait'
    ended = await run_shell(script, str(guard.ready.path), str(late), guard=guard, timeout_s=0.01)
    assert (ended.timed_out, ended.output) == (True, b"begun\n")
    guard.wait_until_nobody_holds_it()
    assert not late.exists()


@pytest.mark.usefixtures("_both_ways_to_wait")
async def test_abort_ends_grandchildren_too(guard: FileGuard, tmp_path: Path) -> None:
    signpost, late = Signpost(tmp_path), tmp_path / "late"
    script = 'sh -c "echo > $1; sleep 600; echo late >> $2" & wait'
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: run_shell(script, str(signpost.path), str(late), guard=guard))
        await signpost.reached()
        tasks.cancel_scope.cancel()
    guard.wait_until_nobody_holds_it()
    assert not late.exists()


async def test_what_ignores_sigterm_is_killed_after_its_grace(
    guard: FileGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.02)
    guard.ready = Signpost(tmp_path)
    script = "trap '' TERM; echo > $1; sleep 600; :"
    ended = await run_shell(script, str(guard.ready.path), guard=guard, timeout_s=0.01)
    assert (ended.timed_out, ended.status) == (True, -signal.SIGKILL)
    guard.wait_until_nobody_holds_it()


async def test_child_that_ignores_sigterm_is_killed_although_its_parent_went(
    guard: FileGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.02)
    guard.ready = Signpost(tmp_path)
    script = "(trap '' TERM; echo > $1; sleep 600; :) & wait"
    ended = await run_shell(script, str(guard.ready.path), guard=guard, timeout_s=0.01)
    assert (ended.timed_out, ended.status) == (True, -signal.SIGTERM)
    guard.wait_until_nobody_holds_it()


async def test_last_words_after_sigterm_are_read(guard: FileGuard, tmp_path: Path) -> None:
    guard.ready = Signpost(tmp_path)
    script = "trap 'head -c 200000 /dev/zero; exit 0' TERM; echo > $1; sleep 600 & wait"
    ended = await run_shell(script, str(guard.ready.path), guard=guard, timeout_s=0.01)
    assert (ended.timed_out, ended.size_bytes) == (True, 200_000)


async def test_aborted_tool_and_its_child_have_their_grace_and_are_read_meanwhile(
    guard: FileGuard, tmp_path: Path
) -> None:
    signpost, parent, child = Signpost(tmp_path), tmp_path / "parent", tmp_path / "child"
    script = """
        trap 'head -c 200000 /dev/zero; echo > "$2"; exit' TERM
        (trap 'while [ ! -e "$2" ]; do sleep 0.01; done; sleep 0.02; echo > "$3"; exit' TERM
         echo > "$1"; sleep 600 & wait) &
        wait
    """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: run_shell(script, str(signpost.path), str(parent), str(child), guard=guard))
        await signpost.reached()
        tasks.cancel_scope.cancel()
    assert (parent.exists(), child.exists()) == (True, True)
    guard.wait_until_nobody_holds_it()


async def test_second_cancellation_cuts_the_grace_short_and_still_kills(
    guard: FileGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 600.0)
    signpost = Signpost(tmp_path)
    script = "trap 'echo term > $1' TERM; echo ready > $1; while :; do sleep 600 & wait; done"
    call = asyncio.create_task(run_shell(script, str(signpost.path), guard=guard))
    assert await signpost.reached() == "ready"
    call.cancel()
    assert await signpost.reached() == "term"
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()
    guard.wait_until_nobody_holds_it()


async def test_cancelled_call_starts_nothing(guard: FileGuard) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_shell("echo", guard=guard)
    assert scope.cancelled_caught
    assert guard.groups == []


async def test_child_that_outlives_its_parent_is_not_waited_for(
    guard: FileGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LEFTOVER_GRACE_S", 0.02)
    ended = await run_shell("sleep 600 & echo done", guard=guard)
    assert (ended.status, ended.timed_out, ended.output) == (0, False, b"done\n")
    guard.close()
    assert is_held(guard.path)
    os.killpg(guard.groups[0], signal.SIGKILL)
    guard.wait_until_nobody_holds_it()


async def test_child_that_prints_without_end_is_not_read_without_end(
    guard: FileGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LEFTOVER_GRACE_S", 0.02)
    ended = await run_shell("yes & echo done", guard=guard)
    assert ended.status == 0
    assert len(ended.output) == 1000
    guard.wait_until_nobody_holds_it()  # SIGPIPE ends `yes`


async def test_closed_streams_do_not_end_the_wait() -> None:
    ended = await run_shell("exec >/dev/null 2>&1; sleep 0.05; exit 4")
    assert ended.status == 4


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-program"], "No such file"),
        (["/dev/null"], "Permission denied"),
        (["echo", "x" * 3_000_000], "Argument list too long"),
        (["echo", "a\0b"], "null byte"),
        (["echo", "\ud83d"], "surrogates not allowed"),
    ],
)
async def test_what_cannot_be_started_says_why(argv: list[str], why: str) -> None:
    with pytest.raises(NotStarted, match=why):
        await run_process(argv, environment=ENVIRONMENT, capture_bytes=10)


async def test_missing_directory_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "gone")
    with pytest.raises(NotStarted, match="gone"):
        await run_process(["echo"], environment=ENVIRONMENT, capture_bytes=10, cwd=missing)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_no_descriptor_and_no_zombie_is_left(guard: FileGuard) -> None:
    before = os.listdir("/proc/self/fd")
    await run_shell("echo", guard=guard)
    await run_shell("sleep 600", guard=guard, timeout_s=0.01)
    assert os.listdir("/proc/self/fd") == before
    for group in guard.groups:
        with pytest.raises(ChildProcessError):
            os.waitpid(group, os.WNOHANG)  # noqa: ASYNC222 - does not wait


def test_works_in_a_loop_outside_the_main_thread() -> None:
    ended: list[Ended] = []
    thread = threading.Thread(target=lambda: ended.append(anyio.run(run_shell, "echo here")))
    thread.start()
    thread.join()
    assert ended[0].output == b"here\n"


RUNNER = """
import os, sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tools.doubles import FileGuard
from fisk_ai.tools.process import run_process

async def main():
    argv = ["sh", "-c", "echo $$ > $1; exec sleep 600", "sh", sys.argv[2]]
    guard = FileGuard(Path(sys.argv[1]))
    await run_process(argv, environment=dict(os.environ), capture_bytes=10, guard=guard)

anyio.run(main)
"""


async def test_tool_of_a_killed_runner_still_holds_the_guard(tmp_path: Path) -> None:
    signpost, lock = Signpost(tmp_path), tmp_path / "tools.lock"
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", RUNNER, str(lock), str(signpost.path), tests]
    with subprocess.Popen(command) as runner:  # noqa: ASYNC220 - nothing else runs in this loop
        group = int(await signpost.reached())
        runner.kill()
    try:
        assert is_held(lock)
    finally:
        os.killpg(group, signal.SIGKILL)
    FileGuard(lock).wait_until_nobody_holds_it()
