"""What holds for the request of every run, cut at every record: it breaks no rule, and turns are in it as journaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fisk_ai import codec
from fisk_ai.agent.decide import CallModel, Step, decide
from fisk_ai.folding import Folding
from fisk_ai.formats import reader_for
from fisk_ai.messages import Message
from fisk_ai.providers import anthropic, openai, responses
from fisk_ai.providers.base import ModelOptions, ModelRequest
from fisk_ai.providers.rules import Problem, check_chat_request, check_messages_request, check_responses_request
from fisk_ai.records import AssistantRecord, SequencedRecord
from tests.providers.conftest import LOOKUP
from tests.providers.conversations import NO_LIMIT, TOOLS, Drawn, Format
from tests.reliability.trials import require
from tests.strategies import lines_of

_OPTIONS = ModelOptions(server_tools=({"type": "web_search_20260209", "name": "web_search"},))


@dataclass(frozen=True, slots=True)
class Cut:
    """A run up to one of its records."""

    step: Step
    request: bytes | None
    """None where the model is not the next that is asked."""


def check_run(run: Drawn) -> list[Cut]:
    """Check a run at each of its records; raises `BrokenPromise`."""
    records = _reread(run)
    folding, cuts = Folding(), []
    for count, record in enumerate(records, 1):
        folding.apply(record)
        step = decide(folding, tools=TOOLS, budget=NO_LIMIT)
        if not isinstance(step, CallModel):
            cuts.append(Cut(step, None))
            continue
        require(folding.pending is None, f"after record {count} the model is asked though calls are unanswered")
        sent = _BUILD[run.format](_asked(folding.conversation(), count))
        _check_request(run, records[:count], sent, count)
        cuts.append(Cut(step, sent))
    return cuts


def _reread(run: Drawn) -> list[SequencedRecord]:
    """Return the records as they are read from the journal that they make."""
    scanner = codec.Scanner()
    records = scanner.feed(b"".join(lines_of([each.record for each in run.records])))
    more, tail = scanner.finish()
    require(not tail.torn and len(records + more) == len(run.records), "the journal isn't whole", kind="undetected")
    return records + more


def _asked(conversation: Sequence[Message], count: int) -> ModelRequest:
    return ModelRequest(
        "some-model",
        "Be brief." if count % 2 else "",
        (LOOKUP,),
        conversation,
        iteration=count,
        max_output_tokens=4000,
        thinking_mode=("off", "adaptive")[count % 2],
    )


_BUILD: Mapping[Format, Callable[[ModelRequest], bytes]] = {
    "anthropic": lambda request: anthropic.build_request(request, stream=True, options=_OPTIONS),
    "openai": lambda request: openai.build_request(request, stream=True, official=False),
    "openai-responses": lambda request: responses.build_request(request, stream=True, official=True),
}
RULES: Mapping[Format, Callable[[bytes, list[bool]], list[Problem]]] = {
    "anthropic": check_messages_request,
    "openai": check_chat_request,
    "openai-responses": check_responses_request,
}


def _check_request(run: Drawn, records: Sequence[SequencedRecord], sent: bytes, count: int) -> None:
    turns = [each.record for each in records if isinstance(each.record, AssistantRecord)]
    turns = [turn for turn in turns if not reader_for(turn.format)(bytes(turn.message)).empty]
    problems = RULES[run.format](sent, [turn.stop_reason == "pause_turn" for turn in turns])
    require(not problems, f"after record {count}:", *problems, sent[-2000:])
    at = 0
    for turn in turns:
        for piece in _verbatim(run, bytes(turn.message)):
            found = sent.find(piece, at)
            require(found >= 0, f"after record {count} a turn isn't sent as it was journaled: {piece!r}")
            at = found + len(piece)


class _Turn(msgspec.Struct):
    output: msgspec.Raw = msgspec.Raw(b"[]")
    content: msgspec.Raw = msgspec.Raw(b"[]")


def _verbatim(run: Drawn, message: bytes) -> Sequence[bytes]:
    """Return what of a turn's bytes has to be in a request, in this order."""
    if run.format == "openai-responses":
        return [bytes(msgspec.json.decode(message, type=_Turn).output).strip()[1:-1].strip()]
    if "foreign" not in run.kinds:
        return [message]
    content = bytes(msgspec.json.decode(message, type=_Turn).content)
    if content.startswith(b'"'):
        return [message]
    # The one liberty of the adapter: blank text, which another program may have kept, is left out.
    blocks = [bytes(raw) for raw in msgspec.json.decode(content, type=list[msgspec.Raw])]
    said = [raw for raw in blocks if not reader_for("anthropic")(b'{"content":[' + raw + b"]}").empty]
    return [message] if said == blocks else said
