"""Too little of everything: file systems of a few pages, no descriptors, no memory."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fisk_ai.errors import FiskError, JournalClosed, JournalFailed, NothingRecorded, RunNotFound
from fisk_ai.records import TerminalRecord
from fisk_ai.stores.file import FileJournal, FileStore
from fisk_ai.stores.meta import new_meta
from tests.reliability.trials import require
from tests.reliability.victims import Victim
from tests.stores.faults import FastDisk

T = TypeVar("T")

_NEW_MOUNT_NAMESPACE = 0x00020000
_PATIENCE_S = 30
_QUIET = 60
"""So many allocations in a row that fail without effect lie behind the last one of an action."""
RUN = "scarce"
END = TerminalRecord(reason="error", message="as the test says")


def in_private_mounts(work: Callable[[], T]) -> T:
    """Do something where mounts are seen by nobody else, and are gone afterwards whatever happens.

    A thread may have a mount namespace of its own, which the processes that it starts share.
    """
    done: Future[T] = Future()

    def inside() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNT_NAMESPACE) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            _command("mount", "--make-rprivate", "/")
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - raised where the result is waited for
            done.set_exception(problem)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    return done.result()


def why_no_mounts() -> str | None:
    """Say why no file system can be mounted here, or return None."""
    if os.geteuid() != 0:
        return "needs root, to mount small file systems"
    try:
        in_private_mounts(lambda: None)
    except (OSError, subprocess.SubprocessError) as problem:
        return f"needs a mount namespace: {problem}"
    return None


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=_PATIENCE_S)


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted file system."""

    path: Path

    def grow(self, options: str = "size=1m,nr_inodes=100") -> None:
        """Let room come back."""
        _command("mount", "-o", f"remount,{options}", str(self.path))

    def fill(self, free: int) -> Path:
        """Write a file until nothing more fits, then give back this many bytes."""
        filler = self.path / "filler"
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 1024):
                pass
        os.truncate(filler, filler.stat().st_size - free)
        return filler


@contextlib.contextmanager
def small_tmpfs(path: Path, options: str) -> Iterator[SmallDisk]:
    """Mount a tmpfs at a new directory."""
    path.mkdir()
    _command("mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "none", str(path))
    try:
        yield SmallDisk(path)
    finally:
        _command("umount", str(path))


@contextlib.contextmanager
def small_ext4(path: Path) -> Iterator[SmallDisk]:
    """Mount an ext4 of 4 MB, in blocks of 1 KB, at a new directory."""
    image = path.with_name(path.name + ".image")
    with image.open("wb") as file:
        file.truncate(4 << 20)
    _command("mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0", str(image))
    path.mkdir()
    _command("mount", "-o", "loop", str(image), str(path))
    try:
        os.chmod(path, 0o700)
        yield SmallDisk(path)
    finally:
        _command("umount", str(path))


def why_no_hooks() -> str | None:
    """Say why no allocation can be made to fail, or return None."""
    if importlib.util.find_spec("_testcapi") is None:
        return "needs an interpreter with the module `_testcapi`"
    return None


def _store(victim: Victim) -> FileStore:
    return FileStore(os.path.join(victim.directory, "scarce"), disk=FastDisk())


def _begun(store: FileStore) -> None:
    with store.create(RUN, _meta(RUN)) as journal:
        journal.append(END)


def _meta(run_id: str) -> Any:
    return new_meta(run_id, "Count the sheep.", provider="scripted", model="scripted")


def _open_files() -> list[str]:
    """Return what this process has open of a run."""
    paths = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sorted(target for path in paths if "scarce" in (target := _target(path)))


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def _use(store: FileStore) -> None:
    with store.open(RUN) as journal:
        journal.append(END)
    store.load(RUN)
    store.list()
    with store.create("scarce-too", _meta("scarce-too")) as journal:
        journal.append(END)
    store.delete("scarce-too")


def short_of_descriptors(victim: Victim) -> dict[str, int]:
    """A job: use a store with 0, 1, 2, ... free descriptors until there are enough; count what came of it."""
    store = _store(victim)
    _begun(store)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    endings: Counter[str] = Counter()
    for more in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, limits[1]))
        try:
            _use(store)
            ending = "enough"
        except FiskError as problem:
            require("Too many open files" in str(problem), f"{more} free: {problem}", kind="undetected")
            ending = problem.code
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        endings[ending] += 1
        require(not _open_files(), f"{more} free: left open:", _open_files())
        with contextlib.suppress(RunNotFound):
            store.delete("scarce-too")
        store.open(RUN).close()  # or it would be locked
        if ending == "enough":
            return dict(endings)
    raise AssertionError("there never were enough descriptors")


def short_of_memory(victim: Victim) -> dict[str, int]:
    """A job: let the N-th allocation of an open, append or close fail, for each few N; count what came of it.

    One allocation at a time: where several in a row fail, closing what was opened may fail as well.
    """
    store = _store(victim)
    _begun(store)
    base = b"".join(store.read_bytes(RUN))
    step = int(victim.arguments[0])
    endings: Counter[str] = Counter()
    for action in ("open", "create", "append", "close"):
        for torn in (b"", b'{"seq":3,'):
            quiet = 0
            for number in range(0, 5000, step):
                _reset(store, base + torn)
                ending = _in_child(partial(_starve, store, action, number))
                endings[f"{action}: {ending}"] += 1
                require(ending != "broken", f"{action} with allocation {number} failing: see stderr")
                quiet = quiet + step if ending == "done" else 0
                if quiet > _QUIET:
                    break
            require(quiet > _QUIET, f"{action} never passed undisturbed", kind="undetected")
    return dict(endings)


def _reset(store: FileStore, data: bytes) -> None:
    for name in os.listdir(store.directory):
        os.unlink(os.path.join(store.directory, name))
    descriptor = os.open(store.path(RUN), os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)


def _in_child(work: Callable[[], str]) -> str:
    """Return what a function returns in a forked process; the interpreter itself may die of it."""
    result, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "broken"
        try:
            said = work()
        except BaseException as problem:  # noqa: BLE001 - told by the parent
            os.write(2, f"{type(problem).__name__}: {problem}\n".encode())
        finally:
            os.write(says, json.dumps(said).encode())
            os._exit(0)
    os.close(says)
    with open(result, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return str(json.loads(answer)) if answer else "the interpreter died"


def _starve(store: FileStore, action: str, number: int) -> str:
    _testcapi = importlib.import_module("_testcapi")  # not part of every interpreter
    journal = store.open(RUN) if action in ("append", "close") else None
    meta = _meta("scarce-too")
    ending = "done"
    other: FileJournal | None = None
    noise = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the interpreter tells of errors that it can't raise
    try:
        _testcapi.set_nomemory(number, number + 1)
        match action, journal:
            case "open", None:
                journal = store.open(RUN)
            case "create", None:
                other = store.create("scarce-too", meta)
            case "append", FileJournal():
                journal.append(END)
            case "close", FileJournal():
                journal.close()
    except (MemoryError, SystemError, RuntimeError) as problem:  # the last two are the interpreter's own troubles
        _testcapi.remove_mem_hooks()
        ending = type(problem).__name__
    finally:
        _testcapi.remove_mem_hooks()
        os.dup2(noise, 2)
    if other is not None:
        other.close()
    _require_sound(store, journal)
    return ending


def _require_sound(store: FileStore, journal: FileJournal | None) -> None:
    """The journal is right or unusable, the run is free once it is closed, and what was there is there."""
    if journal is not None:
        with contextlib.suppress(JournalFailed, JournalClosed):
            require(journal.append(END) == store.load(RUN).last_seq, "a wrong seq")
        journal.close()
    left = [path for path in _open_files() if not path.endswith("/scarce")]
    require(not left, "left open:", left)
    with store.open(RUN) as again:
        require(again.append(END) >= 3, "records are gone")
    with contextlib.suppress(RunNotFound, NothingRecorded, JournalFailed):
        store.open("scarce-too").close()
