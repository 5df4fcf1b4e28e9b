"""Requests: one for each record of each run that a seed draws, held to the rules of its API."""

from __future__ import annotations

from tests.providers.conversations import draw_run
from tests.providers.requests_law import check_run
from tests.reliability.trials import Form, Tally, Trial, require

SHORT = 150
LONG = 6000
NEEDED = frozenset(
    {"version 1", "version 2", "foreign", "ours", "follow-up", "empty turn", "unusable call", "parallel", "streamed"}
    | {"text", "blank text", "thinking", "redacted_thinking", "cited text", "server tool", "unknown block", "tool_use"}
    | {"tool_calls", "refusal", "reasoning_content", "from_the_future", "function_call", "custom_tool_call"}
    | {"reasoning", "unsealed reasoning", "web_search_call", "unknown item", "message", "refused"}
    | {"result: text", "result: image", "result: text and image", "result: foreign", "result of an error"}
    | {"end: clean", "end: mark", "end: force", "end: done", "stream not verbatim"}
    | {f"stop: {reason}" for reason in ("tool_use", "end_turn", "pause_turn", "max_tokens", "refusal", "new_one")}
    | {f"next: {step}" for step in ("CallModel", "RunCalls", "AnswerCall", "AwaitInput", "Finish")}
)
"""What the runs have to hold, and what has to come next in some of them; each is drawn in the short form too."""


def _run(tally: Tally, form: Form) -> None:
    for seed in range(SHORT if form == "short" else LONG):
        with tally.case(f"tests.providers.requests_law.check_run(draw_run({seed}))"):
            run = draw_run(seed)
            tally.reached.update(run.kinds)
            for cut in check_run(run):
                tally.reached[f"next: {type(cut.step).__name__}"] += 1
                tally.reached["requests"] += cut.request is not None
    missed = sorted(NEEDED - tally.reached.keys())
    with tally.case("what the runs hold", times=0):
        require(not missed, "no run had", missed, kind="undetected")


TRIALS: tuple[Trial, ...] = (
    Trial(
        name="requests of every prefix",
        unit="journals",
        method=(
            "Runs are drawn with every kind of block, stop reason, result, end and mark, their turns read by the "
            "adapters; cut at each record, the request that comes next breaks no rule of its API and holds each turn "
            "byte for byte, and where calls are open there is none."
        ),
        promises="P1 P20",
        run=_run,
        target=2000,
    ),
)
