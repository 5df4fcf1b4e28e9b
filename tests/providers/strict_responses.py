"""The Responses API for the strict server: what it refuses, and how it says a turn.

Stricter than the real one: two user messages in a row are refused, and the items of a turn must be those that were
given, value for value and number spelling for number spelling.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tests.providers.strict_rules import JsonObject, Refused, is_blank, need, read_strict

if TYPE_CHECKING:
    from tests.providers.strict_server import Turn

RESPONSES = "/v1/responses"
_PIECES = 3
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_KEYS = frozenset(
    {"model", "input", "instructions", "max_output_tokens", "tools", "tool_choice", "reasoning", "store", "include"}
    | {"stream", "service_tier", "parallel_tool_calls", "text", "metadata", "prompt_cache_key"}
)


def turns_of(request: JsonObject) -> list[list[JsonObject]]:
    """Return the items of each assistant turn that a request holds."""
    turns: list[list[JsonObject]] = []
    inside = False
    items = request.get("input")
    for item in items if isinstance(items, list) else []:
        if not _is_the_models(item):
            inside = False
            continue
        if not inside:
            turns.append([])
        turns[-1].append(item)
        inside = True
    return turns


def _is_the_models(item: JsonObject) -> bool:
    kind = item.get("type", "message")
    return item.get("role") == "assistant" if kind == "message" else kind != "function_call_output"


def check_responses_request(body: JsonObject, sent: Sequence[Sequence[JsonObject]]) -> None:
    """Check a request; `sent` are the output items of the turns given before, as many as the request holds."""
    _check_head(body)
    items = body.get("input")
    need(isinstance(items, list) and items, "Invalid 'input': empty array")
    open_calls: list[str] = []
    before = ""
    for index, item in enumerate(body["input"]):
        at, kind = f"input[{index}]", item.get("type", "message")
        if kind == "function_call_output":
            _check_output(item, open_calls, at)
            open_calls.remove(item["call_id"])
        elif _is_the_models(item):
            need(before in ("user", "result", "model"), f"{at}: nothing to answer")
            need(before == "model" or not open_calls, f"No tool output found for function call {open_calls}")
            open_calls += _check_item(item, kind, open_calls, at)
        else:
            need(not open_calls, f"No tool output found for function call {open_calls}")
            need(before != "user", f"{at}: two user messages in a row")
            _check_user(item, at)
        before = "model" if _is_the_models(item) else "result" if kind == "function_call_output" else "user"
    need(not open_calls, f"No tool output found for function call {open_calls}")
    need(before in ("user", "result"), "the last item must not be the model's")
    ids = [item["id"] for item in body["input"] if "id" in item]
    need(len(ids) == len(set(ids)), f"Duplicate item found with id {ids}")
    for turn, given in zip(turns_of(body), sent, strict=True):
        _check_turn(turn, given)


def _check_head(body: JsonObject) -> None:
    need(body.keys() <= _KEYS, f"Unknown parameter: {sorted(body.keys() - _KEYS)}")
    need(isinstance(body.get("model"), str) and body["model"], "Missing required parameter: 'model'")
    limit = body.get("max_output_tokens")
    need(isinstance(limit, int) and limit >= 16, "Invalid 'max_output_tokens': below minimum value")
    need(body.get("store") is False, "this server keeps nothing: set store to false")
    need("reasoning.encrypted_content" in body.get("include", ()), "without include, reasoning can't come back")
    need("instructions" not in body or not is_blank(body["instructions"]), "instructions: empty")
    reasoning = body.get("reasoning", {"effort": "none"})
    need(reasoning and reasoning.keys() <= {"effort", "summary"}, "Unknown parameter: 'reasoning'")
    need(reasoning.get("effort", "none") in _EFFORTS, "Unsupported value: 'reasoning.effort'")
    need(reasoning.get("summary", "auto") in ("auto", "concise", "detailed"), "Unsupported value: 'reasoning.summary'")
    need(body.get("tools") != [], "Invalid 'tools': empty array")
    for index, tool in enumerate(body.get("tools", ())):
        _check_tool(tool, f"tools[{index}]")


def _check_tool(tool: JsonObject, at: str) -> None:
    need(isinstance(tool.get("type"), str), f"Missing required parameter: '{at}.type'")
    if tool["type"] == "function":
        need(tool.keys() <= {"type", "name", "description", "parameters", "strict"}, f"Unknown parameter: '{at}'")
        need(_TOOL_NAME.fullmatch(tool.get("name") or ""), f"Invalid '{at}.name'")
        need(tool.get("parameters", {}).get("type") == "object", f"Invalid schema for function in {at}")
        need(tool.get("strict") is False, f"{at}: not every schema is a strict one")


def _check_output(item: JsonObject, open_calls: Sequence[str], at: str) -> None:
    need(item.keys() == {"type", "call_id", "output"}, f"Unknown parameter: '{at}'")
    need(item["call_id"] in open_calls, f"No tool call found for function call output with call_id {item['call_id']}")
    output = item["output"]
    if isinstance(output, str):
        need(not is_blank(output), f"{at}.output: empty")
        return
    _check_parts(output, f"{at}.output")


def _check_user(item: JsonObject, at: str) -> None:
    need(item.keys() <= {"type", "role", "content"} and item.get("role") == "user", f"Unknown parameter: '{at}'")
    if isinstance(item["content"], str):
        need(not is_blank(item["content"]), f"{at}.content: empty")
        return
    _check_parts(item["content"], f"{at}.content")


def _check_parts(parts: Any, at: str) -> None:
    need(isinstance(parts, list) and parts, f"{at}: empty array")
    for part in parts:
        if part.get("type") == "input_text":
            need(part.keys() == {"type", "text"} and not is_blank(part["text"]), f"{at}: empty text")
            continue
        need(part.get("type") == "input_image", f"Invalid value: '{part.get('type')}' in {at}")
        need(part.get("detail") == "auto", f"Missing required parameter: '{at}.detail'")
        head, _, data = part["image_url"].partition(";base64,")
        need(head.removeprefix("data:") in _IMAGE_TYPES and base64.b64decode(data, validate=True), f"{at}: image")


def _check_item(item: JsonObject, kind: str, made: Sequence[str], at: str) -> list[str]:
    """Check an item of the model's and return the id of the call that it makes, if it makes one."""
    if kind == "message":
        need(isinstance(item.get("content"), list | str), f"Missing required parameter: '{at}.content'")
    if kind == "reasoning":
        need(item.get("encrypted_content"), f"Item with id '{item.get('id')}' not found: nothing is stored")
        need(isinstance(item.get("summary"), list), f"Missing required parameter: '{at}.summary'")
    if kind != "function_call":
        return []
    need(_CALL_ID.fullmatch(item.get("call_id") or ""), f"Invalid '{at}.call_id'")
    need(item["call_id"] not in made, f"{at}.call_id: made twice")
    need(_TOOL_NAME.fullmatch(item.get("name") or ""), f"Invalid '{at}.name'")
    need(isinstance(item.get("arguments"), str), f"Invalid type for '{at}.arguments'")
    need(isinstance(read_strict(item["arguments"].encode()), dict), f"{at}.arguments: not an object")
    return [item["call_id"]]


def _check_turn(turn: Sequence[JsonObject], given: Sequence[JsonObject]) -> None:
    last = turn[-1]
    need(last.get("type") != "reasoning", f"Item '{last.get('id')}' was provided without its required following item")
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
