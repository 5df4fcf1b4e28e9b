"""A run against a real HTTP server, killed with SIGKILL at fifty random moments and resumed until it is complete."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.crash.commands import RUN, Process, Workplace, until
from tests.providers.strict_server import Recorded, StrictServer

KILLS = 50
TURNS = 60
SEED = 20261201
ANSWER = "All streams are well."

WORK = (
    'echo "start $1 $FISK_AI_IDEMPOTENCY_KEY" >> effects; sleep 0.04; '
    'echo "end $1 $FISK_AI_IDEMPOTENCY_KEY" >> effects; echo "$1 is well"'
)
LOOK = {
    "name": "look",
    "description": "Look at a stream",
    "argv": ["sh", "-c", WORK, "sh", "{stream}"],
    "parameters": {"stream": {"type": "string"}},
}


def script() -> list[dict[str, Any]]:
    """Turns of one, two or three calls; the ids repeat from turn to turn."""
    turns: list[dict[str, Any]] = []
    for turn in range(TURNS):
        calls = [
            {"name": "look", "id": f"call_{at}", "input": {"stream": f"s{turn}-{at}"}} for at in range(turn % 3 + 1)
        ]
        turns.append({"text": f"Turn {turn}.", "calls": calls, "delay_s": 0.03})
    return [*turns, {"text": ANSWER}]


CALLS = sum(turn % 3 + 1 for turn in range(TURNS))


@dataclass
class Killed:
    """A run that is killed again and again."""

    place: Workplace
    server: StrictServer
    seed: int
    moments: random.Random = field(init=False)
    kills: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)
    """Keys of the calls that were named ambiguous, once a kill."""

    def __post_init__(self) -> None:
        self.moments = random.Random(self.seed)

    @property
    def requests(self) -> list[Recorded]:
        """All requests that came whole: a process may die while it sends one, which the API never sees then."""
        return [request for request in self.server.requests if _is_whole(request.body)]

    @property
    def turns_left(self) -> int:
        return TURNS - self.journaled

    @property
    def journaled(self) -> int:
        return self.place.state.counters.model_calls if self.exists else 0

    @property
    def exists(self) -> bool:
        path = Path(self.place.store.path(RUN))
        return path.exists() and path.read_bytes().endswith(b"\n")

    def go(self) -> Process:
        return self.place.resume() if self.exists else self.place.begin()

    def kill_once(self) -> None:
        """Start or resume the run and kill it at a random moment: while it starts, or once it works."""
        journaled, asked, effects = self.journaled, len(self.requests), len(self.place.effects)
        process = self.go()
        if self.moments.random() < 0.1:
            time.sleep(self.moments.uniform(0.0, 0.4))
        else:
            until(lambda: process.stderr or process.process.poll() is not None, "a sign of life")
            time.sleep(self.moments.uniform(0.0, 0.3 if self.turns_left > KILLS - self.kills else 0.08))
        process.kill()
        self.kills += 1
        self._check_requests(journaled, asked)
        self._note(asked, effects)

    def _check_requests(self, journaled: int, asked: int) -> None:
        for request in self.requests[asked:]:
            assert turns_in(request.json) >= journaled, "a journaled turn was requested again"

    def _note(self, asked: int, effects: int) -> None:
        requests, lines = self.requests[asked:], self.place.effects[effects:]
        if not self.exists or not (requests or lines):
            self.phases["before any effect"] += 1
        pending = self.place.state.pending if self.exists else None
        if pending is not None:
            [call] = pending.ambiguous
            key = self.place.state.key_of(call)
            self.named.append(key)
            began = any(line[2] == key for line in lines)
            self.phases["in a tool" if began else "between two steps"] += 1
        elif requests and turns_in(requests[-1].json) == self.journaled:
            self.phases["in a model call"] += 1
        elif requests:
            self.phases["between two steps"] += 1

    def finish(self) -> None:
        journaled, asked = self.journaled, len(self.requests)
        code, said = self.go().finishes()
        assert (code, said) == (0, f"{ANSWER}\n")
        self._check_requests(journaled, asked)

    def check(self) -> None:
        """What the contract promises of any number of kills."""
        assert [request.refused for request in self.requests if request.refused] == []
        state = self.place.state
        assert state.terminal is not None
        assert (state.terminal.reason, state.counters.model_calls, state.counters.tool_calls) == (
            *("completed", TURNS + 1),
            CALLS,
        )
        bodies = Counter(request.body for request in self.requests)
        assert len(bodies) == TURNS + 1, "a repeated request differs from the first one"
        starts = [line for line in self.place.effects if line[0] == "start"]
        key_of = {(stream, key) for _, stream, key in starts}
        assert len(key_of) == len({stream for stream, _ in key_of}) == len({key for _, key in key_of}) == CALLS
        done = Counter(key for _, _, key in starts)
        repeated = Counter({key: times - 1 for key, times in done.items() if times > 1})
        assert not repeated - Counter(self.named), "a call was repeated that was not named"
        assert repeated.total() + len(self.requests) - len(bodies) <= self.kills
        self._check_never_two_at_once()

    def _check_never_two_at_once(self) -> None:
        running: list[str] | None = None
        for word, *call in self.place.effects:
            assert (running is None) if word == "start" else (running == call), "two calls ran at once"
            running = call if word == "start" else None


def _is_whole(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def turns_in(body: dict[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_run_survives_fifty_kills_at_random_moments(tmp_path: Path, provider: str) -> None:
    with StrictServer(script()) as server:
        llm: dict[str, Any] = {"provider": provider, "model": "some-model", "base_url": server.url}
        if provider == "openai":
            llm["base_url"] += "/v1"
        llm["budget"] = {"max_tokens": None, "max_iterations": None}
        killed = Killed(Workplace(tmp_path, llm, [LOOK]), server, SEED)
        print(f"seed {killed.seed}")
        for _ in range(KILLS):
            killed.kill_once()
        killed.finish()
        print(json.dumps(killed.phases))
        killed.check()
    assert killed.kills == KILLS
    assert killed.phases["in a tool"] >= 5
    assert killed.phases["in a model call"] >= 3
    assert killed.phases["before any effect"] >= 2
