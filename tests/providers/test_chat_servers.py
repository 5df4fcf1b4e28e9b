"""What servers that speak Chat Completions say each in its own way; the streams are shortened, their quirks are not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from fisk_ai.errors import CONTEXT_OVERFLOW, InvalidReply, ProviderRefused
from fisk_ai.formats import reader_for
from fisk_ai.formats.openai import read_turn
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Delta, Provider, Reply
from fisk_ai.providers.openai import Accumulator, ChatApi, read_reply
from fisk_ai.providers.wire import StreamNotVerbatim
from tests.providers.conftest import ask
from tests.providers.strict_server import KEY, Fault, StrictServer, Turn


def hear(stream: str) -> tuple[Reply, list[Delta]]:
    """Read a stream as the HTTP adapter does."""
    response = httpx2.Response(
        200,
        headers={"content-type": "text/event-stream"},
        content=stream.encode(),
        request=httpx2.Request("POST", "http://127.0.0.1"),
    )
    turn, shown = Accumulator(), []
    for event in httpx2.EventSource(response):
        shown += [delta] if (delta := turn.feed(event.event, event.data)) else []
        if turn.done:
            break
    return turn.reply(), shown


def calls_of(reply: Reply) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, json.loads(call.arguments)) for call in reader_for("openai")(reply.message).calls]


def test_openai_numbers_its_calls_and_says_its_usage_last() -> None:
    reply, shown = hear(
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","service_tier":"default","choices":[{"index":0,'
        '"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,'
        '"obfuscation":"aX"}\n\n'
        'data: {"choices":[{"index":0,"delta":{"content":"Both."},"finish_reason":null}],"usage":null}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_a","type":"function",'
        '"function":{"name":"lookup","arguments":""}}]},"finish_reason":null}],"usage":null}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"n\\""}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_b","type":"function",'
        '"function":{"name":"lookup","arguments":""}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":null}\n\n'
        'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,'
        '"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
        "data: [DONE]\n\n"
    )
    assert calls_of(reply) == [("call_a", "lookup", {"n": 1}), ("call_b", "lookup", {})]
    assert (reply.stop_reason, reply.in_tokens, reply.cache_read_tokens, reply.out_tokens) == ("tool_use", 1, 8, 4)
    assert shown == [Delta("text", "Both.")]


def test_openai_refuses_in_a_field_of_its_own() -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null,"refusal":""}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"refusal":"I can"}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"refusal":"\'t."}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        "data: [DONE]\n\n"
    )
    assert reply.stop_reason == "refusal"
    assert read_turn(reply.message).text == "I can't."


def test_call_that_is_cut_off_at_the_output_limit_is_told_apart() -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"call_a",'
        '"type":"function","function":{"name":"lookup","arguments":"{\\"stream\\":\\"OR"}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
        "data: [DONE]\n\n"
    )
    assert (reply.stop_reason, reply.unusable) == ("max_tokens", (0,))
    assert calls_of(reply) == [("call_a", "lookup", {})]


def test_vllm_repeats_usage_in_each_chunk_and_says_stop_after_calls() -> None:
    usage = '"usage":{"prompt_tokens":20,"total_tokens":%d,"completion_tokens":%d}'
    reply, shown = hear(
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],'
        + usage % (20, 0)
        + "}\n\n"
        'data: {"choices":[{"index":0,"delta":{"reasoning_content":"h","reasoning":"h"}}],' + usage % (21, 1) + "}\n\n"
        'data: {"choices":[{"index":0,"delta":{"reasoning_content":"m","reasoning":"m"}}],' + usage % (22, 2) + "}\n\n"
        'data: {"choices":[{"index":0,"delta":{"content":null,"tool_calls":[]}}],' + usage % (23, 3) + "}\n\n"
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"chatcmpl-tool-0a","type":"function","index":0,'
        '"function":{"name":"lookup"}}]}}],' + usage % (24, 4) + "}\n\n"
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"n\\": 1}"}}]}}],'
        + usage
        % (25, 5)
        + "}\n\n"
        'data: {"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null}],' + usage % (26, 6) + "}\n\n"
        "data: [DONE]\n\n"
    )
    assert calls_of(reply) == [("chatcmpl-tool-0a", "lookup", {"n": 1})]
    assert (reply.stop_reason, reply.in_tokens, reply.out_tokens) == ("tool_use", 20, 6)
    assert json.loads(reply.message)["reasoning_content"] == json.loads(reply.message)["reasoning"] == "hm"
    assert [delta.text for delta in shown] == ["h", "m"]


def test_vllm_says_tool_calls_when_its_parser_found_none() -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"<tool_call>{"}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[]},"finish_reason":"tool_calls"}]}\n\n'
        "data: [DONE]\n\n"
    )
    assert reply.stop_reason == "end_turn"
    assert json.loads(reply.message) == {"role": "assistant", "content": "<tool_call>{"}


def test_vllm_reports_an_error_in_the_place_of_a_chunk() -> None:
    with pytest.raises(ProviderRefused, match="engine is dead"):
        hear(
            'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"x"}}]}\n\n'
            'data: {"object":"error","message":"engine is dead","type":"InternalServerError","code":500}\n\n'
            "data: [DONE]\n\n"
        )


@pytest.mark.parametrize(("code", "retryable"), [(400, False), (404, False), (429, True), (500, True)])
def test_codes_of_vllm_are_statuses(code: int, retryable: bool) -> None:
    with pytest.raises(ProviderRefused, match="no") as caught:
        hear(f'data: {{"error":{{"message":"no","type":"SomeError","param":null,"code":{code}}}}}\n\n')
    assert caught.value.retryable is retryable


def test_ollama_sends_whole_calls_all_with_the_same_index_and_says_stop() -> None:
    reply, shown = hear(
        'data: {"id":"chatcmpl-7","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"hm"},'
        '"finish_reason":null}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call_1x","index":0,'
        '"type":"function","function":{"name":"lookup","arguments":"{\\"n\\":1}"}}]},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call_2y","index":0,'
        '"type":"function","function":{"name":"lookup","arguments":"{\\"n\\":2}"}}]},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}\n\n'
        'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}}\n\n'
        "data: [DONE]\n\n"
    )
    assert calls_of(reply) == [("call_1x", "lookup", {"n": 1}), ("call_2y", "lookup", {"n": 2})]
    assert (reply.stop_reason, reply.in_tokens, reply.out_tokens) == ("tool_use", 5, 6)
    assert shown == [Delta("thinking", "hm")]


def test_ollama_once_sent_calls_without_index_and_lm_studio_without_ids() -> None:
    for first, second in (('"id":"call_1x",', '"id":"call_2y",'), ("", ""), ('"id":"",', '"id":"",')):
        reply, _ = hear(
            f'data: {{"choices":[{{"index":0,"delta":{{"role":"assistant","tool_calls":[{{{first}"type":"function",'
            '"function":{"name":"lookup","arguments":"{\\"n\\":1}"}}]}}]}\n\n'
            f'data: {{"choices":[{{"index":0,"delta":{{"tool_calls":[{{{second}"type":"function",'
            '"function":{"name":"lookup","arguments":"{\\"n\\":2}"}}]},"finish_reason":"tool_calls"}]}\n\n'
            "data: [DONE]\n\n"
        )
        assert [call[2] for call in calls_of(reply)] == [{"n": 1}, {"n": 2}]
        assert len({call[0] for call in calls_of(reply)}) == 2


def test_pieces_without_index_continue_the_last_call() -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":""}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":"{\\"n\\""}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a","function":{"arguments":":"}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"f","arguments":"1}"}}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"b","function":{"name":"f","arguments":"{}"}}]},'
        '"finish_reason":"tool_calls"}]}\n\n'
    )
    assert calls_of(reply) == [("a", "f", {"n": 1}), ("b", "f", {})]


def test_bridges_number_calls_from_one_and_leave_gaps() -> None:
    piece = 'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":%d,"id":"%s","function":{"name":"f","arguments":"%s"}}]}}]}\n\n'  # noqa: E501
    end = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    reply, _ = hear(piece % (1, "a", "{}") + piece % (3, "b", "{}") + end)
    assert calls_of(reply) == [("a", "f", {}), ("b", "f", {})]


def test_arguments_that_arrive_as_an_object_become_text() -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f",'
        '"arguments":{"n":1}}}]},"finish_reason":"tool_calls"}]}\n\n'
    )
    assert json.loads(reply.message)["tool_calls"][0]["function"]["arguments"] == '{"n":1}'
    assert reply.unusable == ()


@pytest.mark.parametrize("arguments", ["", " "])
def test_lm_studio_leaves_the_arguments_of_a_tool_without_parameters_empty(arguments: str) -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"365174485",'
        '"type":"function","function":{"name":"now","arguments":"' + arguments + '"}}]},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
        "data: [DONE]\n\n"
    )
    assert calls_of(reply) == [("365174485", "now", {})]
    assert reply.unusable == ()


def test_lm_studio_names_its_error_events_and_its_errors_may_be_bare_text() -> None:
    for said in ('{"error":"model crashed"}', '{"error":{"message":"model crashed"}}'):
        with pytest.raises(ProviderRefused, match="model crashed") as caught:
            hear(f"event: error\ndata: {said}\n\n")
        assert caught.value.retryable


def test_llama_cpp_keeps_the_line_alive_and_adds_its_timings() -> None:
    reply, shown = hear(
        'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}\n\n'
        ":\n\n"
        ": keep-alive\n\n"
        "data:\n\n"
        "event: ping\n\n"
        "retry: 1000\n\n"
        'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}]}\r\n\r\n'
        'data: {"choices":null}\n\n'
        'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"timings":{"prompt_n":7}}\n\n'
        'data: {"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":7,"total_tokens":9},"timings":{}}\n\n'
        "data: [DONE]\n\n"
    )
    assert json.loads(reply.message) == {"role": "assistant", "content": "Hi"}
    assert (reply.stop_reason, reply.in_tokens, reply.out_tokens) == ("end_turn", 7, 2)
    assert shown == [Delta("text", "Hi")]


def test_llama_cpp_sends_a_whole_call_without_an_id() -> None:
    reply, _ = hear(
        'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null,"tool_calls":['
        '{"index":0,"id":"","type":"function","function":{"name":"lookup","arguments":"{\\"n\\":1}"}},'
        '{"index":1,"id":"","type":"function","function":{"name":"lookup","arguments":"{\\"n\\":1}"}}]}}]}\n\n'
        'data: {"choices":[{"finish_reason":"tool_calls","index":0,"delta":{}}]}\n\n'
        "data: [DONE]\n\n"
    )
    assert calls_of(reply) == [("call_0", "lookup", {"n": 1}), ("call_1", "lookup", {"n": 1})]


def test_llama_cpp_reports_an_overflow_in_its_stream() -> None:
    with pytest.raises(ProviderRefused) as caught:
        hear(
            'data: {"error":{"code":400,"message":"the request exceeds the available context size",'
            '"type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}\n\n'
        )
    assert (caught.value.kind, caught.value.retryable) == (CONTEXT_OVERFLOW, False)


def test_field_of_its_own_for_an_error_leaves_no_turn() -> None:
    with pytest.raises(InvalidReply, match="ended early"):
        hear('data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\nerror: {"code":500,"message":"no"}\n\n')


def test_usage_that_nobody_tells_counts_as_nothing() -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    assert (reply.in_tokens, reply.out_tokens) == (0, 0)


def test_thinking_in_a_list_of_parts_is_kept_whole_and_never_put_together() -> None:
    part = '{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}'
    message = f'{{"role":"assistant","content":[{part},{{"type":"text","text":"Hi"}}]}}'
    reply = read_reply(f'{{"choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}]}}'.encode())
    assert reply.message == message.encode()
    assert read_turn(reply.message).text == "Hi"
    with pytest.raises(StreamNotVerbatim):
        hear(2 * f'data: {{"choices":[{{"index":0,"delta":{{"content":[{part}]}}}}]}}\n\n')


def test_list_that_comes_in_one_piece_is_kept() -> None:
    reply, _ = hear(
        'data: {"choices":[{"index":0,"delta":{"content":"x","annotations":[{"type":"url_citation","url":"u"}]}}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    )
    assert json.loads(reply.message)["annotations"] == [{"type": "url_citation", "url": "u"}]


@asynccontextmanager
async def reach(server: StrictServer) -> AsyncIterator[Provider]:
    provider = open_provider("openai", base_url=f"{server.url}/v1", environ={"OPENAI_API_KEY": KEY})
    try:
        yield provider
    finally:
        await provider.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, '{"error":{"message":"property \'stream_options\' is unsupported, did you mean \'stream\'?"}}'),
        (422, '{"detail":[{"type":"extra_forbidden","loc":["body","stream_options","include_usage"],"msg":"no"}]}'),
        (400, "Unrecognized request argument supplied: stream_options"),
    ],
)
async def test_old_server_is_asked_without_stream_options_and_from_then_on(
    status: int, body: str, deltas: list[Delta]
) -> None:
    refused = Fault(status=status, body=body)
    with StrictServer([Turn(text="Hi")], faults={1: refused}) as server:
        async with reach(server) as provider:
            first = await provider.complete(ask(), deltas.append)
            await provider.complete(ask(), deltas.append)
        assert ["stream_options" in request.json for request in server.requests] == [True, False, False]
    assert (first.stop_reason, first.in_tokens) == ("end_turn", 0)


@pytest.mark.anyio
async def test_part_that_is_refused_again_is_refused_for_good(deltas: list[Delta]) -> None:
    refused = Fault(status=400, body='{"error":{"message":"no stream_options here"}}')
    with StrictServer([], faults={1: refused, 2: refused}) as server:
        async with reach(server) as provider:
            with pytest.raises(ProviderRefused, match="no stream_options here"):
                await provider.complete(ask(), deltas.append)
        assert len(server.requests) == 2


def test_output_limit_is_renamed_for_models_that_want_the_newer_word() -> None:
    api = ChatApi(official=False)
    said = b"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    assert api.concessions.make(400, said)
    body = json.loads(api.build_request(ask(), stream=False))
    assert body["max_completion_tokens"] == 1000
    assert "max_tokens" not in body


@pytest.mark.anyio
async def test_errors_in_plain_text_are_told(deltas: list[Delta]) -> None:
    lost = Fault(status=500, body="upstream connect error", content_type="text/plain")
    with StrictServer([], faults={1: lost}) as server:
        async with reach(server) as provider:
            with pytest.raises(ProviderRefused, match="HTTP 500: upstream connect error") as caught:
                await provider.complete(ask(), deltas.append)
    assert caught.value.retryable
