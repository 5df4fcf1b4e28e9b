"""How much a resume sends: the tokens of its next request, from what the journal holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from fisk_ai.agent.decide import dead_end
from fisk_ai.folding import RunState, Turn
from fisk_ai.messages import ImageBlock, Message, ToolResultBlock, UserBlock, read_result, read_user

_BYTES_A_TOKEN = 4
_IMAGE_TOKENS = 1500
"""About what a picture of a screen costs; its bytes say nothing about it."""
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class NextInput:
    """What the next request of a run sends."""

    tokens: int
    measured: bool
    """False if no turn was counted by the provider: all of it is an estimate, without system prompt and tools."""
    open_calls: int = 0
    """Calls whose results come on top."""


def next_input(state: RunState) -> NextInput | None:
    """Estimate what the next request of a run sends, or return None if it makes none.

    The provider's count of the last turn, where there is one, and an estimate of what came after it.
    """
    if _asks_no_more(state):
        return None
    turn, pending = state.last_turn, state.pending
    open_calls = len(pending.unanswered) if pending else 0
    if turn is None or turn.input_tokens <= 0:
        return NextInput(sum(map(_message_tokens, _messages(state))) + _open_results(state), False, open_calls)
    last = state.messages[-1:] if not state.answered and pending is None else ()
    after = sum(map(_message_tokens, last)) + _open_results(state)
    return NextInput(turn.input_tokens + _turn_tokens(state, turn) + after, True, open_calls)


def _asks_no_more(state: RunState) -> bool:
    """Tell whether all that is left is to record the end."""
    if state.terminal is not None and state.terminal.reason == "completed":
        return True
    paused = state.last_turn is not None and state.last_turn.stop_reason == "pause_turn"
    return dead_end(state) is not None or (state.answered and not paused and not state.interactive)


def _messages(state: RunState) -> tuple[Message, ...]:
    return (*state.messages, state.pending.message) if state.pending else state.messages


def _turn_tokens(state: RunState, turn: Turn) -> int:
    """Return what the last turn is when it is sent back: its reasoning may have stayed with the provider."""
    # An empty turn is no message at all.
    sent = sum(len(message.content) for message in _messages(state)[-2:] if message.seq == turn.seq)
    return max(min(turn.output_tokens, sent), 0)


def _open_results(state: RunState) -> int:
    results = state.pending.results.values() if state.pending else ()
    return sum(_block_tokens([read_result(raw)], len(raw)) for raw in results)


def _message_tokens(message: Message) -> int:
    if message.role == "assistant":
        return _of_bytes(len(message.content))
    try:
        blocks = read_user(message.content).blocks
    except msgspec.MsgspecError:  # a message of other origin, which the transcript can't show either
        return _of_bytes(len(message.content))
    return _block_tokens(blocks, len(message.content))


def _block_tokens(blocks: Iterable[UserBlock], size: int) -> int:
    images = [image for block in blocks for image in _images(block)]
    return _of_bytes(size - sum(len(image.source.data) for image in images)) + len(images) * _IMAGE_TOKENS


def _images(block: UserBlock) -> list[ImageBlock]:
    parts = block.blocks if isinstance(block, ToolResultBlock) else (block,)
    return [part for part in parts if isinstance(part, ImageBlock)]


def _of_bytes(size: int) -> int:
    return -(-size // _BYTES_A_TOKEN)


def next_input_text(found: NextInput) -> str:
    """Return it for people: `about 12,300 tokens`, and what comes on top."""
    more = [] if found.measured else ["the system prompt and the tools"]
    if found.open_calls:
        more.append(f"what {found.open_calls} open call{'s answer' if found.open_calls > 1 else ' answers'}")
    return " and ".join([f"about {_rounded(found.tokens):,} tokens", *more])


def _rounded(number: int) -> int:
    return round(number, min(_DIGITS - len(str(number)), 0))
