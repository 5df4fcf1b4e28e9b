from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from fisk_ai.errors import CONTEXT_OVERFLOW, ProviderRefused
from fisk_ai.providers.refusals import http_refusal, reported_refusal, retry_after_s

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


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"])
def test_spent_quota_is_neither_retried_nor_a_rate_limit_though_its_status_says_so(code: str) -> None:
    body = {"error": {"message": "You exceeded your quota", "type": "some_type", "code": code}}
    found = refusal(429, body, retry_after="5")
    assert (found.retryable, found.rate_limited, found.retry_after_s) == (False, False, None)


@pytest.mark.parametrize(("status", "limited"), [(429, True), (503, False), (529, False), (500, False), (400, False)])
def test_only_429_is_a_rate_limit_by_its_status(status: int, limited: bool) -> None:
    assert refusal(status, error("some_error", "slow down")).rate_limited is limited


def test_rate_limit_that_must_not_be_retried_keeps_its_end() -> None:
    found = refusal(429, error("rate_limit_error", "slow down"), x_should_retry="false", retry_after="9")
    assert (found.retryable, found.rate_limited, found.retry_after_s) == (False, True, 9.0)


@pytest.mark.parametrize(
    ("status", "paid"),
    [*((status, False) for status in (400, 401, 413, 429, 503, 529)), *((status, True) for status in (408, 500, 504))],
)
def test_only_what_may_have_reached_the_model_may_be_paid(status: int, paid: bool) -> None:
    assert refusal(status, error("some_error", "no")).may_be_paid is paid


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
        (400, error("invalid_request_error", "The input token count (9) exceeds the maximum number of tokens (8)")),
        (400, error("some_error", "This model's maximum prompt length is 8 but the request contains 9 tokens.")),
        (413, error("request_too_large", "Request exceeds the maximum size")),
        (413, b"<html>Request Entity Too Large</html>"),
        (500, {"error": {"type": "exceed_context_size_error", "message": "no room"}}),
    ],
)
def test_overflow_of_the_context_has_a_kind_of_its_own_and_advice(status: int, body: object) -> None:
    found = refusal(status, body)
    assert found.kind == CONTEXT_OVERFLOW
    assert not found.retryable
    assert found.is_context_overflow
    assert str(found).endswith(". The conversation no longer fits the model's context window")


@pytest.mark.parametrize("text", ["max_tokens: must be positive", "prompt: too short"])
def test_other_bad_requests_are_no_overflow(text: str) -> None:
    assert not refusal(400, error("invalid_request_error", text)).is_context_overflow
    reported = reported_refusal("anthropic", json.dumps(error("overloaded_error", text)).encode())
    assert not reported.is_context_overflow


def test_overflow_that_a_stream_reports_is_one() -> None:
    said = {"error": {"message": "Trying to keep the first 9 tokens when context length is only 8"}}
    found = reported_refusal("openai", json.dumps(said).encode())
    assert found.is_context_overflow
    assert not found.retryable


@pytest.mark.parametrize(
    "body", [b"", b"<!DOCTYPE html><html>Bad gateway</html>", b"[]", b"null", b'"x"', b'{"error":5}', b"\xff\xfe"]
)
def test_error_bodies_of_any_shape_are_survived(body: bytes) -> None:
    found = refusal(502, body)
    assert found.retryable
    assert "HTTP 502" in str(found)
    assert "<" not in str(found)


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [("overloaded_error", True), ("rate_limit_error", True), ("new_error", True), ("invalid_request_error", False)],
)
def test_reported_errors_are_classified_by_their_type(kind: str, retryable: bool) -> None:
    found = reported_refusal("anthropic", json.dumps(error(kind, "x")).encode())
    assert found.retryable is retryable
    assert found.status is None
    assert found.may_be_paid
    assert found.rate_limited is (kind == "rate_limit_error")
