"""What all contestants share: the script of the model, the effects of the tools, and the places where a process dies.

The script: turn 1 calls `charge`, turn 2 calls `email` and `ship` together, turn 3 answers. The model has no memory: it
asks for the tools whose results it isn't shown, so it never asks for one again that a library has kept. As with a real
API, each reply has call ids of its own.

`email` returns at once. `ship` takes its time first, so that a library which runs both side by side has the result of
`email` by then. What happened is noted in files of the scene's directory, one line each:

    requests  turn             a model call arrived
    replies   turn             its reply was handed over
    altered   tool, text       the model was shown a result that the tool didn't give
    effects   tool, call id    a tool took effect
    named     tool             the library said that this call may have run before the crash
    killed    place            the process died here
    blocked   place            the process waits here for the file `go`
    answers   text             a process came to the end of the run
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

PROMPT = "Charge the customer, then mail and ship."
ANSWER = "Charged, mailed and shipped."
TOOLS = ("charge", "email", "ship")
BATCHES = {1: ("charge",), 2: ("email", "ship"), 3: ()}

PLACES = {
    "model 1: asked": "the first request has arrived, no reply yet",
    "model 1: answers": "the same, the reply is about to be sent",
    "charge: begins": "the reply is known, its tool has not taken effect",
    "charge: done": "the tool took effect and has not returned",
    "model 2: asked": "the tool has returned, the next request has just arrived",
    "model 2: answers": "the same, the reply is about to be sent",
    "email: begins": "first tool of the batch, no effect yet",
    "email: done": "it took effect and has not returned",
    "ship: begins": "`email` has returned, `ship` has no effect yet",
    "ship: done": "`ship` took effect and has not returned",
    "model 3: asked": "the batch has returned, the next request has just arrived",
    "model 3: answers": "the same, the reply is about to be sent",
    "answer": "the program has the answer and has not ended",
}

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Reply:
    """What the model says: tools to call by name, each with a call id, or else the answer."""

    calls: dict[str, str]
    text: str


def result_of(tool: str) -> str:
    """Return what a tool returns."""
    return f"{tool} is done"


class Scene:
    """One process in one directory of evidence."""

    def __init__(self, directory: str, *, kill_at: str = "", block_at: str = "", pace_s: float = 0.3) -> None:
        self.directory = directory
        self._kill_at = kill_at
        self._block_at = block_at
        self._pace_s = pace_s

    @property
    def store(self) -> str:
        """The directory in which a contestant keeps what it needs to resume."""
        return os.path.join(self.directory, "store")

    def ask(self, results: Mapping[str, str]) -> Reply:
        """Make a model call that shows these results, each by its tool."""
        for wait_s in self._steps_of_call(results):
            time.sleep(wait_s)
        return _reply(results)

    async def ask_async(self, results: Mapping[str, str]) -> Reply:
        """Make the call without blocking the event loop."""
        for wait_s in self._steps_of_call(results):
            await asyncio.sleep(wait_s)
        return _reply(results)

    def use(self, tool: str, call_id: str) -> str:
        """Run a tool."""
        for wait_s in self._steps_of_tool(tool, call_id):
            time.sleep(wait_s)
        return result_of(tool)

    async def use_async(self, tool: str, call_id: str) -> str:
        """Run it without blocking the event loop."""
        for wait_s in self._steps_of_tool(tool, call_id):
            await asyncio.sleep(wait_s)
        return result_of(tool)

    def names(self, tools: Iterable[str]) -> None:
        """Take down that the library names calls that may have run."""
        for tool in tools:
            self._note("named", tool)

    def answered(self, text: str) -> None:
        """The program has the answer."""
        self._note("answers", text)
        self._dies_at("answer")

    def effects(self) -> list[str]:
        """Return the names of the tools that took effect, as often as they did."""
        try:
            with open(os.path.join(self.directory, "effects"), encoding="utf-8") as file:
                return [line.split()[0] for line in file]
        except FileNotFoundError:
            return []

    def _steps_of_call(self, results: Mapping[str, str]) -> Iterator[float]:
        turn = _turn(results)
        self._note("requests", str(turn))
        for tool, text in results.items():
            if text != result_of(tool):
                self._note("altered", f"{tool} {text}")
        yield from self._passes(f"model {turn}: asked")
        yield self._pace_s
        yield from self._passes(f"model {turn}: answers")
        self._note("replies", str(turn))

    def _steps_of_tool(self, tool: str, call_id: str) -> Iterator[float]:
        if tool == "ship":
            yield self._pace_s
        yield from self._passes(f"{tool}: begins")
        self._note("effects", f"{tool} {call_id}")
        yield from self._passes(f"{tool}: done")

    def _passes(self, place: str) -> Iterator[float]:
        self._dies_at(place)
        if place == self._block_at:
            self._note("blocked", place)
            deadline = time.monotonic() + PATIENCE_S
            while not os.path.exists(os.path.join(self.directory, "go")):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody let the process go on at {place!r}")
                yield 0.01

    def _dies_at(self, place: str) -> None:
        if place == self._kill_at:
            self._note("killed", place)
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, name: str, text: str) -> None:
        descriptor = os.open(os.path.join(self.directory, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, text.encode() + b"\n")
        os.close(descriptor)


def _turn(results: Collection[str]) -> int:
    return next((turn for turn, tools in BATCHES.items() if not set(tools) <= set(results)), 3)


def _reply(results: Collection[str]) -> Reply:
    tools = [tool for tool in BATCHES[_turn(results)] if tool not in results]
    return Reply({tool: f"call_{os.urandom(6).hex()}" for tool in tools}, "" if tools else ANSWER)


def play(contestant: Callable[[Scene, str, bool], str], variants: Collection[str]) -> None:
    """Be the program of one contestant: start or resume, to the end or to the place where it dies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("act", choices=["start", "resume"])
    parser.add_argument("directory")
    parser.add_argument("--variant", choices=sorted(variants), required=True)
    parser.add_argument("--kill-at", choices=sorted(PLACES), default="")
    parser.add_argument("--block-at", choices=sorted(PLACES), default="")
    parser.add_argument("--pace", type=float, default=0.3)
    told = parser.parse_args()
    scene = Scene(told.directory, kill_at=told.kill_at, block_at=told.block_at, pace_s=told.pace)
    os.makedirs(scene.store, exist_ok=True)
    scene.answered(contestant(scene, told.variant, told.act == "resume"))
    sys.stdout.flush()
    os._exit(0)  # threads of a library must not outlive the answer
