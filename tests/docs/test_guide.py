"""What the guide shows works as it stands, from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from .blocks import Runner, read_blocks

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide.md"


@pytest.mark.slow
def test_blocks_of_the_guide_run_as_they_stand(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    blocks = list(read_blocks(GUIDE))
    for block in blocks:
        runner.run(block)
    assert len(blocks) > 15
    assert not any("skip" in block.marks for block in blocks)


def test_every_block_of_the_guide_is_known_to_the_runner() -> None:
    assert GUIDE.read_text().count("\n```") == 2 * len(list(read_blocks(GUIDE)))
