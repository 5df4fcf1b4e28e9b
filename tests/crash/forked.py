"""The command line in forked children of a process that has imported everything: a start costs milliseconds.

Orders come as JSON lines on stdin. For each, a line with the child's pid goes to stdout, and when it has ended one with
its wait status. The child stays a zombie until the next order, so that no signal to it can hit another process. Its
streams are the files `stdout` and `stderr` of the order's directory.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from fisk_ai.cli.exits import ABORTED

ROOT = Path(__file__).resolve().parents[2]
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMIT_S = 30.0
"""A process that takes longer than that hangs."""


class Order(msgspec.Struct):
    """One child."""

    arguments: Sequence[str]
    directory: str
    die_before_note: bool = False
    """Die by SIGKILL between the start of a tool's process and the note of its process group."""


@dataclass(slots=True)
class Forked:
    """A command that runs, or has ended."""

    host: Host
    directory: Path
    pid: int
    _status: int | None = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that comes too late hits nobody."""
        if self._status is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Tell whether it has ended, waiting a while."""
        if self._status is None and self.host.is_readable(within_s):
            self._status = self.host.number()
        return self._status is not None

    def says_something(self) -> None:
        """Wait for the first sign of life, or the end."""
        deadline = time.monotonic() + LIMIT_S
        while not (self.has_ended(0.002) or self.stdout or self.stderr):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was said in {LIMIT_S} s")

    def ends(self, within_s: float = LIMIT_S) -> int:
        """Wait for the end and return the exit code, minus the number of a signal that ended it."""
        if not self.has_ended(within_s):
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGKILL)
            self.has_ended(LIMIT_S)
            raise TimeoutError(f"not ended after {within_s} s: {self.stderr}")
        assert self._status is not None
        return os.waitstatus_to_exitcode(self._status)

    @property
    def stdout(self) -> str:
        return _said(self.directory / "stdout")

    @property
    def stderr(self) -> str:
        return _said(self.directory / "stderr")


def _said(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""  # killed before it could say anything


class Host:
    """The process that forks."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.crash.forked"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._last: Forked | None = None
        assert self.number() == 0  # it is warm
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end_the_last()
        self._process.communicate(timeout=LIMIT_S)

    def start(self, directory: Path, *arguments: str, die_before_note: bool = False) -> Forked:
        """Start `fisk-ai ARGUMENTS` in a directory, after the one before has ended."""
        assert self._process.stdin is not None
        for name in ("stdout", "stderr"):
            (directory / name).unlink(missing_ok=True)  # of the process before this one
        self._end_the_last()
        order = Order(arguments, str(directory), die_before_note)
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        pid = self.number()
        assert pid > 1, "a signal to anything else would hit others"
        self._last = Forked(self, directory, pid)
        return self._last

    def _end_the_last(self) -> None:
        """End what a case that failed has left running."""
        if self._last is not None and not self._last.has_ended():
            self._last.send(signal.SIGCONT)
            self._last.kill()
            self._last.ends()

    def is_readable(self, within_s: float) -> bool:
        """Tell whether it says something within a while."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within_s)[0])

    def number(self) -> int:
        """Return the next number that it says."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def main() -> None:
    """Serve orders until stdin ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)  # who starts this may ignore them
    _warm_up()
    print(0, flush=True)
    while line := sys.stdin.buffer.readline():
        order = msgspec.json.decode(line, type=Order)
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # until the child can take them
        pid = os.fork()
        if pid == 0:
            _child(order)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        print(pid, flush=True)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code != os.CLD_EXITED else ended.si_status << 8
        print(status, flush=True)
        select.select([sys.stdin], [], [])  # not reaped before there is another order
        os.waitpid(pid, 0)


def _warm_up() -> None:
    """Import all that a run and a resume import, by doing both."""
    from fisk_ai.cli import terminal
    from fisk_ai.cli.commands import run_command_line

    stdout = sys.stdout
    llm = "{provider: scripted, script: script.yaml}"
    tools = "{commands: [{name: a, description: a, argv: ['true']}]}"
    null = os.open(os.devnull, os.O_RDWR)
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("agent.yaml").write_text(f"llm: {llm}\ntools: {tools}\n")
        Path("script.yaml").write_text("[{calls: [{name: a}]}, {text: Done.}]")
        for stream in (1, 2):
            os.dup2(null, stream)
        for arguments in (["run", "go", "--checkpoint", "--name", "r"], ["session", "show", "r"]):
            assert run_command_line([*arguments, "--state-dir", "runs"]) == 0
        terminal.stdout.release()
        sys.stdout = stdout
        for stream, original in zip((1, 2), kept, strict=True):
            os.dup2(original, stream)
        os.chdir(ROOT)


def _child(order: Order) -> None:
    from fisk_ai.cli.main import main as command_line

    code: object = 70
    try:
        os.chdir(order.directory)
        for stream, name in enumerate((os.devnull, "stdout", "stderr")):
            flags = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            os.dup2(os.open(name, flags, 0o600), stream)
        if order.die_before_note:
            _die_before_note()
        sys.argv = ["fisk-ai", *order.arguments]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        command_line()
    except SystemExit as left:
        code = left.code
    except KeyboardInterrupt:
        code = ABORTED  # before the command line could see it
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _die_before_note() -> None:
    from fisk_ai.stores.orphans import ToolsLock

    def die(_lock: ToolsLock, _process_group: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    ToolsLock.started = die  # type: ignore[method-assign,assignment]  # this process ends by it


if __name__ == "__main__":
    main()
