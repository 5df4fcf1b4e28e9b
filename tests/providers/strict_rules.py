"""What the real APIs refuse, for the strict server: the rules of `fisk_ai.providers.rules`, and one more.

An assistant turn must be the one that was sent, value for value and number spelling for number spelling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fisk_ai.providers import rules
from fisk_ai.providers.rules import Problem

JsonObject = dict[str, Any]


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


def refuse_for(problems: Sequence[Problem]) -> None:
    """Refuse a request that breaks rules."""
    need(not problems, "; ".join(map(str, problems)))


def check_messages_request(body: JsonObject, sent: Sequence[SentTurn]) -> None:
    """Check a Messages API request; `sent` are the turns given before, in order, as many as the request holds."""
    refuse_for(rules.check_messages_request(body, [turn.paused for turn in sent]))
    for index, message, turn in _turns_of(body, sent):
        _check_same(message, turn.as_anthropic, f"messages.{index}")


def check_chat_request(body: JsonObject, sent: Sequence[SentTurn]) -> None:
    """Check a Chat Completions request; `sent` are the turns given before, as many as the request holds."""
    refuse_for(rules.check_chat_request(body))
    for index, message, turn in _turns_of(body, sent):
        _check_same(message, turn.as_openai, f"messages[{index}]")


def _turns_of(body: JsonObject, sent: Sequence[SentTurn]) -> list[tuple[int, JsonObject, SentTurn]]:
    given = [(index, each) for index, each in enumerate(body["messages"]) if each["role"] == "assistant"]
    return [(index, message, turn) for (index, message), turn in zip(given, sent, strict=True)]


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
