"""Bugs that journals have had, and each sync, cut, check and lock of ours taken away, one at a time.

What stands here is only what is changed; `tests.reliability.planting` runs the test that has to notice it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from tests.reliability.planted import agent, codec, files, folding, locks, requests, syncs, tails, text, tools
from tests.reliability.planted.edits import Planted, Reached, source_of

_AREAS = (syncs, tails, codec, folding, locks, files, agent, tools, text, requests)

PLANTED: Mapping[str, Planted] = {each.name: each for area in _AREAS for each in area.BUGS}

for _edit in (edit for planted in PLANTED.values() for edit in planted.edits):
    source_of(_edit.target().__code__.co_filename)  # now, while it is what was imported

BUGS: Mapping[str, Callable[[], AbstractContextManager[Reached]]] = {
    name: planted.plant for name, planted in PLANTED.items()
}
"""What puts a bug into the product for a while, by name."""
