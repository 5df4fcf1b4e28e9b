"""I. Disk, folders and permissions: B61, B63, B64, B65."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.errors import JournalFailed, StoreError
from fisk_ai.stores import FileStore
from tests.agent.bench import ANSWER as SAID
from tests.agent.bench import Effects, bench, calling, end_of
from tests.cases import processes_bench
from tests.cases.processes_bench import NOBODY, Desk, forks, only_root
from tests.cli.bench import NOTE_TOOL, end
from tests.stores.faults import Fault, FaultyDisk

pytestmark = forks
desk = processes_bench.desk

ANSWER: dict[str, Any] = {"text": "The answer is 42."}
NOTING: list[dict[str, Any]] = [
    {"calls": [{"name": "note", "input": {"what": "a"}}, {"name": "note", "input": {"what": "b"}}]},
    ANSWER,
]


@contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    """A small file system of its own."""
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


def fill(path: Path) -> None:
    """Take all the room that is left, to the last byte."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (65_536, 4096, 1):
            while _took(descriptor, size):
                pass
    finally:
        os.close(descriptor)


def _took(descriptor: int, size: int) -> bool:
    try:
        return os.write(descriptor, b"x" * size) > 0
    except OSError:
        return False


@only_root
def test_b61_a_disk_that_is_full_before_the_start_stops_the_run_before_the_model_is_asked(desk: Desk) -> None:
    """A full disk was a bare system error in the middle of a run. autohandai/code-cli#207, earendil-works/pi#8575"""
    desk.agent([{"error": "the model was asked"}])
    small = desk.directory / "small"
    with mounted(small, "size=64k"):
        fill(small / "filler")
        full = desk.does("run", "--checkpoint", "--name", "r", "--state-dir", "small", "hello")
        assert (full.code, full.out, full.err.count("\n")) == (1, b"", 1)
        assert os.strerror(errno.ENOSPC) in full.err
        assert str(small) in full.err
        assert desk.does("session", "ls", "--state-dir", "small").code == 0
        (small / "filler").unlink()
        desk.agent([ANSWER])
        again = desk.does("run", "--checkpoint", "--name", "r", "--state-dir", "small", "hello")
        assert (again.code, again.out) == (0, b"The answer is 42.\n")


@only_root
def test_b61_a_disk_that_fills_up_stops_the_run_and_room_lets_it_go_on(desk: Desk) -> None:
    """State was half saved when the disk filled up. autohandai/code-cli#207, earendil-works/pi#8575"""
    small = desk.directory / "small"
    filling = "[ {what} = a ] || [ -e room ] || cat /dev/zero > small/filler"
    tool = {
        **NOTE_TOOL,
        "argv": ["sh", "-c", f"echo {{what}} >> effects; {filling} 2>/dev/null; head -c 5000 agent.yaml"],
    }
    desk.agent(NOTING, [tool])
    (desk.directory / "agent.yaml").write_text((desk.directory / "agent.yaml").read_text() + "\n" + "#" * 5000)
    with mounted(small, "size=64k"):
        stopped = desk.does("run", "--checkpoint", "--name", "r", "--state-dir", "small", "hello")
        assert (stopped.code, stopped.out) == (1, b"")
        assert "journal could not be written" in stopped.err
        assert stopped.last_line == "  fisk-ai run --resume r --state-dir small"
        assert desk.effects == ["a", "b"]
        kept = FileStore(str(small)).load("r")
        assert (kept.counters.model_calls, kept.counters.tool_calls, kept.terminal) == (1, 1, None)

        still = desk.does("run", "--resume", "r", "--state-dir", "small")
        assert (still.code, still.out) == (1, b"")
        assert FileStore(str(small)).load("r").counters == kept.counters

        (small / "filler").unlink()
        (desk.directory / "room").touch()
        resumed = desk.paste(stopped.last_line)
        assert (resumed.code, resumed.out) == (0, b"The answer is 42.\n")
        assert desk.effects[0] == "a"
        assert set(desk.effects[1:]) == {"b"}, "what was recorded is not repeated"
        assert desk.does("session", "verify", "--state-dir", "small").code == 0


@pytest.mark.anyio
@pytest.mark.parametrize("kept_bytes", [None, 1, 40], ids=["none of it", "a byte", "a part"])
@pytest.mark.parametrize("record", range(1, 7))
async def test_b61_whichever_record_finds_no_room_nothing_happens_after_it(
    tmp_path: Path, record: int, kept_bytes: int | None
) -> None:
    """The same below the journal, for each record and for short writes. earendil-works/pi#8575"""
    effects = Effects(tmp_path / "effects")
    disk = FaultyDisk(Fault("write", record, errno.ENOSPC, ".json", from_then_on=True, kept_bytes=kept_bytes))
    stage = bench(effects, calling("a", "b"), SAID, store=FileStore(str(tmp_path / "runs"), disk=disk))
    if record == 6:  # only the end itself: an answer is an answer, and it is said that its end was not stored
        result = await stage.run()
        assert (result.answer, type(result.storage_error)) == (SAID["text"], JournalFailed)
    else:
        with pytest.raises(StoreError, match="could not be written"):
            await stage.run()
    assert disk.faults[0].reached >= 1
    asked, done = len(stage.requests), effects.names
    assert (asked, done) == [(0, []), (1, []), (1, ["a"]), (1, ["a", "b"]), (2, ["a", "b"]), (2, ["a", "b"])][
        record - 1
    ]

    disk.faults.clear()
    if record == 1:
        await stage.run()
    else:
        assert stage.state.last_seq == record - 1
        await stage.resume()
    assert end_of(stage.state) == "completed"
    assert stage.state.counters.tool_calls == 2


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def open_desk() -> Iterator[Desk]:
    """A desk of an ordinary user, which has a run."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        made = Desk(Path(root))
        made.stored("r", end("suspended"))
        for path in Path(root).rglob("*"):
            os.chown(path, NOBODY, NOBODY)
        yield made
        made.stop()


def refused_at_once(desk: Desk, where: Path, why: str, **how: Any) -> None:
    """Before an id is printed and before the model is asked, in one line with path and variable."""
    desk.agent([{"error": "the model was asked"}])
    before = desk.snapshot()
    refused = desk.does("run", "--checkpoint", "hello", **how)
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, b"", 1), refused
    assert f"can't use {where}" in refused.err
    assert why in refused.err
    assert "XDG_STATE_HOME" in refused.err
    assert "--state-dir" in refused.err
    assert desk.snapshot() == before
    desk.agent([ANSWER])
    assert desk.does("run", "hello", **how).out == b"The answer is 42.\n", "without --checkpoint it needs no place"


@only_root
def test_b63_a_read_only_directory_is_found_before_an_id_is_announced(open_desk: Desk) -> None:
    """That state can't be written was found after an id had been given out. RyderFreeman4Logos/cli-sub-agent#2978"""
    desk = open_desk
    desk.state.chmod(0o500)
    refused_at_once(desk, desk.state, "Permission denied", uid=NOBODY)
    assert desk.does("session", "ls", uid=NOBODY).text.splitlines()[1].startswith("r ")
    assert desk.does("session", "show", "r", uid=NOBODY).code == 0
    assert "status:   suspended" in desk.does("session", "show", "r", uid=NOBODY).text


@only_root
def test_b63_a_read_only_file_system_is_found_before_an_id_is_announced(desk: Desk) -> None:
    """As above, where even root can't write; a resume is refused too. jahwag/clem#128"""
    with mounted(desk.state, "size=1m,mode=700"):
        desk.stored("r", end("suspended"))
        remount(desk.state, "ro")
        refused_at_once(desk, desk.state, "Read-only file system")
        said = desk.refuses("run", "--resume", "r", code=1)
        assert "Read-only file system" in said
        assert [row["run_id"] for row in desk.does("session", "ls", "--json").data] == ["r"]
        assert desk.does("session", "show", "r").code == 0
        assert desk.does("session", "verify").code == 0


@only_root
@pytest.mark.parametrize("level", ["runs", "fisk-ai"])
def test_b63_a_directory_that_one_run_of_root_left_is_named(open_desk: Desk, level: str) -> None:
    """After one sudo run the folder was root's. RyderFreeman4Logos/cli-sub-agent#2978"""
    desk = open_desk
    path = desk.state if level == "runs" else desk.state.parent
    for each in (path, *path.rglob("*")):
        os.chown(each, 0, 0)
    path.chmod(0o700)
    refused_at_once(desk, desk.state, "Permission denied", uid=NOBODY)


@pytest.mark.parametrize("level", ["runs", "fisk-ai", "xdg"])
def test_b63_a_plain_file_in_place_of_the_directory_is_named(desk: Desk, level: str) -> None:
    """A plain file stood where the folder belongs. jahwag/clem#128"""
    path = desk.directory / {"runs": "xdg/fisk-ai/runs", "fisk-ai": "xdg/fisk-ai", "xdg": "xdg"}[level]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not a directory")
    refused_at_once(desk, desk.state, "Not a directory")
    assert path.read_text() == "not a directory"


BASES: dict[str, tuple[str | None, str | None, str]] = {
    "xdg": ("{0}/xdg", "{0}/home", "xdg"),
    "xdg and no home": ("{0}/xdg", None, "xdg"),
    "xdg and an empty home": ("{0}/xdg", "", "xdg"),
    "xdg unset": (None, "{0}/home", "home/.local/state"),
    "xdg empty": ("", "{0}/home", "home/.local/state"),
    "xdg relative": ("state", "{0}/home", "home/.local/state"),
    "xdg dot": ("./state", "{0}/home", "home/.local/state"),
    "xdg tilde": ("~/x", "{0}/home", "home/.local/state"),
    "home unset": (None, None, "account/.local/state"),
    "home empty": ("", "", "account/.local/state"),
    "home unset and xdg relative": ("state", None, "account/.local/state"),
    "home missing": (None, "{0}/missing", "missing/.local/state"),
}


def in_a_work_tree(desk: Desk) -> set[str]:
    """Make the working directory one of git's; return what is in it."""
    (desk.directory / ".git").mkdir()
    (desk.directory / "account").mkdir()
    return {path.name for path in desk.directory.iterdir()}


def with_account(desk: Desk, home: str) -> Any:
    """Give this user an entry in the user database whose home is `home`."""
    entry = pwd.struct_passwd(("me", "x", os.geteuid(), os.getegid(), "", home, "/bin/sh"))

    def change() -> None:
        pwd.getpwuid = lambda _uid: entry

    return change


@pytest.mark.parametrize(("xdg", "home", "where"), BASES.values(), ids=BASES)
def test_b64_odd_base_variables_never_move_state_into_the_working_directory(
    desk: Desk, xdg: str | None, home: str | None, where: str
) -> None:
    """Relative, empty or missing variables made state appear in the current folder, or in one called `~`.

    A home that doesn't exist is made, as the XDG specification asks of base directories.
    tox-dev/platformdirs#539, ActiveState/appdirs#61, hivecommons/hive#638
    """
    before = in_a_work_tree(desk)
    env = {name: value and value.format(desk.directory) for name, value in (("XDG_STATE_HOME", xdg), ("HOME", home))}
    account = with_account(desk, str(desk.directory / "account"))
    done = desk.does("run", "--checkpoint", "--name", "r", "hello", env=env, before=account)
    assert (done.code, done.out) == (0, b"The answer is 42.\n")
    assert [path.relative_to(desk.directory) for path in desk.directory.rglob("r.json")] == [
        Path(where, "fisk-ai/runs/r.json")
    ]
    assert {path.name for path in desk.directory.iterdir()} == before | {where.partition("/")[0]}
    assert desk.does("session", "show", "r", env=env, before=account).code == 0


NO_HOME: dict[str, tuple[str | None, str | None, str, int]] = {
    "relative home": (None, "home", "no place for runs", 2),
    "tilde": ("~/x", "~", "no place for runs", 2),
    "account without one": (None, None, "no place for runs", 2),
    "both empty, account without one": ("", "", "no place for runs", 2),
    "home below a file": (None, "{0}/agent.yaml/home", "Not a directory", 1),
    "home that is a file": (None, "{0}/agent.yaml", "Not a directory", 1),
}


@pytest.mark.parametrize(("xdg", "home", "says", "code"), NO_HOME.values(), ids=NO_HOME)
def test_b64_no_usable_home_is_a_clear_error(
    desk: Desk, xdg: str | None, home: str | None, says: str, code: int
) -> None:
    """Without a home programs failed in odd ways. tox-dev/platformdirs#539, ActiveState/appdirs#61"""
    before = in_a_work_tree(desk)
    env = {name: value and value.format(desk.directory) for name, value in (("XDG_STATE_HOME", xdg), ("HOME", home))}
    for args in (("run", "--checkpoint", "hello"), ("session", "ls")):
        refused = desk.does(*args, env=env, before=with_account(desk, ""))
        assert (refused.code, refused.out, refused.err.count("\n")) == (code, b"", 1), refused
        assert says in refused.err
        assert "XDG_STATE_HOME" in refused.err
    assert {path.name for path in desk.directory.iterdir()} == before
    assert desk.does("run", "hello", env=env, before=with_account(desk, "")).code == 0


def watch_creations(log: Path) -> Any:
    """Note the mode of everything that is created, the instant it is there."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    make, open_ = os.mkdir, os.open

    def note(name: Any, mode: int) -> None:
        os.write(descriptor, f"{os.path.basename(name)} {stat.S_IMODE(mode):o}\n".encode())

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(path, mode, dir_fd=dir_fd)
        note(path, os.stat(path, dir_fd=dir_fd).st_mode)

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        number = open_(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            note(path, os.fstat(number).st_mode)
        return number

    def watch() -> None:
        os.mkdir, os.open = mkdir, opened

    return watch


@pytest.mark.parametrize("uid", [None, pytest.param(NOBODY, marks=only_root)], ids=["self", "ordinary user"])
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o377], ids=lambda mask: f"{mask:03o}")
def test_b65_nobody_else_can_read_a_run_from_the_first_instant_whatever_the_umask(umask: int, uid: int | None) -> None:
    """Transcripts with secrets were readable for every local user, because the umask made the mode.

    openclaw/openclaw#7862, paperclipai/paperclip#11611, nvbn/thefuck#1621, ducaale/xh#476
    """
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        desk = Desk(Path(root))
        desk.agent(
            [{"calls": [{"name": "true"}]}, ANSWER, ANSWER], [{"name": "true", "description": "d", "argv": ["true"]}]
        )
        for path in Path(root).rglob("*"):
            os.chown(path, -1 if uid is None else uid, -1)
        log = Path(root) / "log"
        how: dict[str, Any] = {"umask": umask, "uid": uid, "before": watch_creations(log)}
        try:
            first = desk.does("run", "--chat", "--checkpoint", "--name", "r", "hello", **how)
            assert (first.code, first.out) == (0, b"The answer is 42.\n"), first
            with (desk.state / "r.json").open("ab") as file:
                file.write(b"{torn")
            second = desk.does("run", "--resume", "r", stdin=b"more\n", **how)
            assert (second.code, second.out) == (0, b"The answer is 42.\n"), second
            assert desk.does("session", "fork", "r", "--name", "f", **how).code == 0
        finally:
            desk.stop()
        created = [line.rsplit(" ", 1) for line in log.read_text().splitlines()]
        names = {name for name, _ in created}
        files = {"r.json", "r.lock", "r.tools", "r.torn", "f.json", "f.lock"}
        assert names >= (files - {"f.json"}) | {"xdg", "fisk-ai", "runs"}  # a fork may have begun under another name
        for name, mode in created:
            assert int(mode, 8) & 0o077 == 0, (name, mode)
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in desk.state.iterdir()} == dict.fromkeys(
            files, 0o600
        )
        for level in (desk.state, desk.state.parent, desk.state.parent.parent):
            assert stat.S_IMODE(level.stat().st_mode) == 0o700
