"""The rules of the Messages API for a request. Pure.

Stricter than the API in one way: two user messages in a row are a problem, though the API would join them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fisk_ai.providers.rules.problem import (
    CALL_ID,
    Body,
    Findings,
    Problem,
    doubled,
    is_blank,
    is_count,
    listed,
    matches,
    read_body,
)

_KEYS = frozenset(
    {"model", "messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "stream", "metadata"}
    | {"stop_sequences", "output_config", "service_tier", "cache_control"}
)
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_LEAST_BUDGET = 1024
_EXTRA = "Extra inputs are not permitted"
_EMPTY_TEXT = "text content blocks must be non-empty"
_USER_KEYS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "image": frozenset({"type", "source"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
}
"""Blocks of user messages, as fisk-ai makes them -> their fields."""


def check_messages_request(body: Body, paused: Sequence[bool] | None = None) -> list[Problem]:
    """Return the rules that a request breaks, by place.

    `paused` says of each of the model's turns whether it was a paused one, which no user message has to follow; if it
    isn't given, any may be.
    """
    found = Findings()
    request = read_body(found, body)
    if found.problems:
        return found.problems
    _check_head(found, request)
    _check_tools(found, listed(request.get("tools")))
    messages = request.get("messages")
    if found.need(isinstance(messages, list) and messages, "messages", "at least one message is required"):
        _check_conversation(found, request["messages"], paused)
    return found.problems


def _check_head(found: Findings, request: Mapping[str, Any]) -> None:
    found.known(request, _KEYS, "body", _EXTRA)
    found.need(not is_blank(request.get("model")), "model", "Field required")
    limit = request.get("max_tokens")
    found.need(is_count(limit), "max_tokens", "Field required, above 0")
    if "system" in request:
        parts = listed(request["system"]) or [{"text": request["system"]}]
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
        found.need(not any(map(is_blank, texts)), "system", _EMPTY_TEXT)
    thinking = request.get("thinking")
    if thinking is None:
        return
    kind, budget = found.fields(thinking, "thinking").get("type"), thinking.get("budget_tokens")
    found.one_of(kind, ("enabled", "disabled", "adaptive"), "thinking.type")
    if kind == "enabled" and found.need(
        is_count(budget, _LEAST_BUDGET), "thinking.budget_tokens", f"at least {_LEAST_BUDGET}"
    ):
        above = not is_count(limit) or limit > budget
        found.need(above, "max_tokens", "`max_tokens` must be greater than `thinking.budget_tokens`")


def _check_tools(found: Findings, tools: Sequence[Any]) -> None:
    for index, tool in enumerate(tools):
        at = f"tools.{index}"
        fields = found.fields(tool, at)
        if "type" in fields:  # one that runs on the provider's side: each kind has its own fields
            sound = isinstance(fields["type"], str) and "input_schema" not in fields
            found.need(sound, f"{at}.type", "unexpected value")
            continue
        found.known(fields, frozenset({"name", "description", "input_schema"}), at, _EXTRA)
        found.need(
            matches(_TOOL_NAME, fields.get("name")), f"{at}.name", f"should match the pattern {_TOOL_NAME.pattern}"
        )
        check_schema(found, fields.get("input_schema"), f"{at}.input_schema")
    names = doubled([tool.get("name") for tool in tools if isinstance(tool, Mapping)])
    found.need(not names, "tools", f"Tool names must be unique: {', '.join(names)}")


def check_schema(found: Findings, schema: object, place: str) -> None:
    """Check the schema of a tool's arguments."""
    is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
    if not found.need(is_object, place, "not an object's schema"):
        return
    assert isinstance(schema, Mapping)
    unions = sorted({"oneOf", "anyOf", "allOf"} & schema.keys())
    found.need(not unions, place, f"{', '.join(unions)} at the top level is not taken")
    properties = schema.get("properties", {})
    odd = [name for name in found.fields(properties, f"{place}.properties") if not matches(_PROPERTY, name)]
    found.need(not odd, f"{place}.properties", f"names should match the pattern {_PROPERTY.pattern}: {odd}")


def _check_conversation(found: Findings, messages: Sequence[Any], paused: Sequence[bool] | None) -> None:
    open_calls: list[str] = []
    before = ""
    for index, message in enumerate(messages):
        at = f"messages.{index}"
        fields = found.fields(message, at)
        role = fields.get("role")
        found.part = "turn" if role == "assistant" else "user"
        found.known(fields, frozenset({"role", "content"}), at, _EXTRA)
        if not found.need(role in ("user", "assistant"), at, f"unexpected role {role!r}"):
            continue
        if index == 0:
            found.need(role == "user", at, "the first message must use the user role")
        found.need(role != "user" or before != "user", at, "roles must alternate")
        if before == "assistant" == role:
            _need_paused(found, paused, f"messages.{index - 1}")
        blocks = _blocks(found, fields.get("content"), at)
        if role == "user":
            _check_user(found, blocks, open_calls, at)
            open_calls = []
        else:
            _need_answered(found, open_calls, at, back=1)
            open_calls = _check_turn(found, blocks, at)
            found.turns += 1
        before = str(role)
    if before == "assistant":
        at = f"messages.{len(messages) - 1}"
        _need_answered(found, open_calls, at, back=1)
        _need_paused(found, paused, at)


def _need_paused(found: Findings, paused: Sequence[bool] | None, at: str) -> None:
    sound = paused is None or any(paused[found.turns - 1 : found.turns])
    rule = "an assistant message that no user message follows must be a paused turn"
    found.need(sound, at, rule, back=1)


def _need_answered(found: Findings, open_calls: Sequence[str], at: str, back: int = 0) -> None:
    rule = "`tool_use` ids were found without `tool_result` blocks immediately after"
    found.need(not open_calls, at, f"{rule}: {', '.join(open_calls)}", back=back)


def _blocks(found: Findings, content: object, at: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the blocks of a message, each with its place."""
    if isinstance(content, str):
        found.need(not is_blank(content), f"{at}.content", _EMPTY_TEXT)
        return []
    found.need(listed(content), f"{at}.content", "content must be non-empty")
    blocks = []
    for index, block in enumerate(listed(content)):
        here = f"{at}.content.{index}"
        fields = found.fields(block, here)
        found.need(isinstance(fields.get("type"), str), f"{here}.type", "Field required")
        if fields.get("type") == "text":
            found.need(not is_blank(fields.get("text")), here, _EMPTY_TEXT)
        blocks.append((here, fields))
    return blocks


def _check_user(
    found: Findings, blocks: Sequence[tuple[str, Mapping[str, Any]]], open_calls: Sequence[str], at: str
) -> None:
    answered: list[object] = []
    others = False
    for here, block in blocks:
        kind = block.get("type")
        found.part = "result" if kind == "tool_result" else "user"
        if kind == "tool_result":
            call_id = block.get("tool_use_id")
            found.need(not others, here, "`tool_result` blocks must come first")
            found.need(call_id not in answered, here, f"each `tool_use` must have a single result: {call_id}")
            found.need(call_id in open_calls, here, f"unexpected `tool_use_id`, not of the message before: {call_id}")
            answered.append(call_id)
        others = others or kind != "tool_result"
        _check_user_block(found, block, here)
    found.part = "result"
    _need_answered(found, [call for call in open_calls if call not in answered], at)


def _check_user_block(found: Findings, block: Mapping[str, Any], at: str) -> None:
    kind = block.get("type")
    if not isinstance(kind, str) or not found.need(kind in _USER_KEYS, at, f"unexpected block {kind!r}"):
        return
    found.known(block, _USER_KEYS[kind], at, _EXTRA)
    if kind == "image":
        source = found.fields(block.get("source"), f"{at}.source")
        found.need(source.get("type") == "base64", f"{at}.source", "image source must be base64")
        found.image(source.get("media_type"), source.get("data"), f"{at}.source")
    elif kind == "tool_result":
        _check_result(found, block, at)


def _check_result(found: Findings, result: Mapping[str, Any], at: str) -> None:
    is_error = result.get("is_error", False)
    found.need(isinstance(is_error, bool), at, "is_error must be a boolean")
    if "content" not in result:
        found.need(is_error is not True, at, "content must be non-empty in the result of an error")
        return
    for here, part in _blocks(found, result["content"], at):
        kind = part.get("type")
        found.need(kind in ("text", "image"), here, "unexpected block in a tool result")
        found.need(is_error is not True or kind == "text", here, "an error's result takes text only")
        if kind in ("text", "image"):
            _check_user_block(found, part, here)


def _check_turn(found: Findings, blocks: Sequence[tuple[str, Mapping[str, Any]]], at: str) -> list[str]:
    calls: list[str] = []
    for here, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            found.need(isinstance(block.get("thinking"), str), f"{here}.thinking", "Field required")
            found.need(not is_blank(block.get("signature")), f"{here}.signature", "Field required")
        elif kind == "redacted_thinking":
            found.need(not is_blank(block.get("data")), f"{here}.data", "Field required")
        elif kind == "tool_result":
            found.need(False, here, "`tool_result` blocks stand in user messages only")
        elif kind in ("tool_use", "server_tool_use"):
            found.need(isinstance(block.get("input"), Mapping), f"{here}.input", "Input should be an object")
            found.need(matches(CALL_ID, block.get("id")), f"{here}.id", f"should match the pattern {CALL_ID.pattern}")
            name = block.get("name")
            found.need(matches(_TOOL_NAME, name), f"{here}.name", f"should match the pattern {_TOOL_NAME.pattern}")
            if kind == "tool_use":
                found.need(block.get("id") not in calls, here, "`tool_use` ids must be unique")
                calls.append(str(block.get("id")))
    return calls
