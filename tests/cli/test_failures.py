"""What a failing model call comes to: every row of docs/failures.md, over real connections, from the command line."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.providers.retry import RetryPolicy
from fisk_ai.records import TerminalRecord
from tests.providers.strict_server import KEY, Fault, StrictServer

from .bench import NOTE_TOOL, Bench, Done, command_in
from .conftest import Inline

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"
APIS = ("anthropic", "openai")
NOTING: Mapping[str, Any] = {"text": "Noting.", "calls": [{"name": "note", "input": {"what": "a"}}]}
ANSWER: Mapping[str, Any] = {"text": "The answer is 42."}
TRIES = 4
ALL = "(tried 4 times, all of which may be paid for)"


def said(**error: Any) -> str:
    """An error in a shape that both APIs' readers take."""
    return json.dumps({"type": "error", "error": error})


QUOTA = {"anthropic": "billing_error", "openai": "insufficient_quota"}
OVERFLOW = {
    "anthropic": {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000 maximum"},
    "openai": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "too many tokens"},
}
OVERLOADED_EVENT = {
    "anthropic": f"event: error\ndata: {said(type='overloaded_error', message='Overloaded')}\n\n",
    "openai": f"data: {said(type='server_error', message='Overloaded')}\n\n",
}
REFUSAL = {"anthropic": "refusal", "openai": "content_filter"}


@dataclass(frozen=True)
class Row:
    """One kind of failure, and what is promised about it."""

    faults: Callable[[str], Sequence[Fault]] = lambda _api: ()
    """Of the first requests, by API."""
    turns: Callable[[str], Sequence[Mapping[str, Any]]] = lambda _api: [ANSWER]
    requests: int = 1
    """What the first command sends; None of them is sent twice without need."""
    code: int = 1
    reason: str | None = "error"
    """Of the terminal record; None if nothing is stored."""
    says: Sequence[str] = ()
    """What the operator reads."""
    resume_code: int | None = 0
    resume_requests: int = 1
    checkpoint: bool = True
    llm: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run that are put right before it is resumed."""


def times(fault: Fault, number: int = TRIES) -> Callable[[str], Sequence[Fault]]:
    return lambda _api: [fault] * number


def only(turn: Mapping[str, Any]) -> Callable[[str], Sequence[Mapping[str, Any]]]:
    return lambda _api: [turn, ANSWER]


def lasting(status: int, *says: str, requests: int = TRIES, **more: Any) -> Row:
    fault = Fault(status=status, headers=more.pop("headers", {}))
    return Row(times(fault, requests), requests=requests, says=(f"answered with HTTP {status}", *says), **more)


LIMITED: Mapping[str, Any] = {"code": 3, "reason": "suspended"}
LATER = "The API asks to wait 3600 s, until 2"
ROWS: Mapping[str, Row] = {
    "it passes before the last attempt": Row(
        times(Fault(status=429, headers={"retry-after-ms": "5"}), TRIES - 1),
        requests=TRIES,
        code=0,
        reason="completed",
        says=("HTTP 429", "attempt 2 follows in 0.0 s\n", "attempt 4 follows"),
        resume_code=5,
        resume_requests=0,
    ),
    "429, and the API asks for more patience than 120 s": lasting(
        429, "can't be asked for now", LATER, requests=1, headers={"retry-after": "3600"}, **LIMITED
    ),
    "429 to the last attempt": lasting(429, "can't be asked for now", "(tried 4 times)", **LIMITED),
    "429 that asks for more patience, in a run that isn't stored": lasting(
        429,
        "the run failed",
        LATER,
        requests=1,
        headers={"retry-after": "3600"},
        reason=None,
        checkpoint=False,
        resume_code=None,
    ),
    "the quota is spent": Row(
        lambda api: [Fault(status=429, body=said(type=QUOTA[api], message="no money"))], says=("no money",)
    ),
    "529 or 503, and the API asks for more patience than 120 s": lasting(
        529, "can't be asked for now", LATER, requests=1, headers={"retry-after": "3600"}, **LIMITED
    ),
    "529 or 503 to the last attempt": lasting(529, "(tried 4 times);"),
    "500 or another 5xx to the last attempt": lasting(500, ALL),
    "nobody listens": Row(requests=0, says=("ConnectError", "(tried 4 times);"), llm={"base_url": "nobody"}),
    "the connection is reset before the answer": Row(
        times(Fault(reset_after_bytes=0)), requests=TRIES, says=("ReadError", "paid for twice)", ALL)
    ),
    "the connection is reset within the stream": Row(
        times(Fault(reset_after_bytes=300)), requests=TRIES, says=("ReadError", "paid for twice)", ALL)
    ),
    "the stream ends early, however politely": Row(
        lambda _api: [
            Fault(end_after_events=2),
            Fault(end_after_events=3, framing="chunked"),
            Fault(end_after_events=4, framing="close"),
            Fault(end_after_events=0),
        ],
        requests=TRIES,
        says=("the stream ended early", "paid for twice)", ALL),
    ),
    "the stream reports an error": Row(
        lambda api: [Fault(status=200, body=OVERLOADED_EVENT[api], content_type="text/event-stream")] * TRIES,
        requests=TRIES,
        says=("reported an error in its answer", "Overloaded", ALL),
    ),
    "no whole answer within `call_timeout`": Row(
        times(Fault(stall_after_bytes=40)),
        requests=TRIES,
        says=("longer than call_timeout (0.2 s)", "raise llm.budget.call_timeout", "paid for twice)", ALL),
        llm={"budget": {"call_timeout": "200ms"}},
    ),
    "the body is no answer": Row(
        times(Fault(status=200, body="<html>Sign in</html>", content_type="text/html")),
        requests=TRIES,
        says=("the answer isn't one that this API gives", ALL),
    ),
    "401 or 403": lasting(401, "Check ", "_API_KEY", requests=1),
    "404": lasting(404, "Check the model's name and base_url", requests=1),
    "400 or another 4xx": lasting(400, "(invalid_request_error)", requests=1),
    "the API says that the conversation is too long (400, 413)": Row(
        lambda api: [Fault(), Fault(status=400, body=said(**OVERFLOW[api]))],
        turns=only(NOTING),
        requests=2,
        says=(
            "The conversation no longer fits the model's context window",
            "it did up to record 1: fork the run there, or earlier",
            "A resume asks the same again; this makes a new run that fits:\n  fisk-ai session fork r --at 1\n",
        ),
    ),
    "`model_context_window_exceeded`": Row(
        turns=only({"text": "And so", "stop_reason": "model_context_window_exceeded"}),
        says=("And so", "longer than the model can read", "  fisk-ai session fork r --at 1\n"),
        resume_code=5,
        resume_requests=0,
    ),
    "`max_tokens` in the middle of a call": Row(
        turns=only({**NOTING, "stop_reason": "max_tokens"}),
        requests=2,
        code=0,
        reason="completed",
        says=("> note (not started): the model's turn was cut off at the output-token limit",),
        resume_code=5,
        resume_requests=0,
    ),
    "`max_tokens` in an answer": Row(
        turns=only({"text": "The answer", "stop_reason": "max_tokens"}),
        says=("The answer", "(llm.max_output_tokens)", "  fisk-ai session fork r --at 1\n"),
        resume_code=5,
        resume_requests=0,
    ),
    "`refusal`, or the provider's content filter": Row(
        turns=lambda api: [{"text": "I can't", "stop_reason": REFUSAL[api]}, ANSWER],
        says=("I can't", "the model", "  fisk-ai session fork r --at 1\n"),
        resume_code=5,
        resume_requests=0,
    ),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, and a policy that differs from the default one only in not sleeping."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setattr("fisk_ai.agent.agent.RetryPolicy", partial(RetryPolicy, first_wait_s=0.001))


def speak(bench: Bench, api: str, url: str, **llm: Any) -> None:
    """Write an agent.yaml for a server."""
    base_url = url + ("/v1" if api == "openai" else "")
    bench.agent([], [NOTE_TOOL], **{"provider": api, "model": "m", "script": None, "base_url": base_url, **llm})


def nobody() -> str:
    """Return a URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def terminal_of(bench: Bench, run_id: str = "r") -> TerminalRecord:
    terminal = bench.store.load(run_id).terminal
    assert terminal is not None
    return terminal


def kinds(bench: Bench, run_id: str = "r") -> list[str]:
    return [type(item.record).__name__.removesuffix("Record") for item in bench.store.read(run_id).records]


def with_faults(turns: Sequence[Mapping[str, Any]], faults: Sequence[Fault]) -> StrictServer:
    return StrictServer(turns, faults=dict(enumerate(faults, start=1)))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", ROWS)
def test_failure_ends_as_the_page_says_and_so_does_its_resume(
    bench: Bench, inline: Inline, api: str, name: str
) -> None:
    row = ROWS[name]
    with with_faults(row.turns(api), row.faults(api)) as server:
        broken = nobody() if row.llm.get("base_url") else server.url
        speak(bench, api, broken, **{key: value for key, value in row.llm.items() if key != "base_url"})
        failed = inline("run", *(("--checkpoint", "--name", "r") if row.checkpoint else ()), "hello")
        assert failed.code == row.code, failed
        assert failed.out == (b"The answer is 42.\n" if row.code == 0 else b"")
        for text in row.says:
            assert text in failed.err, failed.err
        assert server.refusals == []
        if "call_timeout" in str(row.llm):
            assert 1 <= len(server.requests) <= row.requests  # time may run out before a request is read
        else:
            assert len(server.requests) == row.requests
        if row.reason is None:
            assert not bench.state.exists()
            return
        check_end(bench, row, failed)
        speak(bench, api, server.url)
        check_resume(bench, inline, row, server)


def check_end(bench: Bench, row: Row, failed: Done) -> None:
    """The terminal record says what the operator read, and what failed left nothing else."""
    terminal = terminal_of(bench)
    assert terminal.reason == row.reason
    if row.reason != "completed":
        assert terminal.message is not None
        assert terminal.message in failed.err
        command_in(failed.err)
    assert kinds(bench)[-1] == "Terminal"
    assert kinds(bench).count("Terminal") == 1
    assert bench.store.load("r").counters.model_calls == kinds(bench).count("Assistant")


def check_resume(bench: Bench, inline: Inline, row: Row, server: StrictServer) -> None:
    """What the first command could not do a resume does, with the very same request."""
    already, before = len(server.requests), bench.snapshot()
    server.faults = {}
    resumed = inline("run", "--resume", "r")
    assert (resumed.code, len(server.requests) - already) == (row.resume_code, row.resume_requests), resumed
    assert server.refusals == []
    if row.resume_code == 0:
        assert resumed.out == b"The answer is 42.\n"
        assert terminal_of(bench).reason == "completed"
        assert len({request.body for request in server.requests[-2:]}) == (1 if already else len(server.requests))
    else:
        assert bench.snapshot() == before


TABLE = re.compile(
    r"^\| (?P<name>[^|]+) \| (?P<again>[^|]+) \| (?P<end>[^|]+) \| (?P<code>\d+) \|.*\| (?P<resume>[^|]+) \|$"
)


def page_rows() -> dict[str, re.Match[str]]:
    rows = [found for line in PAGE.read_text().splitlines() if (found := TABLE.match(line))]
    return {row["name"]: row for row in rows}


def test_page_has_the_rows_that_are_tested() -> None:
    assert list(page_rows()) == list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_page_says_what_is_tested(name: str) -> None:
    row, shown = ROWS[name], page_rows()[name]
    assert int(shown["code"]) == row.code
    assert re.findall(r"`(\w+)`", shown["end"])[:1] == ([] if row.reason is None else [row.reason])
    assert shown["again"].startswith("yes") == (row.requests == TRIES or name == "nobody listens")
    assert ("exit 5" in shown["resume"]) == (row.resume_code == 5)
    assert shown["resume"].startswith("asks again") == (row.resume_requests == 1 and row.resume_code == 0)


LIMIT = Fault(status=429, headers={"retry-after": "3600"})


def until_of(text: str) -> datetime:
    found = re.search(r"until (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC", text)
    assert found is not None, text
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)


@pytest.mark.parametrize("api", APIS)
def test_rate_limit_says_until_when_wherever_the_run_is_looked_at(bench: Bench, inline: Inline, api: str) -> None:
    before = datetime.now(UTC)
    with with_faults([ANSWER], [LIMIT, LIMIT]) as server:
        speak(bench, api, server.url)
        failed = inline("run", "--checkpoint", "--name", "r", "--output", "json", "hello")
        assert failed.code == 3
        assert (failed.data["reason"], failed.data["resumable"]) == ("suspended", True)
        message = failed.data["message"]
        assert timedelta(0) <= until_of(message) - before - timedelta(seconds=3600) < timedelta(minutes=2)
        assert f"run r is suspended: {message}; go on with:\n  fisk-ai run --resume r\n" in failed.err
        assert f"suspended ({message})" in inline("session", "show", "r").text
        assert inline("session", "show", "r", "--json").data["terminal"]["message"] == message
        assert inline("session", "ls", "--json").data[0]["status"] == "suspended"

        again = inline("run", "--resume", "r")
        assert again.code == 3, "a resume that comes too early is suspended again"
        assert until_of(again.err) >= until_of(message)
        assert kinds(bench) == ["Meta", "Terminal", "Terminal", "Terminal"]
        assert inline("run", "--continue").out == b"The answer is 42.\n"


def test_rate_limit_suspends_a_chat_and_keeps_what_was_typed(bench: Bench) -> None:
    with with_faults([{"text": "First."}, {"text": "Second."}], [Fault(), LIMIT]) as server:
        speak(bench, "anthropic", server.url)
        key = {"ANTHROPIC_API_KEY": KEY}
        chat = bench.cli("run", "--chat", "--checkpoint", "--name", "r", stdin=b"one\ntwo\nthree\n", env=key)
        assert (chat.code, chat.out) == (3, b"First.\n")
        assert LATER in chat.err
        assert kinds(bench) == ["Meta", "Assistant", "User", "Terminal"]
        resumed = bench.cli("run", "--resume", "r", env=key)
        assert (resumed.code, resumed.out) == (0, b"Second.\n")
        assert server.refusals == []


@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
def test_what_is_waited_for_is_said_in_every_output(bench: Bench, inline: Inline, output: str) -> None:
    faults = [Fault(status=429, headers={"retry-after-ms": "30"}), Fault(end_after_events=1)]
    with with_faults([ANSWER], faults) as server:
        speak(bench, "anthropic", server.url)
        done = inline("run", "--output", output, "hello")
    assert done.code == 0
    if output == "stream-json":
        told = [json.loads(line) for line in done.out.splitlines()]
        calls = [(event["event"], event.get("attempt")) for event in told if event["event"].startswith("model_")]
        assert calls == [
            *(("model_called", 1), ("model_retried", 1), ("model_called", 2), ("model_retried", 2), ("model_called", 3))
        ]
        retried = [event for event in told if event["event"] == "model_retried"]
        assert [event["may_be_paid"] for event in retried] == [False, True]
        assert retried[0]["wait_s"] == 0.03
    else:
        first, second = (line for line in done.err.splitlines() if line.startswith("model: "))
        assert first.startswith("model: anthropic answered with HTTP 429")
        assert first.endswith("attempt 2 follows in 0.0 s")
        assert second.endswith("attempt 3 follows in 0.0 s (a turn that broke off may be paid for twice)")


def test_fork_that_the_overflow_names_fits(bench: Bench, inline: Inline) -> None:
    overflow = Fault(status=413, body="<html>Request Entity Too Large</html>", content_type="text/html")
    with with_faults([NOTING, ANSWER], [Fault(), overflow]) as server:
        speak(bench, "anthropic", server.url)
        failed = inline("run", "--checkpoint", "--name", "r", "hello")
        assert failed.code == 1
        fork = command_in(failed.err).split()[1:]
        assert fork == ["session", "fork", "r", "--at", "1"]
        forked = inline(*fork).text.strip()
        assert inline("run", "--resume", forked).out == b"The answer is 42.\n"
        assert server.requests[2].body == server.requests[0].body
        assert server.refusals == []


def test_overflow_of_a_follow_up_keeps_the_answer_before_it(bench: Bench) -> None:
    overflow = Fault(status=400, body=said(**OVERFLOW["anthropic"]))
    with with_faults([{"text": "First."}, {"text": "Second."}], [Fault(), overflow]) as server:
        speak(bench, "anthropic", server.url)
        key = {"ANTHROPIC_API_KEY": KEY}
        chat = bench.cli("run", "--chat", "--checkpoint", "--name", "r", stdin=b"one\nfar too long\n", env=key)
        assert chat.code == 1
        assert chat.last_line == "  fisk-ai session fork r --at 2"
        assert bench.cli("session", "fork", "r", "--at", "2", "--name", "s").code == 0
        resumed = bench.cli("run", "--resume", "s", stdin=b"shorter\n", env=key)
        assert (resumed.code, resumed.out) == (0, b"Second.\n")
        assert b"far too long" not in server.requests[-1].body


def test_overflow_of_the_prompt_itself_has_nothing_to_fork(bench: Bench, inline: Inline) -> None:
    with with_faults([ANSWER], [Fault(status=400, body=said(**OVERFLOW["openai"]))]) as server:
        speak(bench, "openai", server.url)
        failed = inline("run", "--checkpoint", "--name", "r", "hello")
    assert failed.code == 1
    assert "no longer fits" in failed.err
    assert "fork" not in failed.err
    assert failed.last_line == "  fisk-ai run --resume r"
