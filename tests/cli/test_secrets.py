"""Canaries: what fisk-ai was given as a credential is found nowhere that it writes, and in no tool."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import pytest

from fisk_ai.providers.credentials import CREDENTIAL_NAMES

from .bench import Bench, Done

SECRETS = {
    name: f"canary-{number:02d}-Zq7xW9+/={name.lower()[::-1]}" for number, name in enumerate(sorted(CREDENTIAL_NAMES))
}
SECRETS["MY_OWN_KEY"] = "canary-own-Kk3/vv+81=="

SPY = {
    "name": "spy",
    "description": "Tells what it sees.",
    "argv": ["sh", "-c", "env; cat /proc/self/environ; cat /proc/$PPID/cmdline; tr '\\0' ' ' < /proc/self/cmdline"],
}


def _forms(secret: str) -> Iterator[bytes]:
    raw = secret.encode()
    yield from (raw, raw[::-1], raw.hex().encode(), quote(secret, safe="").encode(), repr(secret)[1:-1].encode())
    yield json.dumps(secret)[1:-1].encode()
    for offset in range(3):
        yield base64.b64encode(b"x" * offset + raw)[4 if offset else 0 : -4]


def _assert_absent(data: bytes, where: str) -> None:
    for name, secret in SECRETS.items():
        for form in _forms(secret):
            assert form not in data, f"{name} is in {where}"


class _Server(BaseHTTPRequestHandler):
    """Answers like a compatible server, and echoes the key in its errors, as real ones do."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["model"] == "refused":
            error = {"error": {"message": f"bad key {self.headers['authorization']}", "type": "invalid_request_error"}}
            self._answer(401, error)
            return
        called = any(message["role"] == "tool" for message in body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "Fine."}
        if not called:
            call = {"id": "c1", "type": "function", "function": {"name": "spy", "arguments": "{}"}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if called else "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        self._answer(200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}/v1"
        http.shutdown()
        thread.join()


def _check(bench: Bench, done: Done, where: str) -> None:
    _assert_absent(done.out, f"stdout of {where}")
    _assert_absent(done.err.encode(), f"stderr of {where}")
    for path in bench.state.rglob("*") if bench.state.exists() else ():
        _assert_absent(path.read_bytes(), str(path))


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "MY_OWN_KEY"])
def test_no_credential_reaches_journal_output_or_tool(bench: Bench, server: str, variable: str) -> None:
    own = {"api_key_env": variable} if variable == "MY_OWN_KEY" else {}
    # Without `api_key_env`, a variable of the operator's own is no credential that fisk-ai was given.
    env = SECRETS if own else {name: secret for name, secret in SECRETS.items() if name != "MY_OWN_KEY"}
    llm = {"provider": "openai", "script": None, "base_url": server, "stream": False, **own}
    bench.agent([], [SPY], model="works", **llm)
    worked = bench.cli("run", "--checkpoint", "--name", "r", "hello", env=env)
    assert (worked.code, worked.out) == (0, b"Fine.\n"), worked
    _check(bench, worked, "a run")
    shown = bench.cli("session", "show", "r", "--full", env=env)
    assert "FISK_AI_IDEMPOTENCY_KEY=" in shown.text, "the spy has spied"
    _check(bench, shown, "show")
    bench.agent([], [SPY], model="refused", **llm)
    for extra in ({}, {"FISK_AI_DEBUG": "1"}):
        refused = bench.cli("run", "--checkpoint", "hello", env={**env, **extra})
        assert refused.code == 1
        assert "401" in refused.err or "bad key" in refused.err
        _check(bench, refused, "a refused run")
    _check(bench, bench.cli("info", "--json", env=env), "info")


def test_credential_in_an_address_is_refused_unseen(bench: Bench) -> None:
    secret = SECRETS["OPENAI_API_KEY"].replace("/", "").replace("=", "").replace("+", "")
    address = f"https://user:{secret}@models.example/v1"
    bench.agent([], [SPY], provider="openai", model="m", script=None, base_url=address)
    for args in (("run", "--checkpoint", "hello"), ("info",), ("run", "--output", "json", "hello")):
        refused = bench.cli(*args, env={"OPENAI_API_KEY": "k"})
        assert refused.code == 2
        assert secret not in refused.err + refused.text
    bench.agent([], [SPY], provider="openai", model="m", script=None)
    refused = bench.cli("run", "hello", env={"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": address})
    assert refused.code == 2
    assert secret not in refused.err + refused.text
    assert "OPENAI_BASE_URL" in refused.err
