"""The command line on disks that fail or are slow: exit codes, what is said, and signals meanwhile."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.crash.commands import Process, until
from tests.reliability.struck_command import ANSWER, RECORDS, CommandLine
from tests.reliability.struck_run import require_reached
from tests.reliability.trials import Form, Tally, Trial, require
from tests.reliability.victims import Victims

CAUSES = {"EIO": "Input/output error", "ENOSPC": "No space left on device", "EDQUOT": "Disk quota exceeded"}
DELAY_S = 2
SLOW_AT = 3
"""The append, from the second record on, whose sync takes its time: it is the second turn's."""


def struck_commands(tally: Tally, form: Form) -> None:
    """Let the N-th write or sync of the journal fail, for every N until a run passes undisturbed."""
    faults = [("fsync", "EIO"), ("write", "ENOSPC"), ("write", "EIO"), ("write", "EDQUOT")]
    with tempfile.TemporaryDirectory() as directory, Victims(command_line=True) as victims:
        for call, error in faults if form == "long" else faults[:2]:
            for number in range(1, RECORDS + 1) if form == "long" or call == "fsync" else (1, RECORDS - 1):
                command = CommandLine(victims, Path(directory) / f"{call}-{error}-{number}")
                with tally.case(f"the command line, {error} at {call} {number} of the journal"):
                    _strike(tally, command, call, error, number)
    require_reached(tally, ("nothing began", "stopped", "end not stored", "undisturbed"))


def _strike(tally: Tally, command: CommandLine, call: str, error: str, number: int) -> None:
    log = command.place.directory / "log"
    said = command.begins(strace=_fault(log, command.journal, call, f"error={error}:when={number}"))
    if "(INJECTED)" not in log.read_text():
        # Threads are counted each by itself: the first record's is one, the writer's counts from the second one on.
        require(number == RECORDS and (said.code, said.out) == (0, ANSWER), "not struck:", said, kind="undetected")
        tally.reached["undisturbed"] += 1
        return
    command.must_say_how_to_go_on(said, CAUSES[error])
    is_end = number == RECORDS - 1
    require(said.out == (ANSWER if is_end else ""), "another answer:", said)
    require(("the end of the run was not stored" in said.err) == is_end, "it isn't said what:", said, kind="undetected")
    tally.reached["end not stored" if is_end else "stopped" if number > 1 else "nothing began"] += 1
    command.must_end_well(0 if is_end else 1)


def _fault(log: Path, journal: Path, call: str, fault: str) -> Sequence[str]:
    return ("-f", "-o", str(log), "-P", str(journal), "-e", f"trace={call}", "-e", f"inject={call}:{fault}")


def slow_syncs(tally: Tally, form: Form) -> None:
    """Send signals while a sync takes long."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if form == "long" else (signal.SIGTERM,)
    with tempfile.TemporaryDirectory() as directory, Victims(command_line=True) as victims:
        for number in signals:
            for at in range(1, RECORDS) if form == "long" else (SLOW_AT,):
                for times in (1, 2) if form == "long" else (1,):
                    command = CommandLine(victims, Path(directory) / f"{number.name}-{at}-{times}")
                    with tally.case(f"{number.name} {times} times during a slow sync, the {at}. of the writer"):
                        _interrupt(command, number, at, times)


def _interrupt(command: CommandLine, number: signal.Signals, at: int, times: int) -> None:
    log = command.place.directory / "log"
    delay = f"delay_enter={DELAY_S * 1_000_000}:when={at}"
    strace = ["strace", "-D", "-qq", *_fault(log, command.journal, "fsync", delay)]
    # Threads are counted each by itself: the first sync of all is slow too where the first of the writer is.
    process = command.place.begin(through=strace)
    try:
        until(lambda: _records(command.journal) == at + 1, "the record whose sync is slow")
        process.is_told(number)
        require(_records(command.journal) == at + 1, "the sync was over too early", kind="undetected")
        if times == 2:
            process.send(number)
        _ends(command, process, at, times)
    finally:
        process.process.kill()
    require("(DELAYED)" in log.read_text(), "no sync was slow", kind="undetected")
    command.must_end_well(0)


def _records(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _ends(command: CommandLine, process: Process, at: int, times: int) -> None:
    """A suspend is clean, or the run is over; what the journal holds was synced before anybody was told."""
    code, out = process.finishes()
    end = command.place.state.terminal
    if at == RECORDS - 1 or (at == RECORDS - 2 and times == 1):  # the end is being stored, or the answer is
        require((code, out) == (0, ANSWER), "the answer was there:", code, out)
        require(end is not None and end.reason == "completed", "the end isn't stored")
    elif times == 1:
        require((code, out) == (3, ""), "it isn't suspended:", code, out, process.stderr)
        require(end is not None and end.reason == "suspended", "the suspend isn't stored")
        require(command.place.ambiguous == [], "a clean suspend leaves a doubt")
    else:
        require(code == 130, "it isn't aborted:", code, process.stderr)
        require(_records(command.journal) == at + 1, "something happened after the abort", kind="undetected")


STRUCK_COMMANDS = Trial(
    name="failing disks under the command line",
    unit="faults",
    method="The N-th write or sync of a journal fails under `fisk-ai run`: exit 1, the cause and the command that goes "
    "on are named, an answer is printed although its end could not be stored, and that command completes the run",
    promises="P13 P19",
    run=struck_commands,
    target=30,
)
SLOW_SYNCS = Trial(
    name="signals during a slow sync",
    unit="signals",
    method="A signal, or two, while the sync of a record takes two seconds: heard at once, the record is kept, the "
    "suspend is clean, and the resume repeats nothing",
    promises="P6 P13",
    run=slow_syncs,
    target=40,
)
TRIALS: tuple[Trial, ...] = (STRUCK_COMMANDS, SLOW_SYNCS)
