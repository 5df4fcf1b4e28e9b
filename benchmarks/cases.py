"""One case each: a kill and a resume, a second process on a live run, a damaged store. What came of it is counted.

All runs are processes of their own, in a directory of their own, and what is counted are the files of `scene.py`.
"""

from __future__ import annotations

import base64
import os
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.scene import ANSWER, PATIENCE_S, TOOLS, result_of

BASE64 = string.ascii_uppercase.encode() + string.ascii_lowercase.encode() + b"0123456789+/"
ROOT = Path(__file__).resolve().parents[1]
OVERLAP_S = 15.0
"""How long a second process may take to show whether it works beside the first."""


@dataclass(frozen=True)
class Contestant:
    """A library in one configuration."""

    module: str
    variant: str
    title: str
    packages: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called on the command line and in the results."""
        return f"{self.module}:{self.variant}"


@dataclass
class Outcome:
    """What is left of a run when all its processes have ended."""

    finished: bool
    """The last process came to the answer."""
    error: str = ""
    """The last line of what the last process said, if it failed."""
    effects: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    """Effects beyond the first of each tool."""
    recognisable: int = 0
    """Those of them that came with the call id of the first."""
    lost: int = 0
    """Tools without an effect in a run that finished."""
    paid_again: int = 0
    """Model turns whose reply had been handed over and that were asked for again."""
    named: list[str] = field(default_factory=list)
    """Tools that the library said may have run before the crash."""
    altered: int = 0
    """Results that were shown to the model and that no tool gave."""
    note: str = ""
    """What only this kind of case has to say."""

    def as_json(self) -> dict[str, Any]:
        """Return it for the results file."""
        return asdict(self)


class Place:
    """A directory in which a contestant's processes run."""

    def __init__(self, contestant: Contestant, directory: Path, pace_s: float) -> None:
        self._contestant = contestant
        self._directory = directory
        self._pace_s = pace_s

    def start(self, act: str, **options: str) -> subprocess.Popen[bytes]:
        """Start a process of the contestant."""
        command = [sys.executable, "-m", f"benchmarks.contestants.{self._contestant.module}", act, str(self._directory)]
        command += ["--variant", self._contestant.variant, "--pace", str(self._pace_s)]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", value]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file of evidence."""
        path = self._directory / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def let_go(self) -> None:
        """Let the waiting processes go on."""
        (self._directory / "go").touch()

    def dies(self, place: str) -> None:
        """Start a run that has to die at a place."""
        code, said = end_of(self.start("start", kill_at=place))
        if code != -signal.SIGKILL or self.lines("killed") != [place]:
            raise RuntimeError(f"{self._contestant.name} did not die at {place!r} but ended with {code}: {said}")

    def outcome(self, code: int, said: str) -> Outcome:
        """Count, once the last process has ended."""
        answers = self.lines("answers")
        finished = code == 0 and set(answers) == {ANSWER}
        calls = [line.split()[0] for line in self.lines("effects")]
        count = Counter(calls)
        replies = Counter(self.lines("replies"))
        return Outcome(
            finished=finished,
            error="" if finished else said or f"exit code {code}, answers {answers}",
            effects={tool: count[tool] for tool in TOOLS},
            repeated=len(calls) - len(count),
            recognisable=len(calls) - len(set(self.lines("effects"))),
            lost=sum(count[tool] == 0 for tool in TOOLS) if finished else 0,
            paid_again=replies.total() - len(replies),
            named=sorted(set(self.lines("named"))),
            altered=len(self.lines("altered")),
        )

    def damage(self) -> int:
        """Change one bit in each stored copy of the result of `ship`; return how many there were."""
        files = [path for path in sorted((self._directory / "store").rglob("*")) if path.is_file()]
        return sum(_flip_all(path, result_of("ship").encode()) for path in files)


@contextmanager
def place_for(contestant: Contestant, pace_s: float) -> Iterator[Place]:
    """Give a new directory, and take it away."""
    with tempfile.TemporaryDirectory(prefix="kill-test-") as directory:
        yield Place(contestant, Path(directory), pace_s)


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for a process; return its exit code and the last line that it said."""
    try:
        _, said = process.communicate(timeout=2 * PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return -signal.SIGALRM, "still running after two minutes"
    lines = said.decode(errors="replace").strip().splitlines()
    return process.returncode, lines[-1][:300] if lines else ""


def kill_and_resume(contestant: Contestant, kill_at: str, pace_s: float) -> Outcome:
    """Kill a run at a place, and resume it in a new process."""
    with place_for(contestant, pace_s) as place:
        place.dies(kill_at)
        return place.outcome(*end_of(place.start("resume")))


def second_process(contestant: Contestant, block_at: str, pace_s: float) -> Outcome:
    """Resume a run while its first process is at work in a tool."""
    with place_for(contestant, pace_s) as place:
        first = place.start("start", block_at=block_at)
        _until(lambda: place.lines("blocked") or first.poll() is not None, PATIENCE_S)
        second = place.start("resume", block_at=block_at)
        _until(lambda: len(place.lines("blocked")) > 1 or second.poll() is not None, OVERLAP_S)
        refused = second.poll() not in (None, 0)
        beside = len(place.lines("blocked")) > 1
        place.let_go()
        (code, said), (second_code, second_said) = end_of(first), end_of(second)
        outcome = place.outcome(code, said)
        outcome.note = _how(refused, beside, second_code)
        outcome.error = outcome.error or (second_said if second_code else "")
        return outcome


def _how(refused: bool, beside: bool, code: int) -> str:
    if refused:
        return "refused"
    return ("ran the same tool" if beside else "waited") + (", failed later" if code else "")


def damaged_store(contestant: Contestant, pace_s: float) -> Outcome:
    """Change one bit in each stored copy of a result, and resume."""
    with place_for(contestant, pace_s) as place:
        place.dies("model 3: answers")
        found = place.damage()
        outcome = place.outcome(*end_of(place.start("resume")))
        outcome.note = _noticed(found, outcome)
        return outcome


def _noticed(found: int, outcome: Outcome) -> str:
    if not found:
        return "not found in the store"
    if not outcome.finished:
        return "refused"
    if outcome.altered:
        return "shown to the model as it is"
    return "read as an older state, not said" if outcome.repeated or outcome.paid_again else "without effect"


def _flip_all(path: Path, text: bytes) -> int:
    data, found = path.read_bytes(), 0
    for stored, changed in _spellings(text):
        found += data.count(stored)
        data = data.replace(stored, changed)
    if found:
        path.write_bytes(data)
    return found


def _spellings(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give the text as it may be stored, plain or within base64, each with one bit of the text changed."""
    yield text, text[:-1] + bytes([text[-1] ^ 1])
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + text)
        whole = coded[4 if before else 0 : -4]
        # The last of four characters has the lowest bits of a byte, so one bit of one byte changes.
        yield whole, whole[:-1] + bytes([BASE64[BASE64.index(whole[-1]) ^ 1]])


def _until(condition: Callable[[], object], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def interpreter() -> str:
    """Return what the results were made with."""
    return f"Python {sys.version.split()[0]}, {os.uname().sysname} {os.uname().machine}"
