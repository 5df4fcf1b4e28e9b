"""`fisk-ai session`: what is listed, shown, checked, forked and removed."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fisk_ai.records import TerminalRecord, Waiting
from fisk_ai.reports.summary import age, table
from fisk_ai.stores.base import RunInfo

from .bench import NOTE_TOOL, SLOW_TOOL, Bench, command_in, end, result, turn
from .conftest import Inline

ROW = {
    *("run_id", "status", "reason", "waiting", "provider", "model", "prompt", "interactive"),
    *("created", "updated", "records"),
}


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"noted", b"NOTED"))


def _all_statuses(bench: Bench) -> None:
    bench.stored("done", turn("Done."), end("completed"))
    bench.stored("paused", turn("Noting.", "a"), end("suspended"))
    bench.stored("crashed", turn("Noting.", "a"))
    bench.stored("failed", end("error", "the model is on holiday"))
    bench.stored("poor", end("budget"))
    bench.stored("tired", end("max_iterations"))
    _damaged(bench.stored("hurt", turn("Noting.", "a"), result("a"), end("suspended")))
    bench.stored("none").write_bytes(b"")
    bench.stored("held", end("suspended"))


STATUSES = {
    "done": "completed",
    "paused": "suspended",
    "crashed": "interrupted",
    "failed": "error",
    "poor": "budget",
    "tired": "max_iterations",
    "hurt": "unreadable",
    "none": "unreadable",
    "held": "running",
}


def test_list_has_a_row_with_all_fields_for_every_run_whatever_its_state(bench: Bench, inline: Inline) -> None:
    assert inline("session", "ls").err == f"no runs in {bench.state}\n"
    assert inline("session", "ls", "--json").data == []
    _all_statuses(bench)
    before = bench.snapshot()
    with bench.store.open("held"):
        rows = inline("session", "ls", "--json").data
        listed = inline("session", "ls")
    assert {row["run_id"]: row["status"] for row in rows} == STATUSES
    assert all(row.keys() == ROW for row in rows)
    reasons = {row["run_id"]: row["reason"] for row in rows if row["reason"] is not None}
    assert reasons.pop("hurt").startswith("damaged: ")
    assert reasons == {"none": "empty: nothing was recorded"}
    assert listed.text.splitlines()[0].split() == ["RUN", "STATUS", "AGE", "RECORDS", "MODEL", "PROMPT"]
    assert len(listed.text.splitlines()) == 10
    assert bench.snapshot() == before


def test_usage_reads_whole_journals_and_says_so(bench: Bench, inline: Inline) -> None:
    bench.stored("done", turn("Done."), end("completed"))
    _damaged(bench.stored("hurt", turn("Noting.", "a"), result("a"), end("suspended")))
    rows = {row["run_id"]: row for row in inline("session", "ls", "--json", "--usage").data}
    assert rows["done"]["counters"]["total_tokens"] == 15
    assert rows["hurt"]["counters"] is None
    listed = inline("session", "ls", "--usage")
    assert "reading whole journals" in listed.err
    assert "TOKENS" in listed.text
    assert " 15 " in listed.text


def test_order_is_that_of_the_last_record_and_looking_changes_nothing(bench: Bench, inline: Inline) -> None:
    for run_id in ("one", "two", "three"):
        bench.stored(run_id, end("suspended"))
    os.utime(bench.state / "one.json", (2**31, 2**31))
    inline("session", "show", "two")
    assert [row["run_id"] for row in inline("session", "ls", "--json").data] == ["three", "two", "one"]


def test_ages_are_short_and_never_negative() -> None:
    now = datetime(2026, 12, 1, tzinfo=UTC)
    ages = {
        "2026-11-30T23:59:18.5Z": "41s",
        "2026-11-30T23:00:00Z": "1h",
        "2026-11-30T23:59:00+00:00": "1m",
        "2025-10-27T00:00:00Z": "400d",
        "2026-12-01T01:00:00Z": "0s",
        "2026-11-30T23:00:00": "1h",
        "yesterday": "-",
        None: "-",
    }
    assert {moment: age(moment, now) for moment in ages} == ages


@pytest.mark.parametrize("width", [None, 200, 80, 79, 40, 20, 1])
def test_no_line_of_a_table_is_wider_than_the_terminal(width: int | None) -> None:
    infos = [
        RunInfo("01m8rgzyrgtpk2hhzq213bthck", "suspended", model="m" * 50, prompt="\u4f60\u597d\x1b[31m\nrm -rf " * 20),
        RunInfo("r", "suspended", waiting=Waiting(kind="approval", tool_use_id="a", name="mail"), prompt="hi"),
    ]
    lines = list(table(infos, datetime.now(UTC), width))
    assert len(lines) == 3
    for line in lines:
        assert "\x1b" not in line
        assert width is None or sum(2 if "\u2e80" <= each <= "\uffef" else 1 for each in line) <= width
    if width is None:
        assert "[waits for approval: mail] hi" in lines[2]


def test_show_names_calls_and_counters_for_people_and_programs(bench: Bench, inline: Inline) -> None:
    bench.stored("r", turn("Noting.", "a", "b", "c"), result("a"))
    data = inline("session", "show", "r", "--json").data
    assert data.keys() >= ROW | {"counters", "next_iteration", "pending", "terminal", "fingerprint", "version"}
    assert data["next_iteration"] == 1
    assert data["records"] == 3
    assert data["counters"]["tool_calls"] == 1
    pending = data["pending"]
    assert pending["answered"] == [{"id": "a", "name": "note"}]
    assert pending["unanswered"] == [{"id": "b", "name": "note"}, {"id": "c", "name": "note"}]
    assert [call["id"] for call in pending["ambiguous"]] == ["b"]
    assert len(pending["ambiguous"][0]["idempotency_key"]) == 32
    shown = inline("session", "show", "r").text
    assert (
        f"in doubt: note (call b) may have run; its idempotency key is {pending['ambiguous'][0]['idempotency_key']}"
        in shown
    )
    assert "to do:    note (not started)" in shown
    assert '   1 you: hello\n   2 model: Noting.\n     > note {"what":"a"}\n' in shown
    assert "   3   note ok 0.0 s: noted\n       note: no result; it may have run\n       note: not started\n" in shown
    assert shown.endswith("go on with (with the --config it was started with):\n  fisk-ai run --resume r\n")


def test_show_says_what_a_run_waits_for_and_why_it_ended(bench: Bench, inline: Inline) -> None:
    bench.stored("r", end("budget", "9 of 9 tokens are used"))
    shown = inline("session", "show", "r").text
    assert "status:   budget (9 of 9 tokens are used)" in shown
    assert shown.endswith("  fisk-ai run --resume r --force\n")
    bench.stored("done", turn("Done."), end("completed"))
    assert "go on with" not in inline("session", "show", "done").text
    waiting = Waiting(kind="answer", tool_use_id="a", name="note")
    bench.stored("w", turn("Noting.", "a"), TerminalRecord(reason="suspended", waiting=waiting))
    assert "waits:    for answer: note\n" in inline("session", "show", "w").text
    assert inline("session", "show", "w", "--json").data["waiting"] == {
        "kind": "answer",
        "tool_use_id": "a",
        "name": "note",
    }


def test_long_results_are_shortened_unless_all_is_asked_for(bench: Bench, inline: Inline) -> None:
    bench.stored("r", turn("Noting.", "a"), result("a", "\n".join(f"line {number}" for number in range(40))))
    assert "line 11\n         ... 28 more lines" in inline("session", "show", "r").text
    assert "         line 39\n" in inline("session", "show", "r", "--full").text


def test_damaged_run_is_shown_as_far_as_it_is_whole_with_exit_7(bench: Bench, inline: Inline) -> None:
    _damaged(bench.stored("r", turn("Noting.", "a"), result("a"), turn("Done."), end("completed")))
    shown = inline("session", "show", "r")
    assert shown.code == 7
    assert shown.text.startswith("DAMAGED: this is the part before the damage, records 1 to 2\n")
    assert "model: Noting." in shown.text
    assert "Done." not in shown.text
    assert "is damaged at line 3, byte " in shown.err
    as_json = inline("session", "show", "r", "--json")
    assert as_json.code == 7
    assert as_json.data["error"]["code"] == "journal_corrupt"


def test_unknown_format_is_shown_raw_with_exit_5(bench: Bench, inline: Inline) -> None:
    path = bench.stored("r", turn("Noting."))
    lines = path.read_bytes().replace(b',"checksums":true', b"").replace(b'"format":"anthropic"', b'"format":"smoke"')
    path.write_bytes(b"".join(line[:-18] + b"}\n" for line in lines.splitlines()))
    shown = inline("session", "show", "r")
    assert shown.code == 5
    assert shown.out == path.read_bytes()
    assert "run 'r'" in shown.err
    assert "'smoke'" in shown.err
    assert inline("session", "ls", "--json").data[0]["status"] == "interrupted"


def test_empty_and_absent_runs_are_different_things(bench: Bench, inline: Inline) -> None:
    bench.stored("r").write_bytes(b"")
    for action in ("show", "fork"):
        empty = inline("session", action, "r")
        assert (empty.code, empty.err.count("\n")) == (1, 1)
        assert "nothing was recorded under 'r'" in empty.err
        absent = inline("session", action, "s")
        assert (absent.code, absent.err.count("\n")) == (1, 1)
        assert f"no run 's' in {bench.state}" in absent.err
    assert inline("session", "verify").code == 1


def test_rm_takes_the_files_of_the_named_runs_and_nothing_else(bench: Bench, inline: Inline) -> None:
    for run_id in ("r", "r2", "r.json", "s"):
        bench.stored(run_id, end("suspended"))
    for name in ("r.torn", "r.tools", "r.txt", "other"):
        (bench.state / name).write_text("x")
    _damaged(bench.stored("hurt", turn("Noting.", "a"), result("a"), end("suspended")))
    removed = inline("session", "rm", "r", "hurt", "absent", "s")
    assert removed.code == 1
    assert removed.out == b""
    assert removed.err.splitlines()[0] == "removed r"
    assert removed.err.splitlines()[1] == "removed hurt"
    assert "no run 'absent' in" in removed.err
    assert removed.last_line == "removed s"
    assert sorted(path.name for path in bench.state.iterdir()) == [
        "other",
        "r.json.json",
        "r.json.lock",
        "r.txt",
        "r2.json",
        "r2.lock",
    ]


def test_run_in_use_is_not_removed(bench: Bench, inline: Inline) -> None:
    bench.stored("r", end("suspended"))
    before = bench.snapshot()
    with bench.store.open("r"):
        refused = inline("session", "rm", "r")
    assert refused.code == 6
    assert f"in use by process {os.getpid()}" in refused.err
    assert bench.snapshot() == before


def test_verify_names_line_offset_and_cause_of_every_finding(bench: Bench, inline: Inline) -> None:
    bench.stored("good", turn("Done."), end("completed"))
    paths = {
        name: bench.stored(name, turn("Noting.", "a"), result("a"), turn("Done."))
        for name in ("flip", "gap", "no", "torn")
    }
    _damaged(paths["flip"])
    lines = paths["gap"].read_bytes().splitlines(keepends=True)
    paths["gap"].write_bytes(b"".join(lines[:2] + lines[3:]))
    paths["no"].write_bytes(b"".join([lines[0], b"[]\n", *lines[2:]]))
    paths["torn"].write_bytes(paths["torn"].read_bytes() + b'{"seq":5,')
    bench.stored("empty").write_bytes(b"")
    before = bench.snapshot()
    checked = inline("session", "verify", "--json")
    assert checked.code == 7, "damage is worse than what never began"
    found = {finding["run_id"]: finding for finding in checked.data}
    assert found["good"] | {"text": ""} == {
        "run_id": "good",
        "ok": True,
        "records": 3,
        "checksums": True,
        "torn_bytes": 0,
        "missing_newline": False,
        "text": "",
    }
    assert found["torn"]["ok"] is True
    assert found["torn"]["torn_bytes"] == 9
    sizes = [len(line) for line in lines]
    for name, line, whole in (("flip", 3, 2), ("gap", 3, 2)):
        finding = found[name]
        assert (finding["code"], finding["line"], finding["whole_records"]) == ("journal_corrupt", line, whole)
        offset = len(b"".join(paths[name].read_bytes().splitlines(keepends=True)[: line - 1]))
        assert finding["offset"] == offset
        assert finding["cause"]
    assert found["no"]["line"] == 2
    assert found["no"]["offset"] == sizes[0]
    text = inline("session", "verify")
    assert text.code == 7
    assert "good: ok, 3 records, each with a checksum\n" in text.text
    assert "flip: DAMAGED at line 3, byte " in text.text
    assert "records 1 to 2 before it are whole, and `fisk-ai session fork flip --at 2` makes a new run" in text.text
    assert inline("session", "verify", "good", "torn").code == 0
    assert bench.snapshot() == before
    forked = bench.paste("fisk-ai session fork flip --at 2")
    assert forked.code == 0
    assert bench.store.load(forked.text.strip()).last_seq == 3


def test_append_in_progress_is_no_damage(bench: Bench, inline: Inline) -> None:
    path = bench.stored("r", end("suspended"))
    with bench.store.open("r"):
        path.write_bytes(path.read_bytes() + b'{"seq":3,"pro')
        checked = inline("session", "verify", "r")
        listed = inline("session", "ls", "--json").data
    assert checked.code == 0
    assert checked.text == "r: ok, 2 records, each with a checksum; an append of 13 bytes is in progress\n"
    assert [row["status"] for row in listed] == ["running"]


def test_fork_takes_records_up_to_a_point_and_runs_open_calls_with_new_keys(bench: Bench, inline: Inline) -> None:
    bench.agent([{"text": "Go.", "calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "Fine."}], [NOTE_TOOL])
    assert inline("run", "--checkpoint", "--name", "r", "hello").code == 0
    before = bench.snapshot()
    forked = inline("session", "fork", "r", "--at", "2", "--name", "f")
    assert (forked.code, forked.out) == (0, b"f\n")
    assert "it will run these calls, with new idempotency keys: note" in forked.err
    assert {path: found for path, found in bench.snapshot().items() if path in before} == before
    assert inline("session", "show", "f", "--json").data["forked_from"] == {"run_id": "r", "seq": 2}
    resumed = bench.paste(command_in(forked.err))
    assert (resumed.code, resumed.out) == (0, b"Fine.\n")
    assert len(set(bench.effects)) == 2, "the fork's keys are its own"
    assert inline("session", "fork", "r", "--name", "f").code == 2, "the name is taken"


def test_fork_of_an_interrupted_run_keeps_its_doubt_and_one_up_to_a_point_has_none(
    bench: Bench, inline: Inline
) -> None:
    bench.stored("r", turn("Noting.", "a"), result("a"), turn("More.", "b"))
    whole = inline("session", "fork", "r").text.strip()
    part = inline("session", "fork", "r", "--at", "2").text.strip()
    pending = {run_id: inline("session", "show", run_id, "--json").data["pending"] for run_id in ("r", whole, part)}
    assert [call["id"] for call in pending["r"]["ambiguous"]] == ["b"]
    assert [call["id"] for call in pending[whole]["ambiguous"]] == ["b"]
    assert pending[whole]["ambiguous"][0]["idempotency_key"] != pending["r"]["ambiguous"][0]["idempotency_key"]
    assert pending[part]["ambiguous"] == []
    assert [call["id"] for call in pending[part]["unanswered"]] == ["a"]


def test_fork_makes_a_chat_or_takes_it_back_and_leaves_a_damaged_tail_behind(bench: Bench, inline: Inline) -> None:
    bench.stored("r", turn("Answer 1."), end("suspended"), interactive=True)
    data = inline("session", "fork", "r", "--no-chat", "--json").data
    assert data["forked_from"] == {"run_id": "r", "seq": 3}
    assert bench.store.load(data["run_id"]).interactive is False
    assert bench.store.load(inline("session", "fork", "r").text.strip()).interactive is True
    _damaged(bench.stored("hurt", turn("Noting.", "a"), result("a"), end("suspended")))
    assert inline("session", "fork", "hurt").code == 7
    good = inline("session", "fork", "hurt", "--at", "2")
    assert good.code == 0
    assert inline("session", "verify", good.text.strip()).code == 0


def test_fork_of_version_1_is_version_2_and_keeps_what_it_does_not_know(bench: Bench, inline: Inline) -> None:
    path = bench.stored("old", turn("Noting.", "a"), result("a"))
    records = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    for record in records:
        for name in ("crc", "time"):
            del record[name]
    records[0]["meta"]["version"] = 1
    for name in ("checksums",):
        del records[0]["meta"][name]
    records[1]["assistant"]["from_the_future"] = {"kept": [1, 2]}
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    forked = inline("session", "fork", "old", "--name", "new")
    assert forked.code == 0, forked.err
    shown: dict[str, Any] = inline("session", "show", "new", "--json").data
    assert shown["version"] == 2
    assert b'"from_the_future":{"kept":[1,2]}' in (bench.state / "new.json").read_bytes()


def test_list_of_runs_beside_a_running_one_takes_no_lock(bench: Bench) -> None:
    bench.agent([{"text": "I wait.", "calls": [{"name": "slow"}]}, {"text": "Fine."}], [SLOW_TOOL])
    process = bench.start("run", "--checkpoint", "--name", "r", "hello", stdout=subprocess.PIPE)
    bench.wait_for("effects")
    assert [row["status"] for row in bench.cli("session", "ls", "--json").data] == ["running"]
    assert bench.cli("session", "verify").code == 0
    assert bench.cli("session", "rm", "r").code == 6
    (bench.directory / "go").touch()
    assert bench.wait(process).code == 0
