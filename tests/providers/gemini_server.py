"""A small fake of the Gemini API on loopback: plays turns of parts, and says no as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Parts = list[dict[str, Any]]

LIMITED: dict[str, Any] = {
    "error": {
        "code": 429,
        "message": "Resource has been exhausted.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}],
    }
}


class GeminiServer:
    """The server, in threads of this process; `errors` maps the number of a request, from 1, to an error's body."""

    def __init__(self, turns: Sequence[Parts], *, errors: Mapping[int, dict[str, Any]] | None = None) -> None:
        self.turns = turns
        self.errors = dict(errors or {})
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.gemini = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_args: object) -> None: ...

    def do_POST(self) -> None:
        gemini: GeminiServer = self.server.gemini  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        gemini.requests.append(body)
        gemini.paths.append(self.path)
        if (error := gemini.errors.get(len(gemini.requests))) is not None:
            self._send(error["error"]["code"], "application/json", json.dumps(error))
            return
        place = sum(content["role"] == "model" for content in body["contents"])
        if "streamGenerateContent" in self.path:
            events = [_answer([part]) for part in gemini.turns[place]] + [_answer([], finish="STOP")]
            text = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events)
            self._send(200, "text/event-stream", text)
        else:
            self._send(200, "application/json", json.dumps(_answer(gemini.turns[place], finish="STOP")))

    def _send(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _answer(parts: Parts, *, finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish is not None:
        candidate["finishReason"] = finish
    counts = {"promptTokenCount": 100, "candidatesTokenCount": 10, "thoughtsTokenCount": 5, "totalTokenCount": 115}
    return {
        "candidates": [candidate],
        "usageMetadata": counts | {"cachedContentTokenCount": 40},
        "modelVersion": "gemini-test",
        "responseId": "resp_1",
    }
