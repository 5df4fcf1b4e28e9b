"""The short forms of the trials of damage, and damage that a weaker reader would miss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fisk_ai import codec
from tests.reliability.damage_trials import BAD_LINES, CUTS, FLIPS, MACHINES, MOVED, TRIALS
from tests.reliability.trials import Trial, tried


@pytest.mark.slow
@pytest.mark.parametrize("trial", [trial for trial in TRIALS if trial is not MACHINES], ids=lambda trial: trial.name)
def test_short_form_breaks_no_promise(trial: Trial) -> None:
    tried(trial, "short").check()


def _no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(_self: codec.Scanner, line: bytes) -> int | None:
        found = codec._CRC_TAIL.match(line[-codec._CRC_TAIL_BYTES :])
        return int(found[1], 16) if found else None

    monkeypatch.setattr(codec.Scanner, "_check_crc", believe)


def _any_bad_last_line_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = codec.Scanner.finish

    def lenient(self: codec.Scanner) -> object:
        failed, rest = self._failed, b"".join(self._parts)
        if failed is not None and not rest:
            return [], codec.Tail(self._offset, torn=failed[0] + b"\n")
        return finish(self)

    monkeypatch.setattr(codec.Scanner, "finish", lenient)


def _lines_are_split_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.Scanner, "_advance", lambda self, line, _newline: setattr(self, "_offset", len(line)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trial", "plant"),
    [
        (FLIPS, _no_checksum),
        (MOVED, _no_checksum),
        (BAD_LINES, _any_bad_last_line_is_torn),
        (CUTS, _lines_are_split_anywhere),
    ],
    ids=lambda value: value.name if isinstance(value, Trial) else value.__name__,
)
def test_a_weaker_reader_is_caught(
    trial: Trial, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert tried(trial, "short").broken
