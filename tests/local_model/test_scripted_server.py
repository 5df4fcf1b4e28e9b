"""The same stories with a server that plays a script: what is asked of a real model has to be true of the program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.strict_server import KEY, StrictServer

from .bench import KEYS, PIECES, SPEECHES, Bench, Speech
from .relay import ANSWER_LIMIT_S, Relay
from .stories import LOOK_UP, LOOK_UP_SLOWLY, Dithered, killed_while_the_model_speaks, killed_while_the_tool_works

MESSAGES, CHAT, RESPONSES = SPEECHES
CALL = {"text": "I look it up for you.", "calls": [{"name": "stock", "input": {"item": "a lamp of any kind"}}]}
ANSWER = {"text": f"There are {PIECES} lamps in stock, as far as we know."}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(ANSWER_LIMIT_S)]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS:
        monkeypatch.setenv(key, KEY)


@pytest.fixture
def server() -> Iterator[StrictServer]:
    with StrictServer([CALL, ANSWER]) as server:
        yield server


@pytest.mark.parametrize("speech", [MESSAGES, RESPONSES], ids=lambda speech: speech.name)
def test_kills_while_the_model_speaks(server: StrictServer, speech: Speech, tmp_path: Path) -> None:
    with (
        Relay(server.url + ("" if speech is MESSAGES else "/v1")) as relay,
        Bench(tmp_path, relay, speech, model="scripted", stock=LOOK_UP) as bench,
    ):
        killed_while_the_model_speaks(bench)
    assert server.refusals == []


def test_kill_while_the_tool_works(server: StrictServer, tmp_path: Path) -> None:
    with (
        Relay(server.url + "/v1") as relay,
        Bench(tmp_path, relay, CHAT, model="scripted", stock=LOOK_UP_SLOWLY) as bench,
    ):
        killed_while_the_tool_works(bench)
    assert server.refusals == []


def test_model_that_calls_nothing_is_told_apart_from_a_fault(tmp_path: Path) -> None:
    with (
        StrictServer([ANSWER]) as server,
        Relay(server.url) as relay,
        Bench(tmp_path, relay, MESSAGES, model="scripted", stock=LOOK_UP_SLOWLY) as bench,
        pytest.raises(Dithered, match="without a call"),
    ):
        killed_while_the_tool_works(bench)
