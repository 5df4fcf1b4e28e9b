"""What is no journal at all: other objects in its place, lines of hundreds of megabytes, names that can't be."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fisk_ai.errors import FiskError, InvalidRunId, NotPermitted, StoreError
from fisk_ai.stores import FileStore
from fisk_ai.stores.fork import fork
from fisk_ai.text import one_line, printable
from tests.cli.test_escapes import CLASSES, _drives
from tests.fuzz.limits import alarms
from tests.reliability.trials import Form, Tally, Trial, require
from tests.stores.contract import ODD_IDS, REFUSED_IDS
from tests.stores.faults import FaultyDisk
from tests.stores.test_file_safety import objects
from tests.strategies import RUN_ID, ended, journal_bytes, meta, turn

WHOLE = journal_bytes([meta(), turn("a")])
ROOT = Path(__file__).parents[2]
MEGABYTE = 1 << 20
MEMORY_FACTOR = 20
BASE_BYTES = 100 * MEGABYTE
"""The interpreter with everything imported, and its buffers."""

Action = Callable[[FileStore, str], object]
LOOKING: dict[str, Action] = {
    "load": lambda store, run_id: store.load(run_id),
    "read": lambda store, run_id: b"".join(store.read_bytes(run_id)),
    "fork": lambda store, run_id: fork(store, run_id, "copy"),
    "open": lambda store, run_id: store.open(run_id).close(),
    "create": lambda store, run_id: store.create(run_id, meta(run_id)).close(),
    "info": lambda store, run_id: store.info(run_id),
    "delete": lambda store, run_id: store.delete(run_id),
}


@contextmanager
def _place(disk: FaultyDisk | None = None) -> Iterator[tuple[FileStore, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "state"
        state.mkdir(mode=0o700)
        yield FileStore(str(state), disk=disk or FaultyDisk()), state


def strangers(tally: Tally, _form: Form) -> None:
    """Put each object in the place of each file of a run, and use the run in every way."""
    kinds = objects(Path("unused"))
    for kind in kinds:
        for suffix in (".json", ".lock", ".torn", ".tools"):
            with (
                tally.case(f"{kind} as {suffix}", times=len(LOOKING) + 1),
                _place() as (store, state),
                alarms() as alarm,
            ):
                target = state.parent / "elsewhere"
                target.write_bytes(WHOLE)
                if suffix != ".json":
                    (state / f"{RUN_ID}.json").write_bytes(WHOLE + b"{torn" * (suffix == ".torn"))
                objects(target)[kind](state / f"{RUN_ID}{suffix}")
                alarm.set()
                _use(store, suffix)
                require(target.read_bytes() == WHOLE, "what the link leads to was changed")
                require(not target.with_name("nowhere").exists(), "a dangling link was followed")
                tally.reached[kind] += 1
    require(set(tally.reached) == set(kinds), "an object was never tried", kind="undetected")


def _use(store: FileStore, suffix: str) -> None:
    if suffix == ".json":
        require(store.list()[0].status == "unreadable", "listed as a run", kind="undetected")
    if suffix == ".torn":
        try:
            with store.open(RUN_ID) as journal:
                journal.append(ended())
        except StoreError:
            pass
        else:
            require(False, "what was cut went into something else", kind="undetected")
    refused = 0
    for name, action in LOOKING.items():
        try:
            action(store, RUN_ID)
        except NotPermitted:
            refused += 1
        except FiskError:
            require(suffix != ".json" or name in ("info", "delete"), name, "says something else of an object")
    require(suffix not in (".json", ".lock") or refused >= 2, "an object was used as a file", kind="undetected")


_READ = """
import json, sys, time
from fisk_ai.errors import StoreError
from fisk_ai.stores import FileStore
store, said, began = FileStore(sys.argv[1]), {}, time.process_time()
for name in ("load", "info", "open"):
    try:
        made = getattr(store, name)("orders-report")
        said[name] = str(getattr(made, "last_seq", None) or made.status)
        name == "open" and made.close()
    except StoreError as problem:
        said[name] = problem.code
said["cpu_s"] = time.process_time() - began
# Not ru_maxrss: a process takes that over from the one that started it.
said["peak"] = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps(said))
"""


def giant_lines(tally: Tally, form: Form) -> None:
    """Read files with one line that is as long as a disk allows, in a process whose memory is measured."""
    size = (200 if form == "long" else 4) * MEGABYTE
    head = WHOLE[: WHOLE.index(b"\n") + 1]
    long_text = turn(text="@").message
    line = b'{"seq":2,"protocol":"io.choria.fisk-ai.v1.session.assistant","assistant":{"iteration":0,"message":'
    line += bytes(long_text) + b"}}\n"
    foreign = head.replace(b',"checksums":true', b"")[: -len(b',"crc":"01234567"}\n')] + b"}\n"
    big = line.replace(b"@", b"x" * size)
    files = {
        "a whole record": (foreign + big, "2"),
        "a record that lacks its newline": (foreign + big[:-1], "2"),
        "a torn record": (foreign + big[:-9], "1"),
        "a record where a checksum is due": (head + big, "journal_corrupt"),
        "a first line": (big, "journal_corrupt"),
        "NULs": (head + bytes(size), "1"),
        "random bytes": (head + os.urandom(MEGABYTE).replace(b"\n", b"") * (size // MEGABYTE) + b"\n", None),
        "small pieces": (foreign + line.replace(b'"@"', b'"@","x":[' + b"{}," * (size // 60) + b"{}]"), "2"),
    }
    for name, (data, wanted) in itertools.islice(files.items(), 0, None, 1 if form == "long" else 3):
        with tally.case(f"{name} of {len(data)} bytes", times=3), _place() as (_, state):
            (state / f"{RUN_ID}.json").write_bytes(data)
            said = _read_in_child(state)
            require(wanted in (None, said["load"]) and said["load"] == said["open"], "read as", said, kind="undetected")
            allowed = MEMORY_FACTOR * len(data) + BASE_BYTES
            require(said["peak"] < allowed, said["peak"], "bytes of memory for", len(data), kind="hang")
            tally.reached[name] += 1
    require(
        len(tally.reached) >= (len(files) if form == "long" else 3) or tally.broken,
        "a file was never read",
        kind="undetected",
    )


def _read_in_child(state: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _READ, str(state)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise TimeoutError(str(problem)) from None
    require(done.returncode == 0, done.stderr[-500:], kind="traceback")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def names(tally: Tally, form: Form) -> None:
    """Use names that can't be one in every way: refused before the disk is touched. Odd ones stay where they are."""
    generated = [prefix + bad for prefix in ("", "x", "x" * 99) for bad in map(chr, _odd_characters(form))]
    disk = FaultyDisk()
    with _place(disk) as (store, state):
        for name in [*REFUSED_IDS, *generated]:
            for how, action in LOOKING.items():
                disk.log.clear()
                with tally.case(f"{how} {name!r}"):
                    _require_refused(lambda name=name, action=action: action(store, name))  # type: ignore[misc]
                    require(not disk.log, "the disk was touched:", disk.log)
        for name in ODD_IDS:
            with tally.case(f"create {name!r}"):
                store.create(name, meta(name)).close()
                require(set(os.listdir(state)) == {f"{name}.json", f"{name}.lock"}, os.listdir(state))
                require(list(store.run_ids()) == [name], "listed as", store.run_ids())
                store.delete(name)
                require(not os.listdir(state), "left over:", os.listdir(state))
        tally.reached["names"] = len(generated)


def _odd_characters(form: Form) -> Iterator[int]:
    allowed = set(map(ord, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"))
    yield from (each for each in range(0, 0x11000, 1 if form == "long" else 577) if each not in allowed)


def _require_refused(action: Callable[[], object]) -> None:
    try:
        action()
    except InvalidRunId as problem:
        text = str(problem)
        require(text.isprintable() and len(text) < 500, "a message that can't be shown:", text)
        return
    require(False, "taken for a name", kind="undetected")


def escapes(tally: Tally, form: Form) -> None:
    """Show each class of escape sequence, alone, cut, doubled and within each other, and as part of errors."""
    cuts = 1 if form == "long" else 5
    pieces = [text[at:] + text[:at] for text in CLASSES.values() for at in range(0, len(text), cuts)]
    for first in pieces:
        for second in ["", *pieces[:: 1 if form == "long" else 9]]:
            for text in (f"a{first}b{second}c", first[: len(first) // 2] + second + first[len(first) // 2 :]):
                with tally.case(repr(text)):
                    for shown in (printable(text), one_line(text, 50), str(InvalidRunId(text))):
                        bad = [each for each in shown if _drives(each)]
                        require(not bad, "shown:", bad, kind="undetected")
    tally.reached["classes"] = len(CLASSES)


STRANGERS = Trial(
    "objects in place of files",
    "uses",
    "Links, fifos, directories, sockets, devices and files of others stand for each file of a run: nothing blocks, "
    "nothing is followed, and each use is refused by name.",
    "P15",
    strangers,
    200,
)
GIANTS = Trial(
    "giant lines",
    "reads",
    "Lines of 200 MB, whole, torn, damaged and random, are read in a process of their own: the right answer, within 20 "
    "bytes of memory for each of the file.",
    "P11 P19",
    giant_lines,
    24,
)
NAMES = Trial("names", "uses", "Names that can't be one, and odd ones, in every use.", "P15", names, 1_000_000)
ESCAPES = Trial("escape sequences", "texts", "Each class, cut and put together.", "P18", escapes, 20_000)
TRIALS: tuple[Trial, ...] = (STRANGERS, GIANTS, NAMES, ESCAPES)
