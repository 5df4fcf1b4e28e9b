"""A refused request is looked at: what of the stored conversation breaks a rule, and where to fork before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fisk_ai.agent.agent import Agent
from fisk_ai.errors import CONTEXT_OVERFLOW, ProviderError, ProviderRefused, ProviderUnreachable
from fisk_ai.folding import fold
from fisk_ai.messages import tool_result
from fisk_ai.providers import open_provider
from fisk_ai.providers.diagnosis import explain_refusal
from fisk_ai.records import AssistantRecord, Record, ToolResultRecord
from fisk_ai.stores.fork import fork
from fisk_ai.stores.memory import MemoryStore
from tests.agent.bench import RUN, Effects, effect_tools
from tests.providers.conftest import ask
from tests.providers.strict_server import KEY, Fault, StrictServer
from tests.strategies import answer, follow_up, meta, result, sequenced, turn

REFUSED = ProviderRefused("anthropic answered with HTTP 400", status=400, kind="invalid_request_error")
FORMATS = pytest.mark.parametrize("format_name", ["anthropic", "openai", "openai-responses"])


def unsigned() -> AssistantRecord:
    """A turn that a compatible server may give, and that the API doesn't take back."""
    content = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Done."}]
    message = msgspec.json.encode({"role": "assistant", "content": content})
    return AssistantRecord(iteration=0, message=msgspec.Raw(message), stop_reason="end_turn")


def unnamed(format_name: str) -> AssistantRecord:
    """A turn with a call that has no name, as each format spells it."""
    messages: dict[str, Any] = {
        "anthropic": {"content": [{"type": "tool_use", "id": "a", "name": "", "input": {}}]},
        "openai": {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "", "arguments": "{}"}}]},
        "openai-responses": {"output": [{"type": "function_call", "call_id": "a", "name": "", "arguments": "{}"}]},
    }
    message = msgspec.Raw(msgspec.json.encode({"role": "assistant", **messages[format_name]}))
    return AssistantRecord(iteration=0, format=format_name, message=message, stop_reason="tool_use")


def explained(
    *records: Record, error: ProviderError = REFUSED, format_name: str = "anthropic", stored: bool = True
) -> Any:
    state = fold(sequenced([meta(), *records]))
    return explain_refusal(error, format_name, ask(*state.messages), "orders" if stored else None)


@FORMATS
def test_a_poisoned_turn_is_named_with_the_record_before_it(format_name: str) -> None:
    said = explained(unnamed(format_name), result("a"), format_name=format_name)
    assert said.startswith("the stored conversation breaks a rule of the API: ")
    assert "(the model's turn 1 of those that are sent)" in said
    assert said.endswith("; `fisk-ai session fork orders --at 1` leaves it out")


def test_a_later_turn_is_found_by_its_record() -> None:
    said = explained(turn("a", "b"), result("b"), result("a"), answer(), follow_up(), unsigned(), follow_up())
    assert "messages.5.content.0.signature" in said
    assert said.endswith("`fisk-ai session fork orders --at 6` leaves it out")


def test_a_poisoned_result_goes_with_the_turn_that_it_answers() -> None:
    raw = tool_result("b", "x")[:-1] + b',"extra":1}'
    poisoned = ToolResultRecord(tool_use_id="b", result=msgspec.Raw(raw))
    said = explained(answer(), follow_up(), turn("a", "b"), result("a"), poisoned)
    assert (
        "messages.4.content.1: Extra inputs are not permitted: extra (a tool's result after the model's turn 2)" in said
    )
    assert said.endswith("`fisk-ai session fork orders --at 3` leaves it out")


def test_what_was_typed_leaves_the_answer_before_it() -> None:
    typed = msgspec.Raw(b'{"role":"user","content":[{"type":"text","text":"x","extra":1}]}')
    said = explained(answer(), msgspec.structs.replace(follow_up(), message=typed))
    assert said.endswith(
        "(what was typed after the model's turn 1); `fisk-ai session fork orders --at 2` leaves it out"
    )
    first = explained(msgspec.structs.replace(follow_up(), message=typed))
    assert first.endswith("(the prompt); start a run with another prompt")


def test_a_run_that_is_stored_nowhere_can_not_be_forked() -> None:
    assert explained(unsigned(), follow_up(), stored=False).endswith("of those that are sent)")


def test_what_the_configuration_breaks_is_not_blamed_on_the_conversation() -> None:
    said = explain_refusal(REFUSED, "anthropic", replace(ask(), model=""), "orders")
    assert said == "the request breaks a rule of the API: model: Field required (the configuration)"


@pytest.mark.parametrize(
    "error",
    [
        ProviderRefused("x", status=401),
        ProviderRefused("x", status=429, rate_limited=True),
        ProviderRefused("x", status=400, kind=CONTEXT_OVERFLOW),
        ProviderRefused("x"),
        ProviderUnreachable("x"),
    ],
)
def test_other_errors_are_not_about_the_conversation(error: ProviderError) -> None:
    assert explained(unsigned(), follow_up(), error=error) is None


@FORMATS
def test_a_sound_conversation_is_not_blamed(format_name: str) -> None:
    assert explained(format_name=format_name) is None


def test_nothing_is_said_of_a_format_whose_rules_are_not_known() -> None:
    assert explained(unsigned(), follow_up(), format_name="telepathy") is None


def test_nothing_is_said_of_a_request_that_can_not_be_built() -> None:
    assert explained(unsigned(), follow_up(), format_name="openai") is None


POISONED: list[dict[str, Any]] = [
    {
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}},
        ]
    },
    {"text": "Never."},
]


def agent(server: StrictServer, store: MemoryStore, effects: Effects) -> Agent:
    environ = {"ANTHROPIC_API_KEY": KEY}
    return Agent(
        "some-model",
        provider="anthropic",
        open_with=lambda: open_provider("anthropic", base_url=server.url, environ=environ),
        system_prompt="Be brief.",
        tools=effect_tools(effects),
        store=store,
    )


@pytest.mark.anyio
async def test_a_poisoned_run_says_where_to_fork_and_the_fork_goes_on(tmp_path: Path) -> None:
    store, effects = MemoryStore(), Effects(tmp_path / "effects")
    with StrictServer(POISONED) as server:
        ended = await agent(server, store, effects).run("go", checkpoint=True, name=RUN)
        assert len(server.refusals) == 1
        again = await agent(server, store, effects).resume(RUN)
    for result_of in (ended, again):
        assert result_of.reason == "error"
        assert result_of.message is not None
        assert "HTTP 400" in result_of.message
        assert "breaks a rule of the API: messages.1.content.0.signature: Field required" in result_of.message
        assert result_of.message.endswith(f"`fisk-ai session fork {RUN} --at 1` leaves it out")
    fork(store, RUN, "second", at=1)
    with StrictServer([{"calls": [{"name": "a"}]}, {"text": "Done."}]) as server:
        done = await agent(server, store, effects).resume("second")
        assert server.refusals == []
    assert (done.reason, done.answer) == ("completed", "Done.")


@pytest.mark.anyio
async def test_a_request_that_keeps_the_rules_is_refused_without_further_words(tmp_path: Path) -> None:
    fault = Fault(status=400)
    with StrictServer([{"text": "Never."}], faults={1: fault}) as server:
        ended = await agent(server, MemoryStore(), Effects(tmp_path / "effects")).run("go", checkpoint=True, name=RUN)
    assert ended.reason == "error"
    assert "breaks a rule" not in (ended.message or "")
