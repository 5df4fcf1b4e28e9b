"""Kills in the middle of what a real model says, and of the tool that it called."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from .bench import RUN, SPEECHES, Bench, Speech
from .relay import ANSWER_LIMIT_S, Relay
from .stories import LOOK_UP, LOOK_UP_SLOWLY, Dithered, killed_while_the_model_speaks, killed_while_the_tool_works

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.timeout(20 * ANSWER_LIMIT_S),
    pytest.mark.parametrize("speech", SPEECHES, ids=lambda speech: speech.name),
]
ATTEMPTS = 4


@pytest.fixture
def server(speech: Speech, request: pytest.FixtureRequest) -> str:
    """Return the address of the server that the environment names for an API."""
    if named := os.environ.get(speech.variable):
        return named
    reason = f"no server is named: set {speech.variable} to one that speaks {speech.name} (see tests/local_model)"
    if "local_model" in request.config.option.markexpr and not any(os.environ.get(each.variable) for each in SPEECHES):
        pytest.fail(reason)  # who asks for these tests by name wants no pass without them
    pytest.skip(reason)


def tell(story: Callable[[Bench], None], server: str, speech: Speech, directory: Path, stock: str) -> None:
    """Let a story happen until the model plays its part, and print what became of the run."""
    for attempt in range(1, ATTEMPTS + 1):
        place = directory / str(attempt)
        place.mkdir()
        model = os.environ.get("FISK_AI_TEST_MODEL", "local")
        with Relay(server) as relay, Bench(place, relay, speech, model=model, stock=stock) as bench:
            try:
                story(bench)
            except Dithered as what:
                print(f"attempt {attempt} of {ATTEMPTS}, over {speech.name}: the model dithered: {what}")
                continue
            print(f"\n=== {story.__name__}, over {speech.name}, attempt {attempt} ===")
            for exchange in relay.exchanges:
                passed = "whole" if exchange.whole else f"cut off after {exchange.passed[-200:]!r}"
                print(f"request {exchange.number + 1}: {len(exchange.body)} bytes, answer {passed}")
            print(bench.shown("session", "show", RUN))
            return
    pytest.fail(f"the model didn't play its part in {ATTEMPTS} attempts: it may be too small for tools")


def test_kills_while_the_model_speaks(server: str, speech: Speech, tmp_path: Path) -> None:
    tell(killed_while_the_model_speaks, server, speech, tmp_path, LOOK_UP)


def test_kill_while_the_tool_works(server: str, speech: Speech, tmp_path: Path) -> None:
    tell(killed_while_the_tool_works, server, speech, tmp_path, LOOK_UP_SLOWLY)
