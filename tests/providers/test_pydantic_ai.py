"""Turns through pydantic-ai's model layer: what is journaled, what is sent, what errors become. No network."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from fisk_ai.errors import (
    CONTEXT_OVERFLOW,
    ConfigError,
    InvalidReply,
    ProviderRefused,
    ProviderUnreachable,
    UnsupportedFormat,
)
from fisk_ai.formats import reader_for
from fisk_ai.jsontext import check_strict
from fisk_ai.messages import ImageBlock, ImageSource, Message, TextBlock, encode_result, tool_result
from fisk_ai.providers import open_provider
from fisk_ai.providers.base import Delta, ModelOptions, Reply
from fisk_ai.providers.credentials import CREDENTIAL_NAMES
from tests.providers.conftest import LOOKUP, ask, results, user

pytest.importorskip("pydantic_ai", reason='needs the extra: pip install "fisk-ai[pydantic-ai]"')

import pydantic_ai
from pydantic_ai import exceptions as raised
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as SentRequest
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel as PlainModel
from pydantic_ai.usage import RequestUsage

from fisk_ai.providers.pydantic_ai.conversation import dump, load
from fisk_ai.providers.pydantic_ai.failures import as_provider_error
from fisk_ai.providers.pydantic_ai.provider import PydanticAIProvider, infer
from tests.providers.pydantic_ai_models import Streaming, all_parts, response, saying, scripted

pytestmark = pytest.mark.anyio

PIXEL = base64.b64encode(b"\x89PNG\x00").decode()
IMAGE = ImageBlock(ImageSource("base64", "image/png", PIXEL))


async def complete(
    model: FunctionModel | PlainModel, *messages: Message, stream: bool = False, deltas: list[Delta] | None = None
) -> Reply:
    provider = PydanticAIProvider(model, stream=stream)
    try:
        return await provider.complete(ask(*messages), (deltas if deltas is not None else []).append)
    finally:
        await provider.aclose()


async def settled(*parts: ModelResponsePart) -> tuple[list[dict[str, Any]], Reply]:
    reply = await complete(saying(response(*parts)))
    check_strict(reply.message)
    return json.loads(reply.message)["parts"], reply


def said(reply: Reply) -> Message:
    return Message("assistant", reply.format, reply.message)


async def asked_with(*messages: Message, **changes: Any) -> tuple[list[ModelMessage], AgentInfo]:
    """Return what a model is asked when it is asked this."""
    seen: list[tuple[list[ModelMessage], AgentInfo]] = []
    model = scripted(lambda _: response(TextPart("x")), lambda sent, info: seen.append((sent, info)))
    options = changes.pop("options", ModelOptions())
    provider = PydanticAIProvider(model, options=options, stream=False)
    await provider.complete(replace(ask(*messages), **changes), lambda _: None)
    return seen[0]


async def test_a_turn_of_all_kinds_of_parts_is_written_the_same_when_it_is_read_back() -> None:
    reply = await complete(saying(response(*all_parts(), provider_response_id="r_1")))
    assert dump(load(reply.message)) == reply.message
    kinds = [part["part_kind"] for part in json.loads(reply.message)["parts"]]
    assert kinds == [part.part_kind for part in all_parts()]
    assert len(set(kinds)) == 7
    assert b"\n" not in reply.message
    turn = reader_for(reply.format)(reply.message)
    assert [(call.id, call.name, call.usable) for call in turn.calls] == [
        ("c1", "a", True),
        ("functions.b:1", "b", True),
        ("c3", "c", True),
    ]
    assert turn.calls[0].parsed() == {"n": 1000.0, "big": 10**30, "deep": [{"x": None}]}
    assert turn.calls[1].arguments == b'{"n": 1e3,  "m":1.10}'


async def test_what_is_sent_back_is_what_the_journaled_bytes_say() -> None:
    reply = await complete(saying(response(*all_parts())))
    answers = [tool_result(name, "ok") for name in ("c1", "functions.b:1", "c3")]
    sent, _ = await asked_with(user(), said(reply), results(*answers))
    assert isinstance(sent[1], ModelResponse)
    assert dump(sent[1]) == reply.message
    assert [type(part) for part in sent[1].parts] == [type(part) for part in all_parts()]
    signed = sent[1].parts[0]
    assert isinstance(signed, ThinkingPart)
    assert signed.signature == "sig=="


async def test_the_conversation_is_told_in_pydantic_ais_words() -> None:
    reply = await complete(saying(response(ToolCallPart("lookup", {}, "c1"), ToolCallPart("draw", {}, "c2"))))
    answers = results(tool_result("c1", "broken", is_error=True), encode_result("c2", [TextBlock("this"), IMAGE]))
    typed = Message("user", "neutral", b'{"role":"user","content":"bare"}')
    sent, info = await asked_with(user("go"), said(reply), answers, typed)
    assert info.instructions == "Be brief."
    first, _, answered, last = sent
    assert isinstance(first, SentRequest)
    assert isinstance(answered, SentRequest)
    assert isinstance(last, SentRequest)
    assert [part.content for part in first.parts if isinstance(part, UserPromptPart)] == ["go"]
    assert [part.content for part in last.parts if isinstance(part, UserPromptPart)] == ["bare"]
    failed, drawn = answered.parts
    assert isinstance(failed, ToolReturnPart)
    assert isinstance(drawn, ToolReturnPart)
    assert (failed.tool_name, failed.tool_call_id, failed.content, failed.outcome) == (
        "lookup",
        "c1",
        "broken",
        "failed",
    )
    assert (drawn.tool_name, drawn.tool_call_id, drawn.outcome) == ("draw", "c2", "success")
    assert drawn.files == [BinaryContent(b"\x89PNG\x00", media_type="image/png")]


async def test_images_that_were_typed_are_sent() -> None:
    block = json.dumps({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}})
    typed = '{"role":"user","content":[{"type":"text","text":"see"},' + block + "]}"
    sent, _ = await asked_with(Message("user", "neutral", typed.encode()))
    [prompt] = sent[0].parts
    assert isinstance(prompt, UserPromptPart)
    assert prompt.content == ["see", BinaryContent(b"\x89PNG\x00", media_type="image/png")]


async def test_tools_and_settings_are_passed_on_and_retries_are_off() -> None:
    options = ModelOptions(cache=False, service_tier="flex")
    _, info = await asked_with(max_output_tokens=77, thinking_mode="adaptive", options=options)
    [tool] = info.function_tools
    assert (tool.name, tool.description, tool.parameters_json_schema) == (
        LOOKUP.name,
        LOOKUP.description,
        LOOKUP.parameters,
    )
    settings = dict(info.model_settings or {})
    assert (settings["max_tokens"], settings["max_retries"], settings["service_tier"]) == (77, 0, "flex")


@pytest.mark.parametrize(("mode", "thinking"), [("off", False), ("adaptive", True)])
async def test_thinking_is_asked_for_or_off(mode: str, thinking: bool) -> None:
    class Thinker(FunctionModel):
        def prepare_request(self, model_settings: Any, model_request_parameters: Any) -> Any:
            seen.append(model_settings["thinking"])
            return super().prepare_request(model_settings, model_request_parameters)

    seen: list[bool] = []
    model = Thinker(lambda _messages, _info: response(TextPart("x")))
    provider = PydanticAIProvider(model, stream=False)
    await provider.complete(replace(ask(), thinking_mode=mode), lambda _: None)
    assert seen == [thinking]


async def test_a_budget_of_thinking_is_refused_before_anything_is_sent() -> None:
    provider = PydanticAIProvider(saying())
    with pytest.raises(ProviderRefused, match="no thinking budget"):
        await provider.complete(replace(ask(), thinking_mode="budget:2048"), lambda _: None)


async def test_a_setting_that_a_model_doesnt_take_is_left_out() -> None:
    class Plain(FunctionModel):
        unsupported_settings = frozenset({"max_retries", "timeout", "cache"})

    seen: list[Any] = []

    def answer(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info.model_settings)
        return response(TextPart("x"))

    await complete(Plain(answer))  # a warning would be an error
    assert seen[0].keys() & {"max_retries", "timeout", "cache"} == set()


async def test_usage_counts_each_token_once() -> None:
    _, reply = await settled(TextPart("x"))
    assert (reply.in_tokens, reply.cache_read_tokens, reply.cache_create_tokens, reply.out_tokens) == (53, 40, 7, 12)


async def test_usage_that_contradicts_itself_is_never_negative() -> None:
    reply = await complete(saying(response(TextPart("x"), usage=RequestUsage(input_tokens=1, cache_read_tokens=5))))
    assert (reply.in_tokens, reply.cache_read_tokens) == (0, 5)


@pytest.mark.parametrize(
    ("finish", "details", "state", "parts", "reason"),
    [
        ("stop", {}, "complete", [TextPart("x")], "end_turn"),
        ("stop", {}, "complete", [ToolCallPart("a", {}, "c")], "tool_use"),
        ("tool_call", {}, "complete", [TextPart("x")], "end_turn"),
        ("length", {}, "complete", [ToolCallPart("a", {}, "c")], "max_tokens"),
        ("length", {"finish_reason": "model_context_window_exceeded"}, "complete", [], "model_context_window_exceeded"),
        ("content_filter", {"finish_reason": "SAFETY"}, "complete", [], "content_filter"),
        ("content_filter", {"finish_reason": "refusal"}, "complete", [], "refusal"),
        ("content_filter", {"refusal": "I won't."}, "complete", [], "refusal"),
        ("stop", {"finish_reason": "stop_sequence"}, "complete", [TextPart("x")], "stop_sequence"),
        (None, {"finish_reason": "OF_TOMORROW"}, "complete", [TextPart("x")], "OF_TOMORROW"),
        ("stop", {"finish_reason": "pause_turn"}, "suspended", [TextPart("x")], "pause_turn"),
    ],
)
async def test_stop_reasons_are_told_in_the_words_of_the_messages_api(
    finish: Any, details: dict[str, Any], state: Any, parts: list[ModelResponsePart], reason: str
) -> None:
    given = replace(response(*parts, provider_details=details or None), finish_reason=finish, state=state)
    assert (await complete(saying(given))).stop_reason == reason


@pytest.mark.parametrize(
    ("details", "note"),
    [
        ({"finish_reason": "SAFETY"}, "SAFETY"),
        ({"refusal": "I can't\nhelp."}, "I can't help."),
        ({"block_reason": "OTHER", "block_reason_message": "Blocked."}, "Blocked."),
        ({}, None),
    ],
)
async def test_what_a_filter_says_is_told(details: dict[str, Any], note: str | None) -> None:
    reply = await complete(saying(response(finish="content_filter", provider_details=details)))
    assert reply.stop_note == note


async def test_a_turn_that_its_api_ended_in_an_error_is_asked_again() -> None:
    model = saying(response(finish="error", provider_details={"finish_reason": "MALFORMED_FUNCTION_CALL"}))
    with pytest.raises(InvalidReply, match="MALFORMED_FUNCTION_CALL") as caught:
        await complete(model)
    assert caught.value.retryable


async def test_without_a_finish_reason_it_is_no_turn() -> None:
    with pytest.raises(InvalidReply, match="without a finish reason"):
        await complete(saying(replace(response(TextPart("x")), finish_reason=None)))


@pytest.mark.parametrize("state", ["incomplete", "interrupted"])
async def test_a_turn_that_is_said_to_be_cut_is_no_turn(state: Any) -> None:
    with pytest.raises(InvalidReply, match="without a finish reason"):
        await complete(saying(replace(response(TextPart("x")), state=state)))


@pytest.mark.parametrize(
    "args", [{"n": float("nan")}, {"n": float("-inf")}, {"n": object()}, [1], "nope", "{", {"s": {1, 2}}]
)
async def test_arguments_that_json_hasnt_are_unusable(args: Any) -> None:
    parts, reply = await settled(ToolCallPart("a", {"ok": 1}, "c1"), ToolCallPart("b", args, "c2"))
    assert ([part["args"] for part in parts], reply.unusable) == ([{"ok": 1}, {}], (1,))


async def test_arguments_beyond_any_depth_are_unusable() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"d": deep}
    parts, reply = await settled(ToolCallPart("a", deep, "c1"))
    assert (parts[0]["args"], reply.unusable) == ({}, (0,))


async def test_a_turn_with_surrogates_is_made_valid() -> None:
    parts, _ = await settled(TextPart("a\ud800b"), ToolCallPart("look\udfffup", {"k": "\ud83d\ude00"}, "c1"))
    assert (parts[0]["content"], parts[1]["tool_name"], parts[1]["args"]) == (
        "a\ufffdb",
        "look_up",
        {"k": "\U0001f600"},
    )


@pytest.mark.parametrize(
    "odd",
    [TextPart("x", provider_name="p", provider_details={"o": object()}), ThinkingPart(None)],  # type: ignore[arg-type]
)
async def test_what_pydantic_ai_cant_store_is_no_turn(odd: ModelResponsePart) -> None:
    with pytest.raises(InvalidReply, match="can't store it"):
        await complete(saying(response(odd, TextPart("x"))))


async def test_a_block_that_pydantic_ai_took_for_text_doesnt_poison_the_history() -> None:
    parts, _ = await settled(TextPart(None), TextPart("x"))  # type: ignore[arg-type]
    assert [part["content"] for part in parts] == ["x"]


async def test_pieces_are_shown_as_they_come_and_the_whole_is_journaled(deltas: list[Delta]) -> None:
    pieces: list[Any] = [
        {0: DeltaThinkingPart(content="Hm")},
        {0: DeltaThinkingPart(content=", so.", signature="sig")},
        "Loo",
        "king.",
        {1: DeltaToolCall("lookup", '{"stream":', tool_call_id="c1")},
        {1: DeltaToolCall(None, '"ORDERS"}')},
    ]
    reply = await complete(Streaming(pieces, finish_reason="STOP"), stream=True, deltas=deltas)
    assert deltas == [
        Delta("thinking", "Hm"),
        Delta("thinking", ", so."),
        Delta("text", "Loo"),
        Delta("text", "king."),
    ]
    turn = reader_for(reply.format)(reply.message)
    assert (turn.text, [call.parsed() for call in turn.calls]) == ("Looking.", [{"stream": "ORDERS"}])
    assert json.loads(reply.message)["parts"][0]["signature"] == "sig"
    assert (reply.stop_reason, dump(load(reply.message))) == ("tool_use", reply.message)


async def test_without_a_stream_the_whole_is_shown(deltas: list[Delta]) -> None:
    await complete(saying(response(ThinkingPart("Hm"), TextPart("Fine."))), deltas=deltas)
    assert deltas == [Delta("thinking", "Hm"), Delta("text", "Fine.")]


async def test_a_stream_without_an_end_is_no_turn() -> None:
    with pytest.raises(InvalidReply, match="ended early") as caught:
        await complete(Streaming(["Hel"], finish=None), stream=True)
    assert caught.value.retryable


async def test_an_error_of_the_caller_is_the_callers() -> None:
    def fail(_delta: Delta) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await PydanticAIProvider(Streaming(["x"])).complete(ask(), fail)


async def test_the_plain_test_model_of_pydantic_ai_names_no_reason_so_it_gives_no_turn() -> None:
    with pytest.raises(InvalidReply, match="without a finish reason"):
        await complete(PlainModel(call_tools=[]))


async def test_a_provider_answers_only_for_the_model_it_was_opened_for() -> None:
    provider = PydanticAIProvider(saying(response(TextPart("x"))), name="google:a", stream=False)
    with pytest.raises(ProviderRefused, match="opened for google:a, not for some-model"):
        await provider.complete(ask(), lambda _: None)


async def test_other_formats_are_refused() -> None:
    other = Message("assistant", "openai", b'{"role":"assistant","content":"x"}')
    with pytest.raises(UnsupportedFormat, match="'openai'"):
        await complete(saying(), user(), other, user())


async def test_a_turn_of_another_version_of_pydantic_ai_is_named() -> None:
    other = Message("assistant", "pydantic-ai", b'{"parts":[{"part_kind":"of-tomorrow"}],"kind":"response"}')
    with pytest.raises(UnsupportedFormat, match="use the version that the run was started with"):
        await complete(saying(), user(), other, user())


async def test_cancellation_ends_a_call_at_once() -> None:
    ended: list[str] = []

    async def wait(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("ended")
        raise AssertionError

    with anyio.move_on_after(0.05) as scope:
        await complete(FunctionModel(wait))
    assert (scope.cancelled_caught, ended) == (True, ["ended"])


def http_error(status: int, body: object = None, **more: Any) -> raised.ModelHTTPError:
    category = more.pop("category", None)
    return raised.ModelHTTPError.for_category(category, status_code=status, model_name="m", body=body, **more)


GOOGLE_LIMIT = http_error(
    429,
    {"error": {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED"}},
    category=raised.ModelRateLimitError,
    provider_error_code="RESOURCE_EXHAUSTED",
    retry_after=37.5,
)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (
            GOOGLE_LIMIT,
            {"status": 429, "kind": "RESOURCE_EXHAUSTED", "retryable": True, "rate_limited": True, "after": 37.5},
        ),
        (
            http_error(429, {"error": {"message": "Pay."}}, category=raised.ModelQuotaExceededError),
            {"status": 429, "kind": "insufficient_quota", "retryable": False, "rate_limited": False},
        ),
        (
            http_error(400, {"error": {"message": "x"}}, category=raised.ModelContextWindowExceededError),
            {"status": 400, "kind": CONTEXT_OVERFLOW, "retryable": False},
        ),
        (http_error(503, "try later"), {"status": 503, "retryable": True, "paid": False}),
        (http_error(500, None), {"status": 500, "retryable": True, "paid": True}),
        (http_error(529, None, in_stream=True), {"status": 529, "retryable": True, "paid": True}),
        (http_error(500, None, headers={"x-should-retry": "false"}), {"status": 500, "retryable": False}),
        (
            http_error(401, {"message": "no"}, provider_error_type="authentication_error"),
            {"kind": "authentication_error"},
        ),
        (http_error(400, {"message": "x"}, provider_error_code="3051", provider_error_type="bad"), {"kind": "bad"}),
        (
            raised.ModelRateLimitError("m", "slow", retry_after=3, in_stream=True),
            {"retryable": True, "rate_limited": True, "after": 3, "paid": True},
        ),
        (raised.ModelOverloadedError("m", "busy"), {"retryable": True, "rate_limited": False}),
        (raised.ModelContextWindowExceededError("m", "long"), {"kind": CONTEXT_OVERFLOW, "retryable": False}),
        (raised.ModelQuotaExceededError("m", "pay"), {"retryable": False}),
        (raised.ContentFilterError("blocked"), {"kind": "content_filter", "retryable": False}),
        (raised.UserError("no such thing"), {"kind": "UserError", "retryable": False}),
    ],
)
def test_refusals_say_whether_a_retry_may_help(problem: Exception, expected: dict[str, Any]) -> None:
    error = as_provider_error(problem, "google:m")
    assert isinstance(error, ProviderRefused)
    assert "google:m" in str(error)
    facts = {
        "status": error.status,
        "kind": error.kind,
        "retryable": error.retryable,
        "rate_limited": error.rate_limited,
        "after": error.retry_after_s,
        "paid": error.may_be_paid,
    }
    assert facts | expected == facts


@pytest.mark.parametrize(
    ("problem", "sent"),
    [
        (raised.ModelConnectionError("m", "refused", phase="connect"), False),
        (raised.ModelConnectionError("m", "", phase="read"), True),
        (raised.ModelTimeoutError("m", "slow"), True),
        (httpx2.ConnectError("refused"), False),
        (ConnectionResetError(104, "reset"), True),
    ],
)
def test_a_lost_connection_is_worth_a_retry(problem: Exception, sent: bool) -> None:
    error = as_provider_error(problem, "google:m")
    assert isinstance(error, ProviderUnreachable)
    assert (error.retryable, error.sent) == (True, sent)


@pytest.mark.parametrize(
    "problem",
    [raised.ModelAPIError("m", "not JSON"), raised.UnexpectedModelBehavior("odd\nbody", "body"), KeyError("body")],
)
def test_an_answer_that_is_none_is_worth_a_retry(problem: Exception) -> None:
    error = as_provider_error(problem, "google:m")
    assert isinstance(error, InvalidReply)
    assert error.retryable
    assert "body" not in str(error)


def test_all_models_of_a_fallback_failed_as_the_last_one_did() -> None:
    group = raised.FallbackExceptionGroup("all failed", [RuntimeError("x"), http_error(429, None)])
    error = as_provider_error(group, "m")
    assert isinstance(error, ProviderRefused)
    assert error.status == 429


def test_request_ids_and_better_names_are_told() -> None:
    error = as_provider_error(
        http_error(404, None, headers={"x-request-id": "req_7"}, suggested_model_id="google:gemini-3-pro"),
        "google:gemni",
    )
    assert str(error).endswith(". Did you mean google:gemini-3-pro? (request-id req_7)")


def test_a_validation_error_of_an_sdk_quotes_nothing() -> None:
    with pytest.raises(ValueError, match="private words") as caught:
        ModelMessagesTypeAdapter.validate_python(["private words"])
    error = as_provider_error(caught.value, "m")
    assert isinstance(error, InvalidReply)
    assert "private" not in str(error)


async def test_keys_are_in_no_error() -> None:
    def fail(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        raise http_error(
            401,
            {"error": {"message": "bad key s3cret-key-1", "type": "s3cret-key-1"}},
            provider_error_type="s3cret-key-1",
        )

    provider = PydanticAIProvider(FunctionModel(fail), stream=False, secrets=["s3cret", "s3cret-key-1"])
    with pytest.raises(ProviderRefused) as caught:
        await provider.complete(ask(), lambda _: None)
    assert "bad key [key]" in str(caught.value)
    assert "s3cret" not in f"{caught.value}{caught.value.kind}{caught.value.__cause__}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody:model", "pydantic-ai can't use nobody:model: Unknown model"),
        ("groq:llama", 'pip install "pydantic-ai-slim\\[groq\\]"'),
    ],
)
def test_unknown_models_and_missing_parts_are_configuration_errors(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_provider("pydantic-ai", model=name)


def test_the_keys_of_all_providers_of_pydantic_ai_are_kept_from_tools() -> None:
    package = Path(pydantic_ai.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in package.glob("providers/*.py"))
    keys = set(re.findall(r"""getenv\(['"](\w+_(?:KEY|TOKEN))['"]""", source))
    assert len(keys) > 25
    of_no_language_model = {"ELEVENLABS_API_KEY", "VOYAGE_API_KEY"}
    assert keys - CREDENTIAL_NAMES == of_no_language_model


def test_a_missing_key_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai", reason="needs an SDK that pydantic-ai uses: pip install openai")
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="DEEPSEEK_API_KEY"):
        infer("deepseek:deepseek-chat")
