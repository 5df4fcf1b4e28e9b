"""Section E of the reported failures: model turns stored as received."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fisk_ai.agent.input import EndOfChat
from fisk_ai.errors import ConfigError, ConfigurationChanged
from fisk_ai.messages import ImageBlock, ImageSource, TextBlock, read_result
from fisk_ai.providers.anthropic import MessagesApi
from fisk_ai.providers.openai import ChatApi
from fisk_ai.providers.wire import Api
from fisk_ai.records import ToolResultRecord
from fisk_ai.tools import FunctionTool
from tests.agent.bench import Typed, effect_tools
from tests.cases.bench import (
    CHAT_DONE,
    MESSAGE_DONE,
    RUN,
    Library,
    Shell,
    asks,
    chat_answer,
    ends,
    gives,
    lines_parse,
    message_answer,
    says,
)

pytestmark = pytest.mark.anyio

DONE = says()

SIGNED = (
    rb'[{"type":"thinking","thinking":"First\u2028I \ud83d\ude00 look","signature":"c2lnMQ=="},'
    rb'{"type":"text", "text":"Looking \u00e9\/"},'
    rb'{"type":"tool_use","id":"a","name":"a","input":{"what":"1.0"},"cache_control":null},'
    rb'{"signature":"c2lnMg==","thinking":"","type":"thinking"},'
    rb'{"type":"redacted_thinking","data":"b3BhcXVl"},'
    rb'{"type":"tool_use","id":"b","name":"b","input":{}}]'
)
SERVED = (
    b'[{"type":"thinking","thinking":"Search.","signature":"c2ln"},'
    b'{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"x","n":1e2}},'
    b'{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result",'
    b'"encrypted_content":"EqgfCioIARgBIiQ3YTAwMjY1Mi1m","page_age":null}],"caller":{"type":"direct"}},'
    b'{"type":"text","text":"Found.","citations":[{"encrypted_index":"Eo8B","n":0.10}]},'
    b'{"type":"hologram","depth":[1,{"of":"field"}]},'
    b'{"type":"tool_use","id":"a","name":"a","input":{}}]'
)


def turns_sent(body: bytes) -> list[bytes]:
    """Return the assistant messages of a request as they are spelled in it."""
    messages = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["messages"]
    each = msgspec.json.decode(messages, type=list[msgspec.Raw])
    return [bytes(raw) for raw in each if json.loads(bytes(raw))["role"] == "assistant"]


@pytest.mark.parametrize("recorded", [(), ("a",), ("a", "b")], ids=["none", "a", "both"])
async def test_b34_thinking_and_its_signature_come_back_as_they_came(lib: Library, recorded: Sequence[str]) -> None:
    """Thinking was emptied or lost its signature on save; the provider then refused every request of the session.

    anthropics/claude-code#63147, anthropics/claude-code#63277, openclaw/openclaw#120596.
    """
    again = message_answer(SIGNED.replace(b"First", b"Second"))
    lib.speaks(MessagesApi(), message_answer(SIGNED), again, MESSAGE_DONE)
    lib.options["thinking_mode"] = "budget:2048"
    await lib.run()
    live = lib.bodies

    lib.crash_after(2 + len(recorded))  # in the first batch
    await lib.resume()
    lib.crash_after(6)  # in the second one, of the second process
    await lib.resume()
    lib.crash_after(6)
    await lib.resume()

    assert lib.bodies[3:] == [live[1], live[2], live[2], live[2]]
    first, second = turns_sent(live[2])
    assert first == b'{"role":"assistant","content":' + SIGNED + b"}"
    assert json.loads(first)["content"] == json.loads(SIGNED)
    assert first.replace(b"First", b"Second") == second
    lib.load_twice()


REASONED = (
    rb'{"role":"assistant","content":null,"refusal":null,"reasoning_details":[{"type":"reasoning.encrypted",'
    rb'"data":"b3BhcXVl","n":1e2,"text":"First\u2028"}],"tool_calls":[{"type":"function","index":0,"id":"a",'
    rb'"function":{"arguments":"{ \"what\" : \"1.0\"}","name":"a"},"extra_content":{"signature":"c2ln"}},'
    rb'{"id":"b","type":"function","function":{"name":"b","arguments":"{}"}}]}'
)


@pytest.mark.parametrize("recorded", [0, 1, 2])
async def test_b34_reasoning_of_a_compatible_server_comes_back_as_it_came(lib: Library, recorded: int) -> None:
    """As above, for the other API, whose servers put what they need back into fields of their own."""
    lib.speaks(ChatApi(official=False), chat_answer(REASONED), CHAT_DONE)
    await lib.run()
    live = lib.bodies
    for _ in range(2):
        lib.crash_after(2 + recorded)
        await lib.resume()
    assert lib.bodies[2:] == [live[1]] * 2
    assert turns_sent(live[1]) == [REASONED]
    lib.load_twice()


@pytest.mark.parametrize("mode", ["off", "adaptive", "budget:4096"])
async def test_b34_the_thinking_mode_is_part_of_the_fingerprint(lib: Library, mode: str) -> None:
    """As above: a resume under another mode is refused by name."""
    lib.options["thinking_mode"] = "budget:2048"
    lib.plant(asks("a"))
    lib.options["thinking_mode"] = mode
    with lib.untouched, pytest.raises(ConfigurationChanged, match="thinking") as refused:
        await lib.resume()
    assert refused.value.fields == ("thinking_mode",)


@pytest.mark.parametrize("recorded", [0, 1], ids=["in flight", "answered"])
async def test_b36_blocks_of_tools_on_the_providers_side_are_kept(lib: Library, recorded: int) -> None:
    """Blocks of tools that run on the provider's side were dropped or rebuilt, and the history was refused.

    vellum-ai/vellum-assistant#15911, UKGovernmentBEIS/inspect_ai#4191, can1357/oh-my-pi#6496.
    """
    lib.speaks(MessagesApi(), message_answer(SERVED), MESSAGE_DONE)
    await lib.run()
    live = lib.bodies
    lib.crash_after(2)
    pending = lib.state.pending
    assert pending is not None
    assert [each.id for each in pending.unanswered] == [each.id for each in pending.ambiguous] == ["a"]
    await lib.resume()
    lib.crash_after(2 + recorded)
    await lib.resume()
    assert lib.effects.names == ["a"] * (3 - recorded)
    assert lib.bodies[1:] == [live[1]] * 3
    assert turns_sent(live[1]) == [b'{"role":"assistant","content":' + SERVED + b"}"]
    lib.load_twice()


BLANK = {
    "nothing": b"[]",
    "empty text": b'[{"type":"text","text":""}]',
    "line breaks": b'[{"type":"text","text":"\\n\\n"}]',
    "two of them": b'[{"type":"text","text":" "},{"type":"text","text":"\\u200b"}]',
}
BLANK_CHAT = {
    "null": b'{"role":"assistant","content":null}',
    "empty text": b'{"role":"assistant","content":""}',
    "no content": b'{"role":"assistant"}',
    "no calls": b'{"role":"assistant","content":" ","tool_calls":[]}',
}
ANSWERS = {
    **{f"anthropic, {name}": (MessagesApi(), message_answer(raw, "end_turn")) for name, raw in BLANK.items()},
    **{f"openai, {name}": (ChatApi(official=True), chat_answer(raw, "stop")) for name, raw in BLANK_CHAT.items()},
}


@pytest.mark.parametrize(("api", "blank"), ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("resumed", [False, True], ids=["live", "after a resume"])
async def test_b37_a_blank_turn_is_kept_and_left_out_of_requests(
    lib: Library, api: Api, blank: bytes, resumed: bool
) -> None:
    """A turn without content was stored; from then on every request was refused.

    openclaw/openclaw#11986, block/buzz#559, anomalyco/opencode#31259, anthropics/claude-code#60837,
    anthropics/claude-code#575, dimagi/open-chat-studio#4106, anomalyco/opencode#7493.
    """
    lib.speaks(api, blank, MESSAGE_DONE if api.name == "anthropic" else CHAT_DONE)
    chat: Any = {"checkpoint": True, "name": RUN, "interactive": True}
    if resumed:
        await lib.agent().run("go", **chat, input_source=Typed())
        assert lib.state.counters.out_tokens == 5, "the turn was paid for"
        await lib.agent().resume(RUN, input_source=Typed("and?"))
    else:
        await lib.agent().run("go", **chat, input_source=Typed("and?"))

    _first, second = lib.bodies  # both are what the API takes
    said = [message for message in json.loads(second)["messages"] if message["role"] == "user"]
    assert len(said) == 1, "what was typed before and after the blank turn is one message"
    assert '"go"' in json.dumps(said)
    assert '"and?"' in json.dumps(said)
    state = lib.load_twice()
    assert state.last_turn is not None
    assert state.last_turn.text == "All is well."
    assert (state.counters.model_calls, state.counters.out_tokens) == (2, 10)
    kept = [line["assistant"]["message"] for line in lines_parse(lib.path.read_bytes()) if "assistant" in line]
    assert len(kept) == 2


@pytest.mark.parametrize("line", ["", "   ", "\t", "\u200b", "\u2028", "\ufeff \u3000"])
async def test_b37_a_blank_follow_up_is_neither_recorded_nor_sent(lib: Library, line: str) -> None:
    """As above, for a line of spaces that was sent by mistake."""
    lib.plays(says("First."), says("Second."))
    chat: Any = {"checkpoint": True, "name": RUN, "interactive": True}
    await lib.agent().run("go", **chat, input_source=Typed(line, line))
    assert len(lib.requests) == 1
    with lib.untouched:
        await lib.agent().resume(RUN, input_source=Typed(line))
    await lib.agent().resume(RUN, input_source=Typed(line, "and?", line, EndOfChat()))
    assert len(lib.requests) == 2
    recorded = [record["user"]["message"] for record in lines_parse(lib.path.read_bytes()) if "user" in record]
    assert [each["content"][0]["text"] for each in recorded] == ["and?"]
    assert lib.load_twice().terminal == ends("completed")


def test_b37_blank_lines_on_standard_input_are_passed_over(shell: Shell) -> None:
    """As above, with the command as a user starts it."""
    shell.plays(says("First."), says("Second."))
    typed = "\n   \n\u200b\nand?\n \n".encode()
    done = shell.cli("run", "go", "--chat", "--checkpoint", "--name", RUN, stdin=typed)
    assert (done.code, done.text) == (0, "First.\nSecond.\n"), done.err
    assert sum("user" in line for line in lines_parse(shell.path().read_bytes())) == 1


@pytest.mark.parametrize("prompt", ["", "   ", "\n", "\u200b"])
async def test_b37_an_empty_first_prompt_is_refused_before_there_is_a_run(
    shell: Shell, lib: Library, prompt: str
) -> None:
    """As above, for the first prompt."""
    with pytest.raises(ConfigError, match="the prompt is empty"):
        await lib.agent().run(prompt, checkpoint=True, name=RUN)
    assert not lib.path.parent.exists()


@pytest.mark.parametrize("prompt", ["", "   ", "\n", "\u200b"])
def test_b37_an_empty_prompt_on_the_command_line_is_wrong_usage(shell: Shell, prompt: str) -> None:
    """As above, for the command: exit code 2, and nothing is created."""
    done = shell.fast("run", prompt, "--checkpoint", "--name", RUN)
    assert done.code == 2
    assert done.out == b""
    assert "prompt" in done.err.lower()
    assert not shell.state.exists()


@pytest.mark.parametrize("interactive", [False, True], ids=["run", "chat"])
def test_b37_a_prompt_together_with_resume_is_wrong_usage(shell: Shell, interactive: bool) -> None:
    """As above: the prompt would become a line of a run that takes none, so the journal is left alone."""
    shell.plant(asks("a"), gives("a"), interactive=interactive)
    with shell.untouched:
        done = shell.fast("run", "--resume", RUN, "and another thing")
    assert (done.code, done.out) == (2, b"")
    assert "a resume takes no prompt" in done.last_line


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8192).decode()
SMALL = base64.b64encode(b"\x89PNG\r\n\x1a\n0000").decode()
BAD_IMAGES: dict[str, tuple[str, str]] = {
    "a length that can't be": (PNG[:-3], "image/png"),
    "a wrong media type": (PNG, "image/jpeg"),
    "an unknown media type": (PNG, "image/tiff"),
    "no image": (base64.b64encode(b"just text").decode(), "image/png"),
    "nothing": ("", "image/png"),
    "line breaks": (SMALL[:8] + "\n" + SMALL[8:], "image/png"),
    "another alphabet": (SMALL.replace("+", "-").replace("/", "_") + "-_==", "image/png"),
    "too large": (base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(5 << 20)).decode(), "image/png"),
    "half a character": ("\ud83d", "image/png"),
}


def image(data: str, media_type: str = "image/png") -> ImageBlock:
    return ImageBlock(ImageSource("base64", media_type, data))


def showing(*content: ImageBlock | TextBlock) -> FunctionTool[Any, Any]:
    def a() -> object:
        """Show what it has."""
        return list(content)

    return FunctionTool(a)


async def test_b38_an_image_is_the_same_after_a_resume(lib: Library) -> None:
    """Image data was damaged on reload.

    earendil-works/pi#9590, charmbracelet/crush#2597, anomalyco/opencode#4781.
    """
    assert len(PNG) > 2 << 20
    lib.tools = [showing(image(PNG), TextBlock("a chart")), *effect_tools(lib.effects, "b")]
    lib.plays(asks("a"), asks("b"), DONE)
    await lib.run()
    live = lib.bodies
    for lines in (3, 4, 5):
        lib.crash_after(lines)
        await lib.resume()
    assert lib.bodies[3:] == [live[1], live[2], live[2], live[2]]
    for body in live[1:]:
        (result,) = json.loads(body)["messages"][2]["content"]
        assert result["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
        assert result["content"][1] == {"type": "text", "text": "a chart"}
    lib.load_twice()


@pytest.mark.parametrize(("data", "media_type"), BAD_IMAGES.values(), ids=BAD_IMAGES)
async def test_b38_a_bad_image_becomes_a_note_before_it_is_recorded(lib: Library, data: str, media_type: str) -> None:
    """As above: a bad image was stored, and poisoned the session; what came with it is kept."""
    lib.tools = [showing(image(data, media_type), image(SMALL), TextBlock("a chart"))]
    lib.plays(asks("a"), DONE)
    assert (await lib.run()).reason == "completed"
    live = lib.bodies[-1]  # what the API takes
    (record,) = [
        each.record for each in lib.store_of_files.read(RUN).records if isinstance(each.record, ToolResultRecord)
    ]
    note, good, text = read_result(bytes(record.result)).blocks
    assert isinstance(note, TextBlock)
    assert note.text.startswith("[an image was left out: ")
    assert (good, text) == (image(SMALL), TextBlock("a chart"))
    lib.crash_after(3)
    await lib.resume()
    assert lib.bodies[-1] == live
    lib.load_twice()
