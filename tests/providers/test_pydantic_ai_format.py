"""pydantic-ai's own JSON as a format, read and settled without pydantic-ai being there."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from fisk_ai.errors import ConfigError, InvalidReply
from fisk_ai.formats import READERS, reader_for
from fisk_ai.jsontext import check_strict
from fisk_ai.messages import TurnContent
from fisk_ai.providers.base import ModelOptions
from fisk_ai.providers.pydantic_ai import open_pydantic_ai, secrets_of
from fisk_ai.providers.pydantic_ai.settle import settle_response


def text(content: Any, **more: Any) -> dict[str, Any]:
    empty = {"id": None, "provider_name": None, "provider_details": None, "citations": None}
    return {"content": content, **empty, "part_kind": "text", **more}


def thinking(content: str, **more: Any) -> dict[str, Any]:
    return {"content": content, "signature": None, "provider_details": None, "part_kind": "thinking", **more}


def call(name: Any = "lookup", args: Any = None, call_id: Any = "c1") -> dict[str, Any]:
    return {"tool_name": name, "args": args, "tool_call_id": call_id, "part_kind": "tool-call"}


SEARCHED = {"tool_name": "web_search", "args": {"q": 1}, "tool_call_id": "n", "part_kind": "builtin-tool-call"}
PICTURE = {"content": {"data": "AP8=", "media_type": "image/png", "kind": "binary"}, "part_kind": "file"}


def read(*parts: dict[str, Any]) -> TurnContent:
    return reader_for("pydantic-ai")(json.dumps({"parts": parts, "kind": "response"}).encode())


def settled(*parts: dict[str, Any]) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    message, unusable = settle_response({"parts": list(parts), "kind": "response", "usage": {"details": {}}})
    check_strict(message)
    whole = json.loads(message)
    assert (whole["kind"], whole["usage"]) == ("response", {"details": {}})
    parts_: list[dict[str, Any]] = whole["parts"]
    return parts_, unusable


def test_the_format_has_a_reader() -> None:
    assert "pydantic-ai" in READERS


def test_calls_are_read_in_order_with_their_arguments_as_spelled() -> None:
    turn = read(
        text("Looking."), call("a", '{"n": 1e3}', "x"), SEARCHED, call("b", {"n": 1.5}, "y"), call("c", None, "z")
    )
    assert [(c.position, c.id, c.name, c.arguments, c.usable) for c in turn.calls] == [
        (0, "x", "a", b'{"n": 1e3}', True),
        (1, "y", "b", b'{"n": 1.5}', True),
        (2, "z", "c", b"{}", True),
    ]


@pytest.mark.parametrize("args", ["[1]", "{", '{"a": NaN}', "not JSON", [1], 3])
def test_arguments_that_are_no_object_are_unusable(args: Any) -> None:
    assert [c.usable for c in read(call(args=args)).calls] == [False]


@pytest.mark.parametrize("args", ["", " \n", None, {}, "{}"])
def test_a_call_without_arguments_has_an_empty_object(args: Any) -> None:
    [made] = read(call(args=args)).calls
    assert (made.usable, made.parsed()) == (True, {})


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([text("Hel"), text("lo.")], "Hello."),
        ([text("First."), SEARCHED, text("Second.")], "First.\n\nSecond."),
        ([thinking("hm"), text(" "), PICTURE, text("Seen.")], "Seen."),
        ([call()], ""),
    ],
)
def test_neighbouring_texts_are_one_and_others_are_paragraphs(parts: list[dict[str, Any]], said: str) -> None:
    assert read(*parts).text == said


@pytest.mark.parametrize(
    ("parts", "empty"),
    [
        ([], True),
        ([text(""), text(" \u200b")], True),
        ([thinking("only this")], True),
        ([thinking("", signature="sealed")], False),
        ([text("", provider_details={"thought_signature": "sealed"})], False),
        ([text("x")], False),
        ([call()], False),
        ([PICTURE], False),
        ([{"part_kind": "of-tomorrow", "content": [1]}], False),
    ],
)
def test_a_turn_is_empty_if_nothing_of_it_makes_a_message(parts: list[dict[str, Any]], empty: bool) -> None:
    assert read(*parts).empty is empty


@pytest.mark.parametrize("message", [b"{}", b'{"parts":{}}', b'{"parts":[{"content":"x"}]}', b'{"parts":[1]}'])
def test_other_shapes_are_a_decode_error(message: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        reader_for("pydantic-ai")(message)


def test_a_good_turn_is_settled_to_itself() -> None:
    parts = [thinking("hm", signature="s"), text("Fine \u00e9\u2028"), SEARCHED, call(args='{"a": 1e3}'), PICTURE]
    assert settled(*parts) == (parts, ())


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        (["", None], ["call_0", "call_1"]),
        (["a", "a", "call_1"], ["a", "call_1_1", "call_1"]),
        (["functions.lookup:0", "nul\0", "\u00e9"], ["functions.lookup:0", "call_1", "call_2"]),
        (["x" * 257], ["call_0"]),
    ],
)
def test_ids_that_are_missing_doubled_or_unprintable_are_replaced(ids: list[Any], kept: list[str]) -> None:
    parts, _ = settled(*(call(call_id=given) for given in ids))
    assert [part["tool_call_id"] for part in parts] == kept


def test_unusable_arguments_become_an_empty_object_and_are_named() -> None:
    parts, unusable = settled(
        call(args={"a": 1}), call(args="nope", call_id="c2"), text("x"), call(args=[1], call_id="c3")
    )
    assert ([part["args"] for part in parts if "args" in part], unusable) == ([{"a": 1}, {}, {}], (1, 2))


def test_arguments_that_are_nested_too_deeply_are_unusable() -> None:
    deep: dict[str, Any] = {}
    for _ in range(195):
        deep = {"d": deep}
    assert settled(call(args=deep))[1] == (0,)


def test_blank_text_goes_beside_other_parts_unless_it_carries_something() -> None:
    signed = text("", provider_details={"thought_signature": "s"})
    assert settled(text(" \n"), call(), signed)[0] == [call(), signed]
    assert settled(text(" "))[0] == [text(" ")]


def test_a_block_that_pydantic_ai_took_for_text_goes() -> None:
    assert settled(text(None), text("x"))[0] == [text("x")]
    assert settled(text(None))[0] == []


def test_text_is_made_valid_everywhere() -> None:
    parts, _ = settled(text("a\ud800b", provider_details={"\udfff": ["\ud83d\ude00"]}))
    assert (parts[0]["content"], parts[0]["provider_details"]) == ("a\ufffdb", {"\ufffd": ["\U0001f600"]})


@pytest.mark.parametrize("name", ["", None])
def test_a_call_without_a_name_is_no_turn(name: Any) -> None:
    with pytest.raises(InvalidReply, match="without naming it"):
        settled(call(name=name))


def test_a_tool_that_nobody_offered_keeps_a_name_that_can_be_sent() -> None:
    assert settled(call(name="default_api.look up"))[0][0]["tool_name"] == "default_api_look_up"


WITHOUT = """
import sys
sys.modules["pydantic_ai"] = None
from fisk_ai.errors import ConfigError
from fisk_ai.providers import open_provider
try:
    open_provider("pydantic-ai", model="google:gemini-3-pro")
except ConfigError as problem:
    print(problem)
"""


def test_without_the_extra_it_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout == (
        'provider pydantic-ai needs an extra that isn\'t installed: pip install "fisk-ai[pydantic-ai]"\n'
    )


def test_options_that_cant_be_passed_on_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        open_pydantic_ai(model="google:m", options=ModelOptions(service_tier="standard_only"), environ={})
    first, second = caught.value.problems
    assert "reads the environment of the process itself" in first
    assert "service_tier 'standard_only'" in second


def test_whatever_is_a_key_by_its_name_is_never_shown() -> None:
    environ = {
        "GOOGLE_API_KEY": "12345678",
        "MY_TOKEN": "abcdefgh",
        "AWS_ACCESS_KEY_ID": "AKIA5678",
        "HOME": "/home/me",
    }
    assert secrets_of(environ | {"EMPTY_KEY": "", "SHORT_KEY": "abc"}) == {"12345678", "abcdefgh", "AKIA5678"}


def test_neither_the_package_nor_the_reader_loads_pydantic_ai() -> None:
    program = (
        "import sys, fisk_ai, fisk_ai.formats, fisk_ai.providers.pydantic_ai.settle\n"
        "print(fisk_ai.Agent, fisk_ai.formats.reader_for('pydantic-ai'), 'pydantic_ai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" False\n")
