"""`session export` and `import`: a run goes on elsewhere, byte for byte, and nothing is ever overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fisk_ai.stores import FileStore
from tests.cli.bench import Bench, end, result, turn
from tests.cli.conftest import Inline


def _exported(bench: Bench, inline: Inline, run_id: str = "orders") -> Path:
    bench.stored(run_id, turn("Noting.", "a"), result("a"), end("suspended"))
    file = bench.directory / "orders.run"
    assert inline("session", "export", run_id, str(file)).code == 0
    return file


def _elsewhere(bench: Bench) -> str:
    return str(bench.directory / "elsewhere")


def test_a_run_that_was_exported_goes_on_elsewhere(bench: Bench, inline: Inline) -> None:
    bench.agent([{"text": "Noting.", "calls": [{"name": "note", "input": {"what": "x"}}]}, {"text": "Noted."}])
    begun = bench.cli("run", "--checkpoint", "--name", "orders", "note", "x")
    assert begun.code == 0
    file = bench.directory / "orders.run"
    told = inline("session", "export", "ord", str(file))
    assert told.code == 0
    assert "run orders: 5 records" in told.err
    taken = inline("session", "import", str(file), "--state-dir", _elsewhere(bench))
    assert taken.text == "orders\n"
    assert "5 records imported, completed" in taken.err
    copy = Path(_elsewhere(bench), "orders.json")
    assert copy.read_bytes() == file.read_bytes() == (bench.state / "orders.json").read_bytes()
    assert inline("session", "verify", "orders", "--state-dir", _elsewhere(bench)).code == 0


def test_a_suspended_run_is_resumed_where_it_was_imported(bench: Bench, inline: Inline) -> None:
    bench.agent([{"calls": [{"name": "note", "input": {"what": "x"}}]}, {"text": "Noted."}])
    assert bench.cli("run", "--checkpoint", "--name", "orders", "note", "x").code == 0
    whole = bench.store.read("orders")
    cut = b"".join((bench.state / "orders.json").read_bytes().splitlines(keepends=True)[:2])
    (bench.state / "orders.json").write_bytes(cut)
    assert len(whole.records) == 5
    file = bench.directory / "orders.run"
    assert inline("session", "export", "orders", str(file)).code == 0
    taken = inline("session", "import", str(file), "--state-dir", _elsewhere(bench))
    assert f"fisk-ai run --resume orders --state-dir {_elsewhere(bench)}" in taken.err
    there = FileStore(_elsewhere(bench)).load("orders")
    here = bench.store.load("orders")
    assert there == here
    assert there.pending is not None
    (call,) = there.pending.ambiguous
    assert there.key_of(call) == here.key_of(call)
    resumed = bench.cli("run", "--resume", "orders", "--state-dir", _elsewhere(bench))
    assert (resumed.code, resumed.text) == (0, "Noted.\n")


def test_a_pipe_takes_a_run_along(bench: Bench) -> None:
    path = bench.stored("orders", turn("Noting.", "a"), end("suspended"))
    out = bench.cli("session", "export", "orders")
    assert out.out == path.read_bytes()
    taken = bench.cli("session", "import", "-", "--json", "--state-dir", _elsewhere(bench), stdin=out.out)
    assert taken.data["run_id"] == "orders"
    assert taken.data["status"] == "suspended"


@pytest.mark.slow
def test_a_reader_that_goes_away_has_no_whole_run(bench: Bench) -> None:
    bench.stored("orders", turn("x" * 500_000), end("suspended"))
    process = bench.start("session", "export", "orders")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    assert process.wait(30) == 1
    assert "no whole run" in said
    assert "Traceback" not in said


def test_an_export_is_for_the_owners_eyes_and_overwrites_nothing(bench: Bench, inline: Inline) -> None:
    file = _exported(bench, inline)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    again = inline("session", "export", "orders", str(file))
    assert again.code == 2
    assert "exists already" in again.err
    assert file.read_bytes() == before
    link = bench.directory / "link"
    link.symlink_to(bench.directory / "target")
    assert inline("session", "export", "orders", str(link)).code == 2
    assert not (bench.directory / "target").exists()
    assert not list(bench.directory.glob(".*.part"))


def test_an_export_that_can_not_be_written_leaves_nothing(bench: Bench, inline: Inline) -> None:
    _exported(bench, inline)
    refused = inline("session", "export", "orders", str(bench.directory / "missing" / "orders.run"))
    assert refused.code == 1
    assert "No such file or directory" in refused.err


def test_a_taken_id_is_refused_and_nothing_changes(bench: Bench, inline: Inline) -> None:
    file = _exported(bench, inline)
    before = bench.snapshot()
    refused = inline("session", "import", str(file), "--json")
    assert refused.code == 2
    assert refused.data["error"]["code"] == "run_exists"
    assert "an imported run keeps its id" in refused.data["error"]["message"]
    with bench.store.open("orders"):
        assert inline("session", "import", str(file)).code == 2
    (bench.state / "orders.json").write_bytes(b"{oops\n{oops\n")
    hurt = bench.snapshot()
    assert inline("session", "import", str(file)).code == 2
    assert bench.snapshot() == hurt
    assert before.keys() <= hurt.keys()


def test_a_name_under_which_nothing_was_recorded_is_free_and_its_bytes_are_kept(bench: Bench, inline: Inline) -> None:
    file = _exported(bench, inline)
    (bench.state / "orders.json").write_bytes(b'{"seq":1,"prot')
    assert inline("session", "import", str(file)).code == 0
    assert (bench.state / "orders.json").read_bytes() == file.read_bytes()
    assert (bench.state / "orders.torn").read_bytes() == b'{"seq":1,"prot'


@pytest.mark.parametrize("keep", [0, 1, 40, -1, -30])
def test_an_export_that_was_cut_short_is_refused_before_anything_is_written(
    bench: Bench, inline: Inline, keep: int
) -> None:
    file = _exported(bench, inline)
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    refused = inline("session", "import", str(file), "--state-dir", _elsewhere(bench))
    if keep == -1:  # only the newline is missing: the record counts, and gets it
        assert refused.code == 0
        assert Path(_elsewhere(bench), "orders.json").read_bytes() == data
        return
    assert refused.code == 7
    assert "Nothing was changed" in refused.err
    assert "session fork" not in refused.err
    assert not os.path.exists(_elsewhere(bench))


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_damaged_export_is_refused_by_line_and_byte(bench: Bench, inline: Inline, place: str) -> None:
    file = _exported(bench, inline)
    lines = file.read_bytes().splitlines(keepends=True)
    at = {"first": 0, "middle": 1, "last": len(lines) - 1}[place]
    lines[at] = lines[at].replace(b'"seq"', b'"Seq"')
    file.write_bytes(b"".join(lines))
    refused = inline("session", "import", str(file), "--state-dir", _elsewhere(bench), "--json")
    assert refused.code == 7
    assert f"line {at + 1}, byte {sum(map(len, lines[:at]))}" in refused.data["error"]["message"]
    assert not os.path.exists(_elsewhere(bench))


def test_a_damaged_or_running_or_absent_run_is_not_exported(bench: Bench, inline: Inline) -> None:
    file = bench.directory / "out"
    path = bench.stored("orders", turn("Noting.", "a"), result("a"), end("suspended"))
    with bench.store.open("orders"):
        assert inline("session", "export", "orders", str(file)).code == 6
    path.write_bytes(path.read_bytes().replace(b"noted", b"NOTED"))
    before = bench.snapshot()
    assert inline("session", "export", "orders", str(file)).code == 7
    assert inline("session", "export", "nobody", str(file)).code == 1
    bench.stored("none").write_bytes(b"")
    assert inline("session", "export", "none", str(file)).code == 1
    assert not file.exists()
    assert {name: bench.snapshot()[name] for name in before} == before


def test_a_torn_tail_does_not_travel_and_is_said(bench: Bench, inline: Inline) -> None:
    path = bench.stored("orders", turn("Noting.", "a"), end("suspended"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"seq":4')
    file = bench.directory / "out"
    told = inline("session", "export", "orders", str(file))
    assert told.code == 0
    assert "a torn tail of 8 bytes" in told.err
    assert file.read_bytes() == whole
    assert path.read_bytes() == whole + b'{"seq":4'


def test_what_is_no_run_is_not_imported(bench: Bench, inline: Inline) -> None:
    (bench.directory / "picture").write_bytes(bytes(range(256)) * 40)
    assert inline("session", "import", str(bench.directory / "picture")).code == 7
    assert inline("session", "import", str(bench.directory)).code == 1
    assert inline("session", "import", str(bench.directory / "missing")).code == 1
    assert not bench.state.exists()


def test_a_newer_export_names_both_versions(bench: Bench, inline: Inline) -> None:
    file = bench.directory / "newer"
    file.write_bytes((Path(__file__).parents[1] / "journals" / "newer.json").read_bytes())
    refused = inline("session", "import", str(file))
    assert refused.code == 5
    assert "version 3" in refused.err
    assert "up to 2" in refused.err


def test_verify_checks_all_runs_when_told_to(bench: Bench, inline: Inline) -> None:
    bench.stored("one", end("suspended"))
    bench.stored("two", end("suspended"))
    told = inline("session", "verify", "--all")
    assert [line.partition(":")[0] for line in told.text.splitlines()] == ["one", "two"]
    assert inline("session", "verify", "--all", "one").code == 2
