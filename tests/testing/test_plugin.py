"""What users install and read: the plugin, the example and the page on testing, as they stand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fisk_ai import testing
from fisk_ai.testing import plugin
from tests.docs.blocks import Runner, read_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"


# Only this plugin, so that what else is installed here doesn't count.
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "fisk_ai.testing.plugin"}


def test_the_package_brings_the_plugin_along() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(project["entry-points"]["pytest11"].values()) == [plugin.__name__]
    assert project["optional-dependencies"]["testing"] == ["pytest>=9"]
    assert not any(each.startswith("pytest") for each in project["dependencies"])


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "crash_kit", tmp_path / "shop")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest"],
        cwd=tmp_path / "shop",
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_blocks_of_the_page_run_as_they_stand(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.environment |= ENVIRONMENT
    blocks = list(read_blocks(PAGE))
    for block in blocks:
        runner.run(block)
    assert len(blocks) == PAGE.read_text().count("\n```") / 2
    assert sum("skip" in block.marks for block in blocks) == 1


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after a statement."""
    command = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())


def test_nothing_of_the_package_loads_the_kit_and_the_kit_no_pytest() -> None:
    assert "fisk_ai.testing" not in loaded_by("import fisk_ai.agent.agent, fisk_ai.cli.main")
    assert "pytest" not in loaded_by("import fisk_ai.testing.crashes")


def test_the_plugin_loads_nothing_that_a_test_has_not_asked_for() -> None:
    loaded = loaded_by("import fisk_ai.testing.plugin")
    assert {name for name in loaded if name.startswith("fisk_ai")} == {
        "fisk_ai",
        "fisk_ai.testing",
        "fisk_ai.testing.plugin",
    }


def test_every_name_of_the_package_is_there_and_no_other() -> None:
    assert all(getattr(testing, name).__name__ == name for name in testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        testing.absent  # noqa: B018
