"""pydantic-ai's exceptions, and those of the SDKs under it, as errors of a provider: what a retry may help, and how."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import msgspec
import pydantic
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
)

from fisk_ai.errors import CONTEXT_OVERFLOW, InvalidReply, ProviderError, ProviderRefused, ProviderUnreachable
from fisk_ai.providers.refusals import http_refusal
from fisk_ai.text import one_line

_SHOWN_CHARACTERS = 300
_REQUEST_ID = ("request-id", "x-request-id")


@contextmanager
def provider_errors(model: str) -> Iterator[None]:
    """Raise what goes wrong in pydantic-ai as a provider's error; `model` is the name that was asked for."""
    try:
        yield
    # Each SDK has its own kinds, and a traceback would tell the operator less than their names do.
    except Exception as problem:  # noqa: BLE001
        raise as_provider_error(problem, model) from None


def as_provider_error(problem: Exception, model: str) -> ProviderError:
    """Return the error that an exception of pydantic-ai's stands for."""
    match problem:
        case ExceptionGroup():  # all models of a fallback failed; the last one has the last word
            last = problem.exceptions[-1]
            return as_provider_error(last, model)
        case ModelHTTPError():
            return _http_failure(problem, model)
        case ModelConnectionError():
            return _unreachable(problem, model, sent=problem.phase not in ("pool", "connect"))
        case ModelAPIError():
            return _api_failure(problem, model)
        case ContentFilterError():
            return ProviderRefused(
                f"{model} refused the conversation by its content filter: {_said(problem.message)}",
                kind="content_filter",
                may_be_paid=True,
            )
        case UnexpectedModelBehavior():
            # What follows the first line quotes the answer.
            said = _said(problem.message.partition("\n")[0])
            return InvalidReply(f"the answer of {model} isn't one: {said}", retryable=True)
        case TypeError() | AttributeError() | LookupError() | AssertionError() | pydantic.ValidationError():
            return InvalidReply(
                f"the answer of {model} isn't one that pydantic-ai understands ({type(problem).__name__})",
                retryable=True,
            )
        case httpx2.TransportError() | OSError():
            return _unreachable(
                problem, model, sent=not isinstance(problem, (httpx2.ConnectError, ConnectionRefusedError))
            )
    return _unknown(problem, model)


def _unreachable(problem: Exception, model: str, *, sent: bool) -> ProviderUnreachable:
    what = _said(str(problem)) or "no details"
    return ProviderUnreachable(
        f"no whole answer from {model}: {type(problem).__name__}: {what}", retryable=True, sent=sent
    )


def _unknown(problem: Exception, model: str) -> ProviderRefused:
    """Return the error for what nobody foresaw: a mistake in the set-up, mostly, told by an SDK in its own way."""
    said = _said(str(problem)) or "no details"
    return ProviderRefused(
        f"asking {model} failed in pydantic-ai: {type(problem).__name__}: {said}",
        kind=type(problem).__name__,
        may_be_paid=True,
    )


def _api_failure(problem: ModelAPIError, model: str) -> ProviderError:
    """Return the error for one without a status: an event in a stream, or an answer that can't be read."""
    kind = _kind(problem)
    retryable = isinstance(problem, (ModelRateLimitError, ModelUnavailableError, ModelServerError))
    if not (retryable or isinstance(problem, (ModelQuotaExceededError, ModelRequestRejectedError))):
        return InvalidReply(f"the answer of {model} isn't a whole turn: {_said(problem.message)}", retryable=True)
    return ProviderRefused(
        f"{model} reported an error" + (f" ({kind})" if kind else "") + f": {_said(problem.message)}",
        kind=CONTEXT_OVERFLOW if isinstance(problem, ModelContextWindowExceededError) else kind,
        retryable=retryable,
        retry_after_s=problem.retry_after,
        rate_limited=isinstance(problem, ModelRateLimitError),
        may_be_paid=problem.in_stream,
    )


def _http_failure(problem: ModelHTTPError, model: str) -> ProviderRefused:
    headers = dict(problem.headers or {})
    if problem.retry_after is not None:  # Google says it in the body
        headers = {"retry-after": str(problem.retry_after)} | {
            name: value for name, value in headers.items() if not name.startswith("retry-after")
        }
    refusal = http_refusal(
        model, problem.status_code, headers, _body(problem), credential="the key that it takes from the environment"
    )
    refusal.may_be_paid = refusal.may_be_paid or problem.in_stream
    hints = [f". Did you mean {problem.suggested_model_id}?"] if problem.suggested_model_id else []
    hints += [f" (request-id {one_line(headers[name], 80)})" for name in _REQUEST_ID if headers.get(name)][:1]
    refusal.args = ("".join([str(refusal), *hints]),)
    return refusal


def _body(problem: ModelHTTPError) -> bytes:
    """Return an error's body in the shape that OpenAI's have; pydantic-ai has parsed it, each SDK to another depth."""
    body: Any = problem.body
    if isinstance(body, str) and _kind(problem) is None:
        return body.encode("utf-8", "replace")
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message") if isinstance(inner, dict) else inner
    shown = message if isinstance(message, str) else ""
    return msgspec.json.encode(
        {"error": {"type": _kind(problem), "message": shown.encode("utf-8", "replace").decode()}}
    )


def _kind(problem: ModelAPIError) -> str | None:
    """Return the provider's word for an error, or the one that `refusals` has for what pydantic-ai made of it."""
    match problem:
        case ModelContextWindowExceededError():
            return "context_length_exceeded"
        case ModelQuotaExceededError():
            return "insufficient_quota"
    code = problem.provider_error_code
    return code if code and not code.isdigit() else problem.provider_error_type or code


def _said(text: str) -> str:
    return one_line(text, _SHOWN_CHARACTERS)
