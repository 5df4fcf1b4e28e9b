"""Reader of the Messages API's assistant messages.

Only `text` and `tool_use` blocks mean something here; every other block (thinking, tools that ran on the provider's
side, kinds that don't exist yet) is carried along unread.
"""

from __future__ import annotations

import msgspec

from fisk_ai.jsontext import MAX_NESTING, nesting
from fisk_ai.messages import MAX_INPUT_NESTING, Call, TurnContent, is_blank


class Block(msgspec.Struct):
    """The parts of a content block that a runner looks at."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Turn(msgspec.Struct):
    content: list[Block] | str


_decoder = msgspec.json.Decoder(_Turn)


def read_turn(message: bytes) -> TurnContent:
    """Read an assistant message; raises `msgspec.DecodeError` if it has not this shape."""
    content = _decoder.decode(message).content
    blocks = [Block(type="text", text=content)] if isinstance(content, str) else content
    texts = [block.text for block in blocks if block.type == "text"]
    uses = [block for block in blocks if block.type == "tool_use"]
    calls = tuple(
        Call(position, use.id, use.name, bytes(use.input), is_usable(bytes(use.input)))
        for position, use in enumerate(uses)
    )
    empty = len(texts) == len(blocks) and all(map(is_blank, texts))
    return TurnContent(calls, "".join(texts), empty)


def is_usable(arguments: bytes) -> bool:
    """Tell whether a call's arguments are an object that can be journaled and run."""
    if not arguments.lstrip().startswith(b"{"):
        return False
    return arguments.count(b"[") + arguments.count(b"{") <= MAX_NESTING // 2 or (
        nesting(arguments) <= MAX_INPUT_NESTING
    )
