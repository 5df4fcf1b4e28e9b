"""The fake must refuse what the real APIs refuse, or tests that rely on it prove nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.providers.strict_server import CHAT, KEY, MESSAGES, Fault, StrictServer

TURNS: list[dict[str, Any]] = [
    {"text": "Looking.", "calls": [{"name": "lookup", "id": "a"}, {"name": "lookup", "id": "b"}]},
    {"text": "Wait.", "stop_reason": "pause_turn"},
    {"text": "Done."},
]
USER = {"role": "user", "content": [{"type": "text", "text": "go"}]}
LOOKING = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "a", "name": "lookup", "input": {}},
        {"type": "tool_use", "id": "b", "name": "lookup", "input": {}},
    ],
}
WAIT = {"role": "assistant", "content": [{"type": "text", "text": "Wait."}]}
A = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}]}
B = {"type": "tool_result", "tool_use_id": "b", "content": "2", "is_error": True}
TYPED = {"type": "text", "text": "and now?"}


def post(server: StrictServer, path: str, body: dict[str, Any], key: str = KEY) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json", "x-api-key": key, "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def messages(*conversation: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": list(conversation), **more}


def image(media_type: str, data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def changed(message: Any, block: int, **fields: Any) -> Any:
    copy = deepcopy(message)
    copy["content"][block] |= fields
    return copy


@pytest.fixture(scope="module")
def server() -> Any:
    with StrictServer(TURNS) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (messages(USER), "Looking."),
        (messages({"role": "user", "content": "go"}, system="x", stream=False), "Looking."),
        (messages(USER, LOOKING, user(A, B)), "Wait."),
        (messages(USER, LOOKING, user(B, A, TYPED)), "Wait."),
        (messages(USER, LOOKING, user(A, B), WAIT), "Done."),
    ],
)
def test_sound_conversations_are_answered_by_their_next_turn(
    server: StrictServer, body: dict[str, Any], answer: str
) -> None:
    status, said = post(server, MESSAGES, body)
    assert (status, said["content"][0]["text"]) == (200, answer)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (messages(), "at least one message"),
        (messages(LOOKING), "first message must use the user role"),
        (messages(USER, USER), "roles must alternate"),
        (messages(USER, LOOKING), "must be a paused turn"),
        (messages(USER, LOOKING, USER), "without `tool_result` blocks"),
        (messages(USER, LOOKING, user(A)), "without `tool_result` blocks"),
        (messages(USER, LOOKING, user(A, A, B)), "single result"),
        (messages(USER, LOOKING, user(A, B, A | {"tool_use_id": "c"})), "unexpected `tool_use_id`"),
        (messages(USER, LOOKING, user(TYPED, A, B)), "must come first"),
        (messages(USER, LOOKING, user(A | {"content": [{"type": "text", "text": ""}]}, B)), "must be non-empty"),
        (messages(USER, LOOKING, user(A, B | {"is_error": "yes"})), "must be a boolean"),
        (messages(user(A)), "unexpected `tool_use_id`"),
        (messages(user()), "content must be non-empty"),
        (messages(user({"type": "text", "text": " \n"})), "must be non-empty"),
        (messages({"role": "user", "content": ""}), "must be non-empty"),
        (messages({"role": "system", "content": "x"}), "unexpected role"),
        (messages(user({"type": "text", "text": "x", "extra": 1})), "Extra inputs"),
        (messages(USER | {"seq": 1}), "Extra inputs"),
        (messages(USER, seed=3), "Extra inputs"),
        (messages(USER, max_tokens=None), "max_tokens"),
        (messages(USER, system=" "), "non-empty"),
        (messages(USER, tools=[{"name": "a b", "input_schema": {"type": "object"}}]), "should match the pattern"),
        (messages(USER, tools=[{"name": "a", "input_schema": {}}]), "not an object"),
        (messages(USER, tools=[{"name": "a", "input_schema": {"type": "object"}}] * 2), "must be unique"),
        (messages(USER, thinking={"type": "enabled", "budget_tokens": 5000}), "greater than"),
        (messages(USER, changed(LOOKING, 0, text="Lookin."), user(A, B)), "not the turn that was given"),
        (messages(USER, changed(LOOKING, 1, input={"x": 1}), user(A, B)), "not the turn that was given"),
        (messages(USER, changed(LOOKING, 1, input=[]), user(A, B)), "should be an object"),
        (messages(USER, changed(LOOKING, 1, id=""), user(A, B)), "should match the pattern"),
        (messages(USER, changed(LOOKING, 1, id="b"), user(A, B)), "must be unique"),
        (messages(USER, changed(LOOKING, 0, type="thinking"), user(A, B)), "signature"),
        (messages(USER, LOOKING, user(A, B), WAIT, WAIT), "must be a paused turn"),
        (messages(user(image("image/png", "?"))), "base64"),
        (messages(user(image("text/html", "aGk="))), "media_type"),
    ],
)
def test_messages_api_refuses_what_the_real_one_refuses(
    server: StrictServer, body: dict[str, Any], complaint: str
) -> None:
    status, said = post(server, MESSAGES, body)
    assert (status, said["error"]["type"]) == (400, "invalid_request_error")
    assert complaint in said["error"]["message"]


SAYS_LOOKING: dict[str, Any] = {
    "role": "assistant",
    "content": "Looking.",
    "tool_calls": [
        {"id": call_id, "type": "function", "function": {"name": "lookup", "arguments": "{}"}} for call_id in "ab"
    ],
}
SAYS_WAIT = {"role": "assistant", "content": "Wait."}
GO = {"role": "user", "content": "go"}
TOOL_A = {"role": "tool", "tool_call_id": "a", "content": "1"}
TOOL_B = {"role": "tool", "tool_call_id": "b", "content": "2"}


def calls(**fields: Any) -> dict[str, Any]:
    copy = deepcopy(SAYS_LOOKING)
    function = copy["tool_calls"][0]["function"]
    function |= {name: value for name, value in fields.items() if name in ("name", "arguments")}
    copy["tool_calls"][0] |= {name: value for name, value in fields.items() if name == "id"}
    return copy


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (messages({"role": "system", "content": "x"}, GO), "Looking."),
        (messages(GO, SAYS_LOOKING, TOOL_B, TOOL_A), "Wait."),
        (messages(GO, SAYS_LOOKING, TOOL_A, TOOL_B, GO), "Wait."),
        (messages(GO, SAYS_LOOKING, TOOL_A, TOOL_B, SAYS_WAIT, GO), "Done."),
    ],
)
def test_sound_chats_are_answered_by_their_next_turn(server: StrictServer, body: dict[str, Any], answer: str) -> None:
    status, said = post(server, CHAT, body)
    assert (status, said["choices"][0]["message"]["content"]) == (200, answer)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (messages(), "too short"),
        (messages(GO, GO), "two user messages"),
        (messages(GO, {"role": "system", "content": "x"}), "misplaced"),
        (messages({"role": "user", "content": ""}), "empty content"),
        (messages({"role": "user", "content": [{"type": "text", "text": ""}]}), "empty text"),
        (messages(TOOL_A), "no such 'tool_calls'"),
        (messages(GO, SAYS_LOOKING), "must be followed by tool messages"),
        (messages(GO, SAYS_LOOKING, TOOL_A), "must be followed by tool messages"),
        (messages(GO, SAYS_LOOKING, TOOL_A, GO, TOOL_B), "must be followed by tool messages"),
        (messages(GO, SAYS_LOOKING, TOOL_A, TOOL_A), "no such 'tool_calls'"),
        (messages(GO, SAYS_LOOKING, TOOL_A, TOOL_B, SAYS_WAIT), "last message"),
        (messages(GO, calls(arguments={}), TOOL_A, TOOL_B), "must be a JSON string"),
        (messages(GO, calls(arguments="{"), TOOL_A, TOOL_B), "not JSON"),
        (messages(GO, calls(name=""), TOOL_A, TOOL_B), "without name"),
        (messages(GO, calls(id="b"), TOOL_A, TOOL_B), "must be unique"),
        (messages(GO, calls(name="other"), TOOL_A, TOOL_B), "not the turn that was given"),
        (messages(GO, {"role": "assistant", "content": None}, GO), "empty assistant message"),
        (messages(GO, stream_options={"include_usage": True}), "only allowed when streaming"),
        (messages(GO, max_completion_tokens=5), "one output limit"),
        (messages(GO, tools=[]), "too short"),
        (messages(GO, surprise=1), "Unrecognized"),
    ],
)
def test_chat_api_refuses_what_the_real_one_refuses(server: StrictServer, body: dict[str, Any], complaint: str) -> None:
    status, said = post(server, CHAT, body)
    assert status == 400
    assert complaint in said["error"]["message"]


def test_wrong_key_and_unknown_path_are_refused(server: StrictServer) -> None:
    assert post(server, MESSAGES, messages(USER), key="wrong")[0] == 401
    assert post(server, "/v1/complete", messages(USER))[0] == 400


def test_numbers_must_come_back_as_they_were_spelled() -> None:
    spelled = b'[{"type":"from_the_future","n":1e3},{"type":"text","text":"x"}]'
    with StrictServer([{"content": spelled}, {"text": "Done."}]) as server:
        body = messages(USER, {"role": "assistant", "content": json.loads(spelled)}, USER)
        assert post(server, MESSAGES, body)[1]["error"]["message"].endswith("not the turn that was given")


def test_empty_turn_is_left_out_and_the_next_one_is_played() -> None:
    with StrictServer([{"content": [{"type": "text", "text": "\n"}]}, {"text": "Now."}]) as server:
        assert post(server, MESSAGES, messages(USER))[1]["stop_reason"] == "end_turn"
        assert post(server, MESSAGES, messages(user(TYPED, TYPED)))[1]["content"][0]["text"] == "Now."


def test_faults_come_at_the_request_they_are_for() -> None:
    with StrictServer(TURNS, faults={2: Fault(status=503, headers={"retry-after": "1"})}) as server:
        assert [post(server, MESSAGES, messages(USER))[0] for _ in range(3)] == [200, 503, 200]
        assert [request.number for request in server.requests] == [1, 2, 3]


def test_it_runs_as_a_process_and_logs_each_request_before_answering(tmp_path: Path) -> None:
    (tmp_path / "turns.json").write_text(json.dumps(TURNS))
    (tmp_path / "faults.json").write_text(json.dumps({"2": {"status": 529}}))
    command = [sys.executable, "-m", "tests.providers.strict_server", "--script", str(tmp_path / "turns.json")]
    command += ["--log", str(tmp_path / "log.jsonl"), "--port-file", str(tmp_path / "port")]
    with subprocess.Popen(
        [*command, "--faults", str(tmp_path / "faults.json"), "--ready"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert int((tmp_path / "port").read_text()) == port
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{MESSAGES}",
            json.dumps(messages(USER)).encode(),
            {"content-type": "application/json", "x-api-key": KEY, "anthropic-version": "1"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["stop_reason"] == "tool_use"
        logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [(entry["number"], entry["path"]) for entry in logged] == [(1, MESSAGES)]
        assert logged[0]["body"]["messages"] == [USER]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
