from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from fisk_ai.errors import InvalidReply, ProviderError, ProviderRefused, ProviderUnreachable
from fisk_ai.providers.base import Delta, ModelRequest, OnDelta, Reply
from fisk_ai.providers.retry import RetryPolicy, complete_with_retries
from tests.providers.conftest import ask

pytestmark = pytest.mark.anyio
REPLY = Reply("anthropic", b'{"role":"assistant","content":[]}', "end_turn")


class Flaky:
    """A provider that fails as told, then answers."""

    name = "flaky"
    format = "anthropic"

    def __init__(self, *outcomes: ProviderError | float) -> None:
        self.outcomes = list(outcomes)
        self.calls = 0

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self.calls += 1
        on_delta(Delta("text", f"attempt {self.calls}"))
        outcome = self.outcomes.pop(0) if self.outcomes else 0.0
        if isinstance(outcome, ProviderError):
            raise outcome
        await anyio.sleep(outcome)
        return REPLY

    async def aclose(self) -> None:
        """Nothing to do."""


class Interrupted(Exception):
    """What an agent's pause raises to leave."""


class Trial:
    """One run through the retries, with a clock that only notes what it was asked to wait."""

    def __init__(self, *, leave_at_pause: int = 0) -> None:
        self.pauses: list[float] = []
        self.retries: list[tuple[int, str, float]] = []
        self._leave_at_pause = leave_at_pause

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self._leave_at_pause:
            raise Interrupted

    def on_retry(self, attempt: int, error: ProviderError, wait_s: float) -> None:
        self.retries.append((attempt, str(error), wait_s))

    async def run(self, provider: Flaky, deltas: list[Delta], call_timeout_s: float = 5) -> Reply:
        return await complete_with_retries(
            provider,
            ask(),
            on_delta=deltas.append,
            on_retry=self.on_retry,
            pause=self.pause,
            call_timeout_s=call_timeout_s,
            policy=RetryPolicy(jitter=random.Random(1)),
        )


def busy(retry_after_s: float | None = None) -> ProviderRefused:
    return ProviderRefused("busy", status=529, retryable=True, retry_after_s=retry_after_s)


async def test_passing_trouble_is_tried_again_and_announced(deltas: list[Delta]) -> None:
    trial, provider = Trial(), Flaky(busy(), InvalidReply("cut", retryable=True))
    assert await trial.run(provider, deltas) is REPLY
    assert [(attempt, text) for attempt, text, _ in trial.retries] == [(1, "busy"), (2, "cut")]
    assert [wait for _, _, wait in trial.retries] == trial.pauses
    assert [delta.text for delta in deltas] == ["attempt 1", "attempt 2", "attempt 3"]


async def test_waits_grow_up_to_a_limit_and_vary(deltas: list[Delta]) -> None:
    policy = RetryPolicy(jitter=random.Random(1))
    waits = [policy.wait_s(attempt, busy()) for attempt in range(1, 9)]
    assert all(0.75 * ideal <= wait <= ideal for wait, ideal in zip(waits, [0.5, 1, 2, 4, 8, 8, 8, 8], strict=True))
    assert len(set(waits)) == len(waits)


async def test_it_gives_up_after_the_last_attempt(deltas: list[Delta]) -> None:
    trial, provider = Trial(), Flaky(*(busy() for _ in range(9)))
    with pytest.raises(ProviderRefused, match=r"^busy \(tried 4 times\)$"):
        await trial.run(provider, deltas)
    assert provider.calls == 4
    assert len(trial.pauses) == 3


@pytest.mark.parametrize(
    ("error", "said"), [(ProviderRefused("no", status=400), "no"), (InvalidReply("no"), "no (it may be paid for)")]
)
async def test_lasting_trouble_is_not_tried_again(error: ProviderError, said: str, deltas: list[Delta]) -> None:
    trial, provider = Trial(), Flaky(error)
    with pytest.raises(ProviderError) as caught:
        await trial.run(provider, deltas)
    assert str(caught.value) == said
    assert provider.calls == 1


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (["cut", "cut", "cut", "cut"], "cut (tried 4 times, all of which may be paid for)"),
        (["cut", "busy", "cut", "busy"], "busy (tried 4 times, 2 of which may be paid for)"),
        (["busy", "busy", "busy", "unsent"], "unsent (tried 4 times)"),
    ],
)
async def test_what_may_be_paid_of_the_failed_attempts_is_told(
    errors: list[str], said: str, deltas: list[Delta]
) -> None:
    kinds: dict[str, Callable[[], ProviderError]] = {
        "cut": lambda: InvalidReply("cut", retryable=True),
        "busy": busy,
        "unsent": lambda: ProviderUnreachable("unsent", retryable=True, sent=False),
    }
    with pytest.raises(ProviderError) as caught:
        await Trial().run(Flaky(*(kinds[error]() for error in errors)), deltas)
    assert str(caught.value) == said


def limited(retry_after_s: float | None = None, *, retryable: bool = True) -> ProviderRefused:
    return ProviderRefused("slow down", status=429, retryable=retryable, retry_after_s=retry_after_s, rate_limited=True)


async def test_rate_limit_that_outlasts_all_attempts_says_when_it_ends(deltas: list[Delta]) -> None:
    before = datetime.now(UTC)
    with pytest.raises(ProviderRefused) as caught:
        await Trial().run(Flaky(*(limited(90) for _ in range(9))), deltas)
    error = caught.value
    assert error.rate_limited
    assert error.resume_at is not None
    assert timedelta(seconds=90) <= error.resume_at - before < timedelta(seconds=100)
    until = f"{error.resume_at:%Y-%m-%d %H:%M:%S}"
    assert str(error) == f"slow down (tried 4 times). The API asks to wait 90 s, until {until} UTC"


@pytest.mark.parametrize("wait", [None, 0.0])
async def test_rate_limit_without_an_end_is_told_without_one(wait: float | None, deltas: list[Delta]) -> None:
    with pytest.raises(ProviderRefused) as caught:
        await Trial().run(Flaky(*(limited(wait) for _ in range(9))), deltas)
    assert (caught.value.rate_limited, caught.value.resume_at) == (True, None)
    assert str(caught.value) == "slow down (tried 4 times)"


async def test_rate_limit_that_must_not_be_retried_still_is_one(deltas: list[Delta]) -> None:
    trial = Trial()
    with pytest.raises(ProviderRefused, match=r"^slow down\. The API asks to wait 5 s, until .* UTC$") as caught:
        await trial.run(Flaky(limited(5, retryable=False)), deltas)
    assert trial.pauses == []
    assert caught.value.rate_limited


async def test_trouble_that_is_no_limit_is_none_after_all_attempts(deltas: list[Delta]) -> None:
    with pytest.raises(ProviderRefused) as caught:
        await Trial().run(Flaky(*(busy(3) for _ in range(9))), deltas)
    assert not caught.value.rate_limited
    assert caught.value.resume_at is None


async def test_it_waits_as_long_as_the_api_asks(deltas: list[Delta]) -> None:
    trial = Trial()
    await trial.run(Flaky(busy(120), busy(0)), deltas)
    assert trial.pauses[0] == 120
    assert trial.pauses[1] >= 0.75


async def test_it_gives_up_at_once_if_the_api_asks_for_too_long_and_says_until_when(deltas: list[Delta]) -> None:
    trial, provider = Trial(), Flaky(busy(3600))
    with pytest.raises(ProviderRefused, match=r"busy\. The API asks to wait 3600 s, until 2\d{3}-.* UTC") as caught:
        await trial.run(provider, deltas)
    assert provider.calls == 1
    assert trial.pauses == []
    assert str(caught.value).endswith(" UTC: longer than the 120 s that are waited here")
    assert (caught.value.retryable, caught.value.rate_limited) == (False, True)
    assert caught.value.resume_at is not None


async def test_absurd_waits_are_survived(deltas: list[Delta]) -> None:
    with pytest.raises(ProviderRefused, match=r"asks to wait 1000\d+ s: longer"):
        await Trial().run(Flaky(busy(1e30)), deltas)


async def test_what_the_pause_raises_leaves_at_once(deltas: list[Delta]) -> None:
    trial, provider = Trial(leave_at_pause=2), Flaky(busy(), busy(), busy())
    with pytest.raises(Interrupted):
        await trial.run(provider, deltas)
    assert provider.calls == 2


async def test_each_attempt_has_a_deadline_in_all(deltas: list[Delta]) -> None:
    trial, provider = Trial(), Flaky(60.0, 60.0)
    assert await trial.run(provider, deltas, call_timeout_s=0.01) is REPLY
    assert provider.calls == 3
    assert "longer than call_timeout (0.01 s)" in trial.retries[0][1]


async def test_time_that_runs_out_again_and_again_is_an_error(deltas: list[Delta]) -> None:
    with pytest.raises(ProviderUnreachable, match="call_timeout"):
        await Trial().run(Flaky(*[60.0] * 9), deltas, call_timeout_s=0.001)


async def test_cancellation_from_outside_is_no_failed_attempt(deltas: list[Delta]) -> None:
    trial, provider = Trial(), Flaky(60.0)
    with anyio.move_on_after(0.01) as scope:
        await trial.run(provider, deltas)
    assert scope.cancelled_caught
    assert provider.calls == 1


async def test_faults_of_our_own_are_not_retried(deltas: list[Delta]) -> None:
    class Broken(Flaky):
        async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
            self.calls += 1
            raise KeyError("bug")

    provider: Flaky = Broken()
    with pytest.raises(KeyError):
        await Trial().run(provider, deltas)
    assert provider.calls == 1
