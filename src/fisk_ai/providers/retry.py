"""How long a failing model call is tried again: back-off, what the API asks for, and a cap on patience."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import anyio
import tenacity

from fisk_ai.errors import ProviderError, ProviderUnreachable
from fisk_ai.providers.base import ModelRequest, OnDelta, Provider, Reply

OnRetry = Callable[[int, ProviderError, float], None]
"""Called before each pause with the number of the attempt that failed (from 1), its error, and the pause in seconds."""

Pause = Callable[[float], Awaitable[None]]
"""Waits for seconds; what it raises leaves the retries."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to try again."""

    attempts: int = 4
    """In all, the first included."""
    patience_s: float = 120.0
    """The longest wait that an API may ask for; if it asks for more, the call fails at once, as rate limited."""
    first_wait_s: float = 0.5
    """Doubled with each attempt, then varied by up to a quarter so that a fleet doesn't knock all at once."""
    longest_wait_s: float = 8.0
    jitter: random.Random = field(default_factory=random.Random)

    def wait_s(self, attempt: int, error: ProviderError) -> float:
        """Return the pause after the failed `attempt` (from 1); never shorter than the API asked for."""
        backoff = min(self.first_wait_s * 2.0 ** (attempt - 1), self.longest_wait_s)
        return max(backoff * self.jitter.uniform(0.75, 1.0), error.retry_after_s or 0.0)


async def complete_with_retries(
    provider: Provider,
    request: ModelRequest,
    *,
    on_delta: OnDelta,
    on_retry: OnRetry,
    pause: Pause,
    call_timeout_s: float,
    policy: RetryPolicy | None = None,
) -> Reply:
    """Return a whole turn, trying again while that may help.

    Each attempt has `call_timeout_s` seconds in all. A repeated attempt streams its deltas anew.

    Raises:
        ProviderError: when it failed for good; it tells how often it was tried, what of that may be paid for, and
            until when the API wants to be left alone. Also whatever `pause` raises.
    """
    policy = policy or RetryPolicy()
    failed: list[ProviderError] = []

    async def attempt() -> Reply:
        try:
            return await _attempt(provider, request, on_delta, call_timeout_s)
        except ProviderError as error:
            failed.append(error)
            if error.retryable and (error.retry_after_s or 0.0) > policy.patience_s:
                error.retryable, error.rate_limited = False, True
            raise

    def before_pause(state: tenacity.RetryCallState) -> None:
        on_retry(state.attempt_number, _error_of(state), state.upcoming_sleep)

    async def pause_for(seconds: float) -> None:
        await pause(seconds)

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ProviderError) and error.retryable),
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=lambda state: policy.wait_s(state.attempt_number, _error_of(state)),
        before_sleep=before_pause,
        sleep=pause_for,
        reraise=True,
    )
    try:
        return await retrying(attempt)
    except ProviderError as error:
        error.args = (f"{error}{_tally(failed)}{_until(error, policy.patience_s)}",)
        raise


async def _attempt(provider: Provider, request: ModelRequest, on_delta: OnDelta, call_timeout_s: float) -> Reply:
    with anyio.move_on_after(call_timeout_s) as deadline:
        return await provider.complete(request, on_delta)
    assert deadline.cancelled_caught
    raise ProviderUnreachable(
        f"the model call took longer than call_timeout ({call_timeout_s:g} s) and was given up: if the model needs "
        f"more time, raise llm.budget.call_timeout",
        retryable=True,
    )


def _tally(failed: Sequence[ProviderError]) -> str:
    """Say how often it was tried, and how much of that was perhaps work of the model."""
    tries, paid = len(failed), sum(error.may_be_paid for error in failed)
    if tries == 1:
        return " (it may be paid for)" if paid else ""
    which = "all" if paid == tries else str(paid)
    return f" (tried {tries} times, {which} of which may be paid for)" if paid else f" (tried {tries} times)"


def _until(error: ProviderError, patience_s: float) -> str:
    """Note on a rate limit when it ends, and say so."""
    wait_s = error.retry_after_s
    if not error.rate_limited or not wait_s:
        return ""
    error.resume_at = _after(wait_s)
    until = f", until {error.resume_at:%Y-%m-%d %H:%M:%S} UTC" if error.resume_at else ""
    why = f": longer than the {patience_s:g} s that are waited here" if wait_s > patience_s else ""
    return f". The API asks to wait {math.ceil(wait_s)} s{until}{why}"


def _after(wait_s: float) -> datetime | None:
    """Return the first whole second after a wait, or None if no calendar has it."""
    try:
        at = datetime.now(UTC) + timedelta(seconds=wait_s)
        return at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
    except OverflowError:
        return None


def _error_of(state: tenacity.RetryCallState) -> ProviderError:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, ProviderError)
    return error
