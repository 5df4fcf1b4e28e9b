"""O. Scripts and no terminal: B89."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cases import processes_bench
from tests.cases.processes_bench import Desk, forks
from tests.cli.bench import NOTE_TOOL, SLOW_TOOL, Done, command_in, end, result, turn

pytestmark = forks
bench = processes_bench.desk
desk = processes_bench.quick

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
ANSWER: dict[str, Any] = {"text": "The answer is 42."}
NOTING: list[dict[str, Any]] = [{"text": "Noting.", "calls": [{"name": "note", "input": {"what": "a"}}]}, ANSWER]
ODD = "odd 'state\" $HOME `x` dir"
NAME = "a.b_c-1.json"
PLACE = ("--state-dir", ODD)


def begin(desk: Desk, *more: str) -> Done:
    return desk.does("run", "--checkpoint", "--name", NAME, *PLACE, *more, "hello")


def completed(desk: Desk) -> Done:
    desk.agent(NOTING)
    return begin(desk)


def suspended(desk: Desk) -> Done:
    desk.agent([{"calls": [{"name": "slow"}]}, ANSWER], [SLOW_TOOL])
    run = desk.fork("run", "--checkpoint", "--name", NAME, *PLACE, "hello")
    desk.wait_for("effects")
    run.send(signal.SIGTERM)
    (desk.directory / "go").touch()
    return run.ends()


def failed(desk: Desk) -> Done:
    desk.agent([NOTING[0], {"error": "the model is on holiday"}])
    done = begin(desk)
    (desk.directory / "turns.yaml").write_text(json.dumps(NOTING))
    return done


def out_of_budget(desk: Desk) -> Done:
    desk.agent(NOTING, budget={"max_iterations": 1})
    done = begin(desk)
    desk.agent(NOTING, budget={"max_iterations": 5})
    return done


def aborted(desk: Desk) -> Done:
    desk.agent([{"calls": [{"name": "slow"}]}, ANSWER], [SLOW_TOOL])
    run = desk.fork("run", "--checkpoint", "--name", NAME, *PLACE, "hello")
    desk.wait_for("effects")
    run.send(signal.SIGINT)
    run.says("SIGINT: stopping")
    run.send(signal.SIGINT)
    (desk.directory / "go").touch()
    return run.ends()


RESUMABLE: dict[str, tuple[Callable[[Desk], Done], int]] = {
    "suspended": (suspended, 3),
    "error": (failed, 1),
    "budget": (out_of_budget, 4),
    "aborted": (aborted, 130),
}


@pytest.mark.parametrize(("outcome", "code"), RESUMABLE.values(), ids=RESUMABLE)
def test_b89_the_last_line_works_as_printed_and_the_code_says_what_happened(
    desk: Desk, outcome: Callable[[Desk], Done], code: int
) -> None:
    """Scripts couldn't tell a failure from success, and the hint that was printed did not work when pasted.

    entireio/cli#1884, LionSR/TeXRA#10089, earendil-works/pi#5176, anthropics/claude-code#40609
    """
    done = outcome(desk)
    assert (done.code, done.out) == (code, b""), done
    hint = command_in(done.err)
    assert NAME in hint
    pasted = desk.paste(hint)
    assert (pasted.code, pasted.out) == (0, b"The answer is 42.\n"), pasted


def test_b89_a_completed_run_has_its_answer_on_stdout_and_nothing_else(desk: Desk) -> None:
    """Notices stood between the lines of the answer. entireio/cli#1884"""
    done = completed(desk)
    assert (done.code, done.out) == (0, b"The answer is 42.\n")
    assert "Noting." in done.err


def with_status(desk: Desk, *records: Any) -> Path:
    desk.agent(NOTING)
    return desk.stored(NAME, *records)


def refused_as_changed(desk: Desk) -> None:
    with_status(desk, end("suspended"))
    desk.agent(NOTING, model="another")


def refused_as_damaged(desk: Desk) -> None:
    path = with_status(desk, turn("Noting.", "a"), result("a"), end("suspended"))
    path.write_bytes(path.read_bytes().replace(b"noted", b"NOTED"))


def refused_as_undecided(desk: Desk) -> None:
    desk.agent(NOTING, [{**NOTE_TOOL, "on_crash": "ask"}])
    desk.stored(NAME, turn("Noting.", "a"))


REFUSED: dict[str, tuple[Callable[[Desk], object], int]] = {
    "completed": (lambda desk: with_status(desk, turn("Done."), end("completed")), 5),
    "changed": (refused_as_changed, 5),
    "a decision is needed": (refused_as_undecided, 5),
    "damaged": (refused_as_damaged, 7),
    "empty": (lambda desk: with_status(desk).write_bytes(b""), 1),
    "absent": (lambda desk: desk.agent(NOTING), 1),
    "wrong usage": (lambda desk: with_status(desk, end("suspended")), 2),
}


@pytest.mark.parametrize("what", REFUSED)
def test_b89_a_resume_that_did_nothing_is_never_taken_for_success(desk: Desk, what: str) -> None:
    """`Nothing was resumed` had the exit code of success. entireio/cli#1884"""
    prepare, code = REFUSED[what]
    prepare(desk)
    said = desk.refuses("run", "--resume", NAME, *(["prompt"] if what == "wrong usage" else []), code=code, names="")
    assert NAME in said or what == "wrong usage"
    with_json = desk.does("run", "--resume", NAME, "--output", "json")
    if what != "wrong usage":
        assert with_json.code == code
        assert with_json.data["error"]["run_id"] == NAME


def test_b89_a_run_that_is_at_work_elsewhere_has_a_code_of_its_own(desk: Desk) -> None:
    """A script has to know that it may try again later. LionSR/TeXRA#10089"""
    with_status(desk, end("suspended"))
    with desk.store.open(NAME):
        assert "in use" in desk.refuses("run", "--resume", NAME, code=6, names=NAME)


def test_b89_codes_are_documented_where_people_look(desk: Desk) -> None:
    """Help and documentation said different things. anthropics/claude-code#40609"""
    told = " ".join(desk.does("run", "--help").text.split())
    listed = told.partition("Exit codes: ")[2].rstrip(".")
    from_help = {int(code) for code in re.findall(r"(?:^|, )(\d+) ", listed)}
    from_page = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCS.read_text(), re.MULTILINE)}
    seen = {0, 2, 6, *(code for _, code in RESUMABLE.values()), *(code for _, code in REFUSED.values())}
    assert from_help == from_page == seen == {0, 1, 2, 3, 4, 5, 6, 7, 130}


def test_b89_the_command_of_a_refusal_works_as_printed_too(desk: Desk) -> None:
    """The sibling: commands that are named within a message have the flags that they need. earendil-works/pi#5176"""
    desk.agent(NOTING)
    assert begin(desk).code == 0
    taken = begin(desk)
    assert taken.code == 2
    [named] = re.findall(r"`(fisk-ai session rm [^\n]*) or choose", taken.err.replace("` or", " or"))
    assert desk.paste(named).code == 0
    assert not os.path.exists(desk.directory / ODD / f"{NAME}.json")
    assert begin(desk).code == 0
