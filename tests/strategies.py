"""Records and whole journals: built by hand (`meta`, `turn`, `result`, ...) or drawn by hypothesis (`journals`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import strategies as st

from fisk_ai import codec
from fisk_ai.fingerprint import make_fingerprint, tool_hashes
from fisk_ai.messages import tool_result, user_text
from fisk_ai.records import (
    AssistantRecord,
    Fingerprint,
    MetaRecord,
    Reason,
    Record,
    SequencedRecord,
    TerminalRecord,
    ToolResultRecord,
    UserRecord,
    resume_mark,
)

RUN_ID = "orders-report"
CREATED = "2026-12-01T03:21:00.123Z"
TIME = "2026-12-01T03:21:07.456Z"
MOMENT = datetime(2026, 12, 1, 3, 21, 7, 456000, tzinfo=UTC)

ODD_TEXTS = (
    "plain",
    "a\u2028b\u2029c\u0085d",
    "nul \0, vt \x0b, ff \x0c, fs \x1c, gs \x1d, rs \x1e",
    "cr\rlf\ncrlf\r\n",
    '"quoted" \\backslash\\ \\u0041 \\ud800',
    "\U0001f469\u200d\U0001f469\u200d\U0001f466 e\u0301",
    "\x1b[31mred\x9b0m\x7f",
    "\ufeffbom \ufffd \U0010ffff",
    "[[[[{{{{",
    ',"crc":"00000000"}',
)


def fingerprint(model: str = "claude-sonnet-5", provider: str = "anthropic") -> Fingerprint:
    """A fingerprint with one tool."""
    lookup = tool_hashes("Look a stream up", {"type": "object"}, {"function": "mytools:lookup", "parallel": False})
    return make_fingerprint(
        provider=provider,
        model=model,
        system_prompt="You report on message streams.",
        tools={"lookup": lookup},
        max_tokens=200000,
        max_iterations=50,
    )


def meta(
    run_id: str = RUN_ID,
    *,
    prompt: str = "report on the ORDERS stream",
    version: int = 2,
    interactive: bool = False,
    checksums: bool = True,
) -> MetaRecord:
    """A first record."""
    return MetaRecord(
        version=version,
        run_id=run_id,
        created=CREATED,
        fingerprint=fingerprint(),
        prompt=prompt,
        checksums=checksums,
        interactive=interactive,
    )


def dumps(value: Any, *, escaped: bool = False) -> bytes:
    """Spell JSON as some other program might."""
    return json.dumps(value, ensure_ascii=escaped, separators=(", ", ": ")).encode()


def anthropic_message(*blocks: dict[str, Any]) -> bytes:
    """An assistant message of the Messages API."""
    return dumps({"role": "assistant", "content": list(blocks)})


def turn(
    *call_ids: str,
    text: str = "Looking.",
    stop_reason: str | None = None,
    parallel: Sequence[int] = (),
    unusable: Sequence[int] = (),
    iteration: int = 0,
    tokens: tuple[int, int, int, int] = (812, 40, 0, 0),
) -> AssistantRecord:
    """A model turn with a call of `lookup` for each id; an answer if there are none."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_use", "id": each, "name": "lookup", "input": {"stream": "ORDERS"}} for each in call_ids]
    return AssistantRecord(
        iteration=iteration,
        message=msgspec.Raw(anthropic_message(*blocks)),
        stop_reason=stop_reason or ("tool_use" if call_ids else "end_turn"),
        in_tokens=tokens[0],
        out_tokens=tokens[1],
        cache_read_tokens=tokens[2],
        cache_create_tokens=tokens[3],
        parallel=tuple(parallel),
        unusable=tuple(unusable),
    )


def answer(text: str = "All is well.") -> AssistantRecord:
    """A final turn."""
    return turn(text=text)


def result(call_id: str, text: str = "3 consumers", *, is_error: bool = False) -> ToolResultRecord:
    """The result of a call."""
    return ToolResultRecord(
        tool_use_id=call_id, result=msgspec.Raw(tool_result(call_id, text, is_error=is_error)), name="lookup"
    )


def follow_up(text: str = "and the others?") -> UserRecord:
    """Something newly typed."""
    return UserRecord(message=msgspec.Raw(user_text(text)))


def ended(reason: Reason = "suspended", message: str | None = None) -> TerminalRecord:
    """A terminal record."""
    return TerminalRecord(reason=reason, message=message)


def sequenced(records: Sequence[Record]) -> list[SequencedRecord]:
    """Give records their places."""
    return [SequencedRecord(seq, record, TIME) for seq, record in enumerate(records, 1)]


def lines_of(records: Sequence[Record]) -> list[bytes]:
    """Encode records as the lines of a journal, each with its newline."""
    lines: list[bytes] = []
    crc = 0
    for seq, record in enumerate(records, 1):
        line, crc = codec.encode_line(seq, record, TIME, crc)
        lines.append(line)
    return lines


def journal_bytes(records: Sequence[Record]) -> bytes:
    """Encode a whole journal."""
    return b"".join(lines_of(records))


def foreign_lines(*records: Record) -> list[bytes]:
    """Spell records as a program without time and checksums would."""
    lines = []
    for seq, record in enumerate(records, 1):
        key = codec.payload_key(record)
        payload = json.loads(codec.encode_payload(record))
        line = {"seq": seq, "protocol": f"io.choria.fisk-ai.v1.session.{key}", key: payload}
        lines.append(dumps(line) + b"\n")
    return lines


def scan(data: bytes) -> tuple[list[SequencedRecord], codec.Tail]:
    """Read a whole journal."""
    scanner = codec.Scanner()
    records = scanner.feed(data)
    more, tail = scanner.finish()
    return records + more, tail


def sample() -> list[Record]:
    """Twenty records of every kind, with odd text, that end in an answer."""
    records: list[Record] = [
        meta(interactive=True),
        turn("call_0", "call_1", "call_2", iteration=0, tokens=(100, 10, 5, 7)),
        result("call_1", ODD_TEXTS[1]),
        ended(),
        resume_mark(),
        result("call_0", ODD_TEXTS[2], is_error=True),
        result("call_2", ODD_TEXTS[3]),
        turn(iteration=1, text="", stop_reason="end_turn"),
        follow_up(ODD_TEXTS[4]),
        turn("call_0", iteration=2, text=ODD_TEXTS[5], parallel=(0,)),
        ended("error", "the model was not reached"),
        resume_mark(fingerprint("claude-opus-5")),
        result("call_0", ODD_TEXTS[8]),
        turn(iteration=3, text="still at it", stop_reason="pause_turn"),
        turn("x", iteration=4, unusable=(0,)),
        result("x", "the arguments are unusable", is_error=True),
        answer("Half of it."),
        follow_up(ODD_TEXTS[9]),
        ended("suspended"),
        answer("All is well @ last."),
    ]
    assert len(records) == 20
    return records


texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=12))
tokens = st.integers(0, 10_000)
_names = st.sampled_from(("lookup", "du", "mcp__time"))
_inputs = st.dictionaries(
    st.text(max_size=4), st.one_of(texts, st.integers(), st.lists(st.none(), max_size=2)), max_size=2
)
_call_ids = st.lists(st.sampled_from(("call_0", "call_1", "toolu_01", "x", "é\u2028", '"')), unique=True, max_size=4)
_ends: st.SearchStrategy[Reason] = st.sampled_from(("suspended", "error", "budget", "max_iterations"))


@dataclass
class Conversation:
    """A run as it is drawn: the records, and which calls are open."""

    format: str
    records: list[Record]
    open_calls: list[str] = field(default_factory=list)
    is_completed: bool = False


@st.composite
def journals(draw: st.DrawFn, *, max_steps: int = 8, version: int = 2) -> list[Record]:
    """Draw the records of a run as the loop could have written them."""
    format_name = draw(st.sampled_from(("anthropic", "openai"))) if version >= 2 else "anthropic"
    interactive = version >= 2 and draw(st.booleans())
    first = meta(prompt=draw(texts), version=version, interactive=interactive)
    run = Conversation(format_name, [first])
    for _ in range(draw(st.integers(0, max_steps))):
        if not run.is_completed:
            _step(draw, run, version)
    return run.records


def _step(draw: st.DrawFn, run: Conversation, version: int) -> None:
    match draw(st.integers(0, 9)):
        case 0:
            run.records.append(ended(draw(_ends), draw(st.none() | texts)))
        case 1:
            run.records.append(resume_mark(draw(st.none() | st.just(fingerprint("claude-opus-5")))))
        case 2 if not run.open_calls:
            run.records.append(ended("completed"))
            run.is_completed = True
        case 3 | 4 if not run.open_calls and version >= 2:
            run.records.append(follow_up(draw(texts)))
        case _ if run.open_calls:
            call_id = draw(st.sampled_from(run.open_calls))
            run.open_calls.remove(call_id)
            run.records.append(result(call_id, draw(texts), is_error=draw(st.booleans())))
        case _:
            _turn(draw, run)


def _turn(draw: st.DrawFn, run: Conversation) -> None:
    ids = draw(_call_ids)
    message = _openai_message(draw, ids) if run.format == "openai" else _anthropic_message(draw, ids)
    positions = st.lists(st.sampled_from(range(len(ids))), unique=True) if ids else st.just([])
    stop_reasons = ("tool_use", "max_tokens") if ids else ("end_turn", "pause_turn", "max_tokens", "refusal", "new_one")
    run.records.append(
        AssistantRecord(
            iteration=sum(isinstance(record, AssistantRecord) for record in run.records),
            format=run.format,
            message=msgspec.Raw(message),
            stop_reason=draw(st.sampled_from(stop_reasons)),
            in_tokens=draw(tokens),
            out_tokens=draw(tokens),
            cache_read_tokens=draw(tokens),
            cache_create_tokens=draw(tokens),
            parallel=tuple(sorted(draw(positions))),
            unusable=tuple(sorted(draw(positions))),
        )
    )
    run.open_calls = list(ids)


def _anthropic_message(draw: st.DrawFn, ids: list[str]) -> bytes:
    blocks: list[dict[str, Any]] = [
        {"type": "tool_use", "id": each, "name": draw(_names), "input": draw(_inputs)} for each in ids
    ]
    others: dict[str, dict[str, Any]] = {
        "text": {"type": "text", "text": draw(texts)},
        "blank": {"type": "text", "text": " \n"},
        "thinking": {"type": "thinking", "thinking": draw(texts), "signature": "c2ln"},
        "server": {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        "unheard of": {"type": "hologram", "id": "", "data": [1, {"a": None}]},
    }
    for name in draw(st.lists(st.sampled_from(sorted(others)), unique=True, max_size=3)):
        blocks.insert(draw(st.integers(0, len(blocks))), others[name])
    return dumps({"role": "assistant", "content": blocks}, escaped=draw(st.booleans()))


def _openai_message(draw: st.DrawFn, ids: list[str]) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | texts)}
    if ids:
        message["tool_calls"] = [
            {"id": each, "type": "function", "function": {"name": draw(_names), "arguments": json.dumps(draw(_inputs))}}
            for each in ids
        ]
    return dumps(message, escaped=draw(st.booleans()))
