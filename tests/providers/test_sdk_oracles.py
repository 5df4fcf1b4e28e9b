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
from fisk_ai.providers.anthropic import MessagesApi
from fisk_ai.providers.anthropic import build_request as anthropic_request
from fisk_ai.providers.anthropic import read_reply as read_anthropic
from fisk_ai.providers.base import ModelOptions, ModelRequest
from fisk_ai.providers.openai import Accumulator as ChatAccumulator
from fisk_ai.providers.openai import build_request as openai_request
from fisk_ai.providers.openai import read_reply as read_openai
from fisk_ai.providers.responses import Accumulator as ResponsesAccumulator
from fisk_ai.providers.responses import build_request as responses_request
from fisk_ai.providers.responses import read_reply as read_responses
from tests.providers.conftest import LOOKUP, results, user
from tests.providers.strict_responses import ResponsesSpeech
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
    asked |= {"cache_control": {"type": "ephemeral"}}
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


def test_anthropic_options_are_what_the_sdk_sends(anthropic_sdk: ModuleType, server: StrictServer) -> None:
    search = {"type": "web_search_20260209", "name": "web_search", "max_uses": 3}
    options = ModelOptions(service_tier="standard_only", betas=("one", "two"), server_tools=(search,))
    ours = MessagesApi(options)
    tool = {"name": LOOKUP.name, "description": LOOKUP.description, "input_schema": LOOKUP.parameters}
    asked: dict[str, Any] = {"max_tokens": 4000, "system": "Be brief.", "tools": [tool, search], **MODEL}
    with anthropic_sdk.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        client.beta.messages.create(
            messages=[json.loads(user().content)],
            cache_control={"type": "ephemeral"},
            service_tier="standard_only",
            betas=["one", "two"],
            **asked,
        )
    [theirs] = server.requests
    assert json.loads(ours.build_request(request(user(), iteration=0), stream=False)) == theirs.json
    assert {name: theirs.headers[name] for name in ours.headers} == ours.headers


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


SERVED = (
    b'[{"type":"thinking","thinking":"Search first.","signature":"c2ln"},{"type":"redacted_thinking","data":"b3Bh"},'
    b'{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"q"},"caller":{"type":"direct"}},'
    b'{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result","url":"u",'
    b'"title":"t","encrypted_content":"e","page_age":null}],"caller":{"type":"direct"}},'
    b'{"type":"server_tool_use","id":"srvtoolu_2","name":"bash_code_execution","input":{"command":"ls"}},'
    b'{"type":"bash_code_execution_tool_result","tool_use_id":"srvtoolu_2","content":{"type":"bash_code_execution_result",'
    b'"stdout":"","stderr":"","return_code":0,"content":[]}},'
    b'{"type":"server_tool_use","id":"srvtoolu_3","name":"tool_search_tool_regex","input":{}},'
    b'{"type":"tool_search_tool_result","tool_use_id":"srvtoolu_3","content":{"type":"tool_search_tool_search_result",'
    b'"tool_references":[{"type":"tool_reference","tool_name":"lookup"}]}},'
    b'{"type":"text","text":"It is so.","citations":[{"type":"web_search_result_location","url":"u","title":"t",'
    b'"encrypted_index":"i","cited_text":"c"},{"type":"web_search_result_location","url":"v","title":null,'
    b'"encrypted_index":"j","cited_text":"d"}]},'
    b'{"type":"thinking","thinking":"Now ours.","signature":"c2ln"},'
    b'{"type":"tool_use","id":"toolu_1","name":"lookup","input":{"a":[1,{"b":null}]}}]'
)
UNKNOWN = b'{"type":"from_the_future","data":{"n":[1,null]},"to":"come"}'


BROKEN = Turn(calls=[{"name": "lookup", "input": "cut {", "id": ""}])


@pytest.mark.parametrize(
    "turn", [CALLS, DONE, Turn(content=msgspec.Raw(RICH)), Turn(content=msgspec.Raw(SERVED)), BROKEN]
)
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


@pytest.mark.parametrize("content", [RICH, SERVED])
def test_streamed_messages_turn_is_the_one_that_the_sdk_puts_together(
    anthropic_sdk: ModuleType, content: bytes
) -> None:
    theirs = _put_together(anthropic_sdk, content)
    assert (
        _streamed(content) == json.loads(theirs.model_dump_json(exclude_unset=True))["content"] == json.loads(content)
    )


def test_streamed_block_of_an_unknown_kind_holds_what_the_sdk_holds(anthropic_sdk: ModuleType) -> None:
    content = SERVED[:-1] + b"," + UNKNOWN + b"]"
    *_, last = _put_together(anthropic_sdk, content).content
    ours = _streamed(content)
    assert ours == json.loads(content)
    assert ours[-1] == {name: getattr(last, name) for name in json.loads(UNKNOWN)}  # its own type is only the nearest


def _streamed(content: bytes) -> Any:
    turn = Turn(content=msgspec.Raw(content))
    ours = AnthropicAccumulator()
    for event in MessagesSpeech(turn, 0).events(MODEL):
        ours.feed("message", event.partition(b"data: ")[2].decode())
    return json.loads(ours.reply().message)["content"]


def _put_together(anthropic_sdk: ModuleType, content: bytes) -> Any:
    """Return the message that the SDK makes of the same stream."""
    turn = Turn(content=msgspec.Raw(content))
    with StrictServer([turn]) as server, anthropic_sdk.Anthropic(base_url=server.url, api_key=KEY) as client:
        asked = {"max_tokens": 4000, "messages": [json.loads(user().content)], **MODEL}
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()


CHATTED = (
    b'{"role":"assistant","content":"Looking.","refusal":null,"reasoning_content":"hm","tool_calls":['
    b'{"id":"a","type":"function","function":{"name":"lookup","arguments":"{\\"n\\": 1e3}"}},'
    b'{"id":"b","type":"function","function":{"name":"lookup","arguments":"{}"}}]}'
)


@pytest.mark.parametrize("turn", [Turn(message=msgspec.Raw(CHATTED)), CALLS, DONE])
def test_streamed_chat_turn_is_the_one_that_the_sdk_puts_together(openai_sdk: ModuleType, turn: Turn) -> None:
    ours = ChatAccumulator()
    for event in ChatSpeech(turn, 0).events(MODEL):
        ours.feed("message", event.partition(b"data: ")[2].decode())
    with (
        StrictServer([turn]) as server,
        openai_sdk.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client,
        client.chat.completions.stream(
            messages=[{"role": "user", "content": "go"}], max_tokens=4000, **MODEL
        ) as stream,
    ):
        theirs = stream.get_final_completion().choices[0].message
    kept = json.loads(theirs.model_dump_json(exclude_unset=True))
    for call in kept.get("tool_calls") or []:
        call.pop("index")  # the SDK keeps the place among the deltas
        call["function"].pop("parsed_arguments", None)  # and adds what it read
    said = json.loads(ours.reply().message)
    assert _without_nulls(said) == _without_nulls(kept)  # the SDK adds every field that it knows


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


ITEMS = (
    b'[{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"First the web, then ours."}],'
    b'"encrypted_content":"gAAAAABx"},'
    b'{"id":"ws_1","type":"web_search_call","status":"completed","action":{"type":"search","query":"q"}},'
    b'{"id":"ci_1","type":"code_interpreter_call","status":"completed","code":"1+1","container_id":"c","outputs":null},'
    b'{"id":"msg_1","type":"message","role":"assistant","status":"completed","phase":"commentary","content":[{"type":'
    b'"output_text","text":"Looking.","annotations":[{"type":"url_citation","url":"u","title":"t","start_index":0,'
    b'"end_index":1}],"logprobs":[]}]},'
    b'{"id":"fc_1","type":"function_call","status":"completed","call_id":"call_a","name":"lookup",'
    b'"arguments":"{\\"stream\\":\\"ORDERS\\"}"}]'
)
REFUSING = Turn(
    output=msgspec.Raw(
        b'[{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":'
        b'[{"type":"refusal","refusal":"I can\'t."}]}]'
    )
)
SPOKEN = [Turn(output=msgspec.Raw(ITEMS)), REFUSING, CALLS, DONE]


def responses_tool() -> dict[str, Any]:
    described = {"name": LOOKUP.name, "description": LOOKUP.description, "parameters": LOOKUP.parameters}
    return {"type": "function", "strict": False, **described}


@pytest.mark.parametrize("stream", [True, False])
def test_responses_request_is_what_the_sdk_sends(openai_sdk: ModuleType, stream: bool) -> None:
    asked: dict[str, Any] = {"max_output_tokens": 4000, "instructions": "Be brief.", "store": False, **MODEL}
    asked |= {"tools": [responses_tool()], "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "none"}}
    asked |= {"stream": True} if stream else {}
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}
    with (
        StrictServer([CALLS, DONE]) as server,
        openai_sdk.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        first = client.responses.create(input=[{"role": "user", "content": "go"}], **asked)
        said = json.loads(CALLS.responses_output(0)) if stream and list(first) else first.output
        answers = [
            {
                "type": "function_call_output",
                "call_id": "toolu_0_0",
                "output": [{"type": "input_text", "text": "3 consumers"}, image],
            },
            {"type": "function_call_output", "call_id": "toolu_0_1", "output": "Error: no"},
        ]
        second = client.responses.create(input=[{"role": "user", "content": "go"}, *said, *answers], **asked)
        if stream:
            list(second)
        assert server.refusals == []
    turn = Message("assistant", "openai-responses", b'{"role":"assistant","output":' + CALLS.responses_output(0) + b"}")
    ours = [
        responses_request(request(user(), iteration=0), stream=stream, official=True),
        responses_request(request(user(), turn, ANSWERS, iteration=1), stream=stream, official=True),
    ]
    assert [json.loads(body) for body in ours] == [recorded.json for recorded in server.requests]


@pytest.mark.parametrize("turn", [*SPOKEN, BROKEN])
def test_journaled_responses_turns_parse_with_the_sdks_types(openai_sdk: ModuleType, turn: Turn) -> None:
    whole = ResponsesSpeech(turn, 0).whole(MODEL)
    output = json.loads(read_responses(whole, official=True).message)["output"]
    parsed = openai_sdk.types.responses.Response.model_validate(json.loads(whole) | {"output": output})
    assert [item.type for item in parsed.output] == [item["type"] for item in output]
    assert json.loads(parsed.model_dump_json(exclude_unset=True, by_alias=True))["output"] == output


@pytest.mark.parametrize("turn", SPOKEN)
def test_streamed_responses_turn_is_the_one_that_the_sdk_puts_together(openai_sdk: ModuleType, turn: Turn) -> None:
    ours = ResponsesAccumulator(official=True)
    for event in ResponsesSpeech(turn, 0).events(MODEL):
        ours.feed("message", event.partition(b"data: ")[2].decode())
    asked = {"max_output_tokens": 4000, "store": False, "include": ["reasoning.encrypted_content"], **MODEL}
    with (
        StrictServer([turn]) as server,
        openai_sdk.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client,
        client.responses.stream(input=[{"role": "user", "content": "go"}], **asked) as stream,
    ):
        theirs = stream.get_final_response()
        assert server.refusals == []
    raw = openai_sdk.types.responses.Response.model_validate(theirs.model_dump(exclude_unset=True, by_alias=True))
    kept = json.loads(raw.model_dump_json(exclude_unset=True, by_alias=True))["output"]
    for item in kept:
        item.pop("parsed_arguments", None)  # what the SDK adds
        for part in item.get("content") or []:
            part.pop("parsed", None)
    assert json.loads(ours.reply().message)["output"] == kept
