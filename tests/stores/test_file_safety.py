"""Nobody else reads a run, and nothing that isn't a plain file of ours is taken for one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fisk_ai.errors import ConfigError, InvalidRunId, NotPermitted, RunNotFound, StoreError
from fisk_ai.stores import FileStore, open_store
from fisk_ai.stores.directory import default_directory
from fisk_ai.stores.disk import OsDisk
from tests.stores.contract import ODD_IDS, REFUSED_IDS
from tests.stores.faults import Fault, FaultyDisk
from tests.stores.processes import NOBODY, in_child
from tests.stores.test_file_order import plant
from tests.strategies import RUN_ID, ended, journal_bytes, lines_of, meta, turn

# Python 3.12 and later warn of any fork beside threads; the children here touch no thread's lock.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act for two users")
WHOLE = journal_bytes([meta(), turn("a")])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user reaches, owned by an ordinary one where we may say so."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


class Watched(OsDisk):
    """Checks the mode of a file before anything is written to it."""

    def write(self, descriptor: int, data: bytes) -> None:
        assert self.facts(descriptor).mode == 0o600
        super().write(descriptor, data)

    def overwrite(self, descriptor: int, data: bytes) -> None:
        assert self.facts(descriptor).mode == 0o600
        super().overwrite(descriptor, data)


@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=only_root)], ids=["self", "ordinary user"])
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077, 0o377], ids=oct)
def test_modes_do_not_depend_on_the_umask(shared: Path, umask: int, user: int | None) -> None:
    directory = shared / "state" / "fisk-ai" / "runs"
    created: list[int] = []

    def live() -> list[int]:
        chmod = os.fchmod

        def spy(fd: int, mode: int) -> None:
            created.append(stat.S_IMODE(os.fstat(fd).st_mode))
            chmod(fd, mode)

        os.fchmod = spy
        store = FileStore(str(directory), disk=Watched())
        with store.create(RUN_ID, meta()) as journal:
            journal.append(ended())
        with (directory / f"{RUN_ID}.json").open("ab") as file:
            file.write(b"{torn")
        with store.open(RUN_ID) as journal, journal.guard_call("lookup", "a", 1.0):
            journal.append(ended())
        return created

    at_creation = in_child(live, umask=umask, uid=user)
    assert len(at_creation.split(",")) == 7
    assert all(int(mode) & 0o077 == 0 for mode in at_creation.strip("[]").split(","))
    for level in (directory, directory.parent, directory.parent.parent):
        assert mode_of(level) == 0o700
    assert {path.name: mode_of(path) for path in directory.iterdir()} == {
        f"{RUN_ID}{suffix}": 0o600 for suffix in (".json", ".lock", ".torn", ".tools")
    }


def test_what_is_too_open_is_put_right_by_writers_only(store: FileStore, directory: Path) -> None:
    path = plant(directory, WHOLE + b"{torn")
    for suffix in (".lock", ".torn", ".tools"):
        path.with_suffix(suffix).write_bytes(b"")
    every = [directory, *directory.iterdir()]
    for each in every:
        each.chmod(0o777 if each == directory else 0o666)
    before = [mode_of(each) for each in every]
    store.load(RUN_ID)
    store.list()
    store.info(RUN_ID)
    store.open(RUN_ID).close()
    with store.open(RUN_ID) as journal:
        journal.records()
        assert [mode_of(each) for each in every] == before
        journal.repair()
        with journal.guard_call("lookup", "a", None):
            pass
    assert [mode_of(each) for each in every] == [0o700, *[0o600] * 4]


def test_a_loose_directory_is_put_right_by_who_creates(store: FileStore, directory: Path) -> None:
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    store.create(RUN_ID, meta()).close()
    assert mode_of(directory) == 0o700


Place = Callable[[Path], object]


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
        listener.bind(path.name)


def give_away(path: Path) -> None:
    path.write_bytes(WHOLE)
    os.chown(path, NOBODY, NOBODY)


def objects(target: Path) -> dict[str, Place]:
    """What may stand in place of a file; `target` is a good file elsewhere."""
    kinds: dict[str, Place] = {
        "symbolic link": lambda path: path.symlink_to(target),
        "dangling link": lambda path: path.symlink_to(target.with_name("nowhere")),
        "hard link": lambda path: path.hardlink_to(target),
        "fifo": os.mkfifo,
        "directory": Path.mkdir,
        "socket": bind,
    }
    if os.geteuid() == 0:
        kinds["device"] = lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        kinds["another user's file"] = give_away
    return kinds


KINDS = [
    "symbolic link", "dangling link", "hard link", "fifo", "directory", "socket",
    pytest.param("device", marks=only_root), pytest.param("another user's file", marks=only_root),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_taken_for_a_journal(store: FileStore, directory: Path, tmp_path: Path, kind: str) -> None:
    target = plant(tmp_path / "elsewhere", WHOLE)
    plant(directory, WHOLE.replace(RUN_ID.encode(), b"good"), "good").unlink()
    store.create("good", meta("good")).close()
    objects(target)[kind](directory / f"{RUN_ID}.json")
    for action in (store.open, store.load, lambda run_id: store.create(run_id, meta()), read_all(store)):
        with pytest.raises(NotPermitted) as caught:
            action(RUN_ID)
        assert str(directory / f"{RUN_ID}.json") in str(caught.value)
    assert store.info(RUN_ID).status == "unreadable"
    assert {info.run_id: info.status for info in store.list()} == {"good": "interrupted", RUN_ID: "unreadable"}
    assert target.read_bytes() == WHOLE
    assert not target.with_name("nowhere").exists()
    if kind == "directory":
        with pytest.raises(NotPermitted):
            store.delete(RUN_ID)
    else:
        store.delete(RUN_ID)
        assert list(store.run_ids()) == ["good"]
    assert target.read_bytes() == WHOLE


def read_all(store: FileStore) -> Callable[[str], object]:
    return lambda run_id: list(store.read_bytes(run_id))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_taken_for_a_lock(store: FileStore, directory: Path, tmp_path: Path, kind: str) -> None:
    target = plant(tmp_path / "elsewhere", WHOLE)
    path = plant(directory, WHOLE)
    objects(target)[kind](path.with_suffix(".lock"))
    for action in (store.open, store.delete, lambda run_id: store.create(run_id, meta())):
        with pytest.raises(NotPermitted, match="lock"):
            action(RUN_ID)
    assert store.load(RUN_ID).last_seq == 2
    assert store.info(RUN_ID).status == "interrupted"
    assert path.read_bytes() == target.read_bytes() == WHOLE
    assert not target.with_name("nowhere").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_takes_what_is_cut(store: FileStore, directory: Path, tmp_path: Path, kind: str) -> None:
    target = plant(tmp_path / "elsewhere", WHOLE)
    path = plant(directory, WHOLE + b"{torn")
    objects(target)[kind](path.with_suffix(".torn"))
    with store.open(RUN_ID) as journal, pytest.raises(StoreError):
        journal.append(ended())
    assert path.read_bytes() == WHOLE + b"{torn"  # what can't be kept isn't cut
    assert target.read_bytes() == WHOLE
    assert not target.with_name("nowhere").exists()


@only_root
def test_a_directory_of_somebody_else_is_refused_by_everyone(store: FileStore, directory: Path) -> None:
    plant(directory, WHOLE)
    os.chown(directory, NOBODY, NOBODY)
    actions: list[Callable[[], object]] = [
        lambda: store.create("new", meta("new")), lambda: store.open(RUN_ID), lambda: store.load(RUN_ID),
        store.list, store.run_ids, lambda: store.delete(RUN_ID), lambda: store.info(RUN_ID),
    ]  # fmt: skip
    for action in actions:
        with pytest.raises(NotPermitted, match="another user"):
            action()
    assert [path.name for path in directory.iterdir()] == [f"{RUN_ID}.json"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        store = FileStore(str(path))
        for action in (lambda store=store: store.create(RUN_ID, meta()), store.list):
            with pytest.raises(NotPermitted, match="--state-dir or XDG_STATE_HOME"):
                action()
    assert (tmp_path / "file").read_bytes() == b""


@only_root
def test_a_read_only_directory_can_be_read_and_says_why_it_takes_no_run(shared: Path) -> None:
    directory = shared / "runs"
    in_child(lambda: FileStore(str(directory)).create(RUN_ID, meta()).close(), uid=NOBODY)
    directory.chmod(0o500)

    def look() -> str:
        store = FileStore(str(directory))
        with pytest.raises(NotPermitted) as caught:
            store.create("new", meta("new"))
        assert str(directory) in str(caught.value)
        assert "XDG_STATE_HOME" in str(caught.value)
        return f"{store.load(RUN_ID).last_seq} {[info.status for info in store.list()]}"

    assert in_child(look, uid=NOBODY) == "1 ['interrupted']"
    assert sorted(path.name for path in directory.iterdir()) == [f"{RUN_ID}.json", f"{RUN_ID}.lock"]


@only_root
def test_a_root_owned_directory_is_named_before_anything_is_made(shared: Path) -> None:
    directory = shared / "fisk-ai"
    directory.mkdir(mode=0o700)

    def try_it() -> str:
        with pytest.raises(NotPermitted) as caught:
            FileStore(str(directory / "runs")).create(RUN_ID, meta())
        return str(caught.value)

    assert "Permission denied" in in_child(try_it, uid=NOBODY)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("problem", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("operation", ["make_directory", "create_file", "open_directory"])
def test_a_place_that_takes_nothing_is_not_permitted(directory: Path, operation: str, problem: int) -> None:
    number = 2 if operation == "open_directory" else 1  # the first is of the parent, which need not be readable
    store = FileStore(str(directory), disk=FaultyDisk(Fault(operation, number, problem)))
    with pytest.raises(NotPermitted) as caught:
        store.create(RUN_ID, meta())
    assert os.strerror(problem) in str(caught.value)
    assert str(directory) in str(caught.value)


def test_a_link_that_appears_where_a_directory_is_made_is_not_followed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()

    class LinkedMeanwhile(OsDisk):
        def make_directory(self, parent: int, name: str) -> int:
            os.symlink(tmp_path / "elsewhere", name, dir_fd=parent)
            return super().make_directory(parent, name)

    with pytest.raises(NotPermitted):
        FileStore(str(directory), disk=LinkedMeanwhile()).create(RUN_ID, meta())
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("run_id", REFUSED_IDS)
def test_ids_are_refused_before_the_disk_is_touched(store: FileStore, disk: FaultyDisk, run_id: str) -> None:
    actions: list[Callable[[str], object]] = [
        store.open, store.load, store.info, store.delete, read_all(store), lambda text: store.create(text, meta(text)),
    ]  # fmt: skip
    for action in actions:
        with pytest.raises(InvalidRunId) as caught:
            action(run_id)
        assert "1-100 of a-z 0-9 . _ -" in str(caught.value)
    assert disk.log == []


def test_odd_but_legal_ids_stay_below_the_directory(store: FileStore, directory: Path, tmp_path: Path) -> None:
    for run_id in ODD_IDS:
        store.create(run_id, meta(run_id)).close()
    assert {path.name for path in directory.iterdir()} == {
        f"{run_id}{suffix}" for run_id in ODD_IDS for suffix in (".json", ".lock")
    }
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


HOME = "/home/somebody"
STATE = "fisk-ai/runs"


@pytest.mark.parametrize(
    ("xdg", "home", "wanted"),
    [
        ("/var/state", HOME, f"/var/state/{STATE}"),
        ("/var/state", None, f"/var/state/{STATE}"),
        ("/var/state", "", f"/var/state/{STATE}"),
        (None, HOME, f"{HOME}/.local/state/{STATE}"),
        ("", HOME, f"{HOME}/.local/state/{STATE}"),
        ("state", HOME, f"{HOME}/.local/state/{STATE}"),
        ("./state", HOME, f"{HOME}/.local/state/{STATE}"),
        ("~/x", HOME, f"{HOME}/.local/state/{STATE}"),
        (None, "/", f"/.local/state/{STATE}"),
    ],
)
def test_the_directory_follows_the_xdg_rules(
    monkeypatch: pytest.MonkeyPatch, xdg: str | None, home: str | None, wanted: str
) -> None:
    set_variables(monkeypatch, xdg, home)
    assert default_directory() == wanted
    assert FileStore().directory == wanted
    assert open_store("file").location == wanted


def set_variables(monkeypatch: pytest.MonkeyPatch, xdg: str | None, home: str | None) -> None:
    for name, value in (("XDG_STATE_HOME", xdg), ("HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("home", [None, ""])
def test_without_a_home_variable_the_user_database_is_asked(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    import pwd

    set_variables(monkeypatch, None, home)
    assert default_directory() == os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".local/state", STATE)


@pytest.mark.parametrize("home", ["relative", "~", "./x"])
def test_a_home_that_cannot_be_one_is_an_error_and_nothing_appears(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    monkeypatch.chdir(tmp_path)
    set_variables(monkeypatch, "state", home)
    with pytest.raises(ConfigError, match="--state-dir"):
        FileStore()
    assert list(tmp_path.iterdir()) == []


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def nobody(_: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for home in (None, ""):
        set_variables(monkeypatch, None, home)
        with pytest.raises(ConfigError, match="no home directory"):
            default_directory()


def test_the_working_directory_stays_clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    set_variables(monkeypatch, "state", str(tmp_path / "home"))
    FileStore().create(RUN_ID, meta()).close()
    assert list(work.iterdir()) == []
    assert (tmp_path / "home" / ".local/state" / STATE / f"{RUN_ID}.json").exists()


@pytest.mark.parametrize(("url", "wanted"), [("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("memory:", "memory")])
def test_a_url_names_a_store(url: str, wanted: str) -> None:
    assert open_store(url).location == wanted


@pytest.mark.parametrize("url", ["", "fiel", "http://x", "memory", "memory:x"])
def test_a_url_that_names_none_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url)


def test_constructing_and_looking_make_nothing(store: FileStore, directory: Path) -> None:
    assert store.list() == []
    assert list(store.run_ids()) == []
    with pytest.raises(RunNotFound):
        store.open(RUN_ID)
    assert not directory.parent.exists()


def test_a_torn_run_of_another_mode_keeps_its_bytes_private(store: FileStore, directory: Path) -> None:
    path = plant(directory, lines_of([meta()])[0] + b"{secret")
    path.with_suffix(".torn").write_bytes(b"old")
    path.with_suffix(".torn").chmod(0o644)
    with store.open(RUN_ID) as journal:
        journal.repair()
    assert mode_of(path.with_suffix(".torn")) == 0o600
    assert path.with_suffix(".torn").read_bytes() == b"old{secret"
