from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from fisk_ai.messages import Message, tool_result
from fisk_ai.providers.responses import build_request
from tests.providers.conftest import ask, results, user
from tests.providers.strict_responses import check_responses_request, turns_of
from tests.providers.strict_rules import Refused

REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA=="}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "lookup", "arguments": "{}"}
OUTPUT: list[dict[str, Any]] = [REASONING, CALL]
TURN = Message("assistant", "openai-responses", json.dumps({"role": "assistant", "output": OUTPUT}).encode())


def good() -> Any:
    """Return a request that nothing is wrong with; its input is user, reasoning, call, result."""
    return json.loads(build_request(ask(user(), TURN, results(tool_result("c1", "ok"))), stream=False, official=True))


def test_good_request_is_taken_and_its_turns_are_found() -> None:
    check_responses_request(good(), [OUTPUT])
    assert turns_of(good()) == [OUTPUT]


BAD: dict[str, Callable[[Any], Any]] = {
    "unknown field": lambda body: body.update(messages=[]),
    "no limit": lambda body: body.pop("max_output_tokens"),
    "stored": lambda body: body.update(store=True),
    "nothing included": lambda body: body.pop("include"),
    "unknown effort": lambda body: body.update(reasoning={"effort": "some"}),
    "empty tools": lambda body: body.update(tools=[]),
    "strict tool": lambda body: body["tools"][0].pop("strict"),
    "empty input": lambda body: body.update(input=[]),
    "unanswered call": lambda body: body["input"].pop(),
    "call that nobody made": lambda body: body["input"].pop(2),
    "result twice": lambda body: body["input"].append(body["input"][3]),
    "item twice": lambda body: body["input"].insert(2, body["input"][1]),
    "turn first": lambda body: body["input"].pop(0),
    "two users": lambda body: body["input"].insert(0, body["input"][0]),
    "user before the result": lambda body: body["input"].insert(3, body["input"][0]),
    "blank text": lambda body: body["input"][0].update(content=" "),
    "blank result": lambda body: body["input"][3].update(output=""),
    "unsealed reasoning": lambda body: body["input"][1].pop("encrypted_content"),
    "reasoning without a summary": lambda body: body["input"][1].pop("summary"),
    "changed reasoning": lambda body: body["input"][1].update(encrypted_content="gB=="),
    "lost reasoning": lambda body: body["input"].pop(1),
    "arguments that are an object": lambda body: body["input"][2].update(arguments={}),
    "arguments that are no object": lambda body: body["input"][2].update(arguments="[]"),
    "call without an id": lambda body: body["input"][2].update(call_id=""),
}


@pytest.mark.parametrize("kind", BAD)
def test_each_kind_of_bad_request_is_refused(kind: str) -> None:
    body = copy.deepcopy(good())
    BAD[kind](body)
    with pytest.raises(Refused):
        check_responses_request(body, [OUTPUT][: len(turns_of(body))])


def test_reasoning_that_nothing_follows_is_refused() -> None:
    body = good()
    body["input"] = [body["input"][0], REASONING, {"role": "user", "content": "and?"}]
    with pytest.raises(Refused, match="required following item"):
        check_responses_request(body, [[REASONING]])
