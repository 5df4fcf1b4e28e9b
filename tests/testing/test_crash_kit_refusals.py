"""A check that could not find anything says so, and proves nothing silently."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fisk_ai.errors import ConfigError, ToolSetupError
from fisk_ai.testing import CrashKit, NothingProven

from . import subjects


def test_an_undisturbed_call_that_fails_proves_nothing(crash_kit: CrashKit) -> None:
    with pytest.raises(NothingProven, match=r"failed \(error: 'ValueError: as always'\).*expect_error=True"):
        crash_kit.check(subjects.fail_after_writing)


def test_an_expected_failure_that_does_not_come_proves_nothing(crash_kit: CrashKit) -> None:
    with pytest.raises(NothingProven, match="was expected to fail, and did not"):
        crash_kit.check(subjects.make_directory, expect_error=True)


@pytest.mark.parametrize("name", ["hang", "wait_for_ever"])
def test_an_undisturbed_call_that_hangs_proves_nothing_and_says_where(crash_kit: CrashKit, name: str) -> None:
    crash_kit.limit_s = 1.0
    with pytest.raises(NothingProven, match=r"did not end within 1 s; it was at subjects.py:\d+"):
        crash_kit.check(getattr(subjects, name))


def test_a_command_that_hangs_is_ended(crash_kit: CrashKit) -> None:
    crash_kit.limit_s = 1.0
    hanging = crash_kit.command("hang", ["sh", "-c", "echo $$ > ../pid; exec sleep 60"])
    with pytest.raises(NothingProven, match=r"did not end within 1 s; it was outside of its code"):
        crash_kit.check(hanging)
    pid = (crash_kit.directory / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}/cmdline").exists() or Path(f"/proc/{pid}/cmdline").read_bytes() == b""


def test_a_command_that_leaves_a_process_proves_nothing(crash_kit: CrashKit) -> None:
    with pytest.raises(NothingProven, match="left a process running when it ended"):
        crash_kit.check(crash_kit.command("leave", ["sh", "-c", "sleep 60 > /dev/null 2>&1 & touch here"]))


def test_a_world_that_differs_each_time_proves_nothing(crash_kit: CrashKit) -> None:
    with pytest.raises(NothingProven, match=r"leave two worlds.*leave out what differs each time"):
        crash_kit.check(subjects.write_the_time)


def test_a_world_in_which_nothing_is_seen_proves_nothing_unless_that_is_expected(crash_kit: CrashKit) -> None:
    with pytest.raises(NothingProven, match="sees nothing of what make_directory does"):
        crash_kit.check(subjects.make_directory, observe=lambda: "always the same")
    seen = crash_kit.check(
        subjects.append_line, {"text": "Hello"}, observe=lambda: "always the same", expect_change=False
    )
    seen.assert_harmless()


def test_arguments_that_do_not_fit_are_refused_before_anything_runs(crash_kit: CrashKit) -> None:
    crash_kit.most = 0
    with pytest.raises(ConfigError) as raised:
        crash_kit.check(subjects.make_directory, {"too": "much"}, on_crash="never", slices=-1)  # type: ignore[arg-type]
    assert len(raised.value.problems) == 4
    assert "doesn't take these arguments" in raised.value.problems[0]
    assert list(crash_kit.directory.iterdir()) == [crash_kit.world]


def test_what_is_no_tool_is_refused(crash_kit: CrashKit) -> None:
    with pytest.raises(ToolSetupError, match="a tool is a function or a Tool, not an object of type int"):
        crash_kit.check(7)  # type: ignore[arg-type]


def test_a_world_that_can_not_be_kept_is_refused(crash_kit: CrashKit) -> None:
    with pytest.raises(ConfigError, match="must return plain data"):
        crash_kit.check(subjects.make_directory, observe=lambda: (x for x in "abc"))


def test_a_system_that_can_not_fork_is_refused(crash_kit: CrashKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ConfigError, match=r"needs os\.fork"):
        crash_kit.check(subjects.make_directory)


def test_a_directory_that_is_in_use_is_not_emptied(tmp_path: Path) -> None:
    precious = tmp_path / "world" / "precious"
    precious.parent.mkdir()
    precious.touch()
    with pytest.raises(ConfigError, match="is not empty"):
        CrashKit(tmp_path)
    assert precious.exists()


def test_a_tool_that_is_not_in_the_agent_yaml_is_named(crash_kit: CrashKit, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("llm: {provider: anthropic, model: claude-sonnet-5}\n")
    with pytest.raises(ConfigError, match="has no tool 'absent'; there are: none"):
        crash_kit.load(path, "absent")


class Server(ThreadingHTTPServer):
    """A world outside of files, kept in the memory of the test process."""

    def __init__(self) -> None:
        self.received: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        self.server.received.append(self.rfile.read(int(self.headers["content-length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_world_in_the_memory_of_the_test_process_is_kept_apart_from_its_future(
    crash_kit: CrashKit, server: Server
) -> None:
    arguments = {"url": f"http://127.0.0.1:{server.server_port}/"}
    report = crash_kit.check(
        subjects.post, arguments, reset=lambda: server.received.clear(), observe=lambda: server.received
    )
    assert [crash.point.source or crash.point.phase for crash in report.harmful] == ['return "posted"', "returned"]
    assert len(set(report.harmful[0].world)) == 1  # type: ignore[call-overload]
    crash_kit.check(
        subjects.post,
        arguments,
        reset=lambda: server.received.clear(),
        observe=lambda: set(server.received),
    ).assert_harmless()
