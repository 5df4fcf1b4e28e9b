"""A relay between a run and its model: it keeps every request, and can stop in the middle of an answer."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

ANSWER_LIMIT_S = 600
"""For a slow machine: a server sends nothing while it reads the prompt."""
_LEFT_OUT = frozenset({"host", "connection", "content-length", "accept-encoding"})


@dataclass
class Exchange:
    """One request, and what of its answer was passed on."""

    number: int
    body: bytes
    passed: bytes = b""
    events: int = 0
    whole: bool = False


class Relay:
    """Listens on loopback and passes on to `target`, the base URL of a server."""

    def __init__(self, target: str) -> None:
        self.exchanges: list[Exchange] = []
        self._target = urlsplit(target)
        self._hold: tuple[int, int] | None = None
        self._changed = threading.Condition()
        self._held = False
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.relay = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self._http.server_address[1]}{self._target.path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.let_go()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def hold(self, events: int, *, skip: int = 0) -> None:
        """Pass on only so many events of the next answer, or of one that comes later, until it is let go."""
        with self._changed:
            self._hold, self._held = (len(self.exchanges) + skip, events), False

    def is_held(self, client: subprocess.Popen[bytes]) -> bool:
        """Wait until the answer is held, and tell so; False if it was whole, or the client gone, before."""
        deadline = time.monotonic() + ANSWER_LIMIT_S
        with self._changed:
            while not self._held and not self._is_whole() and client.poll() is None:
                assert time.monotonic() < deadline, "a request was not answered"
                self._changed.wait(0.2)
            return self._held

    def let_go(self) -> None:
        """Give up the answer that is held, as after the death of the client."""
        with self._changed:
            self._hold = None
            self._changed.notify_all()

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection to the server."""
        kind = http.client.HTTPSConnection if self._target.scheme == "https" else http.client.HTTPConnection
        return kind(str(self._target.hostname), self._target.port, timeout=ANSWER_LIMIT_S)

    def begin(self, body: bytes) -> Exchange:
        """Keep a request."""
        with self._changed:
            self.exchanges.append(Exchange(len(self.exchanges), body))
            return self.exchanges[-1]

    def goes_on(self, exchange: Exchange, line: bytes) -> bool:
        """Keep a line that was passed on, and tell whether to go on; waits while the answer is held."""
        with self._changed:
            exchange.passed += line
            if line.strip():
                return True
            exchange.events += 1
            if self._hold != (exchange.number, exchange.events):
                return True
            self._held = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._hold is None)
            return False

    def end(self, exchange: Exchange) -> None:
        """Note that an answer was passed on to its end."""
        with self._changed:
            exchange.whole = True
            self._changed.notify_all()

    def _is_whole(self) -> bool:
        number = self._hold[0] if self._hold else 0
        return number < len(self.exchanges) and self.exchanges[number].whole


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    relay: Relay

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed."""
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""

    def do_POST(self) -> None:
        relay = self.server.relay
        body = self.rfile.read(int(self.headers["content-length"]))
        exchange = relay.begin(body)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _LEFT_OUT}
        with closing(relay.connect()) as server:
            server.request("POST", self.path, body, headers)
            answer = server.getresponse()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers.get("content-type", ""))
            self.end_headers()
            for line in answer:
                self.wfile.write(line)
                if not relay.goes_on(exchange, line):
                    return
        relay.end(exchange)
