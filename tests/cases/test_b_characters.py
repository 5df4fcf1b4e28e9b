"""Section B of the reported failures: characters and numbers."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fisk_ai.errors import AlreadyCompleted, JournalCorrupt
from fisk_ai.messages import ImageBlock, ImageSource
from fisk_ai.providers.anthropic import MessagesApi
from fisk_ai.providers.openai import ChatApi
from fisk_ai.providers.retry import RetryPolicy
from fisk_ai.providers.wire import Api
from fisk_ai.records import Record
from fisk_ai.tools import CommandTool, FunctionTool
from fisk_ai.tools.command import MAX_OUTPUT_BYTES
from fisk_ai.tools.output import MAX_TEXT_BYTES
from tests.agent.bench import Effects, Typed
from tests.cases.bench import (
    CHAT_DONE,
    MESSAGE_DONE,
    RUN,
    Library,
    asks,
    blocks,
    call,
    chat_answer,
    ends,
    foreign,
    gives,
    lines_parse,
    message_answer,
    put,
    says,
    types,
)

pytestmark = pytest.mark.anyio

ONE_ATTEMPT = RetryPolicy(attempts=1)

SEPARATORS = {
    "LS": "\u2028",
    "PS": "\u2029",
    "NEL": "\u0085",
    "VT": "\x0b",
    "FF": "\x0c",
    "FS": "\x1c",
    "GS": "\x1d",
    "RS": "\x1e",
    "CR": "\r",
    "CRLF": "\r\n",
    "LF": "\n",
    "NUL": "\0",
}


def returning(value: object, effects: Effects, name: str = "a") -> FunctionTool[Any, Any]:
    """A tool that has its effect, and returns this (or what it returns, if it is a function)."""

    def work(what: str = "") -> object:
        effects.note(name)
        return value() if callable(value) else value

    return FunctionTool(work, name=name, description=f"Does {name}")


def printing(name: str, script: str, directory: Path) -> CommandTool:
    """A command that prints what this shell script prints."""
    return CommandTool(name, f"Does {name}", ["sh", "-c", script], {}, cwd=str(directory))


def texts_of(body: bytes) -> list[str]:
    """Return all texts of a request's conversation, in order."""
    return list(_texts(json.loads(body)["messages"]))


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        yield from [value["text"]] if value.get("type") == "text" else _texts(value.get("content"))


async def completed_and_sent(lib: Library) -> str:
    """Run the script of one call and an answer; return the call's result, which is the same everywhere.

    It stands in the journal as one line, it was sent live, and it is sent again, as it was, by a resume after a crash.
    """
    await lib.agent().run("go", checkpoint=True, name=RUN)
    assert lib.load_twice().terminal == ends("completed")
    live = lib.bodies[-1]
    (text,) = lib.results
    assert texts_of(live)[-1] == text
    effects = list(lib.effects.names)
    lib.crash_after(3)
    await lib.agent().resume(RUN)
    assert lib.bodies[-1] == live
    assert lib.effects.names == effects
    assert lib.load_twice().terminal == ends("completed")
    return text


@pytest.mark.parametrize("odd", SEPARATORS.values(), ids=SEPARATORS)
async def test_b12_a_separator_in_a_text_separates_nothing(lib: Library, odd: str) -> None:
    """Line separators in tool output or user text cut one record into several lines.

    github/copilot-cli#2012, github/copilot-cli#2658, huggingface/tau#354, volcengine/OpenViking#3988.
    """
    text = f"before{odd}after"
    lib.tools = [returning(text, lib.effects)]
    lib.plays(blocks({"type": "text", "text": text}, call("a", {"what": text})), says(text), says("Done."))
    chat: Any = {"checkpoint": True, "name": RUN, "interactive": True}
    await lib.agent().run(text, **chat, input_source=Typed(text))

    data = lib.path.read_bytes()
    state = lib.load_twice()
    assert len(data.split(b"\n")) - 1 == state.last_seq == 7
    assert state.prompt == text
    assert lib.results == [text]
    assert texts_of(lib.bodies[-1]) == [text] * 5
    assert state.last_turn is not None
    live = lib.bodies

    lib.crash_after(5)
    await lib.agent().resume(RUN, input_source=Typed())
    assert lib.bodies[len(live) :] == live[2:]
    assert lib.load_twice().messages == state.messages


@pytest.mark.parametrize("odd", [SEPARATORS[name] for name in ("LS", "PS", "NEL")], ids=["LS", "PS", "NEL"])
@pytest.mark.parametrize("made_by", ["fisk-ai", "another tool"])
async def test_b12_a_raw_separator_in_a_string_is_read_too(lib: Library, made_by: str, odd: str) -> None:
    """As above, for a journal in which the characters stand as they are, as JSON allows."""
    text = f"before{odd}after"
    lib.plays(asks("a", text=text), says(text), says("Done."))
    records: list[Record] = [asks("a", text=text), gives("a", text), says(text), types(text)]
    meta = lib.meta(prompt=text, interactive=True)
    lines = lib.lines(*records, prompt=text, interactive=True) if made_by == "fisk-ai" else foreign([meta, *records])
    assert b"".join(lines).count(odd.encode()) >= 5
    put(lib.path, b"".join(lines))
    assert lib.results == [text]
    await lib.agent().resume(RUN, input_source=Typed())
    assert texts_of(lib.bodies[-1]) == [text] * 5
    assert lib.load_twice().last_seq == 7


@pytest.mark.parametrize("odd", [text for name, text in SEPARATORS.items() if name not in ("LS", "PS", "NEL", "LF")])
def test_b12_a_raw_control_character_in_a_string_is_no_json_and_refused(lib: Library, odd: str) -> None:
    """As above; but these aren't allowed raw by JSON, and the contract takes only strict JSON for whole (P11)."""
    lines = foreign([lib.meta(), asks("a"), gives("a", "before@after"), says()])
    lines[2] = lines[2].replace(b"@", odd.encode())
    put(lib.path, b"".join(lines))
    with lib.untouched, pytest.raises(JournalCorrupt) as refused:
        lib.agent().resume_sync(RUN)
    assert refused.value.line == 3


def test_b12_lines_that_end_in_crlf_are_read(lib: Library) -> None:
    """As above, for a journal of other origin that a tool gave the line ends of another system."""
    lib.plays(asks("a"), says())
    lines = foreign([lib.meta(), asks("a"), gives("a")])
    put(lib.path, b"".join(line.replace(b"\n", b"\r\n") for line in lines))
    assert lib.agent().resume_sync(RUN).answer == "All is well."
    assert lib.effects.names == []
    assert lib.load_twice().last_seq == 5


HALVES = {"high": "x\ud83dy", "low": "x\ude00y", "escaped byte": "x\udc80y"}


@pytest.mark.parametrize("shape", ["text", "key", "value", "problem"])
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_b14_half_a_character_from_a_tool_is_replaced_once(lib: Library, half: str, shape: str) -> None:
    """A lone surrogate from a tool was stored, and each later request was refused as bad JSON.

    anomalyco/opencode#17758, anthropics/claude-code#69927.
    """

    def fail() -> object:
        raise ValueError(half)

    values: dict[str, object] = {"text": half, "key": {half: 1}, "value": [half], "problem": fail}
    lib.tools = [returning(values[shape], lib.effects)]
    lib.plays(asks("a"), says())
    text = await completed_and_sent(lib)
    assert "x\ufffdy" in text
    assert lib.effects.names == ["a"]


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_b14_half_a_character_from_elsewhere_is_replaced_too(lib: Library, half: str) -> None:
    """As above, for what the operator types and for what the model says and passes to a tool."""
    escaped = json.dumps(half).encode()
    content = b'[{"type":"text","text":%b},{"type":"tool_use","id":"a","name":"a","input":{"what":%b}}]'
    lib.speaks(MessagesApi(), message_answer(content % (escaped, escaped)), MESSAGE_DONE, MESSAGE_DONE)
    chat: Any = {"checkpoint": True, "name": RUN, "interactive": True}
    await lib.agent().run(half, **chat, input_source=Typed(half))
    mended = "x\ufffdy"
    assert texts_of(lib.bodies[-1]) == [mended, mended, f"a did {mended}", "All is well.", mended]
    live = lib.bodies
    assert lib.load_twice().prompt == mended
    lib.crash_after(5)
    await lib.agent().resume(RUN, input_source=Typed())
    assert lib.bodies[-1] == live[-1]


PEOPLE = {"emoji": "\U0001f600", "family": "\U0001f468\u200d\U0001f469\u200d\U0001f466", "accent": "e\u0301"}


OFFSETS = range(-4, 5)


@pytest.mark.parametrize("wide", PEOPLE.values(), ids=PEOPLE)
@pytest.mark.parametrize("kind", ["function", "command"])
async def test_b16_a_long_text_is_cut_between_characters(
    lib: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, wide: str
) -> None:
    """A cap cut an emoji in two, and the half of it poisoned the stored history.

    anthropics/claude-code#69927, NousResearch/hermes-agent#69078.
    """
    cap = MAX_OUTPUT_BYTES
    if kind == "function":
        monkeypatch.setattr("fisk_ai.tools.output.MAX_TEXT_BYTES", cap)  # the real one, 1 MiB, only takes longer
    given = ["x" * (cap + offset) + wide * 3 for offset in OFFSETS]
    for place, text in enumerate(given):
        (tmp_path / f"long{place}").write_text(text)
    argv = ["cat", "long{place}"]
    command = CommandTool("a", "Does a", argv, {"place": {"type": "integer"}}, cwd=str(tmp_path))

    def a(place: int) -> str:
        """Say one of the texts."""
        return given[place]

    lib.tools = [a if kind == "function" else command]
    lib.plays(blocks(*(call("a", {"place": place}, call_id=f"a{place}") for place in range(len(given)))), says())

    await lib.agent().run("go", checkpoint=True, name=RUN)
    live = lib.bodies[-1]
    kept = lib.results
    assert texts_of(live)[1:] == kept
    for text, whole in zip(kept, given, strict=True):
        start, mark, note = text.rpartition("\n[shortened: ")
        assert mark, "the text says that it was shortened"
        assert f"{len(start.encode())} of {len(whole.encode())} bytes" in note
        assert whole.startswith(start)
        assert cap - 3 <= len(start.encode()) <= cap
        assert "\ufffd" not in text
    lib.crash_after(2 + len(given))
    await lib.agent().resume(RUN)
    assert lib.bodies[-1] == live
    assert lib.load_twice().terminal == ends("completed")


def png(size: int) -> str:
    """Return base64 of `size` bytes that begin as a PNG does."""
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(size - 8)).decode()


async def test_b16_an_image_is_never_cut_as_if_it_were_text(lib: Library) -> None:
    """As above, for image data above the cap of texts."""
    data = png(2 * MAX_TEXT_BYTES)
    image = ImageBlock(ImageSource("base64", "image/png", data))
    lib.tools = [returning([image, "x" * (MAX_TEXT_BYTES + 1)], lib.effects)]
    lib.plays(asks("a"), says())
    await lib.agent().run("go", checkpoint=True, name=RUN)
    live = lib.bodies[-1]
    (result,) = json.loads(live)["messages"][-1]["content"]
    assert result["content"][0] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
    assert "[shortened: " in result["content"][1]["text"]
    lib.crash_after(3)
    await lib.agent().resume(RUN)
    assert lib.bodies[-1] == live


OUTPUTS: dict[str, tuple[bytes, Callable[[str], bool]]] = {
    "not UTF-8": (b"\xff\xfe ok \xf0", lambda text: text == "\ufffd\ufffd ok \ufffd"),
    "UTF-16": (b"W\x00s\x00l\x00", lambda text: text.replace("\0", "") == "Wsl"),
    "random": (random.Random(17).randbytes(1_000_000), lambda text: "\ufffd" in text and "[shortened: " in text),
    "Latin-1": ("Grüße".encode("latin-1"), lambda text: text == "Gr\ufffd\ufffde"),
    "UTF-8 of a surrogate": (b"x\xed\xa0\xbdy", lambda text: text == "x\ufffd\ufffd\ufffdy"),
}


@pytest.mark.parametrize(("raw", "is_right"), OUTPUTS.values(), ids=OUTPUTS)
async def test_b17_output_that_is_no_text_is_replaced_and_the_run_goes_on(
    lib: Library, tmp_path: Path, raw: bytes, is_right: Callable[[str], bool]
) -> None:
    """Bytes that are not UTF-8, NULs and UTF-16 of a tool killed the run, or made the save fail later.

    PrimeIntellect-ai/nano-rlm#61, PrefectHQ/prefect#21267, Linuxfabrik/lib#256, langchain-ai/langgraph#1878,
    zszz3/AgentRecall#315.
    """
    (tmp_path / "raw").write_bytes(raw)
    lib.tools = [printing("a", "cat raw", tmp_path)]
    lib.plays(asks("a"), says())
    text = await completed_and_sent(lib)
    assert is_right(text), text[:200]


NUMBERS: dict[str, tuple[object, str]] = {
    "in a mapping": ({"score": math.nan, "max": math.inf}, '{"score": "NaN", "max": "Infinity"}'),
    "in a list": ([-math.inf, [math.nan]], '["-Infinity", ["NaN"]]'),
    "alone": (math.nan, "NaN"),
    "as a key": ({math.nan: 1}, '{"NaN": 1}'),
    "of another type": ([decimal.Decimal("NaN"), decimal.Decimal("Infinity")], '["NaN", "Infinity"]'),
}


@pytest.mark.parametrize(("value", "text"), NUMBERS.values(), ids=NUMBERS)
async def test_b18_numbers_that_json_has_not_become_text(lib: Library, value: object, text: str) -> None:
    """NaN and Infinity were written as bare tokens, or became null on one path and not on another.

    infiniflow/ragflow#14152, CopilotKit/CopilotKit#3851, routecraftjs/routecraft#718.
    """
    lib.tools = [returning(value, lib.effects)]
    lib.plays(asks("a"), says())
    assert await completed_and_sent(lib) == text


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
async def test_b18_an_answer_with_such_a_number_is_no_answer(lib: Library, number: bytes) -> None:
    """As above, for what comes from a model: it is never journaled, and a later resume asks anew."""
    bad = message_answer(b'[{"type":"tool_use","id":"a","name":"a","input":{"what":%b}}]' % number)
    lib.speaks(MessagesApi(), bad)
    lib.options["retry"] = ONE_ATTEMPT
    result = await lib.agent().run("go", checkpoint=True, name=RUN)
    assert result.reason == "error"
    assert lib.effects.names == []
    lines_parse(lib.path.read_bytes())
    lib.speaks(MessagesApi(), MESSAGE_DONE)
    assert (await lib.agent().resume(RUN)).answer == "All is well."
    assert lib.load_twice().counters.model_calls == 1


def nested(depth: int) -> bytes:
    """Return JSON of this many levels."""
    return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


def deep_inside(frames: int, action: Callable[[], Any]) -> Any:
    """Do something from a stack that has this many frames more."""
    return action() if frames == 0 else deep_inside(frames - 1, action)


def depth_answer(api: Api, depth: int) -> bytes:
    if api.name == "anthropic":
        return message_answer(b'[{"type":"tool_use","id":"a","name":"a","input":%b}]' % nested(depth))
    function = json.dumps({"name": "a", "arguments": nested(depth).decode()})
    return chat_answer(
        b'{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":%b}]}' % function.encode()
    )


APIS = pytest.mark.parametrize(
    ("api", "done"), [(MessagesApi(), MESSAGE_DONE), (ChatApi(official=True), CHAT_DONE)], ids=["anthropic", "openai"]
)


@APIS
@pytest.mark.parametrize("depth", [191, 200, 201, 900, 980, 5000])
async def test_b20_arguments_nested_too_deeply_are_answered_with_an_error(
    lib: Library, api: Api, done: bytes, depth: int
) -> None:
    """Deep nesting raised a RecursionError, which escaped all handlers of bad values and of bad JSON.

    openai/openai-agents-python#4772, jundot/omlx#2545.
    """
    lib.speaks(api, depth_answer(api, depth), done)
    result = await lib.agent().run("go", checkpoint=True, name=RUN)
    assert result.reason == "completed"
    assert lib.effects.names == []
    (text,) = lib.results
    assert "unusable" in text
    live = lib.bodies
    for frames in (0, 300, 600):
        assert deep_inside(frames, lambda: lib.store.load(RUN)).terminal == ends("completed")
    lib.crash_after(2)
    assert (await lib.agent().resume(RUN)).reason == "completed"
    assert lib.bodies[-1] == live[-1]
    assert lib.effects.names == []
    assert lib.results == [text]


@APIS
async def test_b20_what_could_be_written_can_be_read_from_a_deep_stack(lib: Library, api: Api, done: bytes) -> None:
    """As above, at the limit: what is journaled at a shallow stack loads at a deep one."""
    taken: list[dict[str, Any]] = []

    def a(a: dict[str, Any]) -> str:
        """Take what is given."""
        taken.append(a)
        return "taken"

    lib.tools = [a]
    lib.speaks(api, depth_answer(api, 190), done)
    assert (await lib.agent().run("go", checkpoint=True, name=RUN)).reason == "completed"
    assert len(taken) == 1
    for frames in (0, 300, 600):
        assert deep_inside(frames, lambda: lib.store.load(RUN)).terminal == ends("completed")


def test_b20_a_stack_that_is_nearly_full_does_not_pass_for_damage(lib: Library) -> None:
    """As above: if even a valid journal can't be read for want of stack, that is what is said, and nothing is cut."""
    lib.plant(blocks(call("a", json.loads(nested(190)))))
    with lib.untouched:
        outcomes = [loaded_from(lib, frames) for frames in range(100, sys.getrecursionlimit() - 100, 20)]
    assert outcomes[0]
    assert not outcomes[-1]


def loaded_from(lib: Library, frames: int) -> bool:
    """Load from a deep stack; anything but a lack of stack is a failure."""
    try:
        deep_inside(frames, lambda: lib.store.load(RUN))
    except RecursionError:
        return False
    return True


UNUSABLE = {
    "empty text": '""',
    "a list": "[]",
    "null": "null",
    "a number": "3",
    "true": "true",
    "text that is no JSON": '"{oops"',
    "text": '"what"',
}


@APIS
@pytest.mark.parametrize("given", UNUSABLE.values(), ids=UNUSABLE)
async def test_b21_arguments_that_are_no_object_are_answered_with_an_error(
    lib: Library, api: Api, done: bytes, given: str
) -> None:
    """Arguments that were an empty string, a list or a number were stored, and made each later request fail.

    gents-ai/gents#590, petersalomonsen/javascriptmusic#208.
    """
    if api.name == "anthropic":
        answer = message_answer(b'[{"type":"tool_use","id":"a","name":"a","input":%b}]' % given.encode())
    else:
        spelled = json.loads(given) if given.startswith('"') else given
        function = json.dumps({"name": "a", "arguments": spelled}).encode()
        answer = chat_answer(
            b'{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":%b}]}' % function
        )
    lib.speaks(api, answer, done)
    assert (await lib.agent().run("go", checkpoint=True, name=RUN)).reason == "completed"
    live = lib.bodies
    (text,) = lib.results
    assert "the arguments are unusable" in text

    lib.crash_after(2)
    pending = lib.state.pending
    assert pending is not None
    assert pending.ambiguous == (), "such a call never runs, so there is no doubt about it"
    assert (await lib.agent().resume(RUN)).reason == "completed"
    assert lib.bodies[len(live) :] == live[1:]
    assert lib.results == [text]
    assert lib.effects.names == []


class Shy:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


VALUES: dict[str, tuple[object, str]] = {
    "a date": (dt.datetime(2026, 12, 1, 3, 21, tzinfo=dt.UTC), "2026-12-01T03:21:00Z"),
    "bytes": (b"\xffok", "\ufffdok"),
    "a decimal": (decimal.Decimal("1.10"), "1.10"),
    "a set": ({7}, "[7]"),
    "odd keys": ({2: "a", True: "b", None: "c", (1, 2): "d"}, '{"2": "a", "true": "b", "null": "c", "[1, 2]": "d"}'),
    "no text": (Shy(), "can't be shown as text"),
    "no text inside": ([Shy()], "can't be shown as text"),
    "no value of its own": (object(), "can't be shown as text"),
    "too deep": (json.loads("[" * 900 + "]" * 900), "can't be shown as text"),
    "itself": ([], "can't be shown as text"),
}
VALUES["itself"][0].append(VALUES["itself"][0])  # type: ignore[attr-defined]  # a list that holds itself


@pytest.mark.parametrize(("value", "text"), VALUES.values(), ids=VALUES)
async def test_b22_a_value_that_has_no_json_is_recorded_all_the_same(lib: Library, value: object, text: str) -> None:
    """Saving failed because a value was bytes or a date: the effect had happened, the record had not.

    strands-agents/harness-sdk#3117, agno-agi/agno#5661.
    """
    lib.tools = [returning(value, lib.effects)]
    lib.plays(asks("a"), says())
    said = await completed_and_sent(lib)
    assert text in said
    assert lib.effects.names == ["a"]


@pytest.mark.parametrize("name", ["no text", "too deep", "itself"])
async def test_b22_a_value_that_has_no_text_starts_no_loop_of_resumes(lib: Library, name: str) -> None:
    """As above: the resume after a crash runs the one call again, records an error, and that is the end of it."""
    lib.tools = [returning(VALUES[name][0], lib.effects)]
    lib.plays(asks("a"), says())
    lib.plant(asks("a"))
    assert (await lib.agent().resume(RUN)).reason == "completed"
    assert lib.effects.names == ["a"]
    assert len(lib.results) == 1
    with lib.untouched, pytest.raises(AlreadyCompleted):
        await lib.agent().resume(RUN)
    assert lib.effects.names == ["a"]
