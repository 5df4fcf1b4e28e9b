"""What an API's error means: for the person, and for the retry policy. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from fisk_ai.errors import CONTEXT_OVERFLOW, ProviderRefused
from fisk_ai.text import one_line

_RETRYABLE_STATUS = frozenset({408, 409, 429})
_SPENT = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active"})
"""Limits that no waiting lifts, though their status may say 429."""
_LIMITED = frozenset({"rate_limit_error", "rate_limit_exceeded"})
_FINAL_KINDS = (
    frozenset({"invalid_request_error", "authentication_error", "permission_error", "not_found_error"})
    | {"request_too_large", CONTEXT_OVERFLOW}
    | _SPENT
)
_OVERFLOWS = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG = re.compile(
    r"(?:prompt|input) is too long|maximum prompt length|token count.{0,40}exceeds|"
    r"context.{0,10}(?:length|window|size|limit)|exceed\w* (?:the )?(?:available |maximum )?context",
    re.IGNORECASE,
)
_NO_ROOM = ". The conversation no longer fits the model's context window"
_SHOWN_CHARACTERS = 300


class _Error(msgspec.Struct):
    """What is common to the APIs' error objects."""

    type: str | None = None
    code: str | int | None = None
    message: str | None = None


def http_refusal(
    provider: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    credential: str,
    now: datetime | None = None,
) -> ProviderRefused:
    """Return the error that an HTTP answer with this status stands for.

    `credential` says where the key comes from, for the advice.
    """
    kind, text = _read_error(body)
    overflow = status == 413 or kind in _OVERFLOWS or (status in (400, 422) and bool(_TOO_LONG.search(text)))
    limited = status == 429 and kind not in _SPENT
    retryable = not overflow and kind not in _SPENT and _worth_repeating(status)
    asked = headers.get("x-should-retry", "").lower()
    if asked in ("true", "false"):
        retryable = asked == "true"
    said = one_line(text, _SHOWN_CHARACTERS)
    detail = f" ({kind})" if kind else ""
    advice = _advice(status, overflow=overflow, credential=credential)
    return ProviderRefused(
        f"{provider} answered with HTTP {status}{detail}" + (f": {said}" if said else "") + advice,
        status=status,
        kind=CONTEXT_OVERFLOW if overflow else kind,
        retryable=retryable,
        retry_after_s=retry_after_s(headers, now or datetime.now(UTC)) if retryable or limited else None,
        rate_limited=limited,
        may_be_paid=_may_be_paid(status),
    )


def _worth_repeating(status: int) -> bool:
    return status in _RETRYABLE_STATUS or status >= 500


def _may_be_paid(status: int) -> bool:
    """Tell whether a model may have worked before this answer came; not if the request was turned away."""
    return status == 408 or (status >= 500 and status not in (503, 529))


def _advice(status: int, *, overflow: bool, credential: str) -> str:
    if overflow:
        return _NO_ROOM
    if status in (401, 403):
        return f". Check {credential}"
    if status == 404:
        return ". Check the model's name and base_url"
    if 300 <= status < 400:
        return ". Redirects are not followed: set base_url to where the API is"
    return ""


def reported_refusal(provider: str, body: bytes) -> ProviderRefused:
    """Return the error that an answer of status 200, or an event of its stream, reports.

    It is classified by its type: the status says nothing here, and a kind that nobody knows is worth a retry.
    """
    kind, text = _read_error(body)
    overflow = kind in _OVERFLOWS or bool(_TOO_LONG.search(text))
    detail = f" ({kind})" if kind else ""
    said = one_line(text, _SHOWN_CHARACTERS)
    return ProviderRefused(
        f"{provider} reported an error in its answer{detail}: {said}" + (_NO_ROOM if overflow else ""),
        kind=CONTEXT_OVERFLOW if overflow else kind,
        retryable=not overflow and kind not in _FINAL_KINDS,
        rate_limited=kind in _LIMITED,
        may_be_paid=True,
    )


def _read_error(body: bytes) -> tuple[str | None, str]:
    """Return the API's type of the error, and what it says."""
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        text = body[:4096].decode("utf-8", "replace")
        return None, "a page that isn't the API's" if "<html" in text.lower() else text
    inner = decoded.get("error", decoded) if isinstance(decoded, dict) else decoded
    try:
        error = msgspec.convert(inner, _Error)
    except msgspec.ValidationError:
        return None, inner if isinstance(inner, str) else ""
    # OpenAI's code is finer than its type: insufficient_quota, context_length_exceeded.
    kind = error.code if isinstance(error.code, str) and error.code else error.type
    return (one_line(kind, 80) if kind else None), error.message or ""


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return how many seconds the API asks to wait, from `retry-after-ms` or `retry-after`; None if it doesn't."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(milliseconds / 1000, 0.0)
    given = headers.get("retry-after")
    seconds = _number(given)
    if seconds is not None or given is None:
        return None if seconds is None else max(seconds, 0.0)
    try:
        at = parsedate_to_datetime(given)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max((at - now).total_seconds(), 0.0)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
