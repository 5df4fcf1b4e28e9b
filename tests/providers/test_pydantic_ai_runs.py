"""Whole runs through pydantic-ai, stopped anywhere and gone on with."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.agent.agent import Agent
from fisk_ai.records import AssistantRecord
from tests.agent.bench import RUN, Bench, Crash, Effects, at_event, bench, crash, effect_tools, end_of, records_of
from tests.cli import bench as cli
from tests.providers.gemini_server import GeminiServer

pytest.importorskip("pydantic_ai", reason='needs the extra: pip install "fisk-ai[pydantic-ai]"')

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo

from fisk_ai.providers.pydantic_ai.conversation import dump
from fisk_ai.providers.pydantic_ai.provider import PydanticAIProvider
from tests.providers.pydantic_ai_models import all_parts, response, scripted

pytestmark = pytest.mark.anyio

MODEL = "google:scripted"


def turn(place: int) -> ModelResponse:
    kinds = [part for part in all_parts() if not isinstance(part, ToolCallPart)]
    calls = [ToolCallPart("a", {"what": "x"}, "c1"), ToolCallPart("b", '{"what":  "y"}', "functions.b:1")]
    match place:
        case 0:
            return response(*kinds, *calls)
        case 1:
            paused = response(*kinds, provider_details={"finish_reason": "pause_turn"})
            paused.state = "suspended"
            return paused
        case 2:
            return response(ToolCallPart("c", "{}", "c1"))
    return response(TextPart("All is well."))


class Runs:
    """One run and all that its model was sent, by how many turns there were."""

    def __init__(self, effects: Effects) -> None:
        self.bench: Bench = bench(effects)
        self.sent: list[list[bytes]] = []

    def _asked(self, messages: list[ModelMessage], _info: AgentInfo) -> None:
        self.sent.append([dump(message) for message in messages if isinstance(message, ModelResponse)])

    def agent(self) -> Agent:
        return Agent(
            MODEL,
            provider=PydanticAIProvider(scripted(turn, self._asked), stream=False),
            system_prompt="Be brief.",
            tools=effect_tools(self.bench.effects),
            store=self.bench.store,
        )

    @property
    def journaled(self) -> list[bytes]:
        return [bytes(each.message) for each in records_of(self.bench) if isinstance(each, AssistantRecord)]


async def test_a_crash_at_any_event_leaves_a_run_that_ends_like_its_twin(tmp_path: Path) -> None:
    twin = Runs(Effects(tmp_path / "twin"))
    await twin.bench.run(twin.agent())
    assert (end_of(twin.bench.state), len(twin.journaled)) == ("completed", 4)
    crashed = 0
    for number in range(1, 100):
        runs = Runs(Effects(tmp_path / f"effects-{number}"))
        runs.bench.hook = at_event(number, crash)
        try:
            await runs.bench.run(runs.agent())
            break
        except Crash:
            crashed += 1
        runs.bench.hook = None
        if RUN not in runs.bench.store.run_ids():
            continue
        if end_of(runs.bench.state) != "completed":
            await runs.bench.resume(runs.agent())
        assert runs.journaled == twin.journaled, number
        assert all(sent == twin.journaled[: len(sent)] for sent in runs.sent), number
        assert set(runs.bench.effects.names) == {"a", "b", "c"}
    assert crashed > 10
    fingerprint = twin.bench.state.fingerprint
    assert (fingerprint.provider, fingerprint.model) == ("pydantic-ai", MODEL)


KILLS_ITS_RUNNER = {
    "name": "lookup",
    "description": "Looks a stream up.",
    "argv": ["sh", "-c", "if [ -e killed ]; then echo {stream}: 7 messages; else touch killed; kill -9 $PPID; fi"],
    "parameters": {"stream": {"type": "string"}},
}
CALL = {"functionCall": {"name": "lookup", "args": {"stream": "ORDERS"}}, "thoughtSignature": "c2lnbmVkLWNhbGw="}
GEMINI = "google:gemini-3-pro-preview"


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[cli.Bench]:
    pytest.importorskip("google.genai", reason='needs the extra: pip install "fisk-ai[pydantic-ai]"')
    place = cli.Bench(tmp_path)
    yield place
    place.stop()


@pytest.mark.slow
def test_a_killed_run_of_gemini_is_resumed_without_paying_twice(workplace: cli.Bench) -> None:
    llm: dict[str, Any] = {"provider": "pydantic-ai", "model": GEMINI, "script": None, "stream": True}
    workplace.agent([], [KILLS_ITS_RUNNER], **llm)
    with GeminiServer([[CALL], [{"text": "ORDERS has 7 messages."}]]) as gemini:
        environ = {"GOOGLE_API_KEY": "gemini-test-key", "GOOGLE_GEMINI_BASE_URL": gemini.url}
        killed = workplace.cli("run", "--checkpoint", "--name", "r", "How many?", env=environ)
        assert killed.code == -signal.SIGKILL
        assert len(gemini.requests) == 1
        done = workplace.cli("run", "--resume", "r", env=environ)
    assert (done.code, done.text.strip()) == (0, "ORDERS has 7 messages.")
    first, last = gemini.requests
    assert last["systemInstruction"] == first["systemInstruction"]
    asked, called, answered = last["contents"]
    assert asked == first["contents"][0]
    assert called["parts"][0]["functionCall"]["args"] == {"stream": "ORDERS"}
    assert called["parts"][0]["thoughtSignature"] == CALL["thoughtSignature"]
    assert "7 messages" in str(answered["parts"][0]["functionResponse"]["response"])
    shown = workplace.cli("session", "show", "r", "--json").data
    assert (shown["provider"], shown["model"], shown["status"]) == ("pydantic-ai", GEMINI, "completed")
    journal = (workplace.state / "r.json").read_bytes()
    assert b'"format":"pydantic-ai"' in journal
    assert b"gemini-test-key" not in journal + killed.err.encode() + done.err.encode()
