"""Every run that folds gives requests that its API accepts, with the turns in them as they were journaled."""

from __future__ import annotations

from fisk_ai.agent.decide import CallModel
from tests.providers.conversations import FORMATS, draw_run
from tests.providers.requests_law import check_run
from tests.reliability.request_trials import TRIALS
from tests.reliability.trials import tried


def test_every_prefix_of_every_run_gives_a_request_that_its_api_accepts() -> None:
    tally = tried(TRIALS[0], "short")
    tally.check()
    assert tally.reached["requests"] > 400


def test_no_request_is_made_unless_the_model_is_what_comes_next() -> None:
    cuts = [cut for seed in range(len(FORMATS) * 10) for cut in check_run(draw_run(seed))]
    assert all((cut.request is not None) == isinstance(cut.step, CallModel) for cut in cuts)
    assert {type(cut.step).__name__ for cut in cuts} >= {"CallModel", "RunCalls", "AnswerCall", "AwaitInput"}


def test_a_run_of_a_seed_is_always_the_same() -> None:
    assert draw_run(7) == draw_run(7)
