"""What the tests of the command line share: a directory with an agent in it, and the program run there."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fisk_ai.agent.assemble import load_agent
from fisk_ai.messages import tool_result
from fisk_ai.records import (
    AssistantRecord,
    MetaRecord,
    Reason,
    Record,
    TerminalRecord,
    ToolResultRecord,
)
from fisk_ai.stores import FileStore

Snapshot = dict[str, tuple[bytes, int, int]]
NOTE_TOOL: Mapping[str, Any] = {
    "name": "note",
    "description": "Notes that it ran.",
    "argv": ["sh", "-c", "echo $FISK_AI_IDEMPOTENCY_KEY >> effects; echo noted {what}"],
    "parameters": {"what": {"type": "string"}},
}
SLOW_TOOL: Mapping[str, Any] = {
    "name": "slow",
    "description": "Works until it is told to stop.",
    "argv": ["sh", "-c", "echo begun >> effects; while [ ! -e go ]; do sleep 0.02; done; echo ended >> effects"],
}


@dataclass(frozen=True)
class Done:
    """A process that has ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def last_line(self) -> str:
        """The last line of stderr."""
        return self.err.rstrip("\n").rpartition("\n")[2]


class Bench:
    """A directory with agent.yaml, its script, and the state of its runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "xdg" / "fisk-ai" / "runs"
        home = directory / "home"
        home.mkdir()
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_STATE_HOME": str(directory / "xdg"),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.agent([{"text": "The answer is 42."}])

    @property
    def store(self) -> FileStore:
        return FileStore(str(self.state))

    def agent(
        self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (NOTE_TOOL,), **llm: Any
    ) -> None:
        """Write agent.yaml and the turns that its model plays."""
        config = {
            "identity": "bench",
            "system_prompt": "You report.",
            "llm": {"provider": "scripted", "script": "turns.yaml", **llm},
            "tools": {"commands": [dict(tool) for tool in tools]},
        }
        (self.directory / "turns.yaml").write_text(_yaml(list(turns)))
        (self.directory / "agent.yaml").write_text(_yaml(config))

    def start(
        self,
        *args: str,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start the program."""
        process = subprocess.Popen(
            [sys.executable, "-m", "fisk_ai", *args],
            cwd=self.directory,
            env={**self.env, **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        self._started.append(process)
        return process

    def stop(self) -> None:
        """End what a failed test left running."""
        for process in self._started:
            process.kill()
            process.communicate()

    def cli(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
        """Run the program to its end; no way of using it may show a traceback."""
        process = self.start(*args, stdin=subprocess.PIPE, env=env)
        return self.wait(process, stdin)

    def wait(self, process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Done:
        """Wait for the end of a process."""
        out, err = process.communicate(stdin, timeout=60)
        done = Done(process.returncode, out or b"", (err or b"").decode())
        assert "Traceback" not in done.err, done.err
        return done

    def paste(self, line: str, *, stdin: bytes = b"") -> Done:
        """Run a line as a shell would run it in the same directory."""
        shell = subprocess.run(
            ["bash", "-c", line], cwd=self.directory, env=self.env, input=stdin, capture_output=True, timeout=60
        )
        return Done(shell.returncode, shell.stdout, shell.stderr.decode())

    def wait_for(self, name: str, lines: int = 1) -> None:
        """Wait until a file in the directory has this many lines; fails after 30 s."""
        path = self.directory / name
        for _ in range(3000):
            if path.exists() and path.read_bytes().count(b"\n") >= lines:
                return
            signal.sigtimedwait((), 0.01)
        raise AssertionError(f"{name} never had {lines} lines")

    @property
    def effects(self) -> list[str]:
        path = self.directory / "effects"
        return path.read_text().split() if path.exists() else []

    def stored(self, run_id: str, *records: Record, prompt: str = "hello", interactive: bool = False) -> Path:
        """Store a run that a process with the current agent.yaml could have left."""
        meta = MetaRecord(
            version=2,
            run_id=run_id,
            created="2026-12-01T03:21:00.123Z",
            fingerprint=load_agent(str(self.directory / "agent.yaml")).fingerprint,
            prompt=prompt,
            checksums=True,
            interactive=interactive,
        )
        with self.store.create(run_id, meta) as journal:
            for record in records:
                journal.append(record)
        return self.state / f"{run_id}.json"

    def snapshot(self) -> Snapshot:
        """Return bytes, mtime and mode of everything in the state directory, but for the locks' times."""
        return dict(self._files())

    def _files(self) -> Iterator[tuple[str, tuple[bytes, int, int]]]:
        for path in sorted(self.state.parent.rglob("*")) if self.state.exists() else ():
            if path.suffix != ".lock" and not path.is_dir():
                found = path.lstat()
                yield str(path), (path.read_bytes(), found.st_mtime_ns, found.st_mode)


def _yaml(value: Any) -> str:
    """Return YAML, which is JSON but for characters beyond U+FFFF: it doesn't join halves of a pair."""
    text = json.dumps(value, indent=1)
    pair = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
    return pair.sub(lambda match: "\\U" + format(ord(json.loads('"' + match[0] + '"')), "08x"), text)


def turn(text: str = "", *calls: str, seq: int = 0, stop: str | None = None, tool: str = "note") -> AssistantRecord:
    """Return a model turn with a call for each id."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    given = {"what": "a"} if tool == "note" else {}
    content += [{"type": "tool_use", "id": call, "name": tool, "input": given} for call in calls]
    return AssistantRecord(
        iteration=seq,
        format="anthropic",
        message=msgspec.Raw(msgspec.json.encode({"role": "assistant", "content": content})),
        stop_reason=stop or ("tool_use" if calls else "end_turn"),
        in_tokens=10,
        out_tokens=5,
    )


def result(call: str, text: str = "noted") -> ToolResultRecord:
    """Return the result of a call."""
    return ToolResultRecord(tool_use_id=call, result=msgspec.Raw(tool_result(call, text)), name="note", duration_ms=10)


def end(reason: Reason, message: str | None = None) -> TerminalRecord:
    """Return an end."""
    return TerminalRecord(reason=reason, message=message)


def command_in(text: str) -> str:
    """Return the command that the last line of a text is, checked to be one of the program's."""
    line = text.rstrip("\n").rpartition("\n")[2]
    assert shlex.split(line.replace("$'", "'"))[0] == "fisk-ai", line
    return line
