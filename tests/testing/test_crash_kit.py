"""The crash kit tells harmless repeats from harmful ones, for each kind of tool and at each kill point."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fisk_ai import CommandTool, tool
from fisk_ai.agent.guard import OUTCOME_UNKNOWN
from fisk_ai.testing import Crash, CrashKit, CrashReport
from fisk_ai.testing.points import Scope

from . import saving, subjects


def sources(crashes: list[Crash] | tuple[Crash, ...]) -> list[str]:
    """Return the lines at which a call was killed, and in brackets the moments that are none."""
    return [crash.point.source or f"<{crash.point.phase}>" for crash in crashes]


def lefts(report: CrashReport) -> list[str]:
    return [crash.left for crash in report.crashes]


def test_a_call_is_killed_at_every_line_and_a_keyed_one_is_harmless(crash_kit: CrashKit) -> None:
    report = crash_kit.check(subjects.write_by_key, {"text": "Hello"})
    report.assert_harmless()
    assert sources(report.crashes) == [
        "<before>",
        "target = Path(context.idempotency_key)",
        "if not target.exists():",
        'Path("new").write_text(text)',
        'Path("new").rename(target)',
        'return "written"',
        "<returned>",
    ]
    assert lefts(report) == ["untouched"] * 4 + ["halfway", "done", "done"]
    assert all(crash.killed for crash in report.crashes)
    assert report.undisturbed.world == {report.crashes[0].keys[0]: "Hello"}
    assert len({key for crash in report.crashes for key in crash.keys}) == 1
    assert all(len(crash.keys) == 2 for crash in report.crashes)
    assert (report.advised, report.declared, report.missed, report.untried) == ("rerun", "rerun", [], 0)


def test_an_async_tool_is_killed_at_every_line_too(crash_kit: CrashKit) -> None:
    report = crash_kit.check(subjects.write_slowly, {"text": "Hello"})
    report.assert_harmless()
    assert set(sources(report.crashes)) == {
        "<before>",
        "await anyio.sleep(0.01)",
        "saving.save(context.idempotency_key, text)",
        'return "written"',
        "<returned>",
    }


def test_a_tool_of_another_kind_is_killed_at_the_lines_of_its_call(crash_kit: CrashKit) -> None:
    report = crash_kit.check(subjects.Touch())
    report.assert_harmless()
    assert sources(report.crashes)[1:-1] == [
        "path = context.idempotency_key",
        "os.close(os.open(path, os.O_CREAT))",
        'return ToolOutput((TextBlock("made"),))',
    ]


def test_a_plain_function_that_appends_is_harmful_once_it_has(crash_kit: CrashKit) -> None:
    report = crash_kit.check(subjects.append_line, {"text": "Hello"})
    assert not report.harmless
    assert sources(report.harmful) == ['return "appended"', "<returned>"]
    assert report.harmful[0].world == {"log": "Hello\nHello\n"}
    assert report.harmful[0].world_after_kill == report.undisturbed.world == {"log": "Hello\n"}
    assert report.advised == "ask"
    with pytest.raises(AssertionError) as raised:
        report.assert_harmless()
    table = str(raised.value)
    assert table.startswith("a repeat of append_line is HARMFUL after 2 of 6 kills\n")
    assert "  after it returned, its result not journaled" in table
    assert "  + {'log': 'Hello\\nHello\\n'}" in table
    assert "Hand the idempotency key" in table


def test_the_one_line_between_an_effect_and_its_mark_is_found(crash_kit: CrashKit) -> None:
    def put_ten_seats() -> None:
        (crash_kit.world / "seats").write_text("10")

    report = crash_kit.check(
        subjects.take_seat, reset=put_ten_seats, observe=lambda: (crash_kit.world / "seats").read_text()
    )
    assert sources(report.harmful) == ["Path(context.idempotency_key).touch()"]
    assert (report.undisturbed.before, report.undisturbed.world, report.harmful[0].world) == ("10", "9", "8")
    assert "The tool declares on_crash: ask, so none happens by itself." in report.advice


def test_lines_of_other_modules_are_kill_points_where_they_are_asked_for(crash_kit: CrashKit) -> None:
    crash_kit.check(subjects.count_up).assert_harmless()
    report = crash_kit.check(subjects.count_up, into=[saving])
    assert sources(report.harmful) == ["file.write(text)", 'with open(path, "w", encoding="utf-8") as file:']
    assert all(crash.world_after_kill == {"counter": ""} for crash in report.harmful)
    assert "invalid literal for int" in (report.harmful[0].problem or "")
    assert Scope.of(subjects.count_up, ["tests.testing"]).modules == ("tests.testing",)


def test_a_repeat_that_fails_is_harmful_although_the_world_is_the_same(crash_kit: CrashKit) -> None:
    report = crash_kit.check(subjects.make_directory)
    assert sources(report.harmful) == ['return "made"', "<returned>"]
    assert 'the repeat failed: error: "FileExistsError' in (report.harmful[0].problem or "")
    assert report.harmful[0].world == report.undisturbed.world


def test_a_tool_that_raises_is_checked_where_that_is_expected(crash_kit: CrashKit) -> None:
    report = crash_kit.check(subjects.fail_after_writing, expect_error=True)
    report.assert_harmless()
    assert report.undisturbed.told.text == "ValueError: as always"
    assert lefts(report)[-1] == "done"


def test_a_repeat_that_hangs_is_harmful_and_says_where(crash_kit: CrashKit) -> None:
    crash_kit.limit_s = 1.5
    crash_kit.most = 1
    report = crash_kit.check(subjects.lock_for_good)
    stuck = report.crashes[-1]
    assert stuck.point.phase == "returned"
    assert "the resume did not end within 1.5 s; it was at subjects.py:" in (stuck.problem or "")
    assert stuck in report.harmful


@pytest.mark.parametrize(
    ("on_crash", "ended", "told"), [("skip", "completed", OUTCOME_UNKNOWN), ("ask", "decision_needed", None)]
)
def test_what_is_not_repeated_leaves_the_world_as_the_kill_did(
    crash_kit: CrashKit, on_crash: str, ended: str, told: str | None
) -> None:
    report = crash_kit.check(subjects.append_line, {"text": "Hello"}, on_crash=on_crash)  # type: ignore[arg-type]
    report.assert_harmless()
    assert {crash.ended for crash in report.crashes} == {ended}
    assert {crash.told.text if crash.told else None for crash in report.crashes} == {told}
    assert all(crash.world == crash.world_after_kill and len(crash.keys) == 1 for crash in report.crashes)
    assert report.advised is None
    assert "left the call halfway" in report.advice


def test_too_many_lines_are_thinned_out_and_the_report_says_so(crash_kit: CrashKit) -> None:
    crash_kit.most = 8
    report = crash_kit.check(subjects.fill, {"lines": 200})
    report.assert_harmless()
    assert len(report.crashes) == 2 + 8
    assert report.untried == report.undisturbed.steps - 8 > 390
    assert {'file.write(f"{number}\\n")', 'return "filled"'} <= set(sources(report.crashes))
    assert f"({report.untried} more lines were reached and not tried" in str(report)


def test_a_kill_that_never_happened_is_no_success(crash_kit: CrashKit, tmp_path: Path) -> None:
    report = crash_kit.check(subjects.change_mind, {"calls": str(tmp_path / "calls")})
    assert sources(report.missed) == ['return "changed"']
    assert not report.harmless
    assert report.harmful == []
    with pytest.raises(AssertionError, match="is NOT PROVEN: 1 of 9 kills did not happen") as raised:
        report.assert_harmless()
    assert "NOT KILLED: the call took another way this time, and ended with completed" in str(raised.value)


def test_a_function_of_the_test_and_what_the_test_patched_are_what_is_killed(
    crash_kit: CrashKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = crash_kit.world / "elsewhere"
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))

    @tool
    def write() -> str:
        """Write where the environment says."""
        Path(os.environ["ELSEWHERE"]).write_text("here")
        return "written"

    report = crash_kit.check(write)
    report.assert_harmless()
    assert report.undisturbed.world == {"elsewhere": "here"}


@pytest.mark.anyio
async def test_a_check_works_beside_a_running_event_loop(crash_kit: CrashKit) -> None:
    crash_kit.check(subjects.write_slowly, {"text": "Hello"}).assert_harmless()


def command(script: str) -> CommandTool:
    return CommandTool("script", "Runs a script", ["sh", "-c", script], {})


def test_a_command_that_uses_the_key_is_harmless(crash_kit: CrashKit) -> None:
    report = crash_kit.check(crash_kit.command("script", ["sh", "-c", 'touch "$FISK_AI_IDEMPOTENCY_KEY"']))
    report.assert_harmless()
    assert sources(report.crashes) == ["<before>", "<started>", "<returned>"]
    assert "killed from outside only" in str(report)


def test_a_command_that_outlives_the_kill_is_waited_for_and_its_effect_seen(crash_kit: CrashKit) -> None:
    report = crash_kit.check(command("sleep 0.2; echo Hello >> log"))
    assert sources(report.harmful) == ["<started>", "<returned>"]
    started = report.crashes[1]
    assert (started.outlived, started.left, started.world) == (True, "done", {"log": "Hello\nHello\n"})
    assert [crash.outlived for crash in report.crashes] == [False, True, False]


def test_a_kill_by_the_clock_takes_the_commands_process_with_it(crash_kit: CrashKit) -> None:
    report = crash_kit.check(command("echo begun > log; sleep 0.3; echo Hello >> log"), slices=1)
    [crash] = [crash for crash in report.crashes if crash.point.phase == "time"]
    assert crash.killed
    assert (crash.left, crash.world_after_kill, crash.harmless) == ("halfway", {"log": "begun\n"}, True)
    assert "ms after its start" in str(crash.point)


def test_a_function_is_killed_by_the_clock_in_the_middle_of_a_line(crash_kit: CrashKit) -> None:
    def append_and_rest() -> str:
        """Append a line, and rest."""
        subprocess.run(["sh", "-c", "echo Hello >> log; exec sleep 0.2"], check=True)
        return "rested"

    crash_kit.most = 1
    report = crash_kit.check(append_and_rest, slices=1)
    [crash] = [crash for crash in report.crashes if crash.point.phase == "time"]
    assert crash in report.harmful
    assert crash.world == {"log": "Hello\nHello\n"}


@pytest.fixture
def agent_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "llm: {provider: anthropic, model: claude-sonnet-5}\n"
        "tools:\n"
        "  commands:\n"
        "    - name: note\n"
        "      description: Note something\n"
        "      argv: [sh, -c, 'echo \"$1\" >> notes', note, '{text}']\n"
        "      parameters: {text: {type: string}}\n"
        "      on_crash: ask\n"
    )
    return path


def test_a_tool_of_an_agent_yaml_is_checked_as_it_is_declared(crash_kit: CrashKit, agent_yaml: Path) -> None:
    notes = agent_yaml.parent / "notes"
    report = crash_kit.check(
        crash_kit.load(agent_yaml, "note"),
        {"text": "Hello"},
        reset=lambda: notes.write_text(""),
        observe=notes.read_text,
    )
    assert (report.tool, report.declared, report.harmless) == ("note", "ask", False)
    assert report.harmful[-1].world == "Hello\nHello\n"
