"""The program in forked processes, a hundred times as quick to start as cold ones, and what a refusal may leave."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from fisk_ai.cli.main import main
from tests.cli.bench import Bench, Done
from tests.cli.conftest import Inline
from tests.crash.commands import is_alive
from tests.providers.strict_server import KEY

NOBODY = 65534
PATIENCE_S = 30.0
KILLED = -int(signal.SIGKILL)

# Python 3.12 and later warn of any fork beside threads; the children here touch no thread's lock.
forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to become another user, or to mount")


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Return what `condition` gives as soon as that is true."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.003)
    return found


class Forked:
    """The program in a child of this process, with streams of its own."""

    def __init__(self, pid: int, out: Path, err: Path) -> None:
        self.pid = pid
        self._out = out
        self._err = err
        self._code: int | None = None

    @property
    def code(self) -> int | None:
        """The exit code, minus the number of the signal that ended it, or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    @property
    def said(self) -> str:
        """What stderr got so far."""
        return self._err.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def says(self, text: str) -> None:
        """Wait until stderr shows a text."""
        until(lambda: text in self.said or self.code is not None, repr(text))
        assert text in self.said, self.said

    def ends(self, patience_s: float = PATIENCE_S) -> Done:
        """Wait for the end; no way of using the program may show a traceback."""
        until(lambda: self.code is not None, "the end of the process", patience_s)
        assert self.code is not None
        assert "Traceback" not in self.said, self.said
        return Done(self.code, self._out.read_bytes(), self.said)

    def stop(self) -> None:
        """End what a failed test left running."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            until(lambda: self.code is not None, "the end of a killed process")


class Desk(Bench):
    """A bench whose processes are forked, which makes many of them affordable."""

    inline: Inline | None = None
    """Runs the program within this process; see `quick`."""

    def __init__(self, root: Path) -> None:
        directory, self._streams = root / "desk", root / "streams"
        directory.mkdir()
        self._streams.mkdir()
        super().__init__(directory)
        self._forked: list[Forked] = []

    def fork(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        umask: int | None = None,
        uid: int | None = None,
        before: Callable[[], object] | None = None,
    ) -> Forked:
        """Start the program; `before` runs in its process first. In `env` None takes a variable away."""
        number = len(self._forked)
        streams = [self._streams / f"{name}-{number}" for name in ("in", "out", "err")]
        streams[0].write_bytes(stdin)
        for path in streams[1:]:
            path.write_bytes(b"")
        changed = {**self.env, **(env or {})}
        environment = {name: value for name, value in changed.items() if value is not None}
        _warm_up()
        pid = os.fork()
        if pid == 0:
            _become(args, streams, environment, cwd or self.directory, (umask, uid, before))
        child = Forked(pid, streams[1], streams[2])
        self._forked.append(child)
        return child

    def does(self, *args: str, **how: Any) -> Done:
        """Run the program to its end; within this process where that can be and is enough."""
        if self.inline is not None and not how:
            return self.inline(*args)
        return self.fork(*args, **how).ends()

    def refuses(self, *args: str, code: int, names: str = "r", **how: Any) -> str:
        """Run what must be refused: one line that names the run, no answer, and no file that is not as it was."""
        before = self.snapshot()
        refused = self.does(*args, **how)
        assert (refused.code, refused.out) == (code, b""), refused
        assert refused.err.count("\n") == 1, refused.err
        assert refused.err.startswith("fisk-ai: ")
        assert names in refused.err, refused.err
        assert self.snapshot() == before
        return refused.err

    def stop(self) -> None:
        for child in self._forked:
            child.stop()
        super().stop()

    def records(self, run_id: str = "r") -> list[str]:
        """The kinds of a run's records, in order; of an end its reason, of a resume mark `resumed`."""
        kinds = []
        for item in self.store.read(run_id).records:
            name = type(item.record).__name__.removesuffix("Record")
            reason = getattr(item.record, "reason", None)
            kinds.append("resumed" if getattr(item.record, "resumed", False) else reason or name)
        return kinds


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def quick(bench: Desk, inline: Inline, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The desk that a module names `bench`, for what needs no process of its own."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    bench.inline = inline
    return bench


def gone_soon(group: int) -> bool:
    """Tell whether all processes of a group are gone within two seconds."""
    deadline = time.monotonic() + 2
    while is_alive(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@functools.cache
def _warm_up() -> None:
    """Import once what every child would import for itself."""
    for name in ("cli.run", "cli.session", "cli.info", "stores.fork", "providers.scripted", "providers.anthropic"):
        importlib.import_module(f"fisk_ai.{name}")
    anyio.run(anyio.sleep, 0)


How = tuple[int | None, int | None, Callable[[], object] | None]


def _become(args: tuple[str, ...], streams: list[Path], environment: dict[str, str], cwd: Path, how: How) -> NoReturn:
    """In the child: be the program, as if it had just been started."""
    code = 70
    gc.freeze()  # a collection would copy the pages of everything that the tests have loaded
    try:
        for number, (path, flags) in enumerate(zip(streams, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
            os.dup2(os.open(path, flags | os.O_APPEND), number)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        _change(*how)
        sys.argv = ["fisk-ai", *args]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 71
    except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _change(umask: int | None, uid: int | None, before: Callable[[], object] | None) -> None:
    if before is not None:
        before()
    if umask is not None:
        os.umask(umask)
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
