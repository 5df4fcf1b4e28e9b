"""The real command line in real processes, with what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fisk_ai.folding import RunState
from fisk_ai.stores.base import RunInfo
from fisk_ai.stores.file import FileStore
from tests.providers.strict_server import KEY

RUN = "r7"
PATIENCE_S = 20.0

started: list[subprocess.Popen[bytes]] = []
"""All processes of a test; what is left of them is ended after it."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return what `condition` gives as soon as that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)
    return found


def is_alive(group: int) -> bool:
    """Tell whether a process of a group still runs something; a dead one may wait for ever to be reaped."""
    if not os.path.isdir("/proc/self"):
        return subprocess.run(["pgrep", "-g", str(group)], stdout=subprocess.DEVNULL, check=False).returncode == 0
    return any(_runs_in(group, Path("/proc", pid, "stat")) for pid in os.listdir("/proc") if pid.isdigit())


def _runs_in(group: int, stat: Path) -> bool:
    try:
        state, _parent, its_group = stat.read_bytes().rpartition(b")")[2].split()[:3]
    except OSError:
        return False
    return int(its_group) == group and state not in (b"Z", b"X")


class Workplace:
    """A directory with an agent.yaml, a state directory, and a file of effects."""

    def __init__(self, directory: Path, llm: dict[str, Any], tools: Sequence[dict[str, Any]]) -> None:
        self.directory = directory
        self.state_dir = directory / "state"
        document = {"llm": llm, "tools": {"commands": list(tools)}, "system_prompt": "Be brief."}
        (directory / "agent.yaml").write_text(json.dumps(document))  # JSON is YAML
        self._started = 0

    def scripted(self, turns: Sequence[dict[str, Any]]) -> None:
        (self.directory / "script.yaml").write_text(json.dumps(list(turns)))

    @property
    def environment(self) -> dict[str, str]:
        keep = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
        return keep | {"HOME": str(self.directory), "ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}

    def start(self, *arguments: str, through: Sequence[str] = (), **more: Any) -> Process:
        """Start `fisk-ai run` on this place's run, `through` another program if there is one."""
        self._started += 1
        noise = self.directory / f"stderr-{self._started}"
        command = [*through, sys.executable, "-m", "fisk_ai", "run", *arguments]
        command += ["--config", str(self.directory / "agent.yaml"), "--state-dir", str(self.state_dir)]
        with noise.open("wb") as file:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                **more,
            )
        started.append(process)
        return Process(process, noise)

    def begin(self, *arguments: str, **more: Any) -> Process:
        return self.start("go", "--checkpoint", "--name", RUN, *arguments, **more)

    def resume(self, *arguments: str, **more: Any) -> Process:
        return self.start("--resume", RUN, *arguments, **more)

    def session(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `fisk-ai session` to its end."""
        command = [sys.executable, "-m", "fisk_ai", "session", *arguments, "--state-dir", str(self.state_dir)]
        return subprocess.run(
            command, env=self.environment, cwd=self.directory, check=False, capture_output=True, text=True
        )

    @property
    def store(self) -> FileStore:
        return FileStore(str(self.state_dir))

    @property
    def state(self) -> RunState:
        return self.store.load(RUN)

    @property
    def info(self) -> RunInfo:
        return self.store.info(RUN)

    @property
    def bytes(self) -> bytes:
        return Path(self.store.path(RUN)).read_bytes()

    @property
    def ambiguous(self) -> list[str]:
        """Names of the calls that may have run."""
        pending = self.state.pending
        return [call.name for call in pending.ambiguous] if pending else []

    @property
    def effects(self) -> list[list[str]]:
        path = self.directory / "effects"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def has(self, *effect: str) -> bool:
        return any(line[: len(effect)] == list(effect) for line in self.effects)


class Process:
    """A running `fisk-ai run`."""

    def __init__(self, process: subprocess.Popen[bytes], noise: Path) -> None:
        self.process = process
        self._noise = noise

    @property
    def stderr(self) -> str:
        return self._noise.read_text(errors="replace")

    def says(self, text: str) -> None:
        until(lambda: text in self.stderr or self.process.poll() is not None, repr(text))
        assert text in self.stderr, self.stderr

    def answers(self, text: str) -> None:
        """Wait for a line on stdout."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().decode().strip() == text

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def is_told(self, number: signal.Signals) -> None:
        """Send a signal and wait until it was heard."""
        self.send(number)
        self.says(f"{number.name}:")

    def kill(self) -> None:
        self.process.kill()
        code, _ = self.finishes()
        assert code == -signal.SIGKILL

    def ends(self, *, close: bool = True) -> int:
        """Wait for the end and return the exit code; nothing but the documented ones, and never a traceback."""
        assert self.process.stdin is not None
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.process.stdin.close()
        if close and self.process.stdout is not None:
            self.process.stdout.close()
        assert "Traceback" not in self.stderr, self.stderr
        return code

    def finishes(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what stdout got."""
        code = self.ends(close=False)
        assert self.process.stdout is not None
        with self.process.stdout as file:
            return code, file.read().decode()

    def ends_soon(self) -> tuple[int, str]:
        """Finish well before anything that the run might wait for."""
        self.process.wait(PATIENCE_S)
        return self.finishes()


def shell_tool(name: str, script: str, **more: Any) -> dict[str, Any]:
    """A command tool that notes its start and end, and does something between the two."""
    note = f'echo "$1 {name} $FISK_AI_IDEMPOTENCY_KEY" >> effects'
    text = f"note() {{{{ {note}; }}}}; note start; {script.replace('{', '{{').replace('}', '}}')}; note end"
    return {"name": name, "description": f"Does {name}", "argv": ["sh", "-c", text], **more}
