"""The rules of the Responses API for a request that keeps nothing on the provider's side. Pure.

As in `chat`, two user messages in a row are a problem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fisk_ai.providers.rules.messages import check_schema
from fisk_ai.providers.rules.problem import (
    TOOL_NAME,
    Body,
    Findings,
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
    {"model", "input", "instructions", "max_output_tokens", "tools", "tool_choice", "reasoning", "store", "include"}
    | {"stream", "service_tier", "parallel_tool_calls", "text", "metadata", "prompt_cache_key"}
)
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES = ("auto", "concise", "detailed")
_TOOL_KEYS = frozenset({"type", "name", "description", "parameters", "strict"})
_LEAST_OUTPUT = 16
_UNKNOWN = "Unknown parameter"


def check_responses_request(
    body: Body, paused: Sequence[bool] | None = None, *, sealed_only: bool = True
) -> list[Problem]:
    """Return the rules that a request breaks, by place.

    Args:
        body: the request.
        paused: of each of the model's turns, whether it was a paused one, which may come last; None: none was.
        sealed_only: reasoning comes back in its encrypted form only, as the official API wants it.
    """
    found = Findings()
    request = read_body(found, body)
    if found.problems:
        return found.problems
    _check_head(found, request, sealed_only=sealed_only)
    items = request.get("input")
    if found.need(isinstance(items, list) and items, "input", "Invalid 'input': empty array"):
        _Items(found, any(paused or ()), sealed_only=sealed_only).check(request["input"])
    return found.problems


def is_the_models(item: Mapping[str, Any]) -> bool:
    """Tell whether an item of the input is of one of the model's turns."""
    kind = item.get("type", "message")
    return item.get("role") == "assistant" if kind == "message" else kind != "function_call_output"


def _check_head(found: Findings, request: Mapping[str, Any], *, sealed_only: bool) -> None:
    found.known(request, _KEYS, "body", _UNKNOWN)
    found.need(not is_blank(request.get("model")), "model", "Missing required parameter")
    limit = request.get("max_output_tokens")
    found.need(is_count(limit, _LEAST_OUTPUT), "max_output_tokens", f"below minimum value {_LEAST_OUTPUT}")
    found.need(request.get("store") is False, "store", "what is stored there can't be told from what is sent: false")
    if sealed_only:
        included = "reasoning.encrypted_content" in listed(request.get("include"))
        found.need(included, "include", "without reasoning.encrypted_content, reasoning can't come back")
    if "instructions" in request:
        found.need(not is_blank(request["instructions"]), "instructions", "empty")
    if "reasoning" in request:
        _check_reasoning(found, found.fields(request["reasoning"], "reasoning"))
    found.need("tools" not in request or listed(request["tools"]), "tools", "Invalid 'tools': empty array")
    _check_tools(found, listed(request.get("tools")))


def _check_reasoning(found: Findings, reasoning: Mapping[str, Any]) -> None:
    found.known(reasoning, frozenset({"effort", "summary"}), "reasoning", _UNKNOWN)
    found.one_of(reasoning.get("effort", "none"), _EFFORTS, "reasoning.effort")
    found.one_of(reasoning.get("summary", "auto"), _SUMMARIES, "reasoning.summary")


def _check_tools(found: Findings, tools: Sequence[Any]) -> None:
    names = []
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        fields = found.fields(tool, at)
        found.need(isinstance(fields.get("type"), str), f"{at}.type", "Missing required parameter")
        if fields.get("type") != "function":
            continue  # one that runs on the provider's side: each kind has its own fields
        found.known(fields, _TOOL_KEYS, at, _UNKNOWN)
        names.append(fields.get("name"))
        found.need(matches(TOOL_NAME, names[-1]), f"{at}.name", f"should match the pattern {TOOL_NAME.pattern}")
        check_schema(found, fields.get("parameters"), f"{at}.parameters")
        found.need(fields.get("strict") is False, f"{at}.strict", "not every schema is a strict one: false")
    found.need(not doubled(names), "tools", f"tool names must be unique: {', '.join(doubled(names))}")


class _Items:
    """The input, from the first item on."""

    def __init__(self, found: Findings, may_pause: bool, *, sealed_only: bool) -> None:
        self._found = found
        self._may_pause = may_pause
        self._sealed_only = sealed_only
        self._open_calls: list[str] = []
        self._before = ""
        self._last: Mapping[str, Any] = {}

    def check(self, items: Sequence[Any]) -> None:
        """Check all of them."""
        found = self._found
        for index, item in enumerate(items):
            self._check(index, found.fields(item, f"input[{index}]"))
        at = f"input[{len(items) - 1}]"
        self._need_answered(at)
        self._end_turn(at)
        ended = self._before != "model" or self._may_pause
        found.need(ended, at, "the last item must not be the model's")
        ids = doubled([item.get("id") for item in items if isinstance(item, Mapping)])
        found.part = "turn"
        found.need(not ids, "input", f"Duplicate item found with id {', '.join(ids)}")

    def _check(self, index: int, item: Mapping[str, Any]) -> None:
        found, at, kind = self._found, f"input[{index}]", item.get("type", "message")
        own = is_the_models(item)
        if not own:
            self._end_turn(f"input[{index - 1}]")
        found.turns += not own and self._before == "model"
        found.part = "turn" if own else "result" if kind == "function_call_output" else "user"
        if kind == "function_call_output" and not own:
            self._check_output(item, at)
        elif own:
            found.need(self._before, at, "nothing to answer")
            if self._before != "model":
                self._need_answered(at)
            self._check_own(item, kind, at)
        else:
            self._need_answered(at)
            found.need(self._before != "user", at, "two user messages in a row")
            _check_user(found, item, at)
        self._before = "model" if own else found.part
        self._last = item

    def _end_turn(self, at: str) -> None:
        if self._before == "model":
            sound = self._last.get("type") != "reasoning"
            self._found.need(sound, at, "reasoning was provided without its required following item")

    def _need_answered(self, at: str) -> None:
        calls = ", ".join(self._open_calls)
        self._found.need(not self._open_calls, at, f"No tool output found for function call {calls}")
        self._open_calls = []

    def _check_output(self, item: Mapping[str, Any], at: str) -> None:
        found, call_id = self._found, item.get("call_id")
        found.known(item, frozenset({"type", "call_id", "output"}), at, _UNKNOWN)
        if found.need(call_id in self._open_calls, at, f"No tool call found for function call output {call_id}"):
            self._open_calls.remove(str(call_id))
        _check_said(found, item.get("output"), f"{at}.output")

    def _check_own(self, item: Mapping[str, Any], kind: object, at: str) -> None:
        found = self._found
        if kind == "message":
            found.need(isinstance(item.get("content"), list | str), f"{at}.content", "Missing required parameter")
        elif kind == "reasoning":
            found.need(isinstance(item.get("summary"), list), f"{at}.summary", "Missing required parameter")
            if self._sealed_only:
                sealed = not is_blank(item.get("encrypted_content"))
                found.need(sealed, at, "nothing is stored, and this reasoning has no encrypted_content")
        elif kind == "function_call":
            self._check_call(item, at)
        else:
            found.need(isinstance(kind, str), f"{at}.type", "Missing required parameter")

    def _check_call(self, item: Mapping[str, Any], at: str) -> None:
        found, call_id = self._found, item.get("call_id")
        found.need(matches(_CALL_ID, call_id), f"{at}.call_id", f"should match the pattern {_CALL_ID.pattern}")
        found.need(call_id not in self._open_calls, f"{at}.call_id", "made twice")
        found.need(matches(TOOL_NAME, item.get("name")), f"{at}.name", f"should match the pattern {TOOL_NAME.pattern}")
        arguments = item.get("arguments")
        if found.need(isinstance(arguments, str), f"{at}.arguments", "Invalid type: text is needed"):
            found.need(is_object_text(arguments), f"{at}.arguments", "not JSON, or no object")
        self._open_calls.append(str(call_id))


def _check_user(found: Findings, item: Mapping[str, Any], at: str) -> None:
    found.known(item, frozenset({"type", "role", "content"}), at, _UNKNOWN)
    found.need(item.get("role") == "user", f"{at}.role", f"unexpected role {item.get('role')!r}")
    _check_said(found, item.get("content"), f"{at}.content")


def _check_said(found: Findings, said: object, at: str) -> None:
    if isinstance(said, str):
        found.need(not is_blank(said), at, "empty")
        return
    found.need(listed(said), at, "empty array")
    for index, part in enumerate(listed(said)):
        here = f"{at}[{index}]"
        fields = found.fields(part, here)
        kind = fields.get("type")
        if kind == "input_text":
            found.need(fields.keys() == {"type", "text"}, here, _UNKNOWN)
            found.need(not is_blank(fields.get("text")), here, "empty text")
        elif found.need(kind == "input_image", here, f"Invalid value: {kind!r}"):
            found.need(fields.get("detail") == "auto", f"{here}.detail", "Missing required parameter")
            found.data_url(fields.get("image_url"), here)
