"""A fake of the APIs on loopback that refuses what the real ones refuse, and breaks when told to.

As a library: `with StrictServer(turns) as server: ... server.url`. As a process:

    python -m tests.providers.strict_server --script turns.json --log requests.jsonl --port-file FILE

The base URL is `server.url` for anthropic and `server.url + "/v1"` for openai; all play the same turns, chosen by
how many assistant turns the request holds, so a repeated request is answered alike. Every request is logged, and
the log synced, before it is answered.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

import msgspec

from tests.providers.strict_responses import RESPONSES, ResponsesSpeech, check_responses_request, turns_of
from tests.providers.strict_rules import (
    JsonObject,
    Refused,
    SentTurn,
    check_chat_request,
    check_messages_request,
    is_blank,
    need,
    read_strict,
)

KEY = "test-key"
MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
_PIECES = 3
_STOP_TO_FINISH = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """One turn of a script: `text` and `calls` for both APIs, or the raw `content` or `message` of one of them."""

    text: str = ""
    calls: list[dict[str, Any]] = []
    """Each with `name`, `input` and perhaps `id`; an `input` of text is sent as it is."""
    content: msgspec.Raw = msgspec.Raw(b"")
    """Blocks of the Messages API, sent as they are spelled here."""
    message: msgspec.Raw = msgspec.Raw(b"")
    """A Chat Completions message, sent as it is spelled here."""
    output: msgspec.Raw = msgspec.Raw(b"")
    """Output items of the Responses API, sent as they are spelled here."""
    stop_reason: str = ""
    """In the vocabulary of the Messages API."""
    stop_details: dict[str, Any] | None = None
    """What the Messages API says besides."""
    in_tokens: int = 100
    out_tokens: int = 10
    cache_read_tokens: int = 0
    delay_s: float = 0.0
    """Wait before answering."""

    def anthropic_content(self, number: int) -> bytes:
        """Return the blocks as they are sent."""
        if bytes(self.content):
            return bytes(self.content)
        blocks: list[JsonObject] = [{"type": "text", "text": self.text}] if self.text else []
        for position, call in enumerate(self.calls):
            call_id = call.get("id", f"toolu_{number}_{position}")
            blocks.append({"type": "tool_use", "id": call_id, "name": call["name"], "input": call.get("input", {})})
        return msgspec.json.encode(blocks)

    def openai_message(self, number: int) -> bytes:
        """Return the message as it is sent."""
        if bytes(self.message):
            return bytes(self.message)
        message: JsonObject = {"role": "assistant", "content": self.text or None}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.get("id", f"toolu_{number}_{position}"),
                    "type": "function",
                    "function": {"name": call["name"], "arguments": _as_arguments(call.get("input", {}))},
                }
                for position, call in enumerate(self.calls)
            ]
        return msgspec.json.encode(message)

    def responses_output(self, number: int) -> bytes:
        """Return the output items as they are sent."""
        if bytes(self.output):
            return bytes(self.output)
        part = {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}
        said = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        items: list[JsonObject] = [said] if self.text else []
        for position, call in enumerate(self.calls):
            made = {"id": f"fc_{number}_{position}", "type": "function_call", "status": "completed"}
            made |= {"call_id": call.get("id", f"toolu_{number}_{position}"), "name": call["name"]}
            items.append(made | {"arguments": _as_arguments(call.get("input", {}))})
        return msgspec.json.encode(items)

    def reason(self, number: int) -> str:
        """Return why the turn stopped."""
        if self.stop_reason:
            return self.stop_reason
        if bytes(self.output):
            return "tool_use" if b'"function_call"' in bytes(self.output) else "end_turn"
        spelled = self.anthropic_content(number) + self.openai_message(number)
        return "tool_use" if b'"tool_use"' in spelled or b'"tool_calls"' in spelled else "end_turn"

    def is_empty(self, number: int) -> bool:
        """Tell whether a client leaves this turn out of its requests."""
        if bytes(self.output):
            return all(item["type"] == "reasoning" for item in json.loads(bytes(self.output)))
        blocks = json.loads(self.anthropic_content(number))
        message = json.loads(self.openai_message(number))
        only_blank = all(block["type"] == "text" and is_blank(block["text"]) for block in blocks)
        return only_blank and not message.get("tool_calls") and is_blank(message.get("content"))


def _as_arguments(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """How one request goes wrong. Without `status` the answer is the scripted one, spoilt on its way."""

    status: int = 0
    headers: dict[str, str] = {}
    """Of the answer, whatever its status."""
    body: str = ""
    """Empty: an error in the API's shape."""
    content_type: str = "application/json"
    cut_after_bytes: int = -1
    """The connection breaks after so many bytes of the answer's body."""
    end_after_events: int = -1
    """The stream ends, properly, after so many events."""
    stall_after_bytes: int = -1
    """Nothing more comes after so many bytes, until the server stops."""
    reset_after_bytes: int = -1
    """The connection is reset after so many bytes; 0: before any answer, even its status."""
    framing: Literal["length", "chunked", "close"] = "length"
    """How a client sees where the body ends: by its length, by its last chunk, or by the connection's end."""


class Recorded(msgspec.Struct):
    """One request, as it came; `refused` is why it got a 400."""

    number: int
    path: str
    body: bytes
    headers: dict[str, str] = {}
    """By their names in lower case."""
    refused: str | None = None

    @property
    def json(self) -> JsonObject:
        """The body, parsed."""
        parsed: JsonObject = json.loads(self.body)
        return parsed


class StrictServer:
    """The server, in threads of this process. `faults` maps the number of a request, from 1, to what goes wrong."""

    def __init__(
        self,
        turns: Iterable[Turn | Mapping[str, Any]],
        *,
        faults: Mapping[int, Fault] | None = None,
        key: str = KEY,
        log: str | None = None,
    ) -> None:
        self.turns = [turn if isinstance(turn, Turn) else msgspec.convert(_raw(turn), Turn) for turn in turns]
        self.faults = dict(faults or {})
        self.key = key
        self.requests: list[Recorded] = []
        self.answered_bytes = 0
        """Size of the body of the last answer, before any fault."""
        self.stopping = threading.Event()
        self._log = log
        self._lock = threading.Lock()
        self._played: set[int] = set()
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.strict = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """The base URL for anthropic; openai's has `/v1` at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def refusals(self) -> list[str]:
        """Why requests were refused; empty in a test where all is well."""
        return [request.refused for request in self.requests if request.refused]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def record(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Recorded:
        """Keep a request, durably if there is a log."""
        with self._lock:
            named = {name.lower(): value for name, value in (headers or {}).items()}
            recorded = Recorded(len(self.requests) + 1, path, body, named)
            self.requests.append(recorded)
            if self._log is not None:
                line = msgspec.json.encode({"number": recorded.number, "path": path, "body": _spliceable(body)})
                descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(descriptor, line + b"\n")
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        return recorded

    def choose(self, path: str, body: JsonObject) -> int:
        """Check a request and return which turn answers it; raises `Refused`."""
        messages = body.get("messages")
        given = [m for m in messages if m.get("role") == "assistant"] if isinstance(messages, list) else []
        with self._lock:
            places = self._places(len(turns_of(body)) if path == RESPONSES else len(given))
        need(all(place < len(self.turns) for place in places[:-1]), "there were not so many turns")
        if path == RESPONSES:
            check_responses_request(body, [self._sent_items(place) for place in places[:-1]])
        else:
            sent = [self._sent(place) for place in places[:-1]]
            (check_messages_request if path == MESSAGES else check_chat_request)(body, sent)
        need(places[-1] < len(self.turns), f"the script has no turn {places[-1] + 1}")
        with self._lock:
            self._played.add(places[-1])
        return places[-1]

    def _places(self, count: int) -> list[int]:
        """Return which turns a request with `count` assistant turns holds, and the one that comes next.

        Empty turns are left out of requests; one that was played and isn't there was left out.
        """
        places: list[int] = []
        place = 0
        while len(places) <= count:
            while place < len(self.turns) and self.turns[place].is_empty(place) and place in self._played:
                place += 1
            places.append(place)
            place += 1
        return places

    def _sent_items(self, place: int) -> list[JsonObject]:
        output: list[JsonObject] = read_strict(b'{"output":' + self.turns[place].responses_output(place) + b"}")[
            "output"
        ]
        return output

    def _sent(self, place: int) -> SentTurn:
        turn = self.turns[place]
        content = read_strict(b'{"content":' + turn.anthropic_content(place) + b"}")["content"]
        return SentTurn(
            {"role": "assistant", "content": content},
            read_strict(turn.openai_message(place)),
            paused=turn.reason(place) == "pause_turn",
        )


def _raw(turn: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(turn)
    for key in ("content", "message", "output"):
        if key in given:
            value = given[key]
            given[key] = msgspec.Raw(value if isinstance(value, bytes) else msgspec.json.encode(value))
    return given


def _spliceable(body: bytes) -> msgspec.Raw:
    try:
        json.loads(body)
    except ValueError:
        return msgspec.Raw(msgspec.json.encode(body.decode("utf-8", "replace")))
    return msgspec.Raw(body if b"\n" not in body else msgspec.json.format(body, indent=-1))


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    strict: StrictServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away: some tests are about that."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""

    def do_GET(self) -> None:
        strict = self.server.strict
        listed = [{"number": r.number, "path": r.path, "refused": r.refused} for r in strict.requests]
        self._answer(200, msgspec.json.encode(listed))

    def do_POST(self) -> None:
        strict = self.server.strict
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        recorded = strict.record(self.path, body, dict(self.headers.items()))
        fault = strict.faults.get(recorded.number, Fault())
        if fault.status:
            text = fault.body.encode() or _error(self.path, _kind(fault.status), "as the script says")
            self._answer(fault.status, text, fault.content_type, fault.headers)
            return
        if (problem := self._unauthorized()) is not None:
            self._answer(401, _error(self.path, "authentication_error", problem))
            return
        try:
            need(self.path in (MESSAGES, CHAT, RESPONSES), f"no such path: {self.path}")
            need(self.headers.get("content-type") == "application/json", "content-type must be application/json")
            need(
                self.path != MESSAGES or self.headers.get("anthropic-version"), "anthropic-version: header is required"
            )
            request = read_strict(body)
            place = strict.choose(self.path, request)
        except Refused as refused:
            recorded.refused = str(refused)
            self._answer(400, _error(self.path, "invalid_request_error", str(refused)))
            return
        self._play(request, place, fault)

    def _unauthorized(self) -> str | None:
        given = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        return None if given == self.server.strict.key else f"invalid key {given}"

    def _play(self, request: JsonObject, place: int, fault: Fault) -> None:
        turn = self.server.strict.turns[place]
        self.server.strict.stopping.wait(turn.delay_s)
        speak = _SPEECHES[self.path](turn, place)
        if not request.get("stream"):
            self._answer(200, speak.whole(request), headers=fault.headers, fault=fault)
            return
        events = list(speak.events(request))
        if fault.end_after_events >= 0:
            events = events[: fault.end_after_events]
        self._answer(200, b"".join(events), "text/event-stream; charset=utf-8", fault.headers, fault)

    def _answer(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        fault: Fault | None = None,
    ) -> None:
        fault = fault or Fault()
        if fault.reset_after_bytes == 0:
            self._reset()
            return
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header(*_framed(fault.framing, body))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.server.strict.answered_bytes = len(body)
        if fault.reset_after_bytes > 0:
            self.wfile.write(body[: fault.reset_after_bytes])
            self._reset()
        elif fault.stall_after_bytes >= 0:
            self.wfile.write(body[: fault.stall_after_bytes])
            self.wfile.flush()
            self.server.strict.stopping.wait()
            self.close_connection = True
        elif fault.cut_after_bytes >= 0:
            self.wfile.write(body[: fault.cut_after_bytes])
            self.close_connection = True
        elif fault.framing == "chunked":
            chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""  # an empty one would be the last
            self.wfile.write(chunk + b"0\r\n\r\n")
        else:
            self.wfile.write(body)

    def _reset(self) -> None:
        """Close the connection with a reset, which the kernel sends where nothing may linger."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())  # now: the base class would say goodbye first
        self.close_connection = True


def _framed(framing: str, body: bytes) -> tuple[str, str]:
    """Return the header that says where the body ends."""
    match framing:
        case "chunked":
            return "transfer-encoding", "chunked"
        case "close":
            return "connection", "close"  # which makes the handler close it
    return "content-length", str(len(body))


def _kind(status: int) -> str:
    kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
    kinds |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}
    return kinds.get(status, "api_error")


def _error(path: str, kind: str, text: str) -> bytes:
    if path != MESSAGES:
        return msgspec.json.encode({"error": {"message": text, "type": kind, "param": None, "code": None}})
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": text}})


class MessagesSpeech:
    """How the Messages API says a turn."""

    def __init__(self, turn: Turn, number: int) -> None:
        self._turn = turn
        self._number = number
        self._usage = {
            "input_tokens": turn.in_tokens,
            "output_tokens": turn.out_tokens,
            "cache_read_input_tokens": turn.cache_read_tokens,
            "cache_creation_input_tokens": 0,
        }

    def _message(self, request: JsonObject, content: bytes, stop_reason: str | None) -> bytes:
        head = {"id": f"msg_{self._number}", "type": "message", "role": "assistant", "model": request["model"]}
        tail: JsonObject = {"stop_reason": stop_reason, "stop_sequence": None, "usage": self._usage}
        tail |= {"stop_details": self._turn.stop_details} if stop_reason is not None else {}
        return msgspec.json.encode(head)[:-1] + b',"content":' + content + b"," + msgspec.json.encode(tail)[1:]

    def whole(self, request: JsonObject) -> bytes:
        """Return the answer in one piece."""
        content = self._turn.anthropic_content(self._number)
        return self._message(request, content, self._turn.reason(self._number))

    def events(self, request: JsonObject) -> Iterator[bytes]:
        """Yield the events of the streamed answer."""
        yield _named("message_start", b'"message":' + self._message(request, b"[]", None))
        yield _named("ping", b'"n":1')
        blocks = msgspec.json.decode(self._turn.anthropic_content(self._number), type=list[msgspec.Raw])
        for index, raw in enumerate(blocks):
            at = b'"index":%d' % index
            start, deltas = _streamed_block(bytes(raw))
            yield _named("content_block_start", at + b',"content_block":' + start)
            for delta in deltas:
                yield _named("content_block_delta", at + b',"delta":' + msgspec.json.encode(delta))
            yield _named("content_block_stop", at)
        stop: JsonObject = {"stop_reason": self._turn.reason(self._number), "stop_sequence": None}
        stop |= {"stop_details": self._turn.stop_details}
        usage = {"output_tokens": self._turn.out_tokens}
        yield _named(
            "message_delta", b'"delta":' + msgspec.json.encode(stop) + b',"usage":' + msgspec.json.encode(usage)
        )
        yield _named("message_stop", b"")


def _named(name: str, rest: bytes) -> bytes:
    comma = b"," if rest else b""
    return b"event: " + name.encode() + b'\ndata: {"type":"' + name.encode() + b'"' + comma + rest + b"}\n\n"


def _streamed_block(raw: bytes) -> tuple[bytes, list[JsonObject]]:
    """Split a block into its start and its deltas, as the API does it for each type."""
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    deltas: list[JsonObject] = []
    match msgspec.json.decode(fields["type"]):
        case "text":
            pieces = _pieces(msgspec.json.decode(fields["text"]))
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
            fields["text"] = msgspec.Raw(b'""')
            if cited := msgspec.json.decode(fields.get("citations", b"null")):
                deltas = [*({"type": "citations_delta", "citation": citation} for citation in cited), *deltas]
                fields["citations"] = msgspec.Raw(b"[]")
        case "thinking":
            pieces = _pieces(msgspec.json.decode(fields["thinking"]))
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            deltas.append({"type": "signature_delta", "signature": msgspec.json.decode(fields["signature"])})
            fields |= {"thinking": msgspec.Raw(b'""'), "signature": msgspec.Raw(b'""')}
        case "tool_use" | "server_tool_use":
            spelled = bytes(fields["input"]).decode()
            pieces = ["", *_pieces("" if spelled == "{}" else spelled)]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            fields["input"] = msgspec.Raw(b"{}")
    return msgspec.json.encode(fields), deltas


def _pieces(text: str) -> list[str]:
    size = max(len(text) // _PIECES, 1)
    return [text[at : at + size] for at in range(0, len(text), size)]


class ChatSpeech:
    """How Chat Completions says a turn."""

    def __init__(self, turn: Turn, number: int) -> None:
        self._turn = turn
        self._number = number
        reason = turn.reason(number)
        self._finish = _STOP_TO_FINISH.get(reason, reason)
        self._usage = {
            "prompt_tokens": turn.in_tokens + turn.cache_read_tokens,
            "completion_tokens": turn.out_tokens,
            "total_tokens": turn.in_tokens + turn.cache_read_tokens + turn.out_tokens,
            "prompt_tokens_details": {"cached_tokens": turn.cache_read_tokens},
        }

    def _frame(self, request: JsonObject, kind: str) -> JsonObject:
        return {"id": f"chatcmpl-{self._number}", "object": kind, "created": 1, "model": request["model"]}

    def whole(self, request: JsonObject) -> bytes:
        """Return the answer in one piece."""
        message = msgspec.Raw(self._turn.openai_message(self._number))
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}
        return msgspec.json.encode(
            self._frame(request, "chat.completion") | {"choices": [choice], "usage": self._usage}
        )

    def events(self, request: JsonObject) -> Iterator[bytes]:
        """Yield the chunks of the streamed answer."""
        message = json.loads(self._turn.openai_message(self._number))
        yield self._chunk(request, {"role": "assistant", "content": None if message.get("content") is None else ""})
        for name, value in message.items():
            if name not in ("role", "tool_calls") and isinstance(value, str):
                for piece in _pieces(value):
                    yield self._chunk(request, {name: piece})
        for delta in _streamed_calls(message.get("tool_calls") or []):
            yield self._chunk(request, {"tool_calls": [delta]})
        yield self._chunk(request, {}, self._finish)
        if (request.get("stream_options") or {}).get("include_usage"):
            frame = self._frame(request, "chat.completion.chunk")
            yield _data(frame | {"choices": [], "usage": self._usage})
        yield b"data: [DONE]\n\n"

    def _chunk(self, request: JsonObject, delta: JsonObject, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data(self._frame(request, "chat.completion.chunk") | {"choices": [choice]})


def _streamed_calls(calls: Sequence[JsonObject]) -> Iterator[JsonObject]:
    for index, call in enumerate(calls):
        arguments = call["function"].get("arguments", "")
        yield {"index": index, **call, "function": {**call["function"], "arguments": ""}}
        for piece in _pieces(_as_arguments(arguments)):
            yield {"index": index, "function": {"arguments": piece}}


def _data(value: JsonObject) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


_SPEECHES: Mapping[str, type[MessagesSpeech | ChatSpeech | ResponsesSpeech]] = {
    MESSAGES: MessagesSpeech,
    CHAT: ChatSpeech,
    RESPONSES: ResponsesSpeech,
}


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="strict_server")
    parser.add_argument("--script", required=True, help="JSON list of turns")
    parser.add_argument("--log", help="file that gets one JSON line a request")
    parser.add_argument("--port-file", required=True, help="gets the port once it listens")
    parser.add_argument("--faults", help="JSON object: number of the request (from 1) -> fault")
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--ready", action="store_true", help="print the port on a line once it listens")
    options = parser.parse_args()
    with open(options.script, "rb") as file:
        turns = msgspec.json.decode(file.read(), type=list[Turn])
    faults: dict[int, Fault] = {}
    if options.faults:
        with open(options.faults, "rb") as file:
            faults = msgspec.json.decode(file.read(), type=dict[int, Fault])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with StrictServer(turns, faults=faults, key=options.key, log=options.log) as server:
        with open(f"{options.port_file}.new", "w", encoding="ascii") as file:
            file.write(str(server.port))
        os.replace(f"{options.port_file}.new", options.port_file)
        if options.ready:
            print(server.port, flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
