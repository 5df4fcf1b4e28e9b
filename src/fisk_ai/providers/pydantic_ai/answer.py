"""What a response of pydantic-ai's says as a turn: its message as journaled, why it stopped, what it cost."""

from __future__ import annotations

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import StreamedResponse

from fisk_ai.errors import InvalidReply
from fisk_ai.providers.base import Reply
from fisk_ai.providers.pydantic_ai.conversation import FORMAT, settle
from fisk_ai.providers.settle import Settled
from fisk_ai.providers.wire import ended_early
from fisk_ai.text import one_line, wellformed

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_call": "tool_use",
}
"""pydantic-ai's word -> the Messages API's; words that aren't here stay as they are."""
_MESSAGES_WORDS = frozenset({"stop_sequence", "pause_turn", "refusal", "model_context_window_exceeded"})
"""Words of the Messages API that pydantic-ai has none for."""


def is_cut(stream: StreamedResponse, response: ModelResponse) -> bool:
    """Tell whether a stream ended before its turn was whole, and pydantic-ai made up a finish reason.

    It does so for Chat Completions, where some servers never send one; but then nobody knows that it is all.
    """
    made_up = hasattr(stream, "_missing_finish_reason") and response.finish_reason == "stop"
    return made_up and _raw_reason(response) is None


def _raw_reason(response: ModelResponse) -> str | None:
    """Return why the model stopped in its API's own words, where pydantic-ai keeps them."""
    raw = (response.provider_details or {}).get("finish_reason")
    return one_line(wellformed(str(raw)), 80) if raw else None


def read_response(response: ModelResponse, *, cut: bool) -> Reply:
    """Return the turn that a response holds.

    Raises:
        InvalidReply: if it isn't a whole turn, or one that can't be journaled and sent back.
    """
    raw = _raw_reason(response)
    without = response.finish_reason is None and raw is None
    if cut or without or response.state in ("incomplete", "interrupted"):
        raise ended_early("a finish reason")
    if response.finish_reason == "error":
        raise InvalidReply(
            f"the model's turn ended in an error ({raw or 'its API says no more'}) and was dropped", retryable=True
        )
    settled = settle(response)
    usage = response.usage
    return Reply(
        format=FORMAT,
        message=settled.message,
        stop_reason=_stop_reason(response, raw, settled),
        in_tokens=max(usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0),
        out_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_create_tokens=usage.cache_write_tokens,
        response_id=response.provider_response_id,
        stop_note=_stop_note(response, raw),
        unusable=settled.unusable,
    )


def _stop_reason(response: ModelResponse, raw: str | None, settled: Settled) -> str:
    """Return why the model stopped; of calls, the message knows better than the finish reason."""
    if response.state == "suspended":
        return "pause_turn"
    if raw in _MESSAGES_WORDS:
        return raw
    if _refused(response):
        return "refusal"
    reason = response.finish_reason or raw or ""
    reason = _STOP_REASONS.get(reason, reason)
    if reason in ("end_turn", "tool_use"):
        return "tool_use" if settled.turn.calls else "end_turn"
    return reason


def _refused(response: ModelResponse) -> bool:
    return bool((response.provider_details or {}).get("refusal"))


def _stop_note(response: ModelResponse, raw: str | None) -> str | None:
    """Return what the API says of a turn that its filter or the model itself ended."""
    if response.finish_reason != "content_filter":
        return None
    details = response.provider_details or {}
    said = details.get("refusal") or details.get("block_reason_message") or details.get("block_reason") or raw
    return one_line(wellformed(str(said)), 300) if said else None
