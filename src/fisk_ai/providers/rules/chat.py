"""The rules of Chat Completions for a request. Pure.

Servers differ in what they let pass; a request that keeps these is one that all of them take. So roles alternate,
which some chat templates want, and nothing is blank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fisk_ai.providers.rules.messages import check_schema
from fisk_ai.providers.rules.problem import (
    TOOL_NAME,
    Body,
    Findings,
    Part,
    Problem,
    doubled,
    is_blank,
    is_count,
    is_object_text,
    listed,
    matches,
    read_body,
)

_KEYS = frozenset(
    {"model", "messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "stream"}
    | {"stream_options", "n", "stop", "temperature", "top_p", "reasoning_effort", "parallel_tool_calls", "seed"}
    | {"service_tier"}
)
_PARTS: Mapping[str, Part] = {"system": "settings", "tool": "result", "assistant": "turn"}
_LIMITS = ("max_tokens", "max_completion_tokens")
_FUNCTION_KEYS = frozenset({"name", "description", "parameters", "strict"})


def check_chat_request(body: Body, paused: Sequence[bool] | None = None) -> list[Problem]:
    """Return the rules that a request breaks, by place.

    `paused` says of each of the model's turns whether it was a paused one, which may be the last message; if it isn't
    given, none may be.
    """
    found = Findings()
    request = read_body(found, body)
    if found.problems:
        return found.problems
    _check_head(found, request)
    _check_tools(found, request)
    messages = request.get("messages")
    if found.need(isinstance(messages, list) and messages, "messages", "[] is too short"):
        _Conversation(found, paused or ()).check(request["messages"])
    return found.problems


def _check_head(found: Findings, request: Mapping[str, Any]) -> None:
    found.known(request, _KEYS, "body", "Unrecognized request arguments")
    found.need(not is_blank(request.get("model")), "model", "you must provide a model parameter")
    limits = [name for name in _LIMITS if name in request]
    if found.need(len(limits) == 1, _LIMITS[0], "one output limit is needed"):
        found.need(is_count(request[limits[0]]), limits[0], "the output limit must be above 0")
    streamed = request.get("stream") is True or "stream_options" not in request
    found.need(streamed, "stream_options", "only allowed when streaming")


def _check_tools(found: Findings, request: Mapping[str, Any]) -> None:
    tools = listed(request.get("tools"))
    found.need("tools" not in request or tools, "tools", "[] is too short")
    names = []
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        fields = found.fields(tool, at)
        found.need(fields.get("type") == "function", f"{at}.type", "unexpected type")
        function = found.fields(fields.get("function"), f"{at}.function")
        found.known(function, _FUNCTION_KEYS, f"{at}.function", "unexpected keys")
        names.append(function.get("name"))
        found.need(
            matches(TOOL_NAME, names[-1]), f"{at}.function.name", f"should match the pattern {TOOL_NAME.pattern}"
        )
        check_schema(found, function.get("parameters"), f"{at}.function.parameters")
    found.need(not doubled(names), "tools", f"Tool names must be unique: {', '.join(doubled(names))}")


class _Conversation:
    """The messages, from the first on."""

    def __init__(self, found: Findings, paused: Sequence[bool]) -> None:
        self._found = found
        self._paused = paused
        self._open_calls: list[str] = []
        self._before = "system"

    def check(self, messages: Sequence[Any]) -> None:
        """Check all of them."""
        for index, message in enumerate(messages):
            self._check(index, message)
        at, is_turn = f"messages[{len(messages) - 1}]", self._before == "assistant"
        self._need_answered(at, back=is_turn)
        self._found.need(self._may_go_on(), at, "the last message must not be the assistant's", back=is_turn)

    def _may_go_on(self) -> bool:
        """Tell whether the model may be asked after the message before."""
        turns = self._found.turns
        return self._before in ("user", "tool") or (
            self._before == "assistant" and any(self._paused[turns - 1 : turns])
        )

    def _check(self, index: int, message: object) -> None:
        found, at = self._found, f"messages[{index}]"
        fields = found.fields(message, at)
        role = fields.get("role")
        found.part = _PARTS.get(str(role), "user")
        if role != "tool":
            self._need_answered(at)
            self._open_calls = []
        match role:
            case "system":
                found.need(index == 0, at, "misplaced system message")
                found.need(not is_blank(fields.get("content")), at, "empty content of the system message")
            case "user":
                found.need(self._before != "user", at, "two user messages in a row")
                _check_user(found, fields, at)
            case "tool":
                self._check_result(fields, at)
            case "assistant":
                self._check_turn(fields, at)
            case _:
                found.need(False, at, f"invalid role {role!r}")
        self._before = str(role)

    def _need_answered(self, at: str, *, back: int = 0) -> None:
        rule = "'tool_calls' must be followed by tool messages for"
        self._found.need(not self._open_calls, at, f"{rule} {', '.join(self._open_calls)}", back=back)

    def _check_result(self, fields: Mapping[str, Any], at: str) -> None:
        found, call_id = self._found, fields.get("tool_call_id")
        if found.need(call_id in self._open_calls, at, "no such 'tool_calls' before this message, or answered twice"):
            self._open_calls.remove(str(call_id))
        found.known(fields, frozenset({"role", "tool_call_id", "content"}), at, "unexpected keys")
        found.need(not is_blank(fields.get("content")), at, "empty content")

    def _check_turn(self, fields: Mapping[str, Any], at: str) -> None:
        self._found.need(self._may_go_on(), at, "assistant message without anything to answer")
        self._open_calls = _check_calls(self._found, fields, at)
        self._found.turns += 1


def _check_user(found: Findings, fields: Mapping[str, Any], at: str) -> None:
    found.known(fields, frozenset({"role", "content"}), at, "unexpected keys")
    content = fields.get("content")
    if isinstance(content, str):
        found.need(not is_blank(content), at, "empty content")
        return
    found.need(listed(content), at, "empty content")
    for index, part in enumerate(listed(content)):
        here = f"{at}.content[{index}]"
        match found.fields(part, here).get("type"):
            case "text":
                found.need(not is_blank(part.get("text")), here, "empty text")
            case "image_url":
                found.data_url(found.fields(part.get("image_url"), here).get("url"), here)
            case kind:
                found.need(False, here, f"invalid part type {kind!r}")


def _check_calls(found: Findings, fields: Mapping[str, Any], at: str) -> list[str]:
    """Check a turn and return the ids of the calls that it makes."""
    calls = listed(fields.get("tool_calls"))
    found.need(fields.get("tool_calls") is None or calls, f"{at}.tool_calls", "[] is too short")
    found.need(calls or _says_something(fields), at, "empty assistant message")
    ids: list[str] = []
    for index, call in enumerate(calls):
        here = f"{at}.tool_calls[{index}]"
        made = found.fields(call, here)
        call_id = made.get("id")
        if found.need(isinstance(call_id, str) and call_id, here, "tool call without id"):
            found.need(call_id not in ids, here, "tool call ids must be unique")
            ids.append(str(call_id))
        found.need(made.get("type") == "function", here, "tool call without type")
        function = found.fields(made.get("function"), f"{here}.function")
        found.need(
            matches(TOOL_NAME, function.get("name")), here, "tool call without name, or with one that isn't taken"
        )
        arguments = function.get("arguments")
        if found.need(isinstance(arguments, str), here, "arguments must be a JSON string"):
            found.need(is_object_text(arguments), here, "arguments: not JSON, or no object")
    return ids


def _says_something(fields: Mapping[str, Any]) -> bool:
    content = fields.get("content")
    texts = [part.get("text") for part in listed(content) if isinstance(part, Mapping)]
    return any(not is_blank(text) for text in (content, fields.get("refusal"), *texts))
