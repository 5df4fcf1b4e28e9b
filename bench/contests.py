"""The measurements. Each returns rows; none judges."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fisk_ai import Agent, Budget, FileStore, tool
from fisk_ai.agent import events
from fisk_ai.providers.base import ModelRequest, OnDelta, Reply
from fisk_ai.stores.listing import HEAD_BYTES, TAIL_BYTES

from .journals import TEXT, meta, put_floor, put_journal, turn, write_and_sync
from .timing import Row, contest

LINE = b"x" * 2048


def appends(directory: Path, rounds: int, records: tuple[int, ...]) -> Iterator[Row]:
    """Append a record of 2 KB, to a new journal and to a long one."""
    store = FileStore(str(directory))
    for number in records:
        run_id = f"append-{number}"
        if number == 1:
            journal = store.create(run_id, meta(run_id))
        else:
            put_journal(store, run_id, number)
            journal = store.open(run_id)
            journal.records()
        floor = put_floor(directory / f"floor-{number}", os.path.getsize(store.path(run_id)))
        with journal:
            record = turn(0)
            yield contest(
                f"append a 2 KB record after record {number:,}",
                "write + fsync",
                partial(write_and_sync, floor, LINE),
                partial(journal.append, record),
                rounds,
            )
        os.close(floor)


class Caller:
    """A model without a delay that always makes one call."""

    name = "scripted"
    format = "anthropic"

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Return a turn of 2 KB with one call."""
        message = (
            b'{"role":"assistant","content":[{"type":"text","text":"%b"},'
            b'{"type":"tool_use","id":"call_%d","name":"look","input":{}}]}' % (TEXT.encode(), request.iteration)
        )
        return Reply(self.format, message, "tool_use", in_tokens=1, out_tokens=1)

    async def aclose(self) -> None:
        """Do nothing."""


@tool
async def look() -> str:
    """Look."""
    return TEXT


class Stopwatch:
    """Times the steps of a run, and the floor between them."""

    def __init__(self, floor: int) -> None:
        self.floor_ms: list[float] = []
        self.steps_ms: list[float] = []
        self._floor = floor
        self._started: float | None = None

    def __call__(self, event: events.Event) -> None:
        """Take the time when the next model call begins: the step before it is over."""
        if not isinstance(event, events.ModelCalled):
            return
        now = time.perf_counter()
        if self._started is not None:
            self.steps_ms.append((now - self._started) * 1000)
        before = time.perf_counter()
        write_and_sync(self._floor, LINE)
        write_and_sync(self._floor, LINE)
        self._started = time.perf_counter()
        self.floor_ms.append((self._started - before) * 1000)


def steps(directory: Path, turns: tuple[int, ...], width: int) -> Iterator[Row]:
    """Do one agent step (turn, call, result) at several lengths of a run: two records, so two syncs."""
    store = FileStore(str(directory))
    floor = put_floor(directory / "floor-steps", 0)
    watch = Stopwatch(floor)
    agent = Agent("m", provider=Caller(), tools=[look], store=store, budget=Budget(None, max(turns) + width))
    agent.run_sync("Go.", checkpoint=True, name="steps", on_event=watch)
    os.close(floor)
    for number in turns:
        window = slice(number - 1, number - 1 + width)
        yield Row(
            f"agent step at turn {number:,}",
            "2 x (write + fsync)",
            statistics.median(watch.floor_ms[window]),
            statistics.median(watch.steps_ms[window]),
            "ms",
        )
    yield _size(store)


def _size(store: FileStore) -> Row:
    state = store.load("steps")
    payload = sum(len(message.content) for message in state.messages)
    return Row("bytes on disk", "bytes of the conversation", payload, os.path.getsize(store.path("steps")), "B")


def loading(directory: Path, rounds: int, records: int) -> Iterator[Row]:
    """Read, check and fold a long journal."""
    store = FileStore(str(directory))
    path = put_journal(store, "long", records)
    yield contest(
        f"load and fold {records:,} records, {path.stat().st_size / 1e6:.0f} MB",
        "read + split lines",
        lambda: path.read_bytes().split(b"\n"),
        lambda: store.load("long"),
        rounds,
    )


def listing(directory: Path, rounds: int, runs: int) -> Iterator[Row]:
    """List many runs that are longer than what a listing reads."""
    store = FileStore(str(directory / "many"))
    Path(store.directory).mkdir(mode=0o700)
    for number in range(runs):
        put_journal(store, f"run-{number:04}", 80)
    paths = [store.path(run_id) for run_id in store.run_ids()]
    yield contest(f"list {runs} runs of 160 KB", "open, read both ends", partial(_read_ends, paths), store.list, rounds)


def _read_ends(paths: list[str]) -> None:
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            file.read(HEAD_BYTES)
            file.seek(-TAIL_BYTES, os.SEEK_END)
            file.read(TAIL_BYTES)


def start_up(directory: Path, rounds: int) -> Iterator[Row]:
    """Start the command that operators and scripts use most."""
    put_journal(FileStore(str(directory)), "one", 3)
    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
    yield contest(
        "process of `session ls`",
        "python -c pass",
        lambda: run([sys.executable, "-c", "pass"]),
        lambda: run([sys.executable, "-m", "fisk_ai", "session", "ls", "--state-dir", str(directory)]),
        rounds,
    )
