"""Why an API refused a request: the rule that the stored conversation breaks, and where to fork before it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fisk_ai.errors import FiskError, ProviderError, ProviderRefused
from fisk_ai.messages import Message
from fisk_ai.providers import anthropic, openai, responses
from fisk_ai.providers.base import ModelRequest
from fisk_ai.providers.rules import Problem, check_chat_request, check_messages_request, check_responses_request

_ABOUT_THE_REQUEST = frozenset({400, 422})


def _of_messages(request: ModelRequest) -> list[Problem]:
    return check_messages_request(anthropic.build_request(request, stream=False))


def _of_chat(request: ModelRequest) -> list[Problem]:
    return check_chat_request(openai.build_request(request, stream=False, official=False))


def _of_responses(request: ModelRequest) -> list[Problem]:
    # Compatible servers take reasoning as they gave it.
    return check_responses_request(responses.build_request(request, stream=False, official=True), sealed_only=False)


_CHECKS: Mapping[str, Callable[[ModelRequest], list[Problem]]] = {
    "anthropic": _of_messages,
    "openai": _of_chat,
    "openai-responses": _of_responses,
}
"""Format -> what is wrong with a request. It is built anew: a provider's options don't change the conversation."""


def explain_refusal(error: ProviderError, format_name: str, request: ModelRequest, run_id: str | None) -> str | None:
    """Say what is wrong with a request that was refused, and what to do, or None if no known rule is broken.

    Args:
        error: how the model call failed.
        format_name: of the provider.
        request: what was asked.
        run_id: of the stored run; None: it is stored nowhere, so there is nothing to fork.
    """
    if not isinstance(error, ProviderRefused) or error.status not in _ABOUT_THE_REQUEST or error.is_context_overflow:
        return None
    problems = broken_rules(format_name, request)
    if not problems:
        return None
    problem = next((each for each in problems if each.part != "settings"), problems[0])
    if problem.part == "settings":
        return f"the request breaks a rule of the API: {problem} ({problem.source})"
    found = f"the stored conversation breaks a rule of the API: {problem} ({problem.source})"
    if run_id is None:
        return found
    seq = record_before(problem, request.messages)
    if seq is None:
        return f"{found}; start a run with another prompt"
    return f"{found}; `fisk-ai session fork {run_id} --at {seq}` leaves it out"


def broken_rules(format_name: str, request: ModelRequest) -> list[Problem]:
    """Return the rules that a request breaks; none for a format whose rules aren't known."""
    if format_name not in _CHECKS:
        return []
    try:
        return _CHECKS[format_name](request)
    except FiskError:
        return []  # it couldn't be built, so it is not what was refused


def record_before(problem: Problem, messages: Sequence[Message]) -> int | None:
    """Return the last record before what is wrong, with which a fork leaves it out; None if it is the first one.

    What was typed after an answer leaves the answer; results go with the turn that they answer.
    """
    turns = [message for message in messages if message.role == "assistant"]
    number = problem.turns if problem.part == "turn" else problem.turns - 1
    if not 0 <= number < len(turns) or (seq := turns[number].seq) is None:
        return None
    return seq if problem.part == "user" else seq - 1
