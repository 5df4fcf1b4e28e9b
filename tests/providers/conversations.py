"""Runs as they may be journaled, drawn by a seed: what models said goes through the adapters that read it.

All kinds of blocks and stop reasons, answers that need settling, empty turns, ids that come again, results with images,
errors, follow-ups, clean ends, marks, forced marks, and journals of other origin whose turns nobody settled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import msgspec

from fisk_ai.agent.decide import Budget, CallModel, decide
from fisk_ai.errors import InvalidReply
from fisk_ai.folding import Folding
from fisk_ai.formats import reader_for
from fisk_ai.messages import Call, ImageBlock, ImageSource, TextBlock, encode_result, tool_result
from fisk_ai.providers import anthropic, openai, responses
from fisk_ai.providers.base import Reply
from fisk_ai.providers.wire import Accumulator, StreamNotVerbatim
from fisk_ai.records import AssistantRecord, Reason, Record, SequencedRecord, ToolResultRecord, UserRecord, resume_mark
from tests.providers.strict_responses import ResponsesSpeech
from tests.providers.strict_server import ChatSpeech, MessagesSpeech, Turn
from tests.strategies import ODD_TEXTS, ended, fingerprint, meta

Format = Literal["anthropic", "openai", "openai-responses"]
FORMATS: tuple[Format, ...] = ("anthropic", "openai", "openai-responses")
TOOLS = frozenset({"lookup", "du"})
NO_LIMIT = Budget()

_MODEL = {"model": "some-model"}
_NAMES = ("lookup", "du", "mcp__time", "gone", "od d/ne")
_TEXTS = (*ODD_TEXTS, "Looking.", "x", "trailing \n")
_BLANKS = ("", " ", "\n\t", "\u200b", "\u00a0\u2028")
_IDS = ("toolu_1", "toolu_1", "toolu_2", "call_0", "call_1", "", "fun:1/\u00e9", "a b")
_ARGUMENTS: tuple[Any, ...] = (
    {},
    {"stream": "ORDERS"},
    {"n": [1, {"a": None}], "\u2028": "\x00"},
    "cut {",
    [],
    None,
    7,
    {"deep": [[[[{}]]]]},
)
_IMAGE = ImageBlock(ImageSource("base64", "image/png", "iVBORw0KGgo="))
_ENDS: tuple[Reason, ...] = ("suspended", "error", "budget", "max_iterations")


@dataclass
class Drawn:
    """A run."""

    format: Format
    records: list[SequencedRecord]
    kinds: set[str]
    """What it holds, by kinds of blocks, records and stop reasons."""


def draw_run(seed: int, *, steps: int = 16) -> Drawn:
    """Return the run of a seed."""
    random = Random(seed)
    return _Author(random, FORMATS[seed % len(FORMATS)]).write(steps)


@dataclass
class _Author:
    random: Random
    format: Format
    folding: Folding = field(default_factory=Folding)
    records: list[SequencedRecord] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    version: int = 2
    foreign: bool = False
    turns: int = 0

    def write(self, steps: int) -> Drawn:
        """Return a whole run."""
        self.foreign = self.format == "anthropic" and self.random.random() < 0.3
        self.version = 1 if self.foreign and self.random.random() < 0.5 else 2
        prompt = self.text(blank=0.1 if self.foreign else 0)
        chat = self.version > 1 and self.random.random() < 0.6
        self.note("version 1" if self.version == 1 else "version 2", "foreign" if self.foreign else "ours")
        self.append(meta(prompt=prompt, version=self.version, interactive=chat))
        for _ in range(self.random.randint(0, steps)):
            self.step()
            if self.folding.terminal is not None and self.folding.terminal.reason == "completed":
                break
        return Drawn(self.format, self.records, self.kinds)

    def note(self, *kinds: str) -> None:
        """Note what the run holds."""
        self.kinds.update(kinds)

    def append(self, record: Record) -> None:
        """Add a record, which has to follow from those before."""
        sequenced = SequencedRecord(len(self.records) + 1, record)
        self.folding.apply(sequenced)
        self.records.append(sequenced)

    def step(self) -> None:
        """Add what may come next."""
        pending = self.folding.pending
        if (chance := self.random.random()) < 0.12:
            self.end()
        elif pending is not None:
            self.answer(self.random.choice(pending.unanswered))
        elif self.version > 1 and chance < 0.3:
            self.follow_up()
        elif isinstance(decide(self.folding, tools=TOOLS, budget=NO_LIMIT), CallModel):
            self.turn()
        elif self.version > 1:
            self.follow_up()

    def end(self) -> None:
        """Add an end, a mark, or the mark of a forced resume."""
        kind = self.random.choice(("clean", "clean", "mark", "force", "done"))
        if kind == "done" and (self.folding.pending is not None or self.random.random() < 0.7):
            kind = "clean"
        self.note(f"end: {kind}")
        match kind:
            case "clean":
                self.append(ended(self.random.choice(_ENDS), self.random.choice((None, "why"))))
            case "mark":
                self.append(resume_mark())
            case "force":
                self.append(resume_mark(fingerprint("claude-opus-5")))
            case _:
                self.append(ended("completed"))

    def follow_up(self) -> None:
        """Add something typed."""
        texts = [self.text(blank=0.2 if self.foreign else 0) for _ in range(self.random.choice((1, 1, 2)))]
        content: Any = [{"type": "text", "text": text} for text in texts]
        if self.foreign and self.random.random() < 0.3:
            content = texts[0]
        self.note("follow-up")
        self.append(UserRecord(message=msgspec.Raw(self.spelled({"role": "user", "content": content}))))

    def answer(self, call: Call) -> None:
        """Add the result of a call."""
        is_error = self.random.random() < 0.3
        kind = self.random.choice(("text", "text", "image", "text and image", "foreign"))
        raw = tool_result(call.id, self.text(blank=0.2), is_error=is_error)
        if kind == "image":
            raw = encode_result(call.id, [_IMAGE], is_error=is_error)
        elif kind == "text and image":
            raw = encode_result(call.id, [TextBlock(self.text()), _IMAGE, _IMAGE], is_error=is_error)
        elif kind == "foreign" and self.foreign:
            contents: tuple[Any, ...] = ("", " ", "said", [], [{"type": "text", "text": ""}])
            block = {"type": "tool_result", "tool_use_id": call.id, "content": self.random.choice(contents)}
            raw = self.spelled(block | ({"is_error": True} if is_error else {}))
        self.note(f"result: {kind}", *(["result of an error"] if is_error else []))
        self.append(ToolResultRecord(tool_use_id=call.id, result=msgspec.Raw(raw), name=call.name))

    def turn(self) -> None:
        """Add a turn of the model's."""
        reason = self.random.choice(
            ("", "", "", "", "pause_turn", "max_tokens", "refusal", "stop_sequence", "content_filter", "new_one")
        )
        record = self.unsettled(reason) if self.foreign else self.settled(reason)
        if record is None:
            self.note("answer that is not journaled")
            return
        content = reader_for(self.format)(bytes(record.message))
        self.note(f"stop: {record.stop_reason}", *(["empty turn"] if content.empty else []))
        self.note(*(["unusable call"] if record.unusable else []), *(["parallel"] if record.parallel else []))
        self.turns += 1
        self.append(record)

    def settled(self, reason: str) -> AssistantRecord | None:
        """Return the record of an answer that was read by its adapter, or None if nothing may be journaled of it."""
        spelled = msgspec.Raw(self.spelled(_DRAWERS[self.format](self)))
        script = msgspec.structs.replace(Turn(stop_reason=reason), **{_FIELDS[self.format]: spelled})
        try:
            reply = self.read(script)
        except InvalidReply:
            return None
        calls = reader_for(reply.format)(reply.message).calls
        return self.record(reply.message, reply.stop_reason, len(calls), reply.unusable)

    def read(self, script: Turn) -> Reply:
        """Read an answer, streamed or whole."""
        speak, whole, accumulate = _READERS[self.format]
        if self.random.random() < 0.5 and b'"custom"' not in bytes(script.message):
            stream = accumulate()
            try:
                for event in speak(script, self.turns).events(_MODEL):
                    stream.feed("message", event.partition(b"data: ")[2].decode())
                self.note("streamed")
                return stream.reply()
            except StreamNotVerbatim:
                self.note("stream not verbatim")
        return whole(speak(script, self.turns).whole(_MODEL))

    def unsettled(self, reason: str) -> AssistantRecord:
        """Return the record of a sound turn that another program wrote, with blank text beside other blocks."""
        blocks = [block for block in self.anthropic_blocks() if block["type"] != "tool_use"]
        ids = self.random.sample(("toolu_1", "toolu_2", "toolu_3"), self.random.choice((0, 0, 1, 2)))
        blocks += [{"type": "tool_use", "id": each, "name": "lookup", "input": {"n": 1.0}} for each in ids]
        blocks = [b | {"input": {}} if b["type"] == "server_tool_use" else b for b in blocks]
        nothing: tuple[Any, ...] = ([], "", "said", " ")
        content: Any = blocks or self.random.choice(nothing)
        stop = "tool_use" if ids and reason in ("", "pause_turn") else reason or "end_turn"
        return self.record(self.spelled({"role": "assistant", "content": content}), stop, len(ids), ())

    def record(self, message: bytes, reason: str, calls: int, unusable: tuple[int, ...]) -> AssistantRecord:
        """Return the record of a turn."""
        places = [place for place in range(calls) if self.random.random() < 0.4]
        return AssistantRecord(
            iteration=self.turns,
            format=self.format,
            message=msgspec.Raw(message),
            stop_reason=reason,
            in_tokens=10,
            out_tokens=1,
            parallel=tuple(places) if len(places) > 1 else (),
            unusable=unusable,
        )

    def text(self, *, blank: float = 0.0) -> str:
        """Return a text, blank with a probability."""
        return self.random.choice(_BLANKS if self.random.random() < blank else _TEXTS)

    def spelled(self, value: Any) -> bytes:
        """Return JSON in one of the spellings that programs give it."""
        tight = self.random.random() < 0.5
        text = json.dumps(
            value,
            ensure_ascii=self.random.random() < 0.5,
            separators=(",", ":") if tight else (" , ", ": "),
        )
        return text.replace("1.0", self.random.choice(("1.0", "1e0", "1.00"))).encode()

    def calls(self) -> list[tuple[str, str, Any]]:
        """Return calls: id, name, arguments."""
        number = self.random.choice((0, 0, 1, 1, 2, 3))
        choose = self.random.choice
        return [(choose(_IDS), choose(_NAMES), choose(_ARGUMENTS)) for _ in range(number)]

    def anthropic_blocks(self) -> list[dict[str, Any]]:
        """Return blocks of the Messages API."""
        blocks: list[dict[str, Any]] = []
        for kind in self.random.sample(sorted(_BLOCKS), self.random.randint(0, 4)):
            self.note(kind)
            blocks += _BLOCKS[kind](self)
        calls = self.calls()
        self.note(*(["tool_use"] if calls else []))
        for call_id, name, arguments in calls:
            block = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            blocks.insert(self.random.randint(0, len(blocks)) if self.random.random() < 0.2 else len(blocks), block)
        return blocks

    def chat_message(self) -> dict[str, Any]:
        """Return a message of Chat Completions."""
        content: tuple[Any, ...] = (None, "", self.text(blank=0.2), [{"type": "text", "text": self.text()}])
        message: dict[str, Any] = {"role": "assistant", "content": self.random.choice(content)}
        for name in ("refusal", "reasoning_content", "reasoning", "from_the_future"):
            if self.random.random() < 0.15:
                self.note(name)
                message[name] = self.text(blank=0.1)
        if calls := self.calls():
            self.note("tool_calls")
            message["tool_calls"] = [self.chat_call(*call) for call in calls]
        elif self.random.random() < 0.2:
            message["tool_calls"] = self.random.choice(([], None))
        return message

    def chat_call(self, call_id: str, name: str, arguments: Any) -> dict[str, Any]:
        """Return a call of Chat Completions, of a kind that was never offered now and then."""
        if self.random.random() < 0.05:
            self.note("custom call")
            return {"id": call_id, "type": "custom", "custom": {"name": name, "input": "x"}}
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}

    def output_items(self) -> list[dict[str, Any]]:
        """Return output items of the Responses API."""
        items: list[dict[str, Any]] = []
        for kind in self.random.sample(sorted(_ITEMS), self.random.randint(0, 3)):
            self.note(kind)
            items.append(_ITEMS[kind](self) | {"id": f"{kind[:2]}_{self.turns}_{len(items)}"})
        for call_id, name, arguments in self.calls():
            self.note("function_call")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": text})
        return items


def _cited(author: _Author) -> list[dict[str, Any]]:
    citation = {"type": "web_search_result_location", "url": "u", "cited_text": author.text(), "encrypted_index": "i"}
    return [{"type": "text", "text": author.text(), "citations": [citation, citation]}]


def _searched(author: _Author) -> list[dict[str, Any]]:
    made = {"type": "server_tool_use", "id": f"srvtoolu_{author.turns}", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_result", "url": "u", "title": author.text(), "encrypted_content": "e"}
    return [made, {"type": "web_search_tool_result", "tool_use_id": made["id"], "content": [found]}]


_BLOCKS: Mapping[str, Callable[[_Author], list[dict[str, Any]]]] = {
    "text": lambda author: [{"type": "text", "text": author.text()}],
    "blank text": lambda author: [{"type": "text", "text": author.random.choice(_BLANKS)}],
    "thinking": lambda author: [{"type": "thinking", "thinking": author.text(blank=0.3), "signature": "c2ln"}],
    "redacted_thinking": lambda author: [{"type": "redacted_thinking", "data": "b3BhcXVl"}],
    "cited text": _cited,
    "server tool": _searched,
    "unknown block": lambda author: [{"type": "hologram", "id": "", "data": [1, 1.0, {"a": author.text()}]}],
}
_ITEMS: Mapping[str, Callable[[_Author], dict[str, Any]]] = {
    "message": lambda author: _said({"type": "output_text", "text": author.text(blank=0.2), "annotations": []}),
    "refused": lambda author: _said({"type": "refusal", "refusal": author.text()}),
    "reasoning": lambda author: {"type": "reasoning", "summary": [], "encrypted_content": "gA=="},
    "unsealed reasoning": lambda author: {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    "web_search_call": lambda author: {"type": "web_search_call", "status": "completed", "action": {"n": 1.0}},
    "unknown item": lambda author: {"type": "hologram", "data": [1, 1.0, {"a": author.text()}]},
    "custom_tool_call": lambda author: {"type": "custom_tool_call", "call_id": "c", "name": "grep", "input": "x"},
}


def _said(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


_Speech = type[MessagesSpeech | ChatSpeech | ResponsesSpeech]
_DRAWERS: Mapping[Format, Callable[[_Author], Any]] = {
    "anthropic": _Author.anthropic_blocks,
    "openai": _Author.chat_message,
    "openai-responses": _Author.output_items,
}
_FIELDS: Mapping[Format, str] = {"anthropic": "content", "openai": "message", "openai-responses": "output"}
_READERS: Mapping[Format, tuple[_Speech, Callable[[bytes], Reply], Callable[[], Accumulator]]] = {
    "anthropic": (MessagesSpeech, anthropic.read_reply, anthropic.Accumulator),
    "openai": (ChatSpeech, openai.read_reply, openai.Accumulator),
    "openai-responses": (
        ResponsesSpeech,
        lambda body: responses.read_reply(body, official=True),
        lambda: responses.Accumulator(official=True),
    ),
}
