"""Each kind of bad request is told, with its place, the rule, and what of the run it is; good ones break no rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fisk_ai.providers.rules import Problem, check_chat_request, check_messages_request, check_responses_request

DELETE = object()
IMAGE_DATA = "aGk="
SCHEMA = {"type": "object", "properties": {"stream": {"type": "string"}}}

MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4000,
    "system": "Be brief.",
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "cache_control": {"type": "ephemeral"},
    "tools": [
        {"name": "lookup", "description": "Look a stream up", "input_schema": SCHEMA},
        {"type": "web_search_20260209", "name": "web_search"},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "b3Bh"},
                {"type": "text", "text": "Looking.", "citations": None},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                {"type": "tool_use", "id": "a", "name": "lookup", "input": {}},
                {"type": "tool_use", "id": "b", "name": "lookup", "input": {"stream": "ORDERS"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [
                        {"type": "text", "text": "1"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE_DATA}},
                    ],
                },
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                {"type": "text", "text": "and now?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        {"role": "user", "content": "thanks"},
    ],
}
CHAT: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4000,
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "lookup", "description": "d", "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": each, "type": "function", "function": {"name": "lookup", "arguments": "{}"}} for each in "ab"
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE_DATA}"}},
            ],
        },
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "user", "content": "why?"},
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "max_output_tokens": 4000,
    "store": False,
    "instructions": "Be brief.",
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "tools": [
        {"type": "function", "name": "lookup", "description": "d", "parameters": SCHEMA, "strict": False},
        {"type": "web_search"},
    ],
    "input": [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gA=="},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "x", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "lookup", "arguments": "{}"},
        {"type": "function_call", "id": "fc_2", "call_id": "b", "name": "lookup", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE_DATA}", "detail": "auto"},
            ],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
        {"type": "from_the_future", "id": "ff_1"},
        {"role": "user", "content": "thanks"},
    ],
}

Check = Callable[[Any], list[Problem]]
MESSAGES_API: tuple[Check, dict[str, Any]] = (check_messages_request, MESSAGES)
CHAT_API: tuple[Check, dict[str, Any]] = (check_chat_request, CHAT)
RESPONSES_API: tuple[Check, dict[str, Any]] = (check_responses_request, RESPONSES)
APIS = pytest.mark.parametrize(
    ("check", "good"), [MESSAGES_API, CHAT_API, RESPONSES_API], ids=["messages", "chat", "responses"]
)


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy in which the value at a path of keys and places is another one, gone, or (`+`) put in before."""
    copy = deepcopy(body)
    *parents, last = path.split("/")
    inside: Any = copy
    for key in parents:
        inside = inside[int(key) if isinstance(inside, list) else key]
    if last.startswith("+"):
        inside.insert(int(last), value)
    elif value is DELETE:
        del inside[int(last) if isinstance(inside, list) else last]
    else:
        inside[int(last) if isinstance(inside, list) else last] = value
    return copy


TEXT = {"type": "text", "text": "x"}
SAYS = {"role": "assistant", "content": [TEXT]}
ASKS = {"role": "user", "content": [TEXT]}
RESULT_A = MESSAGES["messages"][2]["content"][0]
BLOCKS = "messages/1/content"
RESULTS = "messages/2/content"
SOURCE = f"{RESULTS}/0/content/1/source"
SOURCE_AT = "messages.2.content.0.content.1.source"

BAD_MESSAGES: list[tuple[str, str, Any, str, str]] = [
    ("no model", "model", "", "model", "required"),
    ("no limit", "max_tokens", DELETE, "max_tokens", "required"),
    ("a limit that is no number", "max_tokens", True, "max_tokens", "required"),
    ("unknown field", "seed", 1, "body", "Extra inputs are not permitted: seed"),
    ("blank system prompt", "system", " ", "system", "non-empty"),
    ("small thinking budget", "thinking/budget_tokens", 1023, "thinking.budget_tokens", "at least 1024"),
    ("thinking budget above the limit", "max_tokens", 1024, "max_tokens", "greater than"),
    ("unknown thinking", "thinking/type", "on", "thinking.type", "unexpected value"),
    ("tool name with a blank", "tools/0/name", "a b", "tools.0.name", "match the pattern"),
    ("tool names twice", "tools/0/name", "web_search", "tools", "unique: web_search"),
    ("tool without a schema", "tools/0/input_schema", {}, "tools.0.input_schema", "not an object"),
    ("union at the top", "tools/0/input_schema/anyOf", [], "tools.0.input_schema", "anyOf at the top level"),
    ("odd parameter name", "tools/0/input_schema/properties/a b", {}, "tools.0.input_schema.properties", "a b"),
    ("unknown field of a tool", "tools/0/strictly", 1, "tools.0", "strictly"),
    ("no messages", "messages", [], "messages", "at least one message"),
    ("the model begins", "messages/0", DELETE, "messages.0", "first message must use the user role"),
    ("unknown role", "messages/0/role", "system", "messages.0", "unexpected role 'system'"),
    ("unknown field of a message", "messages/0/seq", 1, "messages.0", "Extra inputs"),
    ("two user messages", "messages/+3", ASKS, "messages.3", "roles must alternate"),
    ("text before results", f"{RESULTS}/+0", TEXT, "messages.2.content.1", "must come first"),
    ("a call without its result", f"{RESULTS}/1", DELETE, "messages.2", "without `tool_result` blocks"),
    ("results later", "messages/+2", SAYS, "messages.2", "without `tool_result` blocks"),
    ("a result twice", f"{RESULTS}/+1", RESULT_A, "messages.2.content.1", "single result: a"),
    ("a result of no call", f"{RESULTS}/0/tool_use_id", "c", "messages.2.content.0", "unexpected `tool_use_id`"),
    ("a result of an earlier call", "messages/4/content", [RESULT_A], "messages.4.content.0", "unexpected"),
    ("a result of the model's", f"{BLOCKS}/0", RESULT_A, "messages.1.content.0", "user messages only"),
    ("a message of nothing", "messages/0/content", [], "messages.0.content", "must be non-empty"),
    ("a message of blank text", "messages/4/content", " \n", "messages.4.content", "must be non-empty"),
    ("blank text of the user's", "messages/0/content/0/text", "", "messages.0.content.0", "must be non-empty"),
    ("blank text of the model's", f"{BLOCKS}/2/text", "\n", "messages.1.content.2", "must be non-empty"),
    ("blank text in a result", f"{RESULTS}/0/content/0/text", "", "messages.2.content.0.content.0", "non-empty"),
    ("an error of nothing", f"{RESULTS}/1/content", DELETE, "messages.2.content.1", "must be non-empty"),
    ("an image in an error", f"{RESULTS}/0/is_error", True, "messages.2.content.0.content.1", "takes text only"),
    ("an error that is no boolean", f"{RESULTS}/1/is_error", "yes", "messages.2.content.1", "must be a boolean"),
    ("unknown field of a block", f"{RESULTS}/2/seq", 1, "messages.2.content.2", "Extra inputs"),
    ("unknown block of the user's", f"{RESULTS}/2/type", "hologram", "messages.2.content.2", "unexpected block"),
    ("unknown block in a result", f"{RESULTS}/0/content/0/type", "x", "messages.2.content.0.content.0", "unexpected"),
    ("a block without a type", f"{BLOCKS}/4/type", DELETE, "messages.1.content.4.type", "required"),
    ("a block that is text", f"{BLOCKS}/2", "x", "messages.1.content.2", "must be an object"),
    ("an image by its address", f"{SOURCE}/type", "url", SOURCE_AT, "must be base64"),
    ("an image of nothing", f"{SOURCE}/data", "", SOURCE_AT, "empty"),
    ("no base64", f"{SOURCE}/data", "?", SOURCE_AT, "base64"),
    ("no image", f"{SOURCE}/media_type", "text/html", SOURCE_AT, "none"),
    ("thinking without its signature", f"{BLOCKS}/0/signature", "", "messages.1.content.0.signature", "required"),
    ("thinking without a text", f"{BLOCKS}/0/thinking", None, "messages.1.content.0.thinking", "required"),
    ("redacted thinking without data", f"{BLOCKS}/1/data", DELETE, "messages.1.content.1.data", "required"),
    ("a call without an id", f"{BLOCKS}/5/id", "", "messages.1.content.5.id", "match the pattern"),
    ("a call with an odd id", f"{BLOCKS}/5/id", "fun:1", "messages.1.content.5.id", "match the pattern"),
    ("an id twice", f"{BLOCKS}/6/id", "a", "messages.1.content.6", "must be unique"),
    ("a call without a name", f"{BLOCKS}/5/name", "", "messages.1.content.5.name", "match the pattern"),
    ("arguments that are a list", f"{BLOCKS}/6/input", [], "messages.1.content.6.input", "should be an object"),
    ("a server call's arguments", f"{BLOCKS}/3/input", "q", "messages.1.content.3.input", "should be an object"),
    ("calls at the end", "messages", MESSAGES["messages"][:2], "messages.1", "without `tool_result` blocks"),
]  # fmt: skip
CALLED = CHAT["messages"][2]
TOOL_A = CHAT["messages"][3]
CALL = "messages/2/tool_calls/0"
BAD_CHATS: list[tuple[str, str, Any, str, str]] = [
    ("no model", "model", DELETE, "model", "must provide"),
    ("unknown field", "surprise", 1, "body", "Unrecognized request arguments: surprise"),
    ("two limits", "max_completion_tokens", 5, "max_tokens", "one output limit"),
    ("a limit of nothing", "max_tokens", 0, "max_tokens", "above 0"),
    ("stream options without a stream", "stream", False, "stream_options", "only allowed when streaming"),
    ("an empty list of tools", "tools", [], "tools", "too short"),
    ("unknown kind of tool", "tools/0/type", "retrieval", "tools[0].type", "unexpected type"),
    ("tool name with a blank", "tools/0/function/name", "a b", "tools[0].function.name", "match the pattern"),
    ("tool without a schema", "tools/0/function/parameters", [], "tools[0].function.parameters", "not an object"),
    ("tool names twice", "tools/+0", CHAT["tools"][0], "tools", "unique: lookup"),
    ("no messages", "messages", [], "messages", "too short"),
    ("a later system message", "messages/+2", CHAT["messages"][0], "messages[2]", "misplaced"),
    ("blank system prompt", "messages/0/content", "", "messages[0]", "empty content"),
    ("unknown role", "messages/1/role", "operator", "messages[1]", "invalid role"),
    ("two user messages", "messages/+1", {"role": "user", "content": "x"}, "messages[2]", "two user messages"),
    ("blank text of the user's", "messages/1/content", " ", "messages[1]", "empty content"),
    ("blank part", "messages/5/content/0/text", "", "messages[5].content[0]", "empty text"),
    ("no parts", "messages/5/content", [], "messages[5]", "empty content"),
    ("unknown part", "messages/5/content/0/type", "x", "messages[5].content[0]", "invalid part type"),
    ("no image", "messages/5/content/1/image_url/url", "data:text/html;base64,aGk=", "messages[5].content[1]", "none"),
    ("no base64", "messages/5/content/1/image_url/url", "https://x", "messages[5].content[1]", "base64"),
    ("a result of no call", "messages/+1", TOOL_A, "messages[1]", "no such 'tool_calls'"),
    ("a result twice", "messages/4", TOOL_A, "messages[4]", "no such 'tool_calls'"),
    ("a call without its result", "messages/4", DELETE, "messages[4]", "must be followed by tool messages for b"),
    ("a result after something else", "messages/+4", {"role": "user", "content": "x"}, "messages[4]", "followed by"),
    ("blank result", "messages/3/content", "", "messages[3]", "empty content"),
    ("unknown field of a result", "messages/3/name", "x", "messages[3]", "unexpected keys: name"),
    ("an empty turn", "messages/6/refusal", "", "messages[6]", "empty assistant message"),
    ("an empty list of calls", "messages/6/tool_calls", [], "messages[6].tool_calls", "too short"),
    ("a call without an id", f"{CALL}/id", None, "messages[2].tool_calls[0]", "without id"),
    ("an id twice", f"{CALL}/id", "b", "messages[2].tool_calls[1]", "must be unique"),
    ("a call without a type", f"{CALL}/type", DELETE, "messages[2].tool_calls[0]", "without type"),
    ("a call without a name", f"{CALL}/function/name", "", "messages[2].tool_calls[0]", "without name"),
    ("arguments that are an object", f"{CALL}/function/arguments", {}, "messages[2].tool_calls[0]", "a JSON string"),
    ("arguments cut off", f"{CALL}/function/arguments", "{", "messages[2].tool_calls[0]", "not JSON"),
    ("arguments that are a list", f"{CALL}/function/arguments", "[]", "messages[2].tool_calls[0]", "no object"),
    ("nothing to answer", "messages/1", DELETE, "messages[1]", "without anything to answer"),
    ("two turns in a row", "messages/+7", {"role": "assistant", "content": "x"}, "messages[7]", "anything to answer"),
    ("the model's word last", "messages/7", DELETE, "messages[6]", "last message"),
]  # fmt: skip
BAD_RESPONSES: list[tuple[str, str, Any, str, str]] = [
    ("no model", "model", "", "model", "Missing required"),
    ("a small limit", "max_output_tokens", 15, "max_output_tokens", "minimum value 16"),
    ("unknown field", "previous_response_id", "x", "body", "Unknown parameter: previous_response_id"),
    ("kept at the provider", "store", DELETE, "store", "false"),
    ("reasoning that can't come back", "include", [], "include", "reasoning can't come back"),
    ("blank instructions", "instructions", " ", "instructions", "empty"),
    ("unknown effort", "reasoning/effort", "extreme", "reasoning.effort", "unexpected value"),
    ("an empty list of tools", "tools", [], "tools", "empty array"),
    ("a tool that would be strict", "tools/0/strict", DELETE, "tools[0].strict", "strict"),
    ("tool name with a blank", "tools/0/name", "a b", "tools[0].name", "match the pattern"),
    ("tool without a schema", "tools/0/parameters", None, "tools[0].parameters", "not an object"),
    ("tool names twice", "tools/+0", RESPONSES["tools"][0], "tools", "unique: lookup"),
    ("no items", "input", [], "input", "empty array"),
    ("the model begins", "input/0", DELETE, "input[0]", "nothing to answer"),
    ("two user messages", "input/+0", {"role": "user", "content": "x"}, "input[1]", "two user messages"),
    ("unknown role", "input/0/role", "tool", "input[0].role", "unexpected role"),
    ("blank text of the user's", "input/0/content", "", "input[0].content", "empty"),
    ("blank part", "input/7/content/0/text", " ", "input[7].content[0]", "empty text"),
    ("unknown part", "input/7/content/0/type", "text", "input[7].content[0]", "Invalid value: 'text'"),
    ("an image without detail", "input/6/output/1/detail", DELETE, "input[6].output[1].detail", "Missing required"),
    ("no image", "input/6/output/1/image_url", "https://x", "input[6].output[1]", "base64"),
    ("an output of nothing", "input/6/output", [], "input[6].output", "empty array"),
    ("an output of no call", "input/5/call_id", "c", "input[5]", "No tool call found for function call output c"),
    ("a call without its output", "input/5", DELETE, "input[6]", "No tool output found for function call a"),
    ("unknown field of an output", "input/5/status", "x", "input[5]", "Unknown parameter: status"),
    ("reasoning that isn't sealed", "input/1/encrypted_content", None, "input[1]", "no encrypted_content"),
    ("reasoning without a summary", "input/1/summary", None, "input[1].summary", "Missing required"),
    ("reasoning that nothing follows", "input/8", RESPONSES["input"][1], "input[8]", "required following item"),
    ("an odd call id", "input/3/call_id", "a b", "input[3].call_id", "match the pattern"),
    ("a call id twice", "input/4/call_id", "a", "input[4].call_id", "made twice"),
    ("a call without a name", "input/3/name", "", "input[3].name", "match the pattern"),
    ("arguments that are an object", "input/3/arguments", {}, "input[3].arguments", "text is needed"),
    ("arguments cut off", "input/3/arguments", "{", "input[3].arguments", "not JSON"),
    ("an item id twice", "input/8/id", "fc_1", "input", "Duplicate item found with id fc_1"),
    ("the model's word last", "input/9", DELETE, "input[8]", "last item"),
    ("a message without content", "input/2/content", DELETE, "input[2].content", "Missing required"),
]  # fmt: skip


def told(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(each.place, each.rule) for each in problems]


@APIS
def test_a_good_request_breaks_no_rule(check: Check, good: dict[str, Any]) -> None:
    assert check(good) == []
    assert check(json.dumps(good).encode()) == []


def _cases(table: list[tuple[str, str, Any, str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("path", "value", "place", "words"), [case[1:] for case in table], ids=[case[0] for case in table]
    )


def assert_told(check: Check, body: dict[str, Any], place: str, words: str) -> None:
    found = told(check(body))
    assert any(at == place and words in rule for at, rule in found), found
    assert told(check(json.dumps(body).encode())) == found


@_cases(BAD_MESSAGES)
def test_a_bad_messages_request_is_told(path: str, value: Any, place: str, words: str) -> None:
    assert_told(check_messages_request, changed(MESSAGES, path, value), place, words)


@_cases(BAD_CHATS)
def test_a_bad_chat_request_is_told(path: str, value: Any, place: str, words: str) -> None:
    assert_told(check_chat_request, changed(CHAT, path, value), place, words)


@_cases(BAD_RESPONSES)
def test_a_bad_responses_request_is_told(path: str, value: Any, place: str, words: str) -> None:
    assert_told(check_responses_request, changed(RESPONSES, path, value), place, words)


@APIS
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"a":NaN}', b"7"])
def test_what_is_no_json_object_is_told(check: Check, good: dict[str, Any], body: bytes) -> None:
    [problem] = check(body)
    assert problem.place == "body"


def test_only_a_paused_turn_may_stand_without_a_user_message_behind_it() -> None:
    paused = changed(MESSAGES, "messages/4", DELETE)
    assert check_messages_request(paused) == []
    assert check_messages_request(paused, [False, True]) == []
    assert told(check_messages_request(paused, [True, False]))[0][0] == "messages.3"
    in_a_row = changed(MESSAGES, "messages/+4", SAYS)
    assert check_messages_request(in_a_row, [False, True, False]) == []
    assert told(check_messages_request(in_a_row, [False, False, True]))[0][0] == "messages.3"


@pytest.mark.parametrize(
    ("check", "good", "path", "value", "part", "turns", "source"),
    [
        (*MESSAGES_API, "system", " ", "settings", 0, "the configuration"),
        (*MESSAGES_API, "messages/0/content", "", "user", 0, "the prompt"),
        (*MESSAGES_API, f"{BLOCKS}/2/text", "", "turn", 0, "the model's turn 1 of those that are sent"),
        (*MESSAGES_API, f"{RESULTS}/1/content", "", "result", 1, "a tool's result after the model's turn 1"),
        (*MESSAGES_API, f"{RESULTS}/2/text", "", "user", 1, "what was typed after the model's turn 1"),
        (*MESSAGES_API, "messages/3/content", "", "turn", 1, "the model's turn 2 of those that are sent"),
        (*CHAT_API, "messages/0/content", "", "settings", 0, "the configuration"),
        (*CHAT_API, f"{CALL}/id", "", "turn", 0, "the model's turn 1 of those that are sent"),
        (*CHAT_API, "messages/4/content", "", "result", 1, "a tool's result after the model's turn 1"),
        (*CHAT_API, "messages/7/content", "", "user", 2, "what was typed after the model's turn 2"),
        (*CHAT_API, "messages/7", DELETE, "turn", 1, "the model's turn 2 of those that are sent"),
        (*RESPONSES_API, "input/4/name", "", "turn", 0, "the model's turn 1 of those that are sent"),
        (*RESPONSES_API, "input/5/output", "", "result", 1, "a tool's result after the model's turn 1"),
        (*RESPONSES_API, "input/9/content", "", "user", 2, "what was typed after the model's turn 2"),
    ],
)
def test_what_of_the_run_is_wrong_is_told(
    check: Check, good: dict[str, Any], path: str, value: Any, part: str, turns: int, source: str
) -> None:
    problem = check(changed(good, path, value))[0]
    assert (problem.part, problem.turns, problem.source) == (part, turns, source)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2000)
    | st.sampled_from(["", " ", "user", "assistant", "a", "{}", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "content"]), inner),
    max_leaves=6,
)


def _paths(value: Any, at: str = "") -> list[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in items for path in (f"{at}{key}", *_paths(inner, f"{at}{key}/"))]


@APIS
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_stands_somewhere_is_told_or_taken(check: Check, good: dict[str, Any], data: st.DataObject) -> None:
    body = good
    for _ in range(data.draw(st.integers(1, 3))):
        body = changed(body, data.draw(st.sampled_from(_paths(body))), data.draw(_JSON | st.just(DELETE)))
        if not body:
            return
    for problem in check(body):
        assert problem.place
        assert problem.rule
        assert problem.source
        assert problem.turns >= 0


def test_the_good_conversations_are_ones_that_the_sdks_know(anthropic_sdk: ModuleType, openai_sdk: ModuleType) -> None:
    known_items = [item for item in RESPONSES["input"] if item.get("type") != "from_the_future"]
    for kind, conversation in (
        (anthropic_sdk.types.MessageParam, MESSAGES["messages"]),
        (openai_sdk.types.chat.ChatCompletionMessageParam, CHAT["messages"]),
        (openai_sdk.types.responses.ResponseInputItemParam, known_items),
    ):
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        for message in conversation:
            known = json.loads(adapter.dump_json(adapter.validate_python(message), warnings=False))
            assert known.keys() <= message.keys()
            assert known.get("role") == message.get("role")
