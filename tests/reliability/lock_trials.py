"""Many processes, forks and paths after one run: never do two hold it, and nobody who is gone does."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from fisk_ai.errors import RunExists, RunLocked, RunNotFound
from fisk_ai.stores import FileStore, Journal
from tests.reliability.trials import Form, Tally, Trial, require
from tests.stores.faults import FastDisk
from tests.stores.processes import Child
from tests.strategies import RUN_ID, ended, meta, scan


@contextmanager
def paths_to_one_directory() -> Iterator[Sequence[str]]:
    """Yield paths that lead to one directory: its own, one through a link, and a mount of it where that is allowed."""
    with tempfile.TemporaryDirectory() as top, contextlib.ExitStack() as mounted:
        real, link, mount = (Path(top) / name for name in ("real", "link", "mount"))
        real.mkdir(mode=0o700)
        link.symlink_to(real)
        mount.mkdir(mode=0o700)
        paths = [str(real), str(link)]
        if mount_again(real, mount):
            mounted.callback(subprocess.run, ["umount", str(mount)], check=True)
            paths.append(str(mount))
        yield paths


def mount_again(directory: Path, at: Path) -> bool:
    """Mount a directory at a second place; False where that takes rights that we don't have."""
    if os.geteuid() != 0:
        return False
    return subprocess.run(["mount", "--bind", directory, at], check=False, capture_output=True).returncode == 0


def compete(paths: Sequence[str], number: int) -> Counter[str]:
    """Let processes open one run at the same time, and count what became of them; the winner appends."""
    gate, opened_gate = os.pipe()
    end, all_ended = os.pipe()
    answers, answer = os.pipe()

    def work(path: str) -> str:
        os.close(opened_gate)
        os.close(all_ended)
        os.read(gate, 1)
        try:
            journal = FileStore(path, disk=FastDisk()).open(RUN_ID)
        except RunLocked as problem:
            os.write(answer, b"\n")
            return f"lost to {problem.pid}"
        os.write(answer, b"\n")
        os.read(end, 1)  # held until everybody else is gone
        journal.append(ended())
        journal.close()
        return f"{os.getpid()} won"

    children = [Child(partial(work, paths[at % len(paths)])) for at in range(number)]
    os.close(opened_gate)
    os.close(answer)
    said = 0
    while said < number and (read := os.read(answers, 65536)):
        said += len(read)
    os.close(all_ended)
    outcomes = Counter(child.result() for child in children)
    for descriptor in (gate, end, answers):
        os.close(descriptor)
    return outcomes


def openers(tally: Tally, form: Form) -> None:
    """Open one run from many processes at once, through all paths that lead to it."""
    number, rounds = (200, 20) if form == "long" else (30, 2)
    for each in range(rounds):
        with tally.case(f"round {each} of openers", number), paths_to_one_directory() as paths:
            FileStore(paths[0], disk=FastDisk()).create(RUN_ID, meta()).close()
            outcomes = compete(paths, number)
            winners = [said.split()[0] for said in outcomes if said.endswith("won")]
            require(len(winners) == 1, f"{len(winners)} processes hold the run: {outcomes}")
            require(outcomes[f"lost to {winners[0]}"] == number - 1, f"another holder was named: {outcomes}")
            require(FileStore(paths[0]).load(RUN_ID).last_seq == 2, "the winner's record is missing")
            tally.reached[f"{len(paths)} paths"] += 1


def _work_beside_others(paths: Sequence[str], token: str, until: float, seed: int) -> str:
    moments = random.Random(seed)
    outcomes: Counter[str] = Counter()
    while time.monotonic() < until:
        store = FileStore(moments.choice(paths), disk=FastDisk())
        actions: list[Callable[[], Journal]] = [
            lambda store=store: store.create(RUN_ID, meta()),  # type: ignore[misc]
            lambda store=store: store.open(RUN_ID),  # type: ignore[misc]
        ]
        try:
            if moments.random() < 0.15:
                store.delete(RUN_ID)
                outcomes["deleted"] += 1
                continue
            journal = moments.choice(actions)()
        except (RunExists, RunLocked, RunNotFound) as problem:
            outcomes[problem.code] += 1
            continue
        os.close(os.open(token, os.O_CREAT | os.O_EXCL))  # fails if somebody else is in here
        require(journal.append(ended()) == journal.last_seq, "a wrong seq")
        outcomes["held"] += 1
        os.unlink(token)
        journal.close()
    return " ".join(f"{what}={times}" for what, times in outcomes.items())


def create_open_delete(tally: Tally, form: Form) -> None:
    """Let processes create, open, append to and delete one run for a while."""
    number, seconds = (8, 60.0) if form == "long" else (4, 1.0)
    with paths_to_one_directory() as paths, tempfile.TemporaryDirectory() as beside:
        until = time.monotonic() + seconds
        token = os.path.join(beside, "token")
        children = [Child(partial(_work_beside_others, paths, token, until, seed)) for seed in range(number)]
        for seed, child in enumerate(children):
            with tally.case(f"seed {seed} of create_open_delete, and {number - 1} others", 0):
                for outcome in child.result(seconds + 30).split():
                    what, _, times = outcome.partition("=")
                    tally.reached[what] += int(times)
        tally.cases += tally.reached["held"]
        path = Path(paths[0], f"{RUN_ID}.json")
        if path.exists():
            scan(path.read_bytes())
    for what in ("held", "deleted", "run_locked"):
        require(tally.reached[what], f"never happened: {what}", kind="undetected")


def _look(directory: str, stop: int) -> str:
    store = FileStore(directory, disk=FastDisk())
    os.set_blocking(stop, False)
    looks = 0
    while True:
        require(store.info(RUN_ID).status in ("running", "interrupted"), "another status")
        store.list()
        looks += 1
        with contextlib.suppress(BlockingIOError):
            os.read(stop, 1)
            return str(looks)


def opens_beside_listings(tally: Tally, form: Form) -> None:
    """Open a run again and again while others list it: none may be refused."""
    with tempfile.TemporaryDirectory() as directory:
        store = FileStore(directory, disk=FastDisk())
        store.create(RUN_ID, meta()).close()
        stop, stopped = os.pipe()

        def look() -> str:
            os.close(stopped)
            return _look(directory, stop)

        children = [Child(look) for _ in range(2)]
        for number in range(1000 if form == "long" else 100):
            with tally.case(f"open {number} of opens_beside_listings"):
                store.open(RUN_ID).close()
        os.close(stopped)
        os.close(stop)
        tally.reached["listings"] = sum(int(child.result()) for child in children)
    require(tally.reached["listings"] > 10, "hardly anybody looked on", kind="undetected")


def _live(end: int, let_end: int) -> str:
    os.close(let_end)
    os.read(end, 1)
    return "lived"


def _forks(end: int, let_end: int, number: int) -> Iterator[Callable[[], None]]:
    """Yield, for each child that lives until `let_end` is closed, how to see it end."""
    for each in range(number):
        if each % 2:
            process = get_context("fork").Process(target=_live, args=(end, let_end))
            process.start()
            yield partial(process.join, 20)
        else:
            child = Child(partial(_live, end, let_end))

            def ended_well(child: Child = child) -> None:
                require(child.result() == "lived", "a child fell")

            yield ended_well


def _fork_beside_work(directory: str, number: int) -> int:
    """Fork while other threads open, append and close; return how often they did."""
    store = FileStore(directory, disk=FastDisk())
    names = [f"run-{at}" for at in range(4)]
    for name in names:
        store.create(name, meta(name)).close()
    stop, worked = threading.Event(), Counter[str]()

    def work(name: str) -> None:
        while not stop.is_set():
            with store.open(name) as journal:
                journal.append(ended())
            worked[name] += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    end, let_end = os.pipe()
    for thread in threads:
        thread.start()
    endings = list(_forks(end, let_end, number))
    stop.set()
    for thread in threads:
        thread.join(20)
    try:
        for name in names:
            store.open(name).close()  # though all children live
    finally:
        os.close(let_end)
        os.close(end)
        for ending in endings:
            ending()
    require(min(worked[name] for name in names) > 0, "a thread did nothing", kind="undetected")
    return sum(worked.values())


def forks_beside_threads(tally: Tally, form: Form) -> None:
    """Fork a program whose threads work on runs; the children must keep none of them."""
    for number in range(100 if form == "long" else 3):
        with tally.case(f"program {number} of forks_beside_threads"), tempfile.TemporaryDirectory() as directory:
            child = Child(partial(_fork_beside_work, directory, 10))
            tally.reached["opened beside forks"] += int(child.result())


def appends_from_threads(tally: Tally, form: Form) -> None:
    """Append to one journal from eight threads: whole lines, no seq twice, none left out."""
    for number in range(100 if form == "long" else 3):
        with tally.case(f"journal {number} of appends_from_threads"), tempfile.TemporaryDirectory() as directory:
            store = FileStore(directory, disk=FastDisk())
            with store.create(RUN_ID, meta()) as journal, ThreadPoolExecutor(8) as pool:
                texts = [f"{at} " * (at * 17 % 900) for at in range(200)]
                seqs = list(pool.map(lambda text: journal.append(ended("error", text)), texts))
            require(sorted(seqs) == list(range(2, 202)), "a seq is missing or was given twice")
            stored = {each.seq: each.record for each in store.read(RUN_ID).records}
            for seq, text in zip(seqs, texts, strict=True):
                require(stored[seq] == ended("error", text), f"record {seq} is another one")
            tally.reached["appends"] += len(seqs)


TRIALS: tuple[Trial, ...] = (
    Trial(
        name="openers",
        unit="opens",
        method=(
            "200 processes open one run at once, through its directory, a link to it and a mount of it. Exactly one "
            "must get it, all others must be told which one"
        ),
        promises="P16",
        run=openers,
        target=4000,
    ),
    Trial(
        name="create, open, delete",
        unit="times held",
        method="Eight processes create, open, append to and delete one run for a minute. Never may two hold it",
        promises="P16",
        run=create_open_delete,
        target=1000,
    ),
    Trial(
        name="opens beside listings",
        unit="opens",
        method="A run is opened again and again while two processes list it. No open may be refused for that",
        promises="P16",
        run=opens_beside_listings,
        target=1000,
    ),
    Trial(
        name="forks beside threads",
        unit="programs",
        method=(
            "A program forks, by itself and by multiprocessing, while its threads open, append to and close runs. "
            "While the children live on, every run must be free"
        ),
        promises="P16",
        run=forks_beside_threads,
        target=100,
    ),
    Trial(
        name="appends from threads",
        unit="journals",
        method="Eight threads append to one journal at once. Each record must be there, whole, under its seq",
        promises="P10 P16",
        run=appends_from_threads,
        target=100,
    ),
)
