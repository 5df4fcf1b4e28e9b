"""What a start costs: commands that need no model load nothing of one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from .bench import Bench, end, turn

HEAVY = {
    *("pydantic", "httpx2", "httpx", "anyio", "asyncio", "rich", "jsonschema", "prompt_toolkit", "tenacity", "ruamel"),
    *(
        "pydantic_ai",
        "fisk_ai.providers",
        "fisk_ai.tools",
        "fisk_ai.config",
        "fisk_ai.agent.agent",
        "fisk_ai.agent.loop",
        "ssl",
    ),
}
NO_RECORDS = {"msgspec", "fisk_ai.stores", "fisk_ai.records", "fisk_ai.codec"}


REPORT = """
import sys
from fisk_ai.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def _loaded(bench: Bench, *args: str) -> set[str]:
    """Return the modules that a command has loaded when it ends."""
    process = subprocess.run(
        [sys.executable, "-c", REPORT, *args],
        cwd=bench.directory,
        env=bench.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return set(process.stderr.rstrip("\n").rpartition("\n")[2].split())


@pytest.mark.parametrize(
    "args", [("session", "ls"), ("session", "ls", "--json", "--usage"), ("session", "show", "r"), ("session", "verify")]
)
def test_commands_about_stored_runs_load_no_model_code(bench: Bench, args: tuple[str, ...]) -> None:
    bench.stored("r", turn("Done."), end("completed"))
    loaded = _loaded(bench, *args)
    assert "fisk_ai.cli.session" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("args", [("--help",), ("--version",)])
def test_help_and_version_load_nothing_else(bench: Bench, args: tuple[str, ...]) -> None:
    loaded = _loaded(bench, *args)
    assert "fisk_ai.cli.commands" in loaded
    assert loaded & (HEAVY | NO_RECORDS) == set()


def test_run_loads_no_provider_but_its_own_and_nothing_for_a_terminal(bench: Bench) -> None:
    others = {f"fisk_ai.providers.{name}" for name in ("anthropic", "openai", "responses", "pydantic_ai")}
    loaded = _loaded(bench, "run", "hello")
    assert loaded & (others | {"httpx2", "rich", "prompt_toolkit", "pydantic_ai"}) == set()


@pytest.mark.parametrize("module", ["click", "pydantic"])
def test_ctrl_c_while_modules_load_is_exit_130_without_a_word(bench: Bench, module: str) -> None:
    # The module that is loaded at that moment is a file of ours, which says when it is loaded and then waits.
    (bench.directory / f"{module}.py").write_text("import time\nopen('loading', 'w').write('now\\n')\ntime.sleep(60)\n")
    process = bench.start("run", "hello", env={"PYTHONPATH": str(bench.directory)})
    bench.wait_for("loading")
    process.send_signal(signal.SIGINT)
    done = bench.wait(process)
    assert (done.code, done.out, done.err) == (130, b"", "")
