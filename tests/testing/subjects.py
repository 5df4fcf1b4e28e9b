"""Tools that are killed: harmless ones, harmful ones, and some that are hard to check at all."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from fisk_ai import TextBlock, ToolContext, ToolOutput, tool
from fisk_ai.tools.base import OnCrash

from . import saving


@tool
def write_by_key(text: str, context: ToolContext) -> str:
    """Write a file named by the idempotency key."""
    target = Path(context.idempotency_key)
    if not target.exists():
        Path("new").write_text(text)
        Path("new").rename(target)
    return "written"


@tool
async def write_slowly(text: str, context: ToolContext) -> str:
    """Write a file named by the idempotency key, with a pause."""
    await anyio.sleep(0.01)
    saving.save(context.idempotency_key, text)
    await anyio.sleep(0.01)
    return "written"


def append_line(text: str) -> str:
    """Append a line."""
    with open("log", "a", encoding="utf-8") as log:
        log.write(f"{text}\n")
    return "appended"


@tool(on_crash="ask")
def take_seat(context: ToolContext) -> str:
    """Take a seat, unless this very call has taken one before."""
    if Path(context.idempotency_key).exists():
        return "taken before"
    seats = int(Path("seats").read_text())
    Path("seats").write_text(str(seats - 1))
    Path(context.idempotency_key).touch()
    return "taken"


@tool
def count_up() -> str:
    """Set a counter to one, whatever it was."""
    value = 0 if not Path("counter").exists() else int(Path("counter").read_text()) * 0
    saving.save("counter", str(value + 1))
    return "counted"


@tool
def make_directory() -> str:
    """Make a directory that must not be there."""
    Path("made").mkdir()
    return "made"


@tool
def fail_after_writing(context: ToolContext) -> str:
    """Write, and fail."""
    Path(context.idempotency_key).touch()
    raise ValueError("as always")


@tool
def hang() -> str:
    """Never return."""
    while True:
        time.sleep(0.01)


@tool
async def wait_for_ever() -> str:
    """Never return, and wait in no thread."""
    await anyio.sleep_forever()
    return "never"


@tool
def lock_for_good() -> str:
    """Wait for a lock file, and leave one."""
    while Path("lock").exists():
        time.sleep(0.01)
    Path("lock").touch()
    return "locked"


@tool
def fill(lines: int) -> str:
    """Write many lines."""
    with open("lines", "w", encoding="utf-8") as file:
        for number in range(lines):
            file.write(f"{number}\n")
    return "filled"


@tool
def write_the_time() -> str:
    """Write what differs each time."""
    Path("time").write_text(str(time.monotonic_ns()))
    return "written"


@tool
def change_mind(calls: str) -> str:
    """Take a longer way the first two times."""
    with open(calls, "a", encoding="utf-8") as file:
        file.write(".")
    if Path(calls).read_text() in (".", ".."):
        Path("way").touch()
    Path("way").touch()
    return "changed"


@tool
def post(url: str, context: ToolContext) -> str:
    """Post the idempotency key."""
    request = urllib.request.Request(url, data=context.idempotency_key.encode())
    urllib.request.urlopen(request, timeout=5).close()
    return "posted"


class Touch:
    """A tool of a kind of its own."""

    name = "touch"
    description = "Makes a file"
    parameters: Mapping[str, Any] = {"type": "object"}
    identity: Mapping[str, Any] = {"kind": "touch"}
    on_crash: OnCrash = "rerun"
    parallel = False
    timeout_s = None
    starts_processes = False

    def problem_with(self, _arguments: Mapping[str, Any]) -> str | None:
        return None

    async def call(self, _arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        path = context.idempotency_key
        os.close(os.open(path, os.O_CREAT))
        return ToolOutput((TextBlock("made"),))
