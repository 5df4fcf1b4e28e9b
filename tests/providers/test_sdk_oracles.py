"""The official SDKs as oracles: what is journaled parses with their types, what is sent is what they would send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fisk_ai.messages import ImageBlock, ImageSource, Message, TextBlock, encode_result, tool_result
from fisk_ai.providers.anthropic import Accumulator as AnthropicAccumulator
from fisk_ai.providers.anthropic import build_request as anthropic_request
from fisk_ai.providers.anthropic import read_reply as read_anthropic
from fisk_ai.providers.base import ModelRequest
from fisk_ai.providers.openai import build_request as openai_request
from fisk_ai.providers.openai import read_reply as read_openai
from tests.providers.conftest import LOOKUP, results, user
from tests.providers.strict_server import KEY, ChatSpeech, MessagesSpeech, StrictServer, Turn

CALLS = Turn(text="Looking.", calls=[{"name": "lookup", "input": {"stream": "ORDERS"}}, {"name": "lookup"}])
DONE = Turn(text="Done.")
IMAGE = ImageBlock(ImageSource("base64", "image/png", "aGk="))
ANSWERS = results(
    encode_result("toolu_0_0", [TextBlock("3 consumers"), IMAGE]), tool_result("toolu_0_1", "no", is_error=True)
)
MODEL = {"model": "some-model"}


@pytest.fixture
def server() -> Iterator[StrictServer]:
    with StrictServer([CALLS, DONE]) as running:
        yield running


def request(*conversation: Message, iteration: int, thinking_mode: str = "off") -> ModelRequest:
    return ModelRequest("some-model", "Be brief.", (LOOKUP,), conversation, iteration, 4000, thinking_mode)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("mode", "thinking"),
    [
        ("off", None),
        ("adaptive", {"type": "adaptive"}),
        ("budget:2048", {"type": "enabled", "budget_tokens": 2048}),
    ],
)
def test_anthropic_request_is_what_the_sdk_sends(
    anthropic_sdk: ModuleType, server: StrictServer, stream: bool, mode: str, thinking: dict[str, Any] | None
) -> None:
    client = anthropic_sdk.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)
    tool = {"name": LOOKUP.name, "description": LOOKUP.description, "input_schema": LOOKUP.parameters}
    asked: dict[str, Any] = {"max_tokens": 4000, "system": "Be brief.", "tools": [tool], **MODEL}
    asked |= {} if thinking is None else {"thinking": thinking}
    asked |= {"stream": True} if stream else {}
    with client:
        first = client.messages.create(
            messages=[{"role": "user", "content": [{"type": "text", "text": "go"}]}], **asked
        )
        if stream:
            list(first)
            content = json.loads(CALLS.anthropic_content(0))
        else:
            content = [block.model_dump(exclude_unset=True) for block in first.content]
        second = client.messages.create(
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "go"}]},
                {"role": "assistant", "content": content},
                json.loads(ANSWERS.content),
            ],
            **asked,
        )
        if stream:
            list(second)
    assert server.refusals == []
    turn = Message("assistant", "anthropic", b'{"role":"assistant","content":' + CALLS.anthropic_content(0) + b"}")
    ours = [
        anthropic_request(request(user(), iteration=0, thinking_mode=mode), stream=stream),
        anthropic_request(request(user(), turn, ANSWERS, iteration=1, thinking_mode=mode), stream=stream),
    ]
    assert [json.loads(body) for body in ours] == [recorded.json for recorded in server.requests]


@pytest.mark.parametrize("stream", [True, False])
def test_openai_request_is_what_the_sdk_sends(openai_sdk: ModuleType, server: StrictServer, stream: bool) -> None:
    client = openai_sdk.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    function = {"name": LOOKUP.name, "description": LOOKUP.description, "parameters": LOOKUP.parameters}
    asked: dict[str, Any] = {"max_tokens": 4000, "tools": [{"type": "function", "function": function}], **MODEL}
    asked |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    head = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}]
    note = {"type": "text", "text": "The result of tool call toolu_0_0 has this to show:"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    with client:
        first = client.chat.completions.create(messages=head, **asked)
        if stream:
            list(first)
            said: Any = json.loads(CALLS.openai_message(0))
        else:
            said = first.choices[0].message
        second = client.chat.completions.create(
            messages=[
                *head,
                said,
                {"role": "tool", "tool_call_id": "toolu_0_0", "content": "3 consumers"},
                {"role": "tool", "tool_call_id": "toolu_0_1", "content": "Error: no"},
                {"role": "user", "content": [note, image]},
            ],
            **asked,
        )
        if stream:
            list(second)
    assert server.refusals == []
    turn = Message("assistant", "openai", CALLS.openai_message(0))
    ours = [
        openai_request(request(user(), iteration=0), stream=stream, official=False),
        openai_request(request(user(), turn, ANSWERS, iteration=1), stream=stream, official=False),
    ]
    assert [json.loads(body) for body in ours] == [recorded.json for recorded in server.requests]


RICH = (
    b'[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"d"},'
    b'{"type":"text","text":"x","citations":null},'
    b'{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"q"}},'
    b'{"type":"tool_use","id":"toolu_1","name":"lookup","input":{"a":[1,{"b":null}]}}]'
)


BROKEN = Turn(calls=[{"name": "lookup", "input": "cut {", "id": ""}])


@pytest.mark.parametrize("turn", [CALLS, DONE, Turn(content=msgspec.Raw(RICH)), BROKEN])
def test_journaled_messages_turns_parse_with_the_sdks_types(anthropic_sdk: ModuleType, turn: Turn) -> None:
    reply = read_anthropic(MessagesSpeech(turn, 0).whole(MODEL))
    message = json.loads(reply.message)
    whole = {"id": "m", "type": "message", "model": "m", "stop_sequence": None, **message}
    whole |= {"stop_reason": reply.stop_reason, "usage": {"input_tokens": 1, "output_tokens": 1}}
    parsed = anthropic_sdk.types.Message.model_validate(whole)
    assert [block.type for block in parsed.content] == [block["type"] for block in message["content"]]
    kept = json.loads(parsed.model_dump_json(exclude_unset=True))
    assert kept["content"] == message["content"]


@pytest.mark.parametrize("turn", [CALLS, DONE, BROKEN])
def test_journaled_chat_turns_parse_with_the_sdks_types(openai_sdk: ModuleType, turn: Turn) -> None:
    reply = read_openai(ChatSpeech(turn, 0).whole(MODEL))
    types = openai_sdk.types.chat
    parsed = types.ChatCompletionMessage.model_validate_json(reply.message)
    assert json.loads(parsed.model_dump_json(exclude_unset=True)) == json.loads(reply.message)
    assert {call.type for call in parsed.tool_calls or ()} <= {"function"}


def test_streamed_messages_turn_is_the_one_that_the_sdk_puts_together(anthropic_sdk: ModuleType) -> None:
    turn = Turn(content=msgspec.Raw(RICH))
    ours = AnthropicAccumulator()
    for event in MessagesSpeech(turn, 0).events(MODEL):
        ours.feed("message", event.partition(b"data: ")[2].decode())
    with StrictServer([turn]) as server, anthropic_sdk.Anthropic(base_url=server.url, api_key=KEY) as client:
        asked = {"max_tokens": 4000, "messages": [json.loads(user().content)], **MODEL}
        with client.messages.stream(**asked) as stream:
            theirs = stream.get_final_message()
    content = json.loads(theirs.model_dump_json(exclude_unset=True))["content"]
    assert json.loads(ours.reply().message)["content"] == content == json.loads(RICH)
