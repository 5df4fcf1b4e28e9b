"""Bugs in the step from a run to a request: what an API refuses, and turns that come back in other words."""

from __future__ import annotations

from fisk_ai.folding import Folding
from fisk_ai.providers import anthropic, openai
from tests.reliability.planted.edits import Edit, Planted

_LAW = "tests/providers/test_requests_law.py"
_EVERY_PREFIX = f"{_LAW}::test_every_prefix_of_every_run_gives_a_request_that_its_api_accepts"

BUGS = (
    Planted(
        "results behind text",
        "What was typed stands before the results that were there already.",
        (
            Edit(
                Folding._user, "self._user_blocks += blocks", "self._user_blocks = planted(blocks) + self._user_blocks"
            ),
        ),
        caught_by=f"{_LAW}::test_what_is_typed_behind_a_refused_turns_results_is_sent_behind_them",
    ),
    Planted(
        "blank text sent",
        "Blank text that another program journaled beside other blocks is sent.",
        (Edit(anthropic._sent, "if not _MAYBE_BLANK.search(message.content):", "if planted(True):"),),
        caught_by=_EVERY_PREFIX,
    ),
    Planted(
        "blank result sent",
        "A result that another program left blank is sent as it is.",
        (Edit(Folding._tool_result, "sendable_result(bytes(record.result))", "planted(bytes(record.result))"),),
        caught_by=_EVERY_PREFIX,
    ),
    Planted(
        "image in an error's result",
        "A failed call's image is sent where the API takes text only.",
        (Edit(anthropic._sent, "return images_behind_results(message.content)", "return planted(message.content)"),),
        caught_by=f"{_LAW}::test_images_of_a_failed_call_are_sent_behind_the_results",
    ),
    Planted(
        "turn encoded anew",
        "A turn is parsed and encoded, so numbers and escapes change.",
        (
            Edit(
                anthropic._sent,
                "return message.content",
                "return planted(msgspec.json.encode(msgspec.json.decode(message.content)))",
            ),
        ),
        caught_by=_EVERY_PREFIX,
    ),
    Planted(
        "chat turn encoded anew",
        "A turn of Chat Completions is parsed and encoded.",
        (
            Edit(
                openai._sent,
                "return [message.content]",
                "return [planted(msgspec.json.encode(msgspec.json.decode(message.content)))]",
            ),
        ),
        caught_by=_EVERY_PREFIX,
    ),
    Planted(
        "result typed by an operator",
        "A follow-up that holds a tool's result, which no call is open for, is believed.",
        (
            Edit(
                Folding._user,
                "if any(isinstance(block, ToolResultBlock) for block in typed.blocks):",
                "if planted(False):",
            ),
        ),
        caught_by=f"{_LAW}::test_a_follow_up_that_holds_a_tool_result_is_damage",
    ),
)
