from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from fisk_ai.errors import ProviderRefused
from fisk_ai.providers.refusals import CONTEXT_OVERFLOW, http_refusal, reported_refusal, retry_after_s

NOW = datetime(2026, 12, 1, 3, 21, tzinfo=UTC)


def refusal(status: int, body: object = None, **headers: str) -> ProviderRefused:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_refusal("anthropic", status, named, raw, credential="ANTHROPIC_API_KEY", now=NOW)


def error(kind: str, text: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": text}}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_passing_troubles_are_worth_another_attempt(status: int) -> None:
    assert refusal(status, error("some_error", "busy")).retryable


@pytest.mark.parametrize("status", [301, 307, 400, 401, 402, 403, 404, 413, 422])
def test_lasting_troubles_are_not(status: int) -> None:
    assert not refusal(status, error("some_error", "no")).retryable


def test_what_the_server_says_about_retries_comes_first() -> None:
    assert not refusal(529, x_should_retry="false").retryable
    assert refusal(400, x_should_retry="true").retryable


def test_spent_quota_is_not_retried_though_its_status_says_so() -> None:
    body = {"error": {"message": "You exceeded your quota", "type": "insufficient_quota", "code": "insufficient_quota"}}
    assert not refusal(429, body).retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Tue, 01 Dec 2026 03:22:00 GMT"}, 60.0),
        ({"retry-after": "Tue, 01 Dec 2020 03:22:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_every_spelling(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds


def test_message_names_status_kind_and_text_on_one_harmless_line() -> None:
    found = refusal(400, error("invalid_request_error", "max_tokens:\n\x1b[31mtoo large\x1b[0m " + "x" * 1000))
    assert str(found).startswith("anthropic answered with HTTP 400 (invalid_request_error): max_tokens: too large xx")
    assert "\x1b" not in str(found)
    assert len(str(found)) < 400
    assert (found.status, found.kind) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum")),
        (400, {"error": {"message": "This model's maximum context length is 8192", "code": "context_length_exceeded"}}),
        (
            400,
            {"error": {"type": "exceed_context_size_error", "message": "request exceeds the available context size"}},
        ),
        (400, error("invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 2")),
    ],
)
def test_overflow_of_the_context_has_a_kind_of_its_own_and_advice(status: int, body: object) -> None:
    found = refusal(status, body)
    assert found.kind == CONTEXT_OVERFLOW
    assert not found.retryable
    assert "context window" in str(found)


@pytest.mark.parametrize(
    "body", [b"", b"<!DOCTYPE html><html>Bad gateway</html>", b"[]", b"null", b'"x"', b'{"error":5}', b"\xff\xfe"]
)
def test_error_bodies_of_any_shape_are_survived(body: bytes) -> None:
    found = refusal(502, body)
    assert found.retryable
    assert "HTTP 502" in str(found)
    assert "<" not in str(found)


@pytest.mark.parametrize(
    ("kind", "retryable"), [("overloaded_error", True), ("new_error", True), ("invalid_request_error", False)]
)
def test_reported_errors_are_classified_by_their_type(kind: str, retryable: bool) -> None:
    found = reported_refusal("anthropic", json.dumps(error(kind, "x")).encode())
    assert found.retryable is retryable
    assert found.status is None
