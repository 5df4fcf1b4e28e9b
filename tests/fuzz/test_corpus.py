"""Every input that is kept comes to a documented outcome, and the fuzzer finds what is planted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fisk_ai import codec, jsontext
from fisk_ai.errors import JournalCorrupt, NewerVersion, UnsupportedFormat
from fisk_ai.folding import Folding
from fisk_ai.records import SequencedRecord, ToolResultRecord
from tests.fuzz import engine, targets
from tests.fuzz.corpus import CORPUS, kept
from tests.fuzz.engine import fuzz, mutator_of
from tests.fuzz.journals import read
from tests.fuzz.limits import Alarm, alarms, check_memory
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.trials import FUZZ
from tests.reliability.trials import BrokenPromise, tried

ROOT = Path(__file__).parents[2]
Monkeypatch = pytest.MonkeyPatch


@pytest.mark.parametrize("name", TARGETS)
def test_every_kept_input_has_a_documented_outcome(name: str) -> None:
    target = TARGETS[name]
    for data in kept(target.corpus).values():
        target.run(data)
        for size in {len(data) // 2, len(data) - 1} & set(range(len(data))):
            target.run(data[:size])


def test_kept_inputs_are_small_and_of_every_kind() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert len(files) <= 220
    assert sum(path.stat().st_size for path in files) < 200_000
    readings = [read([data]) for data in kept("journals").values()]
    kinds = {type(each.record) for reading in readings for each in reading.records}
    assert len(kinds) == 5
    assert {type(reading.problem) for reading in readings} == {type(None), JournalCorrupt, NewerVersion}
    assert any(reading.tail is not None and reading.tail.torn for reading in readings)
    assert any(reading.tail is not None and reading.tail.missing_newline for reading in readings)


@pytest.mark.slow
def test_whatever_is_fed_there_is_a_documented_outcome() -> None:
    tally = tried(FUZZ, "short")
    tally.check()
    assert tally.cases >= 29_900


def test_mutated_journals_get_past_the_checks() -> None:
    mutator = mutator_of("fold")
    readings = [read([mutator.make(number)]) for number in range(600)]
    assert sum(reading.problem is None and len(reading.records) > 1 for reading in readings) > 100
    refused = {_refused(reading.records) for reading in readings if reading.problem is None}
    assert len(refused) >= 8, f"the fold was refused in few ways: {refused}"


def _refused(records: list[SequencedRecord]) -> str:
    folding = Folding()
    try:
        for record in records:
            folding.apply(record)
    except JournalCorrupt as problem:
        return problem.cause[:12]
    except UnsupportedFormat:
        return "format"
    return ""


def first_finding(target: str) -> engine.Finding | None:
    return next(finding for _, finding in fuzz(target, range(3000)))


def test_an_input_follows_from_its_number_alone() -> None:
    first, second = mutator_of("reader"), mutator_of("reader")
    made = [first.make(number) for number in range(50)]
    assert [second.make(number) for number in reversed(range(50))] == made[::-1]
    said = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--target", "reader", "--only", "7"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert said.startswith(f"reader 7: {made[7]!r}")


def _plant_offset(monkeypatch: Monkeypatch) -> None:
    advance = codec.Scanner._advance
    monkeypatch.setattr(codec.Scanner, "_advance", lambda self, line, _newline: advance(self, line, 0))


def _plant_numbers(monkeypatch: Monkeypatch) -> None:
    monkeypatch.setattr(jsontext, "_check_numbers", lambda _raw: None)


def _plant_fold(monkeypatch: Monkeypatch) -> None:
    def require_nothing(_self: Folding, _call_id: str, record: ToolResultRecord, _seq: int) -> None:
        msgspec.json.decode(record.result, type=dict[str, msgspec.Raw])["content"]

    monkeypatch.setattr(Folding, "_require_result_for", require_nothing)


def _plant_printable(monkeypatch: Monkeypatch) -> None:
    monkeypatch.setattr(targets, "printable", lambda text: text.replace("\x1b", ""))


@pytest.mark.parametrize(
    ("target", "plant"),
    [("reader", _plant_offset), ("strict_json", _plant_numbers), ("fold", _plant_fold), ("text", _plant_printable)],
)
def test_a_planted_bug_is_found(target: str, plant: Callable[[Monkeypatch], None], monkeypatch: Monkeypatch) -> None:
    plant(monkeypatch)
    finding = first_finding(target)
    assert finding is not None
    assert finding.how == f"python -m tests.fuzz --target {target} --only {finding.number}"


def test_a_target_that_hangs_or_swallows_memory_is_found(monkeypatch: Monkeypatch) -> None:
    def hang(_data: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr("tests.fuzz.limits.HANG_S", 0.02)
    with alarms() as alarm, pytest.raises(TimeoutError):
        engine.attempt(Target(hang, "json", "messages", 1), b"", alarm)
    assert isinstance(alarm, Alarm)
    with pytest.raises(BrokenPromise, match="bytes of memory"):
        check_memory(lambda data: bytearray(40 * len(data)).clear(), bytes(100_000), 20)


def test_without_atheris_it_says_how_to_get_it(monkeypatch: Monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    from tests.fuzz.__main__ import main

    assert main(["--coverage", "--target", "reader"]) == 2
    assert "pip install atheris" in capsys.readouterr().out
