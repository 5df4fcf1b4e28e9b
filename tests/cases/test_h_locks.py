"""H. Locks and two processes: B54, B55, B58, B60."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.agent import events
from fisk_ai.errors import JournalLost
from fisk_ai.stores import FileStore
from tests.agent.bench import ANSWER as SAID
from tests.agent.bench import RUN, Effects, bench, calling
from tests.cases import processes_bench
from tests.cases.processes_bench import KILLED, NOBODY, Desk, forks, only_root, until
from tests.cli.bench import SLOW_TOOL, end, turn

pytestmark = forks
desk = processes_bench.desk

ANSWER: dict[str, Any] = {"text": "The answer is 42."}
SLOW: list[dict[str, Any]] = [{"calls": [{"name": "slow"}]}, ANSWER]


def test_b54_of_many_resumes_at_once_one_works_and_the_others_write_nothing(desk: Desk) -> None:
    """Two processes went on with one session, and the mixed history stayed broken.

    earendil-works/pi#8848, google/adk-python#4751, can1357/oh-my-pi#6565
    """
    desk.agent(SLOW, [SLOW_TOOL])
    desk.stored("r", turn("I wait.", "a", tool="slow"), end("suspended"))
    holder = desk.fork("run", "--resume", "r")
    desk.wait_for("effects")
    until(lambda: b"pgid" in (desk.state / "r.tools").read_bytes(), "the note of the tool's group")
    in_use = f"run 'r' is in use by process {holder.pid} on {socket.gethostname()}"
    before = desk.snapshot()
    assert in_use in desk.refuses("run", "--resume", "r", code=6)

    crowd = [desk.fork("run", "--resume", "r") for _ in range(20)]
    for each in crowd:
        refused = each.ends(20)
        assert (refused.code, refused.out, refused.err.count("\n")) == (6, b"", 1)
        assert in_use in refused.err
    assert holder.code is None
    assert [row["status"] for row in desk.does("session", "ls", "--json").data] == ["running"]
    assert desk.does("session", "show", "r").code == 0
    assert desk.snapshot() == before

    (desk.directory / "go").touch()
    assert holder.ends().code == 0
    assert desk.effects == ["begun", "ended"]
    assert desk.does("session", "verify", "r").code == 0


def test_b54_of_many_resumes_that_start_together_exactly_one_works(desk: Desk) -> None:
    """The same without a head start for anybody. google/adk-python#4751"""
    desk.agent(SLOW, [SLOW_TOOL])
    desk.stored("r", turn("I wait.", "a", tool="slow"), end("suspended"))
    gate, opened = os.pipe()

    def wait() -> None:
        os.close(opened)
        os.read(gate, 1)

    crowd = [desk.fork("run", "--resume", "r", before=wait) for _ in range(20)]
    os.close(opened)
    desk.wait_for("effects")
    until(lambda: sum(each.code is not None for each in crowd) == 19, "the end of all but one")
    (desk.directory / "go").touch()
    assert sorted(each.ends().code for each in crowd) == [0, *[6] * 19]
    os.close(gate)
    assert desk.effects == ["begun", "ended"]
    assert desk.records() == ["Meta", "Assistant", "suspended", "resumed", "ToolResult", "Assistant", "completed"]


DEADLY = {
    "name": "deadly",
    "description": "Kills its runner once.",
    "argv": ["sh", "-c", "echo begun >> effects; if mkdir killed; then kill -9 $PPID; fi 2>/dev/null"],
}


def holder_note(pid: int) -> bytes:
    return json.dumps({"pid": pid, "host": socket.gethostname()}).encode()


LEFT: dict[str, Callable[[Path], object]] = {
    "as it was": lambda path: path,
    "a dead process": lambda path: path.write_bytes(holder_note(4_194_304)),
    "a living process of somebody else": lambda path: path.write_bytes(holder_note(os.getppid())),
    "a process on another host": lambda path: path.write_bytes(b'{"pid": 1, "host": "elsewhere"}'),
    "rubbish": lambda path: path.write_bytes(b"\xff\x00 rubbish\n" * 100),
    "nothing": lambda path: path.write_bytes(b""),
    "no file": Path.unlink,
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_b55_a_lock_file_that_a_dead_runner_left_keeps_nobody_out(desk: Desk, left: Callable[[Path], object]) -> None:
    """A lock file stayed after a kill, and the session could never be opened again.

    github/copilot-cli#3255, kirodotdev/Kiro#10666, openclaw/openclaw#70004, Untrivial-ai/agent-orchestrator#4280
    """
    desk.agent([{"calls": [{"name": "deadly"}]}, ANSWER], [DEADLY])
    assert desk.fork("run", "--checkpoint", "--name", "r", "hello").ends().code == KILLED
    lock = desk.state / "r.lock"
    assert lock.exists()
    left(lock)
    assert [row["status"] for row in desk.does("session", "ls", "--json").data] == ["interrupted"]
    resumed = desk.fork("run", "--resume", "r").ends(20)
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
    assert desk.effects == ["begun", "begun"]
    assert desk.does("run", "--resume", "r").code == 5


ODD_LOCKS = {"ENOLCK": errno.ENOLCK, "EOPNOTSUPP": errno.EOPNOTSUPP, "EBADF": errno.EBADF, "EIO": errno.EIO}


@pytest.mark.parametrize("problem", ODD_LOCKS.values(), ids=ODD_LOCKS)
def test_b58_a_lock_that_fails_is_shown_as_it_is_and_never_as_in_use(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    """Locking on a network file system failed with odd errors; elsewhere a permission fault was called `busy`.

    nickg/nvc#417, ComparativeGenomicsToolkit/cactus#1299, tox-dev/filelock#6, fastagent-sh/fastagent#560
    """
    desk.stored("r", end("suspended"))

    def flock(descriptor: int, operation: int) -> None:
        os.write(out, b".")
        raise OSError(problem, os.strerror(problem))

    found, out = os.pipe()
    monkeypatch.setattr(fcntl, "flock", flock)
    for args in (("run", "--resume", "r"), ("session", "rm", "r")):
        said = desk.refuses(*args, code=1)
        assert os.strerror(problem) in said
        assert f"{desk.state}/r.lock" in said
        assert "in use" not in said
    new = desk.does("run", "--checkpoint", "--name", "new", "hello")
    assert (new.code, new.out, new.err.count("\n")) == (1, b"", 1)
    assert os.strerror(problem) in new.err
    assert os.read(found, 100) == b"...", "each of them met the fault"
    for descriptor in (found, out):
        os.close(descriptor)
    assert [row["run_id"] for row in desk.does("session", "ls", "--json").data] == ["r"]


def test_b58_an_interrupted_lock_is_taken_all_the_same(desk: Desk) -> None:
    """EINTR is no failure: the system call is made again. nickg/nvc#417"""
    if shutil.which("strace") is None:
        pytest.skip("needs strace: install it to interrupt a system call")
    desk.stored("r", end("suspended"))
    trace = desk.directory / "trace"
    inject = ["strace", "-f", "-o", str(trace), "-e", "trace=flock", "-e", "inject=flock:error=EINTR:when=1"]
    command = [*inject, sys.executable, "-m", "fisk_ai", "run", "--resume", "r"]
    done = subprocess.run(command, cwd=desk.directory, env=desk.env, stdin=subprocess.DEVNULL, capture_output=True)
    if b"ptrace" in done.stderr.lower() and not trace.read_text():
        pytest.skip("needs ptrace: strace isn't permitted here")
    calls = [line for line in trace.read_text().splitlines() if "flock(" in line]
    assert "EINTR" in calls[0]
    assert calls[1].endswith("= 0")
    assert (done.returncode, done.stdout) == (0, b"The answer is 42.\n"), done


@pytest.fixture
def open_desk() -> Iterator[Desk]:
    """A desk that other users can reach, and that belongs to one of them."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        made = Desk(Path(root))
        made.stored("r", end("suspended"))
        for path in (made.directory, *made.directory.rglob("*"), *made.directory.parent.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        yield made
        made.stop()


@only_root
@pytest.mark.parametrize("who", ["its user", "root"])
def test_b58_a_lock_file_of_another_user_is_not_permitted_rather_than_in_use(open_desk: Desk, who: str) -> None:
    """A lock file that could not be opened was reported as held. fastagent-sh/fastagent#560"""
    desk = open_desk
    lock = desk.state / "r.lock"
    if who == "its user":
        os.chown(lock, 0, 0)
        lock.chmod(0o600)
        uid, why = NOBODY, "Permission denied"
    else:
        for path in (desk.state, desk.state.parent, desk.state / "r.json"):
            os.chown(path, 0, 0)
        uid, why = 0, f"belongs to another user (uid {NOBODY})"
    said = desk.refuses("run", "--resume", "r", code=1, names="r.lock", uid=uid)
    assert why in said
    assert str(lock) in said
    assert "in use" not in said
    assert desk.does("session", "show", "r", uid=uid).code == 0


TAKEN_AWAY = {
    "removed": "rm $RUNS/r.json",
    "replaced": "mv $RUNS/r.json $RUNS/moved; cp other $RUNS/r.json",
    "renamed over": "cp other $RUNS/x; mv $RUNS/x $RUNS/r.json",
    "a copy of itself": "cp $RUNS/r.json $RUNS/x; mv $RUNS/x $RUNS/r.json",
    "a link to itself": "mv $RUNS/r.json $RUNS/moved; ln -s moved $RUNS/r.json",
    "directory removed": "rm -r $RUNS",
    "directory moved": "mv $RUNS moved",
    "directory replaced": "mv $RUNS moved; cp -r moved $RUNS",
    "lock removed": "rm $RUNS/r.lock",
    "emptied": ": > $RUNS/r.json",
    "cut": "truncate -s -1 $RUNS/r.json",
    "written to": "echo >> $RUNS/r.json",
}


@pytest.mark.parametrize("script", TAKEN_AWAY.values(), ids=TAKEN_AWAY)
def test_b60_a_journal_that_is_taken_away_during_a_tool_stops_the_run(desk: Desk, script: str) -> None:
    """The log was removed while the program ran, and later writes went nowhere. simonw/llm#1589"""
    tool = {**SLOW_TOOL, "argv": ["sh", "-c", f"echo begun >> effects; {script.replace('$RUNS', str(desk.state))}"]}
    desk.agent([{"calls": [{"name": "slow"}, {"name": "slow"}]}, ANSWER], [tool])
    (desk.directory / "other").write_bytes(b"not yours\n")
    stopped = desk.does("run", "--checkpoint", "--name", "r", "hello")
    assert (stopped.code, stopped.out) == (1, b"")
    assert desk.effects == ["begun"], "nothing happens after it"
    [said] = [line for line in stopped.err.splitlines() if line.startswith("fisk-ai: ")]
    assert "is no longer ours" in said
    assert str(desk.state) in said
    assert "The run stopped" in said
    assert "saved" not in stopped.err
    assert "suspended" not in stopped.err
    for left in desk.directory.rglob("r.json"):
        assert b"tool_result" not in left.read_bytes()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "happening", [events.ModelCalled, events.ToolStarted, events.TurnRecorded, events.ToolFinished]
)
@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_b60_it_is_noticed_wherever_it_happens(tmp_path: Path, how: str, happening: type[events.Event]) -> None:
    """The sibling: not only during a tool. simonw/llm#1589"""
    effects = Effects(tmp_path / "effects")
    stage = bench(effects, calling("a", "b"), SAID, store=FileStore(str(tmp_path / "runs")))
    path = tmp_path / "runs" / f"{RUN}.json"
    size: list[int] = []

    def hook(event: events.Event) -> None:
        if isinstance(event, happening) and not size:
            path.rename(tmp_path / "moved")
            size.append((tmp_path / "moved").stat().st_size)
            if how == "replaced":
                path.write_bytes(b"not yours\n")

    stage.hook = hook
    with pytest.raises(JournalLost, match=r"no longer ours.*The run stopped"):
        await stage.run()
    assert size == [(tmp_path / "moved").stat().st_size], "nothing was written to what can't be found again"
    assert len(stage.requests) == 1
    assert effects.names == (["a"] if happening in (events.ToolStarted, events.ToolFinished) else [])
    if how == "replaced":
        assert path.read_bytes() == b"not yours\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
