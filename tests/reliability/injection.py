"""Faults that strace puts into the system calls of one thread, and what of them struck."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CALL = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)\)\s+= (?P<result>.*)$")
_PATH = re.compile(r"<([^<>]*)>")
_NAME = re.compile(r'"([^"]*)"')
_PATIENCE_S = 20


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault at the N-th call of a kind."""

    call: str
    """A system call: `fsync`."""
    number: int
    error: str = ""
    """`EIO`; without one the process is killed before the call is done."""
    then_every: int = 0
    """From there on each call, or each second one; 0 is only this one."""

    def arguments(self, log: Path) -> tuple[str, ...]:
        """Return the arguments of strace, but for what it is attached to."""
        # No --seccomp-bpf: with it no signal is ever injected.
        what = f"error={self.error}" if self.error else "signal=SIGKILL"
        when = f"{self.number}{f'+{self.then_every}' if self.then_every else ''}"
        fault = f"inject={self.call}:{what}:when={when}"
        return ("-o", str(log), "-y", "-e", f"trace={self.call}", "-e", fault)

    def __str__(self) -> str:
        then = f" and each {self.then_every}. after it" if self.then_every else ""
        return f"{self.error or 'SIGKILL'} at {self.call} {self.number}{then}"


def struck(log: Path) -> list[str]:
    """Return what a fault struck, in order: the system call and the file, as `fsync r7.json`."""
    calls = [call for line in log.read_text().splitlines() if (call := _CALL.match(line))]
    return [_told(call) for call in calls if "(INJECTED)" in call["result"] or call["result"] == "?"]


def _told(call: re.Match[str]) -> str:
    named = _NAME.search(call["arguments"]) if call["name"].endswith("at") else None
    found = named or _PATH.search(call["arguments"])
    name = found[1].rpartition("/")[2] if found else ""
    return f"{call['name']} {name if '.' in name else 'directory'}"


def why_not() -> str | None:
    """Say why nothing can be injected here, or return None."""
    if shutil.which("strace") is None:
        return "needs strace: install the package `strace`"
    tried = subprocess.run(
        ["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, timeout=_PATIENCE_S
    )
    if tried.returncode != 0:
        return f"strace may not trace here: {tried.stderr.strip()}"
    return None
