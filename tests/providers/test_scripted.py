from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from fisk_ai.errors import ConfigError, ProviderRefused
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Delta
from fisk_ai.providers.scripted import ScriptedProvider
from tests.providers.conftest import ask

SCRIPT = """
- text: Looking.
  calls:
    - name: lookup
      input: {stream: ORDERS, since: 2026-12-01}
    - {name: lookup, input: 3, id: mine}
  delay: 1ms
- content: [{type: thinking, thinking: hm, signature: s}, {type: text, text: Done.}]
  in_tokens: 7
  out_tokens: 8
  stop_reason: refusal
- error: out of order
"""


@pytest.mark.anyio
async def test_turns_are_played_by_their_place_in_the_conversation(tmp_path: Path, deltas: list[Delta]) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    provider = open_provider("scripted", script=tmp_path / "script.yaml")
    second = await provider.complete(ask(iteration=1), deltas.append)
    first = await provider.complete(ask(), deltas.append)
    again = await provider.complete(ask(), deltas.append)
    assert first == again
    assert json.loads(first.message)["content"] == [
        {"type": "text", "text": "Looking."},
        {
            "type": "tool_use",
            "id": "call_0_0",
            "name": "lookup",
            "input": {"stream": "ORDERS", "since": "2026-12-01"},
        },
        {"type": "tool_use", "id": "mine", "name": "lookup", "input": {}},
    ]
    assert (first.stop_reason, first.unusable, first.format) == ("tool_use", (1,), "anthropic")
    assert (second.in_tokens, second.out_tokens, second.stop_reason) == (7, 8, "refusal")
    assert [delta.text for delta in deltas] == ["Done.", "Looking.", "Looking."]
    await provider.aclose()


@pytest.mark.anyio
async def test_errors_and_the_end_of_the_script_are_refusals(deltas: list[Delta]) -> None:
    provider = ScriptedProvider([{"text": "x"}, {"error": "out of order"}])
    with pytest.raises(ProviderRefused, match=r"^out of order$") as caught:
        await provider.complete(ask(iteration=1), deltas.append)
    assert not caught.value.retryable
    with pytest.raises(ProviderRefused, match="has no turn 3: it ends after turn 2"):
        await provider.complete(ask(iteration=2), deltas.append)


@pytest.mark.anyio
async def test_delay_is_left_at_once_when_cancelled(deltas: list[Delta]) -> None:
    provider = ScriptedProvider([{"text": "x", "delay": "1m"}])
    with anyio.move_on_after(0.01) as scope:
        await provider.complete(ask(), deltas.append)
    assert scope.cancelled_caught
    assert deltas == []


@pytest.mark.anyio
async def test_requests_are_kept_as_they_were(deltas: list[Delta]) -> None:
    provider, messages = ScriptedProvider([{"text": "x"}]), list(ask().messages)
    await provider.complete(ask(*messages), deltas.append)
    messages.clear()
    assert len(provider.requests[0].messages) == 1


def test_every_mistake_is_reported_at_once_with_its_turn(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(
        "- {txt: x, delay: soon}\n- 5\n- {calls: [{input: {}}, 3, {name: a, args: {}}]}\n"
        "- {content: [{text: x}], text: y}\n- {in_tokens: -1, out_tokens: 1.5, text: 3}\n"
        "- {calls: [{name: a, input: {x: .nan}}]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        ScriptedProvider.load(tmp_path / "script.yaml")
    said = [problem.removeprefix(f"{tmp_path}/script.yaml: ") for problem in caught.value.problems]
    assert [problem[:34] for problem in said] == [
        "turn 1: unknown key 'txt': expecte",
        "turn 1: delay: expected seconds, o",
        "turn 2: expected a mapping such as",
        "turn 3: calls[0]: name: expected t",
        "turn 3: calls[1]: expected a mappi",
        "turn 3: calls[2]: unknown key 'arg",
        "turn 4: content: give either conte",
        "turn 4: not a turn that a model co",
        "turn 5: text: expected text",
        "turn 5: in_tokens: expected a whol",
        "turn 5: out_tokens: expected a who",
        "turn 6: can't be written as JSON: ",
    ]


@pytest.mark.parametrize("text", ["{}", "3", "", "- [", "- !!python/object:os.system {}", "\x00"])
def test_file_that_is_no_list_of_turns_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"script\.yaml"):
        ScriptedProvider.load(tmp_path / "script.yaml")


def test_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ScriptedProvider.load(tmp_path / "script.yaml")
    with pytest.raises(ConfigError, match="needs a script"):
        open_provider("scripted")
