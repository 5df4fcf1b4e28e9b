from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fisk_ai.errors import InvalidReply
from fisk_ai.providers.settle import decode_answer, settle_anthropic, settle_openai, settle_responses, unique_ids

HEAD = b'{"role":"assistant","content":'


def use(arguments: bytes, call_id: bytes = b'"toolu_1"') -> bytes:
    return b'{"type":"tool_use","id":' + call_id + b',"name":"lookup","input":' + arguments + b"}"


def chat_call(arguments: bytes, call_id: bytes = b'"c1"') -> bytes:
    return b'{"id":' + call_id + b',"type":"function","function":{"name":"lookup","arguments":' + arguments + b"}}"


def chat(*calls: bytes) -> bytes:
    return b'{"role":"assistant","content":null,"tool_calls":[' + b", ".join(calls) + b"]}"


def test_valid_turn_keeps_every_byte() -> None:
    content = (
        b'[ {"type":"thinking","thinking":"\\u00e9\\/","signature":"s=="} ,{"type":"redacted_thinking","data":"d"},'
        b'{"type":"server_tool_use","id":"srv","name":"web_search","input":{"q":1e3}},'
        b'{"type":"from_the_future","n":1.10,"big":123456789012345678901234567890},'
        b'{"type":"tool_use","id":"toolu_1","name":"lookup","input":{ "a" : 1e3 , "a" : 2 },"caller":{"x":1}}]'
    )
    settled = settle_anthropic(content)
    assert settled.message == HEAD + content + b"}"
    assert settled.unusable == ()
    assert [call.id for call in settled.turn.calls] == ["toolu_1"]


@pytest.mark.parametrize("blank", [b'""', b'" \\n"', b'"\\u200b"'])
def test_blank_text_beside_other_blocks_goes_and_a_turn_of_nothing_else_stays(blank: bytes) -> None:
    text = b'{"type":"text","text":' + blank + b"}"
    assert settle_anthropic(b"[" + text + b"," + use(b"{}") + b"]").message == HEAD + b"[" + use(b"{}") + b"]}"
    assert settle_anthropic(b"[" + text + b"]").message == HEAD + b"[" + text + b"]}"


@pytest.mark.parametrize("arguments", [b'""', b"[]", b"null", b"3", b'"not json"', b"true", b"1e999"])
def test_arguments_that_are_no_object_become_an_empty_one(arguments: bytes) -> None:
    content = b'[{"type":"text","text":"x"}, ' + use(b'{"a": 1}', b'"a"') + b", " + use(arguments, b'"b"') + b"]"
    settled = settle_anthropic(content)
    assert settled.message == HEAD + content.replace(b'"input":' + arguments, b'"input":{}') + b"}"
    assert settled.unusable == (1,)


def test_missing_arguments_are_unusable() -> None:
    settled = settle_anthropic(b'[{"type":"tool_use","id":"a","name":"lookup"}]')
    assert settled.message == HEAD + b'[{"type":"tool_use","id":"a","name":"lookup","input":{}}]}'
    assert settled.unusable == (0,)


@pytest.mark.parametrize("depth", [191, 250, 900, 5000])
def test_arguments_nested_too_deeply_are_unusable_and_the_rest_is_kept(depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    body = b'{"content":[{"type":"text","text":"[{"},' + use(deep) + b"]}"
    content = decode_answer(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, body)["content"]
    settled = settle_anthropic(bytes(content))
    assert settled.unusable == (0,)
    assert settled.message == HEAD + b'[{"type":"text","text":"[{"},' + use(b"{}") + b"]}"


@pytest.mark.parametrize("depth", [200, 300, 5000])
def test_nesting_elsewhere_makes_the_turn_invalid_rather_than_different(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    body = b'{"content":[{"type":"web_search_tool_result","content":' + deep + b"}]}"
    content = decode_answer(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, body)["content"]
    with pytest.raises(InvalidReply, match="nested"):
        settle_anthropic(bytes(content))


def test_numbers_out_of_range_outside_of_arguments_make_the_turn_invalid() -> None:
    with pytest.raises(InvalidReply) as caught:
        settle_anthropic(b'[{"type":"x","n":1e999}]')
    assert caught.value.retryable


def test_missing_and_doubled_ids_become_unique_within_the_turn() -> None:
    content = b"[" + b",".join(use(b"{}", given) for given in (b'"x"', b'"x"', b'""', b"null", b'"call_1"')) + b"]"
    settled = settle_anthropic(content)
    assert [call.id for call in settled.turn.calls] == ["x", "call_1_1", "call_2", "call_3", "call_1"]
    assert settle_anthropic(content) == settled


@given(st.lists(st.sampled_from(["", "x", "call_0", "call_1", "call_1_1", "call_2"]), max_size=8))
def test_ids_are_unique_and_the_first_of_each_is_kept(ids: list[str]) -> None:
    settled = unique_ids(ids)
    assert len(set(settled)) == len(ids)
    assert "" not in settled
    firsts = {given: ids.index(given) for given in ids if given}
    assert all(settled[index] == given for given, index in firsts.items())


def test_text_that_json_cant_carry_is_replaced_and_pairs_are_kept() -> None:
    content = b'[{"type":"text","text":"\\ud83d x \\ud83d\\ude00 \xff"}]'
    body = b'{"content":' + content + b"}"
    raw = decode_answer(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, body)["content"]
    assert settle_anthropic(bytes(raw)).message == (
        HEAD + b'[{"type":"text","text":"\\ufffd x \\ud83d\\ude00 \xef\xbf\xbd"}]}'
    )


def test_line_breaks_between_tokens_go_and_those_in_text_stay() -> None:
    settled = settle_anthropic(b'[\n  {"type": "text",\r\n "text": "a\\nb", "n": 1.0}\n]')
    assert settled.message == HEAD + b'[{"type":"text","text":"a\\nb","n":1.0}]}'


@pytest.mark.parametrize(
    "content", [b"null", b'"text"', b"[1]", b'[{"text":"no type"}]', b'[{"type":"text","text":3}]', b"{}"]
)
def test_what_is_no_list_of_blocks_is_no_turn(content: bytes) -> None:
    with pytest.raises(InvalidReply) as caught:
        settle_anthropic(content)
    assert caught.value.retryable


def test_call_without_a_name_is_no_turn() -> None:
    with pytest.raises(InvalidReply, match="without naming"):
        settle_anthropic(b'[{"type":"tool_use","id":"a","name":"","input":{}}]')


def test_server_tool_with_broken_input_is_repaired_but_is_nobodys_call() -> None:
    settled = settle_anthropic(b'[{"type":"server_tool_use","id":"s","name":"web","input":"{\\"q"}]')
    assert settled.message == HEAD + b'[{"type":"server_tool_use","id":"s","name":"web","input":{}}]}'
    assert settled.unusable == ()


def test_valid_chat_message_keeps_every_byte() -> None:
    message = (
        b'{ "content" : "", "reasoning_content":"hm\\u2028", "tool_calls":[{"index":0,"function":{"arguments":'
        b'"{\\"a\\": 1e3}","name":"lookup"},"id":"c1","type":"function","extra":{"x":1.10}}],"role":"assistant"}'
    )
    settled = settle_openai(message)
    assert settled.message == message
    assert settled.turn.calls[0].arguments == b'{"a": 1e3}'


@pytest.mark.parametrize(
    "arguments",
    [
        b'"[]"',
        b'"3"',
        b'"nope"',
        b"null",
        b"3",
        b"[]",
        b'"{\\"a\\":"',
        b'"{\\"a\\": NaN}"',
        b'"{\\"a\\":\\"\\\\ud800\\"}"',
    ],
)
def test_chat_arguments_that_are_no_object_become_an_empty_one(arguments: bytes) -> None:
    settled = settle_openai(chat(chat_call(b'"{}"', b'"a"'), chat_call(arguments, b'"b"')))
    assert settled.message == chat(chat_call(b'"{}"', b'"a"'), chat_call(b'"{}"', b'"b"'))
    assert settled.unusable == (1,)


def test_chat_arguments_sent_as_an_object_become_text() -> None:
    settled = settle_openai(chat(chat_call(b'{"a": 1e3}')))
    assert settled.message == chat(chat_call(b'"{\\"a\\": 1e3}"'))
    assert settled.unusable == ()


def test_chat_ids_become_unique_and_a_missing_role_is_added() -> None:
    settled = settle_openai(b'{"content":"x","tool_calls":[' + chat_call(b'"{}"') + b"," + chat_call(b'"{}"') + b"]}")
    assert [call.id for call in settled.turn.calls] == ["c1", "call_1"]
    assert msgspec.json.decode(settled.message)["role"] == "assistant"


def test_kinds_of_chat_calls_that_nobody_asked_for_become_calls_that_are_answered_with_an_error() -> None:
    settled = settle_openai(chat(b'{"id":"c1","type":"custom","custom":{"name":"x","input":"y"}}'))
    assert settled.message == chat(b'{"id":"c1","type":"function","function":{"name":"custom","arguments":"{}"}}')
    assert settled.unusable == (0,)


def test_an_empty_list_of_calls_goes() -> None:
    settled = settle_openai(b'{"role":"assistant","content":"Hi","tool_calls":[ ]}')
    assert settled.message == b'{"role":"assistant","content":"Hi"}'


@pytest.mark.parametrize(
    ("name", "kept"), [("functions.lookup", "functions_lookup"), ("n" * 200, "n" * 64), ("\u00e9 \u200b", "___")]
)
def test_names_that_no_api_takes_back_are_settled(name: str, kept: str) -> None:
    spelled = msgspec.json.encode(name)
    anthropic = settle_anthropic(b'[{"type":"tool_use","id":"a","name":' + spelled + b',"input":{}}]')
    openai = settle_openai(chat(b'{"id":"a","type":"function","function":{"name":' + spelled + b',"arguments":"{}"}}'))
    assert [anthropic.turn.calls[0].name, openai.turn.calls[0].name] == [kept, kept]
    assert (anthropic.unusable, openai.unusable) == ((), ())


@pytest.mark.parametrize("given", ["call:1", "a\0b", "\u00e9"])
def test_ids_that_no_api_takes_back_are_settled(given: str) -> None:
    settled = settle_anthropic(b"[" + use(b"{}", msgspec.json.encode(given)) + b"," + use(b"{}", b'"a_b"') + b"]")
    ids = [call.id for call in settled.turn.calls]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", each) for each in ids)


def item_call(arguments: bytes, call_id: bytes = b'"c1"', name: bytes = b'"lookup"') -> bytes:
    head = b'{"id":"fc_1","type":"function_call","status":"completed","call_id":'
    return head + call_id + b',"name":' + name + b',"arguments":' + arguments + b"}"


SEALED = b'{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"gAAA"}'
UNSEALED = b'{"id":"rs_2","type":"reasoning","summary":[],"encrypted_content":null}'
SAID = b'{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hi"}]}'  # noqa: E501
OUTPUT_HEAD = b'{"role":"assistant","output":'


def items(*given: bytes) -> bytes:
    return b"[ " + b" , ".join(given) + b" ]"


def test_valid_output_items_keep_every_byte() -> None:
    output = items(
        SEALED,
        b'{"type":"web_search_call","id":"ws_1","status":"completed","action":{"query":"\\u00e9","n":1.10}}',
        SAID,
        b'{"type":"from_the_future","n":1e3,"big":123456789012345678901234567890}',
        item_call(b'"{ \\"a\\" : 1e3 }"'),
    )
    settled = settle_responses(output, sealed_only=True)
    assert settled.message == OUTPUT_HEAD + output + b"}"
    assert settled.unusable == ()
    assert [(call.id, call.arguments) for call in settled.turn.calls] == [("c1", b'{ "a" : 1e3 }')]
    assert settled.turn.text == "Hi"


@pytest.mark.parametrize("arguments", [b'""', b'"[]"', b'"{"', b"null", b"3", b'"{\\"a\\": NaN}"'])
def test_arguments_of_items_that_are_no_object_become_an_empty_one(arguments: bytes) -> None:
    settled = settle_responses(items(item_call(b'"{}"', b'"a"'), item_call(arguments, b'"b"')), sealed_only=True)
    expected = items(item_call(b'"{}"', b'"a"'), item_call(b'"{}"', b'"b"'))
    assert settled.message == OUTPUT_HEAD + expected + b"}"
    assert settled.unusable == (1,)


def test_ids_of_item_calls_become_unique_and_names_sendable() -> None:
    given = items(item_call(b'"{}"'), SAID, item_call(b'"{}"'), item_call(b'"{}"', b'""', b'"functions.lookup"'))
    settled = settle_responses(given, sealed_only=True)
    assert [(call.id, call.name) for call in settled.turn.calls] == [
        ("c1", "lookup"),
        ("call_1", "lookup"),
        ("call_2", "functions_lookup"),
    ]
    assert settled.unusable == ()


@pytest.mark.parametrize("item", [b"1", b"[]", b'{"text":"no type"}', b'{"type":"message","content":3}'])
def test_what_is_no_output_item_is_no_turn(item: bytes) -> None:
    with pytest.raises(InvalidReply) as caught:
        settle_responses(items(SAID, item), sealed_only=True)
    assert caught.value.retryable


def test_item_call_without_a_name_is_no_turn() -> None:
    with pytest.raises(InvalidReply, match="without naming"):
        settle_responses(items(item_call(b'"{}"', name=b'""')), sealed_only=True)


def test_reasoning_that_nothing_follows_goes_unless_nothing_else_is_left() -> None:
    assert settle_responses(items(SEALED, SAID, SEALED), sealed_only=True).message == (
        OUTPUT_HEAD + b"[" + SEALED + b"," + SAID + b"]}"
    )
    alone = settle_responses(items(SEALED), sealed_only=True)
    assert alone.message == OUTPUT_HEAD + items(SEALED) + b"}"
    assert alone.turn.empty


def test_reasoning_that_is_not_encrypted_goes_only_where_it_cant_come_back() -> None:
    output = items(UNSEALED, SAID)
    assert settle_responses(output, sealed_only=True).message == OUTPUT_HEAD + b"[" + SAID + b"]}"
    assert settle_responses(output, sealed_only=False).message == OUTPUT_HEAD + output + b"}"


SHELL = b'{"type":"shell_call","id":"sh_1","call_id":"s1","action":{"commands":["ls"]},"status":"completed"}'
SHELL_OUTPUT = b'{"type":"shell_call_output","id":"sho_1","call_id":"s1","output":[]}'


def test_kinds_of_item_calls_that_nobody_offered_become_calls_that_are_answered_with_an_error() -> None:
    custom = b'{"type":"custom_tool_call","id":"ctc_1","call_id":"x","name":"patch","input":"y"}'
    settled = settle_responses(items(custom, SHELL), sealed_only=True)
    assert [(call.id, call.name) for call in settled.turn.calls] == [("x", "patch"), ("s1", "shell_call")]
    assert settled.unusable == (0, 1)


def test_calls_that_the_provider_answered_itself_are_nobodys() -> None:
    answered = b'{"type":"function_call_output","call_id":"c1","output":"done"}'
    output = items(SHELL, SHELL_OUTPUT, item_call(b'"{}"'), answered, item_call(b'"{}"', b'"c2"'))
    settled = settle_responses(output, sealed_only=True)
    assert settled.message == OUTPUT_HEAD + output + b"}"
    assert [call.id for call in settled.turn.calls] == ["c2"]


def test_text_of_items_that_json_cant_carry_is_replaced() -> None:
    said = b'{"type":"message","content":[{"type":"output_text","text":"\\ud83d x"}]}'
    body = b'{"output":' + items(said) + b"}"
    output = decode_answer(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, body)["output"]
    assert settle_responses(bytes(output), sealed_only=True).turn.text == "\ufffd x"
