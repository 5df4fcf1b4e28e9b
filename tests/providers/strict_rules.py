"""What the real APIs refuse, as pure checks of a request's JSON; each returns the complaint, or None.

Stricter than the real ones in two ways: two user messages in a row are refused, and an assistant turn must be the
one that was sent, value for value and number spelling for number spelling.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

JsonObject = dict[str, Any]

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

_MESSAGES_KEYS = frozenset(
    {"model", "messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "stream", "metadata"}
    | {"stop_sequences", "output_config", "service_tier", "cache_control"}
)
_CHAT_KEYS = frozenset(
    {"model", "messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "stream"}
    | {"stream_options", "n", "stop", "temperature", "top_p", "reasoning_effort", "parallel_tool_calls", "seed"}
    | {"service_tier"}
)


class Refused(Exception):
    """The request breaks a rule; the text is what the API would say."""


def read_strict(body: bytes) -> JsonObject:
    """Parse a body with numbers kept as they are spelled."""

    def refuse(token: str) -> None:
        raise Refused(f"the body is not JSON: {token}")

    try:
        value = json.loads(body.decode("utf-8"), parse_float=_Spelled, parse_int=_int, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # no lone surrogates
    except ValueError as problem:
        raise Refused(f"the body is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise Refused("the body must be an object")
    return value


class _Spelled(str):
    """A number that isn't a small integer, as it is spelled, so that 1e3 and 1000.0 differ."""


def _int(text: str) -> Any:
    return int(text) if len(text) < 16 else _Spelled(text)


def need(condition: object, complaint: str) -> None:
    """Refuse unless `condition` holds."""
    if not condition:
        raise Refused(complaint)


def is_blank(text: object) -> bool:
    """Tell whether the API takes `text` for empty."""
    return not isinstance(text, str) or not text.strip()


def check_messages_request(body: JsonObject, sent: Sequence[SentTurn]) -> None:
    """Check a Messages API request; `sent` are the turns given before, in order, as many as the request holds."""
    need(body.keys() <= _MESSAGES_KEYS, f"{sorted(body.keys() - _MESSAGES_KEYS)}: Extra inputs are not permitted")
    need(isinstance(body.get("model"), str) and body["model"], "model: Field required")
    limit = body.get("max_tokens")
    need(isinstance(limit, int) and not isinstance(limit, bool) and limit > 0, "max_tokens: Field required")
    need("system" not in body or not is_blank(body["system"]), "system: text content blocks must be non-empty")
    _check_thinking(body.get("thinking"), body["max_tokens"])
    _check_tools([(tool, "input_schema") for tool in body.get("tools", [])])
    messages = body.get("messages")
    need(isinstance(messages, list) and messages, "messages: at least one message is required")
    _check_roles(body["messages"], [turn.paused for turn in sent])
    open_calls: list[str] = []
    turns = iter(sent)
    for index, message in enumerate(body["messages"]):
        at = f"messages.{index}"
        need(message.keys() == {"role", "content"}, f"{at}: Extra inputs are not permitted")
        blocks = _blocks(message["content"], at)
        if message["role"] == "user":
            _check_results(blocks, open_calls, at)
            open_calls = []
        else:
            need(not open_calls, f"{at}: `tool_use` ids were found without `tool_result` blocks: {open_calls}")
            open_calls = _check_assistant_blocks(blocks, at)
            _check_same(message, next(turns).as_anthropic, at)
    need(not open_calls, f"`tool_use` ids were found without `tool_result` blocks immediately after: {open_calls}")


def _check_thinking(thinking: Any, max_tokens: int) -> None:
    if thinking is None:
        return
    need(thinking.get("type") in ("enabled", "disabled", "adaptive"), "thinking.type: unexpected value")
    if thinking["type"] == "enabled":
        need(thinking.get("budget_tokens", 0) >= 1024, "thinking.budget_tokens: at least 1024")
        need(max_tokens > thinking["budget_tokens"], "`max_tokens` must be greater than `thinking.budget_tokens`")


def _check_tools(tools: Sequence[tuple[Any, str]]) -> None:
    names = [tool["name"] for tool, _ in tools if "name" in tool]
    need(len(names) == len(set(names)), "tools: Tool names must be unique")
    for index, (tool, schema_key) in enumerate(tools):
        if "type" in tool:
            need(isinstance(tool["type"], str) and schema_key not in tool, f"tools.{index}.type: unexpected value")
            continue  # one that runs on the provider's side: each kind has its own fields
        need(_TOOL_NAME.fullmatch(tool.get("name") or ""), f"tools.{index}.name: should match the pattern")
        need(tool.keys() <= {"name", "description", schema_key}, f"tools.{index}: Extra inputs")
        schema = tool.get(schema_key)
        need(isinstance(schema, dict) and schema.get("type") == "object", f"tools.{index}.{schema_key}: not an object")


def _check_roles(messages: Sequence[Any], paused: Sequence[bool]) -> None:
    need(all(message.get("role") in ("user", "assistant") for message in messages), "messages: unexpected role")
    need(messages[0]["role"] == "user", "messages: first message must use the user role")
    turn = -1
    for index, message in enumerate(messages):
        turn += message["role"] == "assistant"
        following = messages[index + 1]["role"] if index + 1 < len(messages) else None
        if message["role"] == "user":
            need(following != "user", f"messages.{index + 1}: roles must alternate")
        elif following in (None, "assistant"):
            need(paused[turn], f"messages.{index}: an assistant message here must be a paused turn")


def _blocks(content: Any, at: str) -> list[JsonObject]:
    if isinstance(content, str):
        need(not is_blank(content), f"{at}: text content blocks must be non-empty")
        return [{"type": "text", "text": content}]
    need(isinstance(content, list) and content, f"{at}: content must be non-empty")
    blocks: list[JsonObject] = content
    for place, block in enumerate(blocks):
        if block.get("type") == "text":
            need(not is_blank(block.get("text")), f"{at}.content.{place}: text content blocks must be non-empty")
    return blocks


def _check_results(blocks: Sequence[JsonObject], open_calls: Sequence[str], at: str) -> None:
    results = [block for block in blocks if block["type"] == "tool_result"]
    need(list(blocks[: len(results)]) == results, f"{at}: `tool_result` blocks must come first")
    answered = [block.get("tool_use_id") for block in results]
    need(len(answered) == len(set(answered)), f"{at}: each `tool_use` must have a single result")
    unknown = set(answered) - set(open_calls)
    need(not unknown, f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {sorted(map(str, unknown))}")
    missing = [call for call in open_calls if call not in answered]
    need(not missing, f"{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}")
    for block in blocks:
        need(block["type"] in ("text", "image", "tool_result"), f"{at}: unexpected block {block['type']!r}")
        _check_user_block(block, at)


def _check_user_block(block: JsonObject, at: str) -> None:
    match block["type"]:
        case "text":
            need(block.keys() == {"type", "text"}, f"{at}: Extra inputs are not permitted")
        case "image":
            _check_image(block.get("source"), at)
        case "tool_result":
            allowed = {"type", "tool_use_id", "content", "is_error"}
            need(block.keys() <= allowed, f"{at}: Extra inputs are not permitted")
            need(isinstance(block.get("is_error", False), bool), f"{at}: is_error must be a boolean")
            for part in _blocks(block["content"], at) if "content" in block else []:
                need(part["type"] in ("text", "image"), f"{at}: unexpected block in a tool result")
                _check_user_block(part, at)


def _check_image(source: Any, at: str) -> None:
    need(isinstance(source, dict) and source.get("type") == "base64", f"{at}: image.source must be base64")
    need(source["media_type"] in _IMAGE_TYPES, f"{at}: image.source.media_type: unexpected value")
    try:
        need(base64.b64decode(source["data"], validate=True), f"{at}: image cannot be empty")
    except (binascii.Error, ValueError):
        raise Refused(f"{at}: image.source.data: invalid base64") from None


def _check_assistant_blocks(blocks: Sequence[JsonObject], at: str) -> list[str]:
    calls: list[str] = []
    for place, block in enumerate(blocks):
        here = f"{at}.content.{place}"
        match block.get("type"):
            case "thinking":
                need(block.get("signature"), f"{here}.thinking.signature: Field required")
            case "redacted_thinking":
                need(block.get("data"), f"{here}.redacted_thinking.data: Field required")
            case "tool_use":
                need(_CALL_ID.fullmatch(str(block.get("id", ""))), f"{here}.tool_use.id: should match the pattern")
                need(block["id"] not in calls, f"{here}: `tool_use` ids must be unique")
                need(_TOOL_NAME.fullmatch(block.get("name") or ""), f"{here}.tool_use.name: Field required")
                need(isinstance(block.get("input"), dict), f"{here}.tool_use.input: Input should be an object")
                calls.append(block["id"])
            case kind:
                need(isinstance(kind, str), f"{here}.type: Field required")
    return calls


def check_chat_request(body: JsonObject, sent: Sequence[SentTurn]) -> None:
    """Check a Chat Completions request; `sent` are the turns given before, as many as the request holds."""
    need(body.keys() <= _CHAT_KEYS, f"Unrecognized request arguments: {sorted(body.keys() - _CHAT_KEYS)}")
    need(isinstance(body.get("model"), str) and body["model"], "you must provide a model parameter")
    limits = [body[key] for key in ("max_tokens", "max_completion_tokens") if key in body]
    need(len(limits) == 1 and isinstance(limits[0], int) and limits[0] > 0, "one output limit is needed")
    need(body.get("stream") or "stream_options" not in body, "'stream_options' is only allowed when streaming")
    need(body.get("tools") != [], "[] is too short - 'tools'")
    for tool in body.get("tools", ()):
        need(tool.get("type") == "function", "tools: unexpected type")
    _check_tools([(tool["function"], "parameters") for tool in body.get("tools", ())])
    messages = body.get("messages")
    need(isinstance(messages, list) and messages, "[] is too short - 'messages'")
    turns = iter(sent)
    open_calls: list[str] = []
    before = "system"
    for index, message in enumerate(body["messages"]):
        at, role = f"messages[{index}]", message.get("role")
        if role != "tool":
            need(not open_calls, f"{at}: 'tool_calls' must be followed by tool messages for {open_calls}")
        match role:
            case "system":
                need(index == 0 and not is_blank(message["content"]), f"{at}: misplaced or empty system message")
            case "user":
                need(before != "user", f"{at}: two user messages in a row")
                _check_chat_user(message, at)
            case "tool":
                need(message.get("tool_call_id") in open_calls, f"{at}: no such 'tool_calls' before this message")
                need(message.keys() == {"role", "tool_call_id", "content"}, f"{at}: unexpected keys")
                need(not is_blank(message["content"]), f"{at}: empty content")
                open_calls.remove(message["tool_call_id"])
            case "assistant":
                need(before in ("user", "tool"), f"{at}: assistant message without anything to answer")
                open_calls = _check_chat_assistant(message, at)
                _check_same(message, next(turns).as_openai, at)
            case _:
                raise Refused(f"{at}: invalid role {role!r}")
        before = role
    need(not open_calls, f"'tool_calls' must be followed by tool messages for {open_calls}")
    need(before in ("user", "tool"), "the last message must not be the assistant's")


def _check_chat_user(message: JsonObject, at: str) -> None:
    need(message.keys() == {"role", "content"}, f"{at}: unexpected keys")
    content = message["content"]
    if isinstance(content, str):
        need(not is_blank(content), f"{at}: empty content")
        return
    need(isinstance(content, list) and content, f"{at}: empty content")
    for part in content:
        if part.get("type") == "text":
            need(not is_blank(part.get("text")), f"{at}: empty text part")
        else:
            need(part.get("type") == "image_url", f"{at}: invalid part type")
            head, _, data = part["image_url"]["url"].partition(";base64,")
            need(head.removeprefix("data:") in _IMAGE_TYPES and base64.b64decode(data, validate=True), f"{at}: image")


def _check_chat_assistant(message: JsonObject, at: str) -> list[str]:
    calls = message.get("tool_calls") or []
    need(message.get("tool_calls") != [], f"{at}.tool_calls: [] is too short")
    need(calls or not is_blank(message.get("content") or message.get("refusal")), f"{at}: empty assistant message")
    ids = [call.get("id") for call in calls]
    need(all(isinstance(call_id, str) and call_id for call_id in ids), f"{at}: tool call without id")
    need(len(ids) == len(set(ids)), f"{at}: tool call ids must be unique")
    for call in calls:
        need(call.get("type") == "function", f"{at}: tool call without type")
        need(_TOOL_NAME.fullmatch(call["function"].get("name") or ""), f"{at}: tool call without name")
        arguments = call["function"].get("arguments")
        need(isinstance(arguments, str), f"{at}: arguments must be a JSON string")
        need(isinstance(read_strict(arguments.encode()), dict), f"{at}: arguments must be an object")
    return ids


class SentTurn:
    """A turn of the script, as it must come back. `paused` allows what follows a paused turn."""

    def __init__(self, anthropic: JsonObject, openai: JsonObject, *, paused: bool) -> None:
        self.as_anthropic = anthropic
        self.as_openai = openai
        self.paused = paused


def _check_same(message: JsonObject, given: Mapping[str, Any], at: str) -> None:
    need(_comparable(message) == _comparable(given), f"{at}: this is not the turn that was given")


def _comparable(message: Mapping[str, Any]) -> Any:
    """Return a turn without what may change on its way into a journal: bad ids and arguments, blank text."""
    compared = {"role": "assistant"} | json.loads(json.dumps(message))
    compared = {name: value for name, value in compared.items() if value not in (None, [])}
    content = compared.get("content")
    if isinstance(content, list):
        compared["content"] = [block for block in content if block.get("type") != "text" or not is_blank(block["text"])]
    blocks = content if isinstance(content, list) else []
    uses = [block for block in blocks if block.get("type") == "tool_use"]
    calls = compared.get("tool_calls") or []
    seen: set[Any] = set()
    for position, call in enumerate([*uses, *calls]):
        if not call.get("id") or call["id"] in seen or str(call["id"]).startswith("call_"):
            call["id"] = f"any-{position}"
        seen.add(call["id"])
    for use in uses:
        use["input"] = use["input"] if isinstance(use.get("input"), dict) else {}
    for call in calls:
        call["function"]["arguments"] = _settled_arguments(call["function"].get("arguments"))
    return compared


def _settled_arguments(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(json.loads(arguments), dict) else {}
    except (ValueError, TypeError):
        return arguments if isinstance(arguments, dict) else {}
