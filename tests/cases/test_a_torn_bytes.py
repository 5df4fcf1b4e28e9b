"""Section A of the reported failures: torn and damaged journal bytes."""

from __future__ import annotations

import pytest

from fisk_ai.errors import JournalCorrupt
from fisk_ai.records import Record
from tests.cases.bench import (
    RUN,
    Library,
    Shell,
    asks,
    ends,
    foreign,
    gives,
    lines_parse,
    put,
    resealed,
    result_text,
    says,
)

DONE = says("All is well.")
TWO_CALLS: tuple[Record, ...] = (asks("a", "b"), gives("a"))
FIRST, SECOND = asks("a", "b", "c"), asks("d", "e")
NINE_LINES: tuple[Record, ...] = (
    FIRST,
    gives("a"),
    gives("b"),
    gives("c"),
    SECOND,
    gives("d"),
    gives("e"),
    ends("suspended"),
)
"""With M, nine lines."""


def completed_for_good(shell: Shell, answer: str = "All is well.") -> None:
    """The second look is the one at which a record that was eaten by a torn one shows."""
    for _ in range(2):
        row = shell.row()
        assert (row["status"], row["reason"]) == ("completed", None)
        shown = shell.session("show", RUN)
        assert (shown.code, answer in shown.text) == (0, True), shown.err
        state = shell.store.load(RUN)
        assert state.terminal == ends("completed")
    lines_parse(shell.path().read_bytes())
    shell.refused(5, RUN, "completed")
    shell.refused(5, RUN, "completed")


def torn_half(shell: Shell, size: int) -> bytes:
    """The first bytes of R(b)."""
    return shell.lines(asks("a", "b"), gives("a"), gives("b"))[3][:size]


@pytest.mark.parametrize("size", [1, 40, 150])
def test_b01_a_torn_record_is_cut_before_the_next_append(shell: Shell, size: int) -> None:
    """The next record was appended onto half a line of a crash, so that a torn record ate a good one.

    Tracer-Cloud/opensre#5750, elizaOS/eliza#30878, github/copilot-cli#4098, Runfusion/Fusion#3569.
    """
    shell.plays(asks("a", "b"), DONE)
    torn = torn_half(shell, size)
    path = shell.plant(*TWO_CALLS, tail=torn)
    whole = b"".join(shell.lines(*TWO_CALLS))

    done = shell.resume()

    assert (done.code, done.text) == (0, "All is well.\n")
    assert shell.counts("ab") == [0, 1]
    assert path.read_bytes().startswith(whole + b'{"seq":4,'), "what follows stands on a line of its own"
    assert path.with_suffix(".torn").read_bytes().startswith(torn)
    assert done.err.count(f"{size} bytes") == 1, done.err
    completed_for_good(shell)
    shell.check_same_as_twin()


def test_b01_a_record_that_lacks_its_last_bytes_is_cut_at_every_length(lib: Library) -> None:
    """As above, whatever the length of what a crash left of the record; loading alone never changes the file."""
    lib.plays(asks("a", "b"), DONE)
    *whole, last = lib.lines(asks("a", "b"), gives("a"), gives("b"))
    for size in range(1, len(last) - 1, 7):
        path = lib.plant(*TWO_CALLS, tail=last[:size])
        with lib.untouched:
            assert lib.store.load(RUN).last_seq == 3
        result = lib.agent().resume_sync(RUN)
        assert result.reason == "completed"
        assert path.read_bytes().startswith(b"".join(whole) + b'{"seq":4,')
        assert lib.load_twice().terminal == ends("completed")
        for file in path.parent.iterdir():
            file.unlink()


def test_b01_a_torn_record_is_cut_only_when_something_is_appended(shell: Shell) -> None:
    """As above: a resume with nothing left to spend appends nothing and cuts nothing, the next one does both."""
    shell.plays(asks("a"), DONE, budget={"max_iterations": 1})
    shell.plant(asks("a"), gives("a"), tail=b'{"seq":4,"protocol":"io.ch')
    with shell.untouched:
        assert shell.resume().code == 4
    shell.plays(asks("a"), DONE, budget={"max_iterations": 2})
    assert shell.resume("--force").code == 0
    completed_for_good(shell)


@pytest.mark.parametrize("records", [(asks("a"), gives("a")), (asks("a"),), ()], ids=["R", "A", "M"])
def test_b04_a_last_record_without_its_newline_counts_and_gets_it(shell: Shell, records: tuple[Record, ...]) -> None:
    """Reader and writer disagreed on whether complete JSON without its newline is a record.

    alibaba/open-code-review#1312, PrimeIntellect-ai/prime-agent#959.
    """
    shell.plays(asks("a"), DONE)
    path = shell.plant(*records)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with shell.untouched:
        assert shell.store.load(RUN).last_seq == len(records) + 1
        assert shell.row()["records"] == len(records) + 1
        assert shell.session("show", RUN).code == 0

    assert shell.resume().code == 0

    assert path.read_bytes().startswith(whole + b'{"seq":')
    assert shell.counts("a") == [0 if len(records) == 2 else 1]
    assert not path.with_suffix(".torn").exists()
    completed_for_good(shell)
    shell.check_same_as_twin()


def test_b04_a_completed_run_without_its_last_newline_is_completed(shell: Shell) -> None:
    """As above, for the end record, after which nothing is ever appended: it counts, and the file stays as it is."""
    shell.plays(asks("a"), DONE)
    path = shell.plant(asks("a"), gives("a"), DONE, ends("completed"))
    path.write_bytes(path.read_bytes()[:-1])
    shell.refused(5, RUN, "completed")
    assert shell.row()["status"] == "completed"


@pytest.mark.parametrize("tail", [b"\0" * 2000, b"\0" * 1999 + b"\n", b'{"seq":4,"pro' + b"\0" * 500])
def test_b05_a_tail_of_nul_bytes_is_cut(shell: Shell, tail: bytes) -> None:
    """After a power cut the file ended in NUL bytes, and the user was told that there is no such session.

    github/copilot-cli#2217.
    """
    shell.plays(asks("a"), DONE)
    path = shell.plant(asks("a"), gives("a"), tail=tail)
    whole = b"".join(shell.lines(asks("a"), gives("a")))
    with shell.untouched:
        row = shell.row()
        assert (row["status"], row["records"]) == ("interrupted", 3)
        shown = shell.session("show", RUN)
        assert (shown.code, result_text("a") in shown.text) == (0, True)

    done = shell.resume()

    assert (done.code, done.text) == (0, "All is well.\n")
    notices = [line for line in done.err.splitlines() if f"{len(tail)} bytes" in line]
    assert len(notices) == 1, done.err
    assert path.read_bytes().startswith(whole + b'{"seq":4,')
    assert path.with_suffix(".torn").read_bytes().startswith(tail)
    assert shell.counts("a") == [0]
    completed_for_good(shell)
    shell.check_same_as_twin()


DAMAGE = {
    "half a line": None,
    "NUL bytes": b"\0" * 300,
    "not JSON": b"{oops",
    "a list": b"[]",
    "null": b"null",
    "a number": b"17",
    "text": b'"R(b)"',
    "nothing": b"",
    "no UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("number", [2, 4, 8])
def test_b06_a_damaged_line_in_the_middle_is_refused_by_its_place(
    shell: Shell, number: int, damage: bytes | None
) -> None:
    """One bad line hid all later history without a word, or made the session unusable with no way out.

    anthropics/claude-code#50347, anthropics/claude-code#49876, ChrisRomp/copilot-bridge#210,
    BaseIntelligence/bounty-challenge#12613.
    """
    shell.plays(FIRST, SECOND, DONE)
    lines = shell.lines(*NINE_LINES)
    assert len(lines) == 9
    bad = lines[number - 1][: len(lines[number - 1]) // 2] if damage is None else damage
    path = shell.plant()
    path.write_bytes(b"".join([*lines[: number - 1], bad + b"\n", *lines[number:]]))
    offset = sum(map(len, lines[: number - 1]))

    for flags in ([], ["--force"]):
        line = shell.refused(
            7, RUN, str(path), f"line {number}", f"byte {offset}", args=["run", "--resume", RUN, *flags]
        )
        assert "session verify" in line
    with shell.untouched:
        shown = shell.session("show", RUN)
        assert shown.code == 7
        assert shown.text.startswith("DAMAGED")
        assert f"records 1 to {number - 1}\n" in shown.text
        assert (result_text("a") in shown.text) == (number > 3)
        with pytest.raises(JournalCorrupt):
            shell.store.load(RUN)
        row = shell.row()
        assert row["status"] == "unreadable"
        assert "damaged" in row["reason"]
    assert shell.counts() == [0] * 5

    assert shell.session("rm", RUN).code == 0
    assert not list(shell.state.glob(f"{RUN}.*"))


@pytest.mark.parametrize("damage", [name for name, bad in DAMAGE.items() if bad != b"\0" * 300])
def test_b06_a_damaged_last_line_was_whole_once_and_is_refused_too(shell: Shell, damage: str) -> None:
    """As above, for the last line: it has its newline, so it is no torn tail, and is not cut in silence."""
    shell.plays(FIRST, SECOND, DONE)
    lines = shell.lines(*NINE_LINES)
    bad = DAMAGE[damage]
    path = shell.plant()
    path.write_bytes(b"".join([*lines[:8], (lines[8][:40] if bad is None else bad) + b"\n"]))
    shell.refused(7, RUN, str(path), "line 9", f"byte {sum(map(len, lines[:8]))}")
    assert shell.row()["status"] == "unreadable"


def test_b06_a_damaged_run_has_a_way_out(shell: Shell) -> None:
    """As above: the whole part can be forked to a new run, and the damaged file stays as it is."""
    shell.plays(asks("a"), asks("b"), DONE)
    lines = shell.lines(asks("a"), gives("a"), asks("b"), gives("b"), DONE)
    path = shell.plant()
    path.write_bytes(b"".join([*lines[:4], b"{oops\n", *lines[5:]]))
    damaged = path.read_bytes()
    forked = shell.session("fork", RUN, "--at", "4", "--name", "saved")
    assert forked.code == 0, forked.err
    assert shell.resume(run_id="saved").code == 0
    assert shell.counts("ab") == [0, 1]
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("content", [b"", b'{"seq":1,"protocol":"io.choria', b"\0" * 512], ids=["empty", "torn", "NUL"])
def test_b08_a_file_without_a_whole_header_is_no_run(shell: Shell, content: bytes) -> None:
    """Files without a usable header were listed as empty sessions, or retried for ever.

    openai/codex#38341, eltmon/overdeck#2895, can1357/oh-my-pi#12581.
    """
    path = shell.plant()
    path.write_bytes(content)

    assert "nothing was recorded" in shell.refused(1, RUN, f"session rm {RUN}")
    assert "nothing was recorded" in shell.refused(1, RUN, args=["session", "show", RUN])
    with shell.untouched:
        row = shell.row()
        assert (row["status"], row["reason"]) == ("unreadable", "empty: nothing was recorded")
        assert shell.session("ls").code == 0

    removed = shell.session("rm", RUN)
    assert removed.code == 0
    assert not list(shell.state.glob(f"{RUN}.*")), "file and lock are gone"
    assert "no run" in shell.refused(1, RUN)


@pytest.mark.parametrize("content", [b"", b'{"seq":1,"protocol":"io.choria'], ids=["empty", "torn"])
def test_b08_the_name_of_a_run_that_never_began_can_be_used_again(shell: Shell, content: bytes) -> None:
    """As above; what bytes there were are kept beside the new run."""
    path = shell.plant()
    path.write_bytes(content)
    done = shell.fast("run", "go", "--checkpoint", "--name", RUN)
    assert done.code == 0, done.err
    assert [line["seq"] for line in lines_parse(path.read_bytes())] == [1, 2, 3]
    torn = path.with_suffix(".torn")
    assert (torn.read_bytes().rstrip(b"\n") if torn.exists() else b"") == content
    assert shell.row()["status"] == "completed"
    assert shell.row()["status"] == "completed"


@pytest.mark.parametrize("twice", [2, 3, 4, 5])
def test_b09_an_identical_twin_of_a_line_counts_once(shell: Shell, twice: int) -> None:
    """A retried write left a record in the file twice; results, and tokens, were counted twice.

    openai/codex#24425, bytedance/deer-flow#5423.
    """
    shell.plays(asks("a", "b"), DONE)
    lines = shell.lines(asks("a", "b"), gives("a"), gives("b"), DONE)
    path = shell.plant()
    path.write_bytes(b"".join([*lines[:twice], lines[twice - 1], *lines[twice:]]))
    with shell.untouched:
        state = shell.store.load(RUN)
        assert state.last_seq == 5
        assert (state.counters.model_calls, state.counters.tool_calls) == (2, 2)
        assert state.counters.in_tokens == 20

    assert shell.resume().code == 0
    assert shell.counts("ab") == [0, 0]
    completed_for_good(shell)
    shell.check_same_as_twin()


def test_b09_an_identical_twin_as_the_last_line_is_not_in_the_way(shell: Shell) -> None:
    """As above, where the retried write was the last thing that happened, and where it was torn."""
    shell.plays(asks("a", "b"), DONE)
    lines = shell.lines(*TWO_CALLS)
    for twin in (lines[-1], lines[-1][:-1], lines[-1][:50]):
        shell.plant(*TWO_CALLS, tail=twin)
        assert shell.store.load(RUN).counters.tool_calls == 1
        assert shell.resume().code == 0
        completed_for_good(shell)
        assert shell.session("rm", RUN).code == 0
    assert shell.counts("ab") == [0, 3]


@pytest.mark.parametrize("sealed", [False, True], ids=["as written alone", "with a checksum that fits"])
def test_b09_another_record_under_the_same_number_is_damage(shell: Shell, sealed: bool) -> None:
    """As above: a store re-used a number after a restart, and the last one won in silence."""
    shell.plays(asks("a", "b"), DONE)
    lines = shell.lines(asks("a", "b"), gives("a"), gives("b"))
    other = shell.lines(asks("a", "b"), gives("a", "something else"))[2]
    doubled = [*lines[:3], other, *lines[3:]]
    path = shell.plant()
    path.write_bytes(b"".join(resealed(doubled) if sealed else doubled))
    line = shell.refused(7, RUN, "line 4", f"byte {sum(map(len, lines[:3]))}")
    assert ("seq is 3, expected 4" in line) == sealed
    assert shell.counts("ab") == [0, 0]


@pytest.mark.parametrize("sealed", [False, True], ids=["cut out", "with checksums that fit"])
@pytest.mark.parametrize("lost", [2, 3, 4, 5])
def test_b10_a_missing_record_is_refused_and_its_gap_named(shell: Shell, lost: int, sealed: bool) -> None:
    """One record was missing while every line left was fine; the thread was skipped or failed with an internal error.

    openai/codex#38341, OpenHands/OpenHands#16727.
    """
    shell.plays(asks("a", "b"), asks("c"), DONE)
    lines = shell.lines(asks("a", "b"), gives("a"), gives("b"), asks("c"), gives("c"))
    kept = [*lines[: lost - 1], *lines[lost:]]
    path = shell.plant()
    path.write_bytes(b"".join(resealed(kept) if sealed else kept))
    line = shell.refused(7, RUN, f"line {lost}", f"byte {sum(map(len, lines[: lost - 1]))}")
    if sealed:
        assert f"seq is {lost + 1}, expected {lost}" in line
    assert shell.counts("abc") == [0, 0, 0]


def test_b10_a_missing_record_of_a_journal_without_checksums_is_seen_by_its_number(lib: Library) -> None:
    """As above, for a journal of other origin, where the numbers are all that tells."""
    lines = foreign([lib.meta(), asks("a", "b"), gives("a"), gives("b"), asks("c"), gives("c")])
    put(lib.path, b"".join([*lines[:3], *lines[4:]]))
    with lib.untouched, pytest.raises(JournalCorrupt, match="seq is 5, expected 4") as refused:
        lib.agent().resume_sync(RUN)
    assert refused.value.line == 4
    assert lib.effects.names == []
    assert lib.requests == []
