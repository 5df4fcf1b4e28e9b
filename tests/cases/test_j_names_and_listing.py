"""J. Names, listing, deleting: B68, B71, B72, B73, B74."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from fisk_ai.agent.agent import Agent
from fisk_ai.cli.session import command as session
from fisk_ai.errors import InvalidRunId
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.records import MetaRecord, resume_mark
from fisk_ai.stores import FileStore
from tests.cases import processes_bench
from tests.cases.processes_bench import NOBODY, Desk, forks, only_root
from tests.cli.bench import NOTE_TOOL, end, result, turn
from tests.strategies import ended, meta
from tests.strategies import turn as foreign_turn

pytestmark = forks
bench = processes_bench.desk
desk = processes_bench.quick

ANSWER: dict[str, Any] = {"text": "The answer is 42."}
RULE = "can't be a run id: 1-100 of a-z 0-9 . _ - are allowed, starting with a letter or digit"
NAMES = ("../x", "/etc/passwd", "a/b", "a\\b", ".", "..", "", ".hidden", "-rf", "a b", "x" * 200)
KIN = [
    *("_x", "x/", "x/../y", "..\\x", "x\n", "x\0y", "~", "%2e%2e", "\u00e9", "\uff41", "\u202ex", "a:b", "*"),
]


def commands_with_an_id() -> Iterator[str]:
    """The subcommands of `session` that take one, whichever there are, as long as they need nothing else."""
    for name, command in session.commands.items():
        arguments = [each.name for each in command.params if isinstance(each, click.Argument)]
        if arguments in (["run_id"], ["run_ids"]):
            yield name


def tree(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_b68_what_is_no_name_is_refused_by_every_command_and_makes_no_file(desk: Desk, name: str) -> None:
    """Names went straight into paths: reads, writes and deletes outside the folder. `a.json` is a name here (contract
    5.2). agentscope-ai/agentscope#1249, NousResearch/hermes-agent#54852, ultraworkers/claw-code#3243
    """
    desk.stored("r", end("suspended"))
    (desk.state.parent / "x.json").write_text("outside")
    before = tree(desk.directory)
    commands = [
        ("run", "--checkpoint", f"--name={name}", "hello"),
        ("run", f"--resume={name}"),
        ("session", "fork", "r", f"--name={name}"),
        *(("session", command, "--", name) for command in commands_with_an_id()),
    ]
    assert {command[1] for command in commands[3:]} >= {"show", "rm", "verify", "fork"}
    for args in commands:
        said = desk.refuses(*args, code=2, names="")
        assert RULE in said
    assert tree(desk.directory) == before


@pytest.mark.anyio
@pytest.mark.parametrize("name", [*NAMES, *KIN], ids=ascii)
async def test_b68_what_is_no_name_is_refused_by_every_method_and_makes_no_file(tmp_path: Path, name: str) -> None:
    """The same for who embeds an agent or uses a store alone. agentscope-ai/agentscope#1249"""
    (tmp_path / "x.json").write_text("outside")
    store = FileStore(str(tmp_path / "runs"))
    agent = Agent("scripted", provider=ScriptedProvider([ANSWER]), store=store)
    actions: list[Callable[[], object]] = [
        lambda: store.create(name, meta(name)),
        lambda: store.open(name),
        lambda: store.load(name),
        lambda: store.info(name),
        lambda: store.delete(name),
        lambda: list(store.read_bytes(name)),
    ]
    for action in actions:
        with pytest.raises(InvalidRunId, match="can't be a run id"):
            action()
    with pytest.raises(InvalidRunId):
        await agent.run("hello", checkpoint=True, name=name)
    with pytest.raises(InvalidRunId):
        await agent.resume(name)
    assert [path.name for path in tree(tmp_path)] == ["x.json"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_b68_a_name_that_ends_like_a_file_is_one_name_everywhere(desk: Desk) -> None:
    """The contract (5.2) allows `a.json`, which the report refuses: it means `a.json.json`, and never run `a`."""
    for run_id in ("a", "a.json"):
        assert desk.does("run", "--checkpoint", "--name", run_id, "hello").code == 0
    assert desk.does("session", "rm", "a.json").code == 0
    assert sorted(path.name for path in desk.state.iterdir()) == ["a.json", "a.lock"]
    assert desk.does("run", "--resume", "a").code == 5


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"noted", b"NOTED"))


TAKEN: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "suspended": ((end("suspended"),), "suspended", "go on with `fisk-ai run --resume r`"),
    "interrupted": ((turn("Noting.", "a"),), "interrupted", "go on with `fisk-ai run --resume r`"),
    "failed": ((end("error", "why"),), "error", "go on with `fisk-ai run --resume r`"),
    "out of budget": ((end("budget", "why"),), "budget", "go on with `fisk-ai run --resume r`"),
    "completed": ((turn("Done."), end("completed")), "completed", "remove it with `fisk-ai session rm r`"),
}


@pytest.mark.parametrize(("records", "status", "way"), TAKEN.values(), ids=TAKEN)
def test_b71_a_name_that_is_taken_is_refused_with_what_was_found_and_the_next_command(
    desk: Desk, records: tuple[Any, ...], status: str, way: str
) -> None:
    """A name that a script used again overwrote the old session, or saved nothing without a word.

    earendil-works/pi#3070, google-gemini/gemini-cli#4567
    """
    desk.stored("r", *records)
    said = desk.refuses("run", "--checkpoint", "--name", "r", "hello", code=2)
    assert f"a run named 'r' exists already ({status}): {way} or choose another name" in said
    said = desk.refuses("session", "fork", "r", "--name", "r", code=2)
    assert f"a run named 'r' exists already ({status})" in said


def test_b71_the_name_of_a_damaged_run_and_of_a_run_at_work_is_taken(desk: Desk) -> None:
    """Damage is no reason to write over a run. earendil-works/pi#3070"""
    flip(desk.stored("r", turn("Noting.", "a"), result("a"), end("suspended")))
    said = desk.refuses("run", "--checkpoint", "--name", "r", "hello", code=2)
    assert "exists already (unreadable): look at it with `fisk-ai session verify r` or choose another name" in said
    desk.stored("held", end("suspended"))
    with desk.store.open("held"):
        said = desk.refuses("run", "--checkpoint", "--name", "held", "hello", code=2, names="held")
    assert "exists already (running): another process works on it" in said


NOTHING: dict[str, bytes] = {
    "empty": b"",
    "half a record": b'{"seq":1,"protocol":"io.choria.fisk-ai.v1.session.me',
    "NULs": bytes(2000),
}


@pytest.mark.parametrize("data", NOTHING.values(), ids=NOTHING)
def test_b71_a_file_without_a_whole_first_record_is_no_run_and_its_bytes_are_kept(desk: Desk, data: bytes) -> None:
    """What never began takes no name. google-gemini/gemini-cli#4567"""
    path = desk.stored("r")
    path.write_bytes(data)
    done = desk.does("run", "--checkpoint", "--name", "r", "hello")
    assert (done.code, done.out) == (0, b"The answer is 42.\n")
    assert desk.records() == ["Meta", "Assistant", "completed"]
    kept = desk.state / "r.torn"
    assert (kept.read_bytes() if kept.exists() else b"") == data
    assert desk.does("session", "verify", "r").code == 0


def rows(desk: Desk) -> list[str]:
    return [row["run_id"] for row in desk.does("session", "ls", "--json").data]


class Clock:
    """A clock that is set by hand."""

    def __init__(self, *moments: datetime) -> None:
        self._moments = list(moments)

    def __call__(self) -> datetime:
        return self._moments.pop(0) if len(self._moments) > 1 else self._moments[0]


NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def write(desk: Desk, run_id: str, *moments: datetime) -> None:
    """A run whose records, a meta and marks or ends, have these times."""
    store = FileStore(str(desk.state), clock=Clock(*moments))
    with store.create(run_id, meta(run_id)) as journal:
        for number in range(1, len(moments)):
            journal.append(ended("suspended") if number % 2 else resume_mark())


def test_b72_a_list_is_in_the_order_of_the_last_records_whatever_else_happens(desk: Desk) -> None:
    """Lists went by file times: looking at a session moved it up, and a clock set back scrambled the order.

    volcengine/OpenViking#3234, QwenLM/qwen-code#6438, anthropics/claude-code#75731, anomalyco/opencode#25024
    """
    hour = timedelta(hours=1)
    write(desk, "old", NOW - 5 * hour, NOW - 4 * hour)
    write(desk, "b", NOW - 6 * hour, NOW - 2 * hour)
    write(desk, "a", NOW - 7 * hour, NOW - 2 * hour)  # a tie: by id
    write(desk, "new", NOW - 8 * hour, NOW - hour)  # created first, written last
    order = ["new", "a", "b", "old"]
    assert rows(desk) == order
    os.utime(desk.state / "old.json", (time.time() + 9999, time.time() + 9999))
    os.utime(desk.state / "new.json", (0, 0))
    before = desk.snapshot()
    for args in (("session", "show", "b"), ("session", "verify"), ("session", "ls", "--usage"), ("session", "ls")):
        assert desk.does(*args).code == 0
    assert desk.does("run", "--resume", "b").code == 5  # of another provider
    assert desk.does("run", "--checkpoint", "--name", "old", "hello").code == 2
    assert rows(desk) == order
    assert desk.snapshot() == before


@pytest.mark.parametrize("shift", [timedelta(hours=-1), timedelta(days=4000)], ids=["back", "far future"])
def test_b72_a_clock_that_jumps_disturbs_no_run_and_makes_no_negative_time(
    desk: Desk, shift: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order within a run comes from position. pingdotgg/t3code#9772, google/adk-python#3717"""
    desk.agent([{"calls": [{"name": "note", "input": {"what": "a"}}]}, ANSWER], [NOTE_TOOL])
    real = datetime.now(UTC)
    store = FileStore(str(desk.state), clock=Clock(real, real + shift))
    first = MetaRecord(
        version=2,
        run_id="r",
        created=real.isoformat(),
        fingerprint=load(desk).fingerprint,
        prompt="hello",
        checksums=True,
    )
    with store.create("r", first) as journal:
        journal.append(turn("Noting.", "a"))
        journal.append(end("suspended"))
    assert "-" not in [line.split()[2] for line in desk.does("session", "ls").text.splitlines()[1:]]
    resumed = desk.does("run", "--resume", "r")
    assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
    assert len(desk.effects) == 1
    assert desk.records() == ["Meta", "Assistant", "suspended", "resumed", "ToolResult", "Assistant", "completed"]
    for line in (desk.state / "r.json").read_bytes().splitlines():
        payload = json.loads(line)
        duration = payload.get("tool_result", payload.get("assistant", {})).get("duration_ms", 0)
        assert duration >= 0
    assert desk.does("session", "show", "r").code == 0
    assert desk.does("session", "verify", "r").code == 0


def load(desk: Desk) -> Agent:
    from fisk_ai.agent.assemble import load_agent

    return load_agent(str(desk.directory / "agent.yaml"))


def newer(path: Path) -> None:
    """Make it a journal of version 3."""
    first, *_ = path.read_bytes().splitlines()
    path.write_bytes(first.replace(b'"version":2', b'"version":3')[:-18].replace(b',"checksums":true', b"") + b"}\n")


def give_away(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        path.chmod(0)


def test_b73_eight_reasons_have_eight_messages_and_none_of_them_starts_a_run(desk: Desk) -> None:
    """`Not found` stood for anything, and a failed resume began an empty session under the old name.

    anthropics/claude-code#13229, github/copilot-cli#2899, microsoft/vscode#319244, simonw/llm#933
    """
    for run_id in ("elsewhere", "locked", "damaged", "newer", "unreadable", "finished", "changed"):
        ending = (turn("Done."), end("completed")) if run_id == "finished" else (end("suspended"),)
        path = desk.stored(run_id, *((turn("Noting.", "a"), result("a"), *ending)))
        {"damaged": flip, "newer": newer, "unreadable": give_away}.get(run_id, lambda _path: None)(path)
    desk.agent([{"error": "the model was asked"}], [NOTE_TOOL], model="another")
    other = str(desk.directory / "other")
    expected = {
        "missing": (1, f"no run 'missing' in {desk.state}"),
        "elsewhere": (1, f"no run 'elsewhere' in {other}"),
        "locked": (6, "run 'locked' is in use by process"),
        "damaged": (7, "damaged.json is damaged at line 3, byte"),
        "newer": (5, "has version 3, this fisk-ai reads versions up to 2"),
        "finished": (5, "run 'finished' is completed"),
        "changed": (5, "cannot resume run 'changed': the configuration changed"),
        "unreadable": (1, "unreadable.json: "),
    }
    said, codes = set(), set()
    with desk.store.open("locked"):
        before = desk.snapshot()
        for run_id, (code, message) in expected.items():
            place = ("--state-dir", other) if run_id == "elsewhere" else ()
            refused = desk.does("run", "--resume", run_id, *place, "--output", "json")
            assert (refused.code, refused.err.count("\n")) == (code, 1), refused
            assert message in refused.err
            assert desk.snapshot() == before
            said.add(refused.err.replace(run_id, "r"))
            codes.add(refused.data["error"]["code"] + (" elsewhere" if place else ""))
    assert len(said) == len(codes) == len(expected)
    missing = desk.refuses("run", "--resume", "missing", code=1, names="missing")
    assert "--state-dir or XDG_STATE_HOME name another place" in missing
    assert not (desk.state / "missing.json").exists()
    assert not (desk.state / "missing.lock").exists()
    assert not os.path.exists(other)
    assert not desk.effects


LONG_AGO = timedelta(days=400)


def aged(desk: Desk) -> Path:
    """A suspended run of long ago, with everything that a run may own; and neighbours with similar names."""
    then = datetime.now(UTC) - LONG_AGO
    store = FileStore(str(desk.state), clock=Clock(then))
    with store.create("r", meta("r")) as journal:
        journal.append(foreign_turn("a"))
        journal.append(ended("suspended"))
    for name in ("r.torn", "r.tools"):
        (desk.state / name).write_text("x")
    for path in desk.state.iterdir():
        os.utime(path, (then.timestamp(), then.timestamp()))
    for run_id in ("r2", "r.json", "r.x"):
        desk.stored(run_id, end("suspended"))
    for name in ("r.txt", "r.json.bak", "other"):
        (desk.state / name).write_text("x")
    return desk.state / "r.json"


def test_b74_nothing_is_removed_unasked_however_old_it_is(desk: Desk) -> None:
    """A silent clean-up that went by file times deleted months of transcripts.

    anthropics/claude-code#59248, anthropics/claude-code#62250
    """
    aged(desk)
    before = desk.snapshot()
    for args in (
        ("run", "--checkpoint", "--name", "new", "hello"),
        ("run", "hello"),
        ("run", "--continue"),
        ("run", "--resume", "r"),
        ("session", "ls"),
        ("session", "ls", "--usage"),
        ("session", "verify"),
        *(("session", name, "r") for name in commands_with_an_id() if name != "rm"),
        ("session", "rm", "new"),
        ("session", "--help"),
        ("info",),
    ):
        desk.does(*args)
    after = desk.snapshot()
    assert {path for path in before if Path(path).name.startswith("r.")} <= after.keys()
    assert {path: found for path, found in before.items() if Path(path).stem == "r"} == {
        path: found for path, found in after.items() if Path(path).stem == "r"
    }
    assert (desk.state / "r.json").stat().st_mtime == pytest.approx(time.time() - LONG_AGO.total_seconds(), abs=3600)


def test_b74_rm_takes_the_files_of_its_run_and_nothing_else(desk: Desk) -> None:
    """A removal is refused while the run is in use, and says so when there was nothing to remove.

    anthropics/claude-code#62250
    """
    aged(desk)
    with desk.store.open("r"):
        said = desk.refuses("session", "rm", "r", code=6)
    assert "in use" in said
    others = {path.name for path in desk.state.iterdir()} - {"r.json", "r.lock", "r.torn", "r.tools"}
    removed = desk.does("session", "rm", "r")
    assert (removed.code, removed.out, removed.err) == (0, b"", "removed r\n")
    assert {path.name for path in desk.state.iterdir()} == others
    said = desk.refuses("session", "rm", "r", code=1)
    assert f"no run 'r' in {desk.state}; did you mean" in said


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


DAMAGED: dict[str, Callable[[Path], object]] = {
    "a flipped byte": flip,
    "nothing in it": lambda path: path.write_bytes(b""),
    "no record": lambda path: path.write_bytes(b"[]\n"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "newer": newer,
    "a link": link,
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_b74_rm_works_on_damaged_runs(desk: Desk, damage: Callable[[Path], object]) -> None:
    """What can't be read can be removed. anthropics/claude-code#59248"""
    damage(desk.stored("r", turn("Noting.", "a"), result("a"), end("suspended")))
    removed = desk.does("session", "rm", "r")
    assert (removed.code, removed.err) == (0, "removed r\n")
    assert list(desk.state.iterdir()) == []
    assert Path("/etc/passwd").exists()


@only_root
def test_b74_rm_of_another_users_run_is_refused(desk: Desk) -> None:
    """The sibling: what isn't ours to remove stays, and it is said why."""
    path = desk.stored("r", end("suspended"))
    os.chown(path.with_suffix(".lock"), NOBODY, NOBODY)
    said = desk.refuses("session", "rm", "r", code=1)
    assert "belongs to another user" in said
    assert path.exists()
