"""Reads the code blocks of a documentation page, and runs them in order in one directory.

A comment right before a block says what is special about it, parts separated by `;`:

    skip: WHY            isn't run
    file: NAME           is written to a file; Python is run from there all the same
    exit: CODE           ends with that exit code instead of 0
    interrupt: FILE has N lines     gets SIGINT, as by Ctrl-C, once that is so
    output               is what the block before printed, stdout and stderr; `...` stands for anything, on a line of
                         its own for any lines
    prints: TEXT         prints just that
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marks>[^\n]*) -->\n)?^```(?P<language>[a-z]+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_RUN = {"bash": ["bash", "-e"], "python": [sys.executable]}
_LIMIT_S = 60.0


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    marks: Mapping[str, str]
    line: int


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    source = page.read_text()
    for found in _BLOCK.finditer(source):
        parts = [part.strip().partition(":") for part in (found["marks"] or "").split(";")]
        marks = {name: value.strip() for name, _, value in parts if name}
        yield Block(found["language"], found["text"], marks, source.count("\n", 0, found.start("text")))


@dataclass
class Runner:
    """Runs the blocks of one page."""

    directory: Path
    printed: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = {"HOME", "LANG", "LC_ALL", "TMPDIR"} & os.environ.keys()
        self.environment = {name: os.environ[name] for name in kept}
        self.environment["XDG_STATE_HOME"] = str(self.directory / "state")
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment["PYTHONWARNINGS"] = "error"

    def run(self, block: Block) -> None:
        if "skip" in block.marks:
            return
        if "file" in block.marks:
            (self.directory / block.marks["file"]).write_text(block.text)
        if "output" in block.marks:
            self.check_output(block)
        elif block.language in _RUN:
            self.execute(block)

    def execute(self, block: Block) -> None:
        command = [*_RUN[block.language], "-c", block.text]
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        timer = threading.Timer(_LIMIT_S, process.kill)
        timer.start()
        try:
            if "interrupt" in block.marks:
                self.wait_for(block.marks["interrupt"], process)
                os.killpg(process.pid, signal.SIGINT)
            self.printed, _ = process.communicate()
        finally:
            timer.cancel()
        where = f"block at line {block.line}:\n{block.text}\n{self.printed}"
        assert process.returncode == int(block.marks.get("exit", 0)), f"exit {process.returncode}, {where}"
        assert "Traceback" not in self.printed, where
        if "prints" in block.marks:
            assert self.printed.strip() == block.marks["prints"], where

    def wait_for(self, evidence: str, process: subprocess.Popen[str]) -> None:
        name, _, wanted = evidence.removesuffix(" lines").partition(" has ")
        path = self.directory / name
        while not path.exists() or path.read_text().count("\n") < int(wanted):
            assert process.poll() is None, "it ended before it could be interrupted"
            time.sleep(0.01)

    def check_output(self, block: Block) -> None:
        pattern = "".join(
            r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, re.split(r" ?\.\.\. ?", line))) + r"\n"
            for line in block.text.splitlines()
        )
        shown = "".join(f"{line.rstrip()}\n" for line in self.printed.splitlines())
        assert re.fullmatch(pattern, shown), f"line {block.line}: the page shows\n{block.text}\nprinted was\n{shown}"
