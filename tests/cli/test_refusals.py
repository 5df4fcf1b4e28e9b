"""Bad input and bad surroundings: one clear message, the right exit code, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from fisk_ai.ids import check_new_run_id

from .bench import NOTE_TOOL, Bench, end, result, turn
from .conftest import Inline

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and become another user")


def test_all_mistakes_in_agent_yaml_are_named_at_once(bench: Bench, inline: Inline) -> None:
    (bench.directory / "agent.yaml").write_text(
        "identity: x\nlmm: {}\nllm:\n  provider: unheard\n  model: m\n  max_output_tokens: many\n"
        "tools:\n  comands: []\n"
    )
    refused = inline("run", "hello")
    assert (refused.code, refused.out) == (2, b"")
    lines = refused.err.splitlines()
    assert all(line.startswith("fisk-ai: agent.yaml:") for line in lines), refused.err
    for number, what in ((2, "lmm"), (4, "llm.provider"), (6, "llm.max_output_tokens"), (8, "tools.comands")):
        assert any(line.startswith(f"fisk-ai: agent.yaml:{number}:") and what in line for line in lines), refused.err


def test_missing_key_names_the_variable(bench: Bench, inline: Inline) -> None:
    for provider, variable in (("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")):
        bench.agent([], provider=provider, model="m", script=None)
        refused = inline("run", "--checkpoint", "hello")
        assert refused.code == 2
        assert variable in refused.err
        assert not bench.state.exists()


def test_missing_configuration_says_where_it_was_looked_for(bench: Bench, inline: Inline) -> None:
    refused = inline("run", "--config", "elsewhere.yaml", "hello")
    assert refused.code == 2
    assert f"looked for {bench.directory}/elsewhere.yaml" in refused.err
    assert refused.err.count("\n") == 1


def test_server_that_does_not_answer_fails_after_patient_retries(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    bench.agent([], provider="openai", model="m", script=None, base_url=f"http://127.0.0.1:{port}/v1")
    failed = bench.cli("run", "--checkpoint", "--name", "r", "hello")
    assert (failed.code, failed.out) == (1, b"")
    assert "attempt 4 follows in" in failed.err
    assert "(tried 4 times)" in failed.err
    assert failed.last_line == "  fisk-ai run --resume r"


def test_pause_before_a_retry_is_left_at_once(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    bench.agent([], provider="openai", model="m", script=None, base_url=f"http://127.0.0.1:{port}/v1")
    process = bench.start("run", "--checkpoint", "--name", "r", "hello")
    assert process.stderr is not None
    while b"attempt 4 follows" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    suspended = bench.wait(process)
    assert suspended.code == 3
    assert suspended.last_line == "  fisk-ai run --resume r"


def test_run_is_found_from_any_directory_and_its_tools_work_where_agent_yaml_is(bench: Bench) -> None:
    bench.agent([{"text": "Go.", "calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "Fine."}])
    bench.stored("r", end("suspended"))
    elsewhere = bench.paste("cd home && fisk-ai run --resume r --config ../agent.yaml")
    assert (elsewhere.code, elsewhere.out) == (0, b"Fine.\n")
    assert len(bench.effects) == 1


@pytest.mark.parametrize("prompt", [b"", b" \n\t", "\u200b".encode()])
def test_blank_prompt_is_refused_before_a_run_exists(bench: Bench, prompt: bytes) -> None:
    refused = bench.cli("run", "--checkpoint", stdin=prompt)
    assert (refused.code, refused.out) == (2, b"")
    assert "the prompt is empty" in refused.err
    assert not bench.state.exists()


def test_prompt_comes_from_a_pipe_and_a_huge_one_is_refused(bench: Bench) -> None:
    piped = bench.cli("run", "--checkpoint", "--name", "r", stdin="h\xe9llo\n".encode() * 100_000)
    assert (piped.code, piped.out) == (0, b"The answer is 42.\n")
    assert bench.store.load("r").prompt == "h\xe9llo\n" * 100_000
    huge = bench.cli("run", "--checkpoint", "-", stdin=b"x" * (16 * 1024 * 1024 + 1))
    assert huge.code == 2
    assert huge.err == "fisk-ai: the prompt on standard input is larger than 16777216 bytes\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run", "--resume", "r", "again"), "a resume takes no prompt"),
        (("run", "--resume", "r", "--continue"), "name different runs"),
        (("run", "--resume", "r", "--name", "s"), "a resumed one keeps its id"),
        (("run", "--name", "s", "hello"), "add --checkpoint"),
        (("run", "--force", "--orphan", "kill", "hello"), "--force, --orphan: only with --resume or --continue"),
        (("run", "--on-crash", "perhaps", "hello"), "--on-crash"),
        (("run", "--state-dir", "", "--checkpoint", "hello"), "--state-dir is empty"),
        (("session", "fork", "r", "--at", "0"), "--at"),
        (("session", "fork", "r", "--at", "9"), "run 'r' has the records 1 to 4"),
        (("session", "fork", "r", "--name", ""), "can't be a run id"),
        (("session", "rm"), "ID..."),
    ],
)
def test_wrong_usage_exits_2_and_changes_nothing(
    bench: Bench, inline: Inline, args: tuple[str, ...], says: str
) -> None:
    bench.stored("r", turn("Noting.", "a"), result("a"), end("suspended"))
    before = bench.snapshot()
    refused = inline(*args)
    assert (refused.code, refused.out) == (2, b"")
    assert says in refused.err
    assert bench.snapshot() == before


NO_IDS = [
    *("../x", "a/b", "..", ".", "", "x\n", "x\r", "%2e%2e", "-rf", "~", ".hidden", "x" * 300, "x" * 101),
    *("\xe9", "\uff11", "*", ">", "a b", "a\tb", "\u202e", "a\\b", "/etc/passwd", "\x1b[31m", "a\udc80"),
]


@pytest.mark.parametrize("text", NO_IDS, ids=ascii)
def test_what_is_no_id_is_refused_everywhere_and_leaves_no_file(bench: Bench, inline: Inline, text: str) -> None:
    bench.stored("r", end("suspended"))
    before = sorted(bench.directory.rglob("*"))
    option = f"--resume={text}"
    for args in (
        ("run", option),
        ("run", "--checkpoint", f"--name={text}", "hello"),
        ("session", "show", "--", text),
        ("session", "rm", "--", text),
        ("session", "verify", "--", text),
        ("session", "fork", "--", text),
        ("session", "fork", "r", f"--name={text}"),
    ):
        refused = inline(*args)
        assert (refused.code, refused.out) == (2, b""), (args, refused)
        assert "can't be a run id: 1-100 of a-z 0-9 . _ - are allowed" in refused.err
        assert refused.err.count("\n") == 1
    assert sorted(bench.directory.rglob("*")) == before


@pytest.mark.parametrize("run_id", ["con", "x.json", "x.lock", "a.", "x.tools", "x.torn"])
def test_odd_but_legal_ids_work_and_collide_with_nothing(bench: Bench, inline: Inline, run_id: str) -> None:
    check_new_run_id(run_id)
    assert inline("run", "--checkpoint", "--name", "x", "hello").code == 0
    assert inline("run", "--checkpoint", "--name", run_id, "hello").code == 0
    assert inline("session", "verify").code == 0
    assert inline("session", "rm", run_id).code == 0
    assert sorted(path.name for path in bench.state.iterdir()) == ["x.json", "x.lock"]


def test_upper_case_id_is_refused_with_the_lower_case_one(bench: Bench, inline: Inline) -> None:
    refused = inline("run", "--checkpoint", "--name", "Orders", "hello")
    assert refused.code == 2
    assert "try 'orders'" in refused.err


def test_prefix_is_enough_where_only_one_run_has_it(bench: Bench, inline: Inline) -> None:
    for run_id in ("orders-1", "orders-2", "or"):
        bench.stored(run_id, end("suspended"))
    ambiguous = inline("run", "--resume", "orders")
    assert ambiguous.code == 2
    assert "'orders' fits 2 runs (orders-1, orders-2): type more of the id" in ambiguous.err
    assert inline("run", "--resume", "or").code == 0, "an exact id wins over a prefix"
    assert bench.store.info("or").status == "completed"
    assert inline("run", "--resume", "orders-1").code == 0


def _newer(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"version":2', b'"version":3').partition(b"\n")[0][:-18] + b"}\n")


def _foreign_format(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    line = lines[1].replace(b'"format":"anthropic"', b'"format":"smoke-signals"')
    path.write_bytes(b"".join(_without_checksum(line) + b"\n" for line in [lines[0], line, *lines[2:]]))


def _without_checksum(line: bytes) -> bytes:
    return line[:-18].replace(b',"checksums":true', b"") + b"}"


def _corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"noted", b"NOTED"))


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _linked(path: Path) -> None:
    os.link(path, path.with_suffix(".other"))


DAMAGES: list[tuple[Any, int, str, str]] = [
    (_emptied, 1, "nothing_recorded", "nothing was recorded under 'r'"),
    (_corrupt, 7, "journal_corrupt", "is damaged at line 3, byte "),
    (_newer, 5, "newer_version", "has version 3, this fisk-ai reads versions up to 2"),
    (_foreign_format, 5, "unsupported_format", "smoke-signals"),
    (_linked, 1, "not_permitted", "it is a hard link"),
]


@pytest.mark.parametrize(("damage", "code", "name", "says"), DAMAGES)
def test_resume_says_what_is_wrong_with_a_run_and_changes_no_byte(
    bench: Bench, inline: Inline, damage: Any, code: int, name: str, says: str
) -> None:
    path = bench.stored("r", turn("Noting.", "a"), result("a"), end("suspended"))
    damage(path)
    before = bench.snapshot()
    refused = inline("run", "--resume", "r")
    assert (refused.code, refused.out) == (code, b"")
    assert says in refused.err
    assert "'r'" in refused.err or "/r.json" in refused.err
    assert refused.err.count("\n") == 1
    as_json = inline("run", "--resume", "r", "--output", "json")
    assert as_json.data["error"]["code"] == name
    assert bench.snapshot() == before
    assert not bench.effects


def test_eight_refusals_have_eight_messages_and_none_starts_a_run(bench: Bench, inline: Inline) -> None:
    bench.stored("finished", turn("Done."), end("completed"))
    bench.stored("changed", end("suspended"))
    bench.stored("locked", end("suspended"))
    for run_id, damage in (("damaged", _corrupt), ("newer", _newer), ("unreadable", _linked)):
        damage(bench.stored(run_id, turn("Noting.", "a"), result("a"), end("suspended")))
    bench.agent([{"text": "Other."}], [{**NOTE_TOOL, "description": "Changed."}])
    codes = {}
    with bench.store.open("locked"):
        before = bench.snapshot()
        for run_id in ("missing", "locked", "damaged", "newer", "finished", "changed", "unreadable"):
            refused = inline("run", "--resume", run_id, "--output", "json")
            codes[refused.data["error"]["code"]] = refused.code
        elsewhere = inline("run", "--resume", "finished", "--state-dir", "elsewhere")
    assert codes == {
        "run_not_found": 1,
        "run_locked": 6,
        "journal_corrupt": 7,
        "newer_version": 5,
        "already_completed": 5,
        "configuration_changed": 5,
        "not_permitted": 1,
    }
    assert elsewhere.code == 1
    assert f"no run 'finished' in {bench.directory}/elsewhere" in elsewhere.err
    assert bench.snapshot() == before
    assert not (bench.directory / "elsewhere").exists()


def test_refusal_names_what_changed_and_force_goes_on_but_never_to_another_provider(
    bench: Bench, inline: Inline
) -> None:
    bench.stored("r", end("suspended"))
    bench.agent([{"text": "Now so."}], [{**NOTE_TOOL, "description": "Changed."}], model="another")
    refused = inline("run", "--resume", "r")
    assert refused.code == 5
    for change in ("model scripted is now another", "note"):
        assert change in refused.err
    forced = inline("run", "--resume", "r", "--force")
    assert (forced.code, forced.out) == (0, b"Now so.\n")
    assert "forced:   model scripted is now another" in forced.err
    bench.agent([{"text": "Mine."}])
    bench.stored("s", end("suspended"))
    bench.agent([], provider="openai", model="scripted", script=None, base_url="http://127.0.0.1:9/v1")
    other = inline("run", "--resume", "s", "--force")
    assert other.code == 5
    assert "not even with --force" in other.err


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ((end("suspended"),), "exists already (suspended): go on with `fisk-ai run --resume r --state-dir"),
        ((turn("Done."), end("completed")), "exists already (completed): remove it with `fisk-ai session rm r --state"),
        ((turn("Noting.", "a"), result("a")), "exists already (interrupted): go on with `fisk-ai run --resume r "),
    ],
)
def test_taken_name_is_refused_with_the_right_next_command(
    bench: Bench, inline: Inline, records: tuple[Any, ...], says: str
) -> None:
    bench.stored("r", *records)
    before = bench.snapshot()
    refused = inline("run", "--checkpoint", "--name", "r", "--state-dir", str(bench.state), "hello")
    assert (refused.code, refused.out) == (2, b"")
    assert says in refused.err
    assert bench.snapshot() == before


def test_name_of_a_damaged_run_is_refused_and_that_of_an_empty_file_is_free(bench: Bench, inline: Inline) -> None:
    path = bench.stored("r", turn("Noting.", "a"), result("a"), end("suspended"))
    _corrupt(path)
    refused = inline("run", "--checkpoint", "--name", "r", "hello")
    assert refused.code == 2
    assert "exists already (unreadable): look at it with `fisk-ai session verify r`" in refused.err
    path.write_bytes(b'{"seq":1,"proto')
    assert inline("run", "--checkpoint", "--name", "r", "hello").code == 0
    assert (bench.state / "r.torn").read_bytes().startswith(b'{"seq":1,"proto')


def test_continue_takes_the_latest_run_that_can_be_resumed(bench: Bench, inline: Inline) -> None:
    nothing = inline("run", "--continue")
    assert nothing.code == 1
    assert f"no run in {bench.state} can be resumed" in nothing.err
    bench.stored("old", end("suspended"))
    bench.stored("interrupted", turn("Noting.", "a"), result("a"))
    bench.stored("finished", turn("Done."), end("completed"))
    bench.agent([{"text": "One."}, {"text": "Two."}])
    assert inline("run", "--continue").out == b"Two.\n"
    assert inline("run", "-c").out == b"One.\n"
    assert inline("run", "-c").code == 1


@pytest.mark.parametrize("variable", ["state", "~/x", ""])
def test_unusable_base_variable_is_ignored_and_nothing_appears_in_the_working_directory(
    bench: Bench, variable: str
) -> None:
    done = bench.cli("run", "--checkpoint", "--name", "r", "hello", env={"XDG_STATE_HOME": variable})
    assert done.code == 0
    assert (bench.directory / "home/.local/state/fisk-ai/runs/r.json").exists()
    assert sorted(path.name for path in bench.directory.iterdir()) == ["agent.yaml", "home", "turns.yaml"]


def test_no_usable_home_is_a_clear_error(bench: Bench) -> None:
    refused = bench.cli("run", "--checkpoint", "hello", env={"XDG_STATE_HOME": "", "HOME": "not/absolute"})
    assert refused.code == 2
    assert "no place for runs" in refused.err
    assert refused.err.count("\n") == 1


def test_plain_file_in_place_of_the_state_directory_is_named_before_anything_else(bench: Bench, inline: Inline) -> None:
    (bench.directory / "taken").write_text("")
    refused = inline("run", "--checkpoint", "--state-dir", "taken", "hello")
    assert (refused.code, refused.out) == (1, b"")
    assert f"can't use {bench.directory}/taken: " in refused.err
    assert "--state-dir or XDG_STATE_HOME" in refused.err
    assert refused.err.count("\n") == 1
    assert inline("run", "--state-dir", "taken", "hello").code == 0, "a run without --checkpoint needs no place"


@pytest.fixture
def open_bench() -> Iterator[Bench]:
    """A bench that other users can reach."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Bench(Path(directory))


@root_only
def test_read_only_state_directory_of_an_ordinary_user(open_bench: Bench) -> None:
    bench = open_bench
    bench.stored("r", end("suspended"))
    owned = [bench.directory, *bench.directory.rglob("*")]
    for path in owned:
        os.chown(path, 65534, 65534)
    bench.state.chmod(0o500)
    (bench.state / "r.json").chmod(0o400)
    before = bench.snapshot()
    if _as_nobody(bench, "--version").returncode != 0:
        pytest.skip("another user can't reach this interpreter")
    assert b" r " in _as_nobody(bench, "session", "ls", "--json").stdout.replace(b'"', b" ")
    assert _as_nobody(bench, "session", "show", "r").returncode == 0
    for args in (("--checkpoint", "--name", "new", "hello"), ("--resume", "r")):
        refused = _as_nobody(bench, "run", *args)
        assert refused.returncode == 1, refused
        assert str(bench.state).encode() in refused.stderr
        assert b"Permission denied" in refused.stderr
        assert refused.stderr.count(b"\n") == 1
    assert bench.snapshot() == before


def _as_nobody(bench: Bench, *args: str) -> subprocess.CompletedProcess[bytes]:
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "fisk_ai"]
    return subprocess.run(
        [*drop, *args], cwd=bench.directory, env=bench.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )


@root_only
def test_full_disk_stops_the_run_and_room_lets_it_go_on(bench: Bench) -> None:
    small = bench.directory / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        _fill_and_free(bench, small)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _fill_and_free(bench: Bench, small: Path) -> None:
    fat = {
        **NOTE_TOOL,
        "argv": ["sh", "-c", "echo $FISK_AI_RUN_ID >> effects; head -c 60000 /dev/zero | tr '\\0' x; : {what}"],
    }
    bench.agent([{"text": "Go.", "calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "Fine."}], [fat])
    (small / "filler").write_bytes(b"x" * 20_000)
    stopped = bench.cli("run", "--checkpoint", "--name", "r", "--state-dir", "small", "hello")
    assert (stopped.code, stopped.out) == (1, b"")
    assert "journal could not be written" in stopped.err
    assert stopped.last_line == "  fisk-ai run --resume r --state-dir small"
    _fill(small / "filler")
    full = bench.cli("run", "--checkpoint", "--name", "s", "--state-dir", "small", "hello")
    assert (full.code, full.out) == (1, b"")
    assert "No space left on device" in full.err
    subprocess.run(["mount", "-o", "remount,size=1m", str(small)], check=True)
    resumed = bench.paste(stopped.last_line)
    assert (resumed.code, resumed.out) == (0, b"Fine.\n")
    assert bench.effects == ["r", "r"], "the call whose result could not be kept may have run, and is repeated"
    assert bench.cli("run", "--checkpoint", "--name", "s", "--state-dir", "small", "hello").code == 0


def _fill(path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        path.write_bytes(b"x" * 100_000)
    with path.open("ab", buffering=0) as file:
        while _fits(file):
            pass


def _fits(file: IO[bytes]) -> bool:
    try:
        return file.write(b"x") == 1
    except OSError:
        return False


HANGS = {"name": "tool", "description": "d", "argv": ["sleep", "60"], "timeout": "200ms"}
CRASHES = {"name": "tool", "description": "d", "argv": ["sh", "-c", "kill -SEGV $$"]}
BINARY = {"name": "tool", "description": "d", "argv": ["head", "-c", "3000", "/dev/urandom"]}
FLOODS = {"name": "tool", "description": "d", "argv": ["head", "-c", "100000000", "/dev/zero"]}
ABSENT = {"name": "tool", "description": "d", "argv": ["/there/is/no/such/program"]}


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (HANGS, "failed 0."),
        (CRASHES, "ended by SIGSEGV"),
        (BINARY, "ok 0."),
        (FLOODS, "ok "),
        (ABSENT, "/there/is/no/such/program"),
    ],
    ids=["hangs", "crashes", "binary", "floods", "absent"],
)
def test_whatever_a_tool_does_the_run_goes_on_and_can_be_shown(
    bench: Bench, inline: Inline, tool: dict[str, Any], says: str
) -> None:
    bench.agent([{"text": "Go.", "calls": [{"name": "tool"}]}, {"text": "Fine."}], [tool])
    done = inline("run", "--checkpoint", "--name", "r", "hello")
    assert (done.code, done.out) == (0, b"Fine.\n")
    assert says in done.err
    assert (bench.state / "r.json").stat().st_size < 500_000
    shown = inline("session", "show", "r", "--full")
    assert shown.code == 0
    assert json.loads(inline("session", "show", "r", "--json").out)["status"] == "completed"
