"""A directory with an agent whose model is behind a relay, and the program run there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fisk_ai.records import AssistantRecord, ToolResultRecord
from fisk_ai.stores import FileStore

from .relay import ANSWER_LIMIT_S, Relay

RUN = "lamps"
PIECES = "417"
GO = "go"
"""A file that a slow tool waits for."""
PROMPT = "How many lamps are in stock? Look it up."
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")


@dataclass(frozen=True)
class Speech:
    """One of the APIs, as agent.yaml asks for it."""

    name: str
    llm: Mapping[str, Any] = field(hash=False)
    last: bytes
    """What the last event of a stream holds."""

    @property
    def variable(self) -> str:
        """Where the environment names a server for it."""
        return f"FISK_AI_TEST_{self.llm['provider'].upper()}_URL"


SPEECHES = (
    Speech("messages", {"provider": "anthropic"}, b'"message_stop"'),
    Speech("chat", {"provider": "openai", "api": "chat"}, b"[DONE]"),
    Speech("responses", {"provider": "openai", "api": "responses"}, b'"response.completed"'),
)


class Bench:
    """The agent, its files, and the lives of its one run."""

    def __init__(self, directory: Path, relay: Relay, speech: Speech, *, model: str, stock: str) -> None:
        """`stock` is what the tool does, for a shell."""
        self.directory = directory
        self.relay = relay
        self.speech = speech
        tool = {
            "name": "stock",
            "description": "Tells how many pieces of an item are in stock.",
            "argv": ["sh", "-c", stock, "stock", "{item}"],
            "parameters": {"item": {"type": "string", "required": True}},
            "timeout": "60s",
        }
        config = {
            "identity": "shop",
            "system_prompt": "You answer questions about a shop, in one short sentence.",
            "llm": {
                **speech.llm,
                "model": model,
                "base_url": relay.url,
                "max_output_tokens": 160,
                "budget": {"max_iterations": 5, "call_timeout": f"{ANSWER_LIMIT_S}s"},
            },
            "tools": {"commands": [tool]},
        }
        (directory / "agent.yaml").write_text(json.dumps(config))
        (directory / "home").mkdir()
        self._started: list[subprocess.Popen[bytes]] = []
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory / "home"),
            "XDG_STATE_HOME": str(directory / "state"),
            "LANG": "C.UTF-8",
            **{key: os.environ.get(key) or "local" for key in KEYS},
        }

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start the program; what it says is in the files `out` and `err`."""
        with open(self.directory / "out", "wb") as out, open(self.directory / "err", "ab") as err:
            command = [sys.executable, "-m", "fisk_ai", *args]
            process = subprocess.Popen(
                command, cwd=self.directory, env=self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self._started.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """End what a failed story left running."""
        self.let_go()
        for process in self._started:
            process.kill()
            process.wait()

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the run."""
        return self.start("run", "--checkpoint", "--name", RUN, "--output", "stream-json", PROMPT)

    def resume(self) -> subprocess.Popen[bytes]:
        """Start its next life."""
        return self.start("run", "--resume", RUN, "--output", "stream-json")

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a process and return its exit code."""
        code = process.wait(5 * ANSWER_LIMIT_S)
        assert "Traceback" not in self.said, self.said
        return code

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process that is at work."""
        assert process.poll() is None, self.said
        process.kill()
        assert process.wait() == -signal.SIGKILL

    def wait_for(self, name: str, text: bytes) -> None:
        """Wait until a file holds a text."""
        path = self.directory / name
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while not path.exists() or text not in path.read_bytes():
            assert time.monotonic() < deadline, f"{name} never held {text!r}"
            time.sleep(0.05)

    def let_go(self) -> None:
        """Let the tool end, if it waits for that."""
        (self.directory / GO).touch()

    def shown(self, *args: str) -> str:
        """Return what a command prints; it has to succeed."""
        code = self.finish(self.start(*args))
        assert code == 0, self.said
        return (self.directory / "out").read_text()

    @property
    def said(self) -> str:
        """All that was said on stderr."""
        return (self.directory / "err").read_text()

    @property
    def events(self) -> list[Any]:
        """What the last process told of the run."""
        return [json.loads(line) for line in (self.directory / "out").read_bytes().splitlines()]

    @property
    def effects(self) -> list[str]:
        """The idempotency keys with which the tool ran."""
        path = self.directory / "effects"
        return path.read_text().split() if path.exists() else []

    @property
    def turns(self) -> list[bytes]:
        """The journaled turns, byte for byte."""
        return [bytes(record.message) for record in self._records() if isinstance(record, AssistantRecord)]

    @property
    def results(self) -> list[bytes]:
        """The journaled results."""
        return [bytes(record.result) for record in self._records() if isinstance(record, ToolResultRecord)]

    def _records(self) -> list[Any]:
        store = FileStore(str(self.directory / "state" / "fisk-ai" / "runs"))
        return [numbered.record for numbered in store.read(RUN).records]
