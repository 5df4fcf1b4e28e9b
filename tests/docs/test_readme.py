"""What the README says to type works as it stands, in one directory from top to bottom."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import Runner, read_blocks

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


@pytest.mark.slow
def test_blocks_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    blocks = list(read_blocks(README))
    runner = Runner(tmp_path)
    for block in blocks:
        runner.run(block)
    assert len(blocks) > 10
    assert sum("skip" in block.marks for block in blocks) <= 3


def test_every_block_of_the_readme_is_known_to_the_runner() -> None:
    assert README.read_text().count("\n```") == 2 * len(list(read_blocks(README)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_broken(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return not target.exists() or (anchor != "" and anchor not in anchors(target))


def test_links_between_pages_lead_somewhere() -> None:
    pages = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    assert len(links) > 20
    assert [(page.name, link) for page, link in links if "://" not in link and is_broken(page, link)] == []


def help_of(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fisk_ai", *words, "--help"], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
def test_flags_and_commands_that_the_pages_name_exist() -> None:
    session = re.findall(r"^  (\w+)  ", help_of("session").partition("Commands:")[2], re.MULTILINE)
    text = help_of("run") + help_of("info") + "".join(help_of("session", name) for name in session)
    known = set(re.findall(r"--[a-z][a-z-]*", text))
    for name in (
        "README.md",
        "CHANGELOG.md",
        "docs/guide.md",
        "docs/errors.md",
        "docs/concepts.md",
        "docs/decisions.md",
    ):
        page = (ROOT / name).read_text()
        assert set(re.findall(r"(?:(?<=`)|(?<= ))--[a-z][a-z-]+", page)) <= known, name
        assert set(re.findall(r"fisk-ai session (\w+)", page)) <= {*session}, name


def test_exit_codes_of_the_readme_are_those_of_the_program() -> None:
    from fisk_ai import errors
    from fisk_ai.cli import exits

    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", README.read_text(), re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FiskError)]
    used = {kind.exit_code for kind in kinds} | set(exits.OF_REASON.values()) | {exits.COMPLETED, exits.ABORTED}
    assert rows == used


def test_readmes_test_command_is_what_ci_runs() -> None:
    assert "\nmake test " in README.read_text()
    assert "make test" in (ROOT / ".ci" / "run").read_text()
