"""The Responses API for the strict server: what it refuses, and how it says a turn.

Beside the rules of `fisk_ai.providers.rules`, the items of a turn must be those that were given, value for value and
number spelling for number spelling.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fisk_ai.providers import rules
from fisk_ai.providers.rules.responses import is_the_models
from tests.providers.strict_rules import JsonObject, Refused, need, read_strict, refuse_for

if TYPE_CHECKING:
    from tests.providers.strict_server import Turn

RESPONSES = "/v1/responses"
_PIECES = 3


def turns_of(request: JsonObject) -> list[list[JsonObject]]:
    """Return the items of each assistant turn that a request holds."""
    turns: list[list[JsonObject]] = []
    inside = False
    items = request.get("input")
    for item in items if isinstance(items, list) else []:
        if not is_the_models(item):
            inside = False
            continue
        if not inside:
            turns.append([])
        turns[-1].append(item)
        inside = True
    return turns


def check_responses_request(body: JsonObject, sent: Sequence[Sequence[JsonObject]]) -> None:
    """Check a request; `sent` are the output items of the turns given before, as many as the request holds."""
    refuse_for(rules.check_responses_request(body))
    for turn, given in zip(turns_of(body), sent, strict=True):
        need(_comparable(turn) == _comparable(given), "these are not the items that were given")


def _comparable(items: Sequence[JsonObject]) -> list[Any]:
    """Return items without what may change on their way into a journal."""
    kept = [item for item in items if item.get("type") != "reasoning" or item.get("encrypted_content")]
    while kept and kept[-1].get("type") == "reasoning":
        kept.pop()
    seen: set[Any] = set()
    compared = []
    for position, item in enumerate(json.loads(json.dumps(kept))):
        if item.get("type") == "function_call":
            if not item.get("call_id") or item["call_id"] in seen or str(item["call_id"]).startswith("call_"):
                item["call_id"] = f"any-{position}"
            seen.add(item["call_id"])
            item["arguments"] = _settled_arguments(item.get("arguments"))
        compared.append(item)
    return compared


def _settled_arguments(arguments: Any) -> Any:
    try:
        parsed = read_strict(arguments.encode())
    except (Refused, AttributeError):
        return arguments if isinstance(arguments, dict) else {}
    return parsed


class ResponsesSpeech:
    """How the Responses API says a turn."""

    def __init__(self, turn: Turn, number: int) -> None:
        self._turn = turn
        self._number = number
        self._sequence = 0
        self._output = turn.responses_output(number)
        reason = turn.reason(number)
        cut = {"max_tokens": "max_output_tokens"}.get(reason, reason)
        self._incomplete = None if reason in ("end_turn", "tool_use") else {"reason": cut}
        self._usage = {
            "input_tokens": turn.in_tokens + turn.cache_read_tokens,
            "input_tokens_details": {"cached_tokens": turn.cache_read_tokens, "cache_write_tokens": 0},
            "output_tokens": turn.out_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": turn.in_tokens + turn.cache_read_tokens + turn.out_tokens,
        }

    def whole(self, request: JsonObject) -> bytes:
        """Return the answer in one piece."""
        status = "incomplete" if self._incomplete else "completed"
        tail = {"incomplete_details": self._incomplete, "usage": self._usage}
        return self._response(request, status, self._output, tail)

    def _response(self, request: JsonObject, status: str, output: bytes, tail: JsonObject) -> bytes:
        head = {"id": f"resp_{self._number}", "object": "response", "created_at": 1, "status": status, "error": None}
        head |= {"model": request["model"], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return msgspec.json.encode(head)[:-1] + b',"output":' + output + b"," + msgspec.json.encode(tail)[1:]

    def events(self, request: JsonObject) -> Iterator[bytes]:
        """Yield the events of the streamed answer."""
        begun = self._response(request, "in_progress", b"[]", {"incomplete_details": None, "usage": None})
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", b'"response":' + begun)
        for index, raw in enumerate(msgspec.json.decode(self._output, type=list[msgspec.Raw])):
            item = json.loads(bytes(raw))
            place = b'"output_index":%d' % index
            started = {name: _emptied(value) for name, value in item.items()} | {"status": "in_progress"}
            yield self._event("response.output_item.added", place + b',"item":' + msgspec.json.encode(started))
            for kind, fields in _streamed_item(item):
                rest = msgspec.json.encode({"item_id": item.get("id", ""), **fields})[1:-1]
                yield self._event(kind, place + b"," + rest)
            yield self._event("response.output_item.done", place + b',"item":' + bytes(raw))
        end = "response.incomplete" if self._incomplete else "response.completed"
        yield self._event(end, b'"response":' + self.whole(request))

    def _event(self, kind: str, rest: bytes) -> bytes:
        head = msgspec.json.encode({"type": kind, "sequence_number": self._sequence})[:-1]
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + head + b"," + rest + b"}\n\n"


def _emptied(value: Any) -> Any:
    return [] if isinstance(value, list) else value


def _streamed_item(item: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield the events between the start and the end of an item."""
    match item["type"]:
        case "message":
            for index, part in enumerate(item["content"]):
                field = "refusal" if part["type"] == "refusal" else "text"
                name = "refusal" if field == "refusal" else "output_text"
                yield "response.content_part.added", {"content_index": index, "part": part | {field: ""}}
                for piece in _pieces(part[field]):
                    extra: JsonObject = {} if field == "refusal" else {"logprobs": []}
                    yield f"response.{name}.delta", {"content_index": index, "delta": piece, **extra}
                yield "response.content_part.done", {"content_index": index, "part": part}
        case "reasoning":
            for index, part in enumerate(item.get("summary") or []):
                yield "response.reasoning_summary_part.added", {"summary_index": index, "part": part | {"text": ""}}
                for piece in _pieces(part["text"]):
                    yield "response.reasoning_summary_text.delta", {"summary_index": index, "delta": piece}
                yield "response.reasoning_summary_part.done", {"summary_index": index, "part": part}
        case "function_call":
            for piece in _pieces(item.get("arguments") or ""):
                yield "response.function_call_arguments.delta", {"delta": piece}
            done = {"name": item["name"], "arguments": item.get("arguments") or ""}
            yield "response.function_call_arguments.done", done


def _pieces(text: str) -> list[str]:
    size = max(len(text) // _PIECES, 1)
    return [text[at : at + size] for at in range(0, len(text), size)]
